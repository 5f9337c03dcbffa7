"""vLLM's own tests of its OpenAI server, against this one: `python -m stagewise.serving.clients.vllm_tests`."""

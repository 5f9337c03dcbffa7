"""The command `sgpt` (shell-gpt): an answer, which always streams, and a conversation that it keeps."""

import json
import os
import subprocess
import sys
import urllib.request

FLAGS = ["--temperature", "0", "--top-p", "1", "--no-cache", "--no-md", "--no-functions", "--chat", "tale"]


def test_a_conversation(url, tmp_path):
    environment = {"HOME": str(tmp_path), "OPENAI_API_KEY": "none", "API_BASE_URL": f"{url}/v1"}
    environment |= {"DEFAULT_MODEL": "tinytales", "CHAT_CACHE_PATH": str(tmp_path / "chats"), "TMPDIR": str(tmp_path)}
    for asked in ("Tell me a tale.", "And another."):
        command = [sys.executable, "-c", "from sgpt import cli; cli()", *FLAGS, asked]
        done = subprocess.run(
            command, env=os.environ | environment, input="", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        *messages, answer = json.loads((tmp_path / "chats" / "tale").read_text(encoding="utf-8"))
        body = {"model": "tinytales", "temperature": 0, "messages": messages}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            expected = json.load(response)["choices"][0]["message"]["content"]
        assert (answer["role"], answer["content"]) == ("assistant", expected)
        assert expected.strip() in done.stdout

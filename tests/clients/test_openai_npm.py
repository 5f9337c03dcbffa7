"""OpenAI's package for JavaScript: models, a completion, a chat, streams, errors as its exceptions."""

import json
import shutil
import subprocess

import pytest

from tools.environments import ENVIRONMENTS

PACKAGE = "openai@7.57.0"
SCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const fields = { model: "tinytales", temperature: 0, max_tokens: 12 };
const prompt = "Once upon a time", messages = [{ role: "user", content: "Tell me a tale." }];
const said = { models: (await client.models.list()).data.map((one) => one.id), stream: "", chatStream: "" };
said.text = (await client.completions.create({ ...fields, prompt })).choices[0].text;
for await (const chunk of await client.completions.create({ ...fields, prompt, stream: true })) {
  said.stream += chunk.choices[0].text;
}
said.chat = (await client.chat.completions.create({ ...fields, messages })).choices[0].message.content;
const stream = client.chat.completions.stream({ ...fields, messages, stream_options: { include_usage: true } });
for await (const chunk of stream) said.chatStream += chunk.choices[0]?.delta.content ?? "";
said.usage = (await stream.totalUsage()).completion_tokens;
try {
  await client.completions.create({ ...fields, prompt, temperature: -1 });
} catch (error) {
  said.error = [error instanceof OpenAI.BadRequestError, error.param];
}
console.log(JSON.stringify(said));
"""


@pytest.fixture(scope="module")
def folder():
    folder = ENVIRONMENTS / "openai-npm"
    if not (folder / "node_modules" / "openai").exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = shutil.which("npm")
        assert npm, "no npm; on Debian: apt-get install npm"
        subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", PACKAGE], cwd=folder, check=True)
    return folder


def test_what_it_does(url, texts, folder):
    (folder / "script.mjs").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(["node", "script.mjs", url], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said == {
        "models": ["tinytales"],
        "text": texts[0],
        "stream": texts[0],
        "chat": texts[1],
        "chatStream": texts[1],
        "usage": 12,
        "error": [True, "temperature"],
    }

"""OpenAI's package for JavaScript: models, a completion, a chat, streams, errors as its exceptions."""

from .npm import run

PACKAGES = ["openai@7.57.0"]
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


def test_what_it_does(url, texts):
    assert run("openai-npm", PACKAGES, SCRIPT, url) == {
        "models": ["tinytales"],
        "text": texts[0],
        "stream": texts[0],
        "chat": texts[1],
        "chatStream": texts[1],
        "usage": 12,
        "error": [True, "temperature"],
    }

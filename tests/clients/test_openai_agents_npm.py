"""openai-agents for JavaScript: a run, whole and streamed, with chats; its default, /v1/responses, is told where to
go."""

from .npm import run

PACKAGES = ["@openai/agents@0.20.0", "zod@4.6.7"]
SCRIPT = """
import { Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled } from "@openai/agents";
import OpenAI from "openai";
setTracingDisabled(true);  // it would send what is said to OpenAI
setDefaultOpenAIClient(new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 }));
const agent = new Agent({ name: "teller", model: "tinytales", modelSettings: { temperature: 0, maxTokens: 12 } });
const prompt = "Tell me a tale.", said = { stream: "" };
try {
  await run(agent, prompt);
} catch (error) {
  said.error = [error.status, error.message];
}
setOpenAIAPI("chat_completions");
said.chat = (await run(agent, prompt)).finalOutput;
for await (const piece of (await run(agent, prompt, { stream: true })).toTextStream()) said.stream += piece;
console.log(JSON.stringify(said));
"""


def test_what_it_does(url, texts):
    said = run("openai-agents-npm", PACKAGES, SCRIPT, url)
    status, message = said.pop("error")
    assert said == {"chat": texts[1], "stream": texts[1]}
    assert (status, "/v1/chat/completions" in message, "setOpenAIAPI" in message) == (404, True, True), message

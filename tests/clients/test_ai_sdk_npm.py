"""Vercel's AI SDK for JavaScript, `ai` with `@ai-sdk/openai`: a chat, a completion, streams of both, an object in a
form; its default, /v1/responses, is told where to go."""

from .npm import run

PACKAGES = ["ai@7.0.173", "@ai-sdk/openai@4.0.118", "zod@4.6.7"]
SCRIPT = """
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, streamText } from "ai";
import { z } from "zod";
const openai = createOpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none" });
const fields = { temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
const said = {};
for (const [kind, prompt] of [["chat", "Tell me a tale."], ["completion", "Once upon a time"]]) {
  const asked = { ...fields, model: openai[kind]("tinytales"), prompt };
  const { text, usage } = await generateText(asked);
  let stream = "";
  for await (const piece of streamText(asked).textStream) stream += piece;
  said[kind] = [text, stream, usage.outputTokens];
}
const schema = z.object({ kind: z.enum(["fox", "hen"]), brave: z.boolean() });
const prompt = "Which animal?", output = Output.object({ schema });
const animal = { model: openai.chat("tinytales"), prompt, output, temperature: 0, maxOutputTokens: 100 };
said.animal = Object.keys((await generateText(animal)).output);
try {
  await generateText({ ...fields, model: openai("tinytales"), prompt });
} catch (error) {
  said.error = [error.statusCode, error.message];
}
console.log(JSON.stringify(said));
"""


def test_what_it_does(url, texts):
    said = run("ai-sdk-npm", PACKAGES, SCRIPT, url)
    status, message = said.pop("error")
    text, *completion = said.pop("completion")  # it puts "user:" before the prompt
    assert completion == [text, 12]
    assert said == {"chat": [texts[1], texts[1], 12], "animal": ["kind", "brave"]}
    assert (status, "/v1/chat/completions" in message, "openai.chat(MODEL)" in message) == (404, True, True), message

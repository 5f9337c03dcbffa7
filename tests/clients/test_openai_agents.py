"""openai-agents: a run, whole and streamed, with chats; its default, /v1/responses, is told where to go."""

import asyncio

import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI, NotFoundError

set_tracing_disabled(True)  # it would send what is said to OpenAI


def agent_with(url, kind):
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    settings = ModelSettings(temperature=0, max_tokens=12)
    return Agent(name="teller", model=kind("tinytales", client), model_settings=settings)


def test_runs(url, texts):
    assert Runner.run_sync(agent_with(url, OpenAIChatCompletionsModel), "Tell me a tale.").final_output == texts[1]

    async def streamed():
        run = Runner.run_streamed(agent_with(url, OpenAIChatCompletionsModel), "Tell me a tale.")
        events = [event async for event in run.stream_events()]
        return run.final_output, len(events)

    text, num_events = asyncio.run(streamed())
    assert text == texts[1]
    assert num_events > 12


def test_the_default_is_told_where_to_go(url):
    with pytest.raises(NotFoundError, match=r"set_default_openai_api\('chat_completions'\)"):
        Runner.run_sync(agent_with(url, OpenAIResponsesModel), "Tell me a tale.")

"""pydantic-ai: a text, a stream, and an output of a type, which a tool's schema holds it to."""

import asyncio
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Animal(BaseModel):
    kind: Literal["fox", "hen"]
    brave: bool


def test_texts_and_types(url, texts):
    model = OpenAIChatModel("tinytales", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    agent = Agent(model, model_settings={"temperature": 0, "max_tokens": 12})
    assert agent.run_sync("Tell me a tale.").output == texts[1]

    async def streamed():
        async with agent.run_stream("Tell me a tale.") as run:
            return [text async for text in run.stream_text()][-1]

    assert asyncio.run(streamed()) == texts[1]
    typed = Agent(model, output_type=Animal, model_settings={"temperature": 0, "max_tokens": 100})
    assert isinstance(typed.run_sync("Which animal?").output, Animal)

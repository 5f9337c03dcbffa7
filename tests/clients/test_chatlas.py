"""chatlas: a chat, whole and streamed, and data in a form, with `ChatOpenAICompletions`; its default, /v1/responses,
is told where to go."""

from typing import Literal

import pytest
from chatlas import ChatOpenAI, ChatOpenAICompletions
from openai import NotFoundError
from pydantic import BaseModel


class Animal(BaseModel):
    kind: Literal["fox", "hen"]
    brave: bool


def chat(kind, url, max_tokens=12):
    made = kind(base_url=f"{url}/v1", api_key="none", model="tinytales", kwargs={"max_retries": 0})
    made.set_model_params(temperature=0, max_tokens=max_tokens)
    return made


def test_chats(url, texts):
    assert str(chat(ChatOpenAICompletions, url).chat("Tell me a tale.", echo="none")) == texts[1]
    assert "".join(chat(ChatOpenAICompletions, url).stream("Tell me a tale.", echo="none")) == texts[1]


def test_data_has_the_form(url):
    made = chat(ChatOpenAICompletions, url, max_tokens=100)
    assert isinstance(made.chat_structured("Which animal?", data_model=Animal), Animal)


def test_the_default_is_told_where_to_go(url):
    with pytest.raises(NotFoundError, match="/v1/chat/completions"):
        chat(ChatOpenAI, url).chat("Tell me a tale.", echo="none")

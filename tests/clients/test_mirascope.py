"""mirascope: a chat, whole and streamed, and an answer in a form; its `openai/`, /v1/responses, is told where to go.

`openai/NAME:completions` takes any name that it doesn't know for a model that reasons, and sends no temperature; the
provider for Ollama, an OpenAI-compatible server, sends it.
"""

from typing import Literal

import pytest
from mirascope import llm
from pydantic import BaseModel


class Animal(BaseModel):
    kind: Literal["fox", "hen"]
    brave: bool


def model(url, name, max_tokens=12):
    llm.register_provider(name.split("/")[0], base_url=f"{url}/v1", api_key="none")
    return llm.Model(name, temperature=0, max_tokens=max_tokens)


def test_chats(url, texts):
    assert model(url, "ollama/tinytales").call("Tell me a tale.").text() == texts[1]
    pieces = list(model(url, "ollama/tinytales").stream("Tell me a tale.").text_stream())
    assert "".join(pieces) == texts[1] + "\n"  # mirascope's


@pytest.mark.parametrize("name", ["ollama/tinytales", "openai/tinytales:completions"])
def test_an_answer_has_the_form(url, name):
    assert isinstance(model(url, name, 100).call("Which animal?", format=Animal).parse(), Animal)


def test_the_default_is_told_where_to_go(url):
    with pytest.raises(llm.NotFoundError, match="/v1/chat/completions"):
        model(url, "openai/tinytales:responses").call("Tell me a tale.")

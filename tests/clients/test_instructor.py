"""instructor, which wants answers in a form: it gets one by a tool or by a JSON schema. In its plain JSON mode, the
schema is only in the prompt, which a model that has learned nothing but tales can't follow."""

from typing import Literal

import instructor
import openai
import pydantic
import pytest
from instructor.core import IncompleteOutputException

FIELDS = {"model": "tinytales", "temperature": 0, "seed": 0}


class Animal(pydantic.BaseModel):
    kind: Literal["fox", "bear", "mouse"]
    age: int = pydantic.Field(ge=0, le=30)


def ask(url, mode, **fields):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode)
    return client.chat.completions.create(**FIELDS, max_retries=0, **fields)


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA])
def test_an_answer_has_the_form(url, mode):
    messages = [{"role": "user", "content": "Name an animal."}]
    assert isinstance(ask(url, mode, messages=messages, response_model=Animal, max_tokens=60), Animal)


def test_json_without_a_schema_has_no_end(url):
    """The output is JSON, but the model does not know when to end it. instructor is told so."""
    messages = [{"role": "user", "content": "Name an animal."}]
    with pytest.raises(IncompleteOutputException):
        ask(url, instructor.Mode.JSON, messages=messages, response_model=Animal, max_tokens=60)


def test_an_answer_without_a_form(url, texts):
    messages = [{"role": "user", "content": "Tell me a tale."}]
    answer = ask(url, instructor.Mode.TOOLS, messages=messages, response_model=None, max_tokens=12)
    assert answer.choices[0].message.content == texts[1]

"""instructor, which wants answers in a form: the server refuses the form by name, and answers without one."""

import instructor
import openai
import pydantic
import pytest


class Animal(pydantic.BaseModel):
    name: str


@pytest.mark.parametrize(
    ("mode", "param"),
    [
        (instructor.Mode.TOOLS, "tool_choice"),
        (instructor.Mode.JSON, "response_format"),
        (instructor.Mode.JSON_SCHEMA, "response_format"),
    ],
)
def test_a_form_is_refused_by_name(url, mode, param):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode)
    messages = [{"role": "user", "content": "Name an animal."}]
    with pytest.raises(Exception, match=rf"{param} .* is not supported"):
        client.chat.completions.create(
            model="tinytales", messages=messages, response_model=Animal, max_tokens=12, max_retries=0
        )


def test_an_answer_without_a_form(url, texts):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
    messages = [{"role": "user", "content": "Tell me a tale."}]
    fields = {"model": "tinytales", "temperature": 0, "max_tokens": 12}
    answer = client.chat.completions.create(messages=messages, response_model=None, **fields)
    assert answer.choices[0].message.content == texts[1]

"""langchain-openai: both of its models, a stream, a batch, a chain, and answers with a form."""

from typing import Literal

import pydantic
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI


class Animal(pydantic.BaseModel):
    """An animal of a tale."""

    kind: Literal["fox", "bear", "mouse"]
    age: int = pydantic.Field(ge=0, le=30)


def of(kind, url, **more):
    fields = {"model": "tinytales", "temperature": 0, "max_tokens": 12, "max_retries": 0, **more}
    return kind(base_url=f"{url}/v1", api_key="none", **fields)


def test_a_chat(url, texts):
    model = of(ChatOpenAI, url)
    chain = ChatPromptTemplate.from_messages([("user", "Tell me a {what}.")]) | model
    answer = chain.invoke({"what": "tale"})
    assert answer.content == texts[1]
    assert answer.usage_metadata["output_tokens"] == 12
    assert "".join(chunk.content for chunk in chain.stream({"what": "tale"})) == texts[1]
    assert [one.content for one in chain.batch([{"what": "tale"}] * 3)] == [texts[1]] * 3


def test_a_completion(url, texts):
    assert of(OpenAI, url).invoke("Once upon a time") == texts[0]


def test_an_answer_has_the_form(url):
    model = of(ChatOpenAI, url, max_tokens=60, seed=0).with_structured_output(Animal, method="json_schema")
    assert isinstance(model.invoke("Name an animal."), Animal)

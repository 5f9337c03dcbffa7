"""The `openai` package against the server: completions, streams, errors as its exceptions, and many streams at once."""

import asyncio
import urllib.request
from typing import Literal

import openai
import pydantic
import pytest

from tools.server import server

MODEL, PROMPT, KEY = "tinytales", "Once upon a time", "a-key"


@pytest.fixture(scope="module")
def url():
    with server("--stage", 6, "--model", MODEL, "--api-key", KEY, "--max-num-seqs", 16) as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


def complete(client, **parameters):
    return client.completions.create(**{"model": MODEL, "prompt": PROMPT, "temperature": 0, **parameters})


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_completion(client):
    answer = complete(client, max_tokens=12)
    (choice,) = answer.choices
    assert choice.text.startswith(",")
    assert choice.finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 12, 16)
    assert complete(client, max_tokens=12, prompt=[7454, 2402, 257, 640]).choices[0].text == choice.text


@pytest.mark.parametrize("parameters", [{}, {"temperature": 0.9, "seed": 3, "n": 3}, {"stop": [" girl", "."]}], ids=str)
def test_a_stream_equals_the_whole(client, parameters):
    whole = complete(client, max_tokens=40, **parameters)
    texts, reasons, usage = {}, {}, None
    options = {"include_usage": True}
    for chunk in complete(client, max_tokens=40, stream=True, stream_options=options, **parameters):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
        usage = chunk.usage or usage
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, whole.usage.completion_tokens)


def test_several_prompts(client):
    prompts = [PROMPT, "There was once a shy bear"]
    answer = complete(client, prompt=prompts, max_tokens=9)
    assert [choice.text for choice in answer.choices] == [
        complete(client, prompt=prompt, max_tokens=9).choices[0].text for prompt in prompts
    ]


def test_logprobs(client):
    logprobs = complete(client, max_tokens=5, logprobs=2, echo=True).choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 9
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens[:4]) == PROMPT
    assert all(2 <= len(best) <= 3 for best in logprobs.top_logprobs[1:])


def test_errors_are_its_exceptions(client, url):
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        complete(client, model="gpt-9")
    with pytest.raises(openai.BadRequestError, match="1024"):
        complete(client, prompt=[1] * 5000)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        complete(client, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="prompt_embeds"):
        complete(client, extra_body={"prompt_embeds": "AAAA"})
    with pytest.raises(openai.BadRequestError, match=r"structured_outputs\.regex.*unclosed group"):
        complete(client, extra_body={"structured_outputs": {"regex": "(a"}})
    with pytest.raises(openai.BadRequestError, match="chat template"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="another", max_retries=0).models.list()


def test_vllms_fields(client):
    expected = complete(client, max_tokens=20)
    answer = complete(client, max_tokens=20, temperature=0.7, extra_body={"top_k": 1, "ignore_eos": True})
    assert answer.choices[0].text == expected.choices[0].text


# --- Answers with a form --------------------------------------------------------------------------------------------


class Animal(pydantic.BaseModel):
    kind: Literal["fox", "bear", "mouse"]
    age: int = pydantic.Field(ge=0, le=30)


class Friends(pydantic.BaseModel):
    """Who is whose friend."""

    who: Animal
    others: list[Animal] = pydantic.Field(max_length=2)


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    """A client of a server with a chat template."""
    template = tmp_path_factory.mktemp("chat") / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:")
    with server("--stage", 6, "--model", MODEL, "--chat-template", template) as (url, _):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "Who are friends?"}], "max_tokens": 200}


def test_parse(chatting):
    """An answer in the form of a pydantic model is parsed into one, also at a stream's end."""
    for seed in range(3):
        message = chatting.chat.completions.parse(**ASKED, seed=seed, response_format=Friends).choices[0].message
        assert isinstance(message.parsed, Friends)
        with chatting.chat.completions.stream(**ASKED, seed=seed, response_format=Friends) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == message.parsed


def metric(url, name):
    with urllib.request.urlopen(f"{url}/metrics") as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def test_many_streams_at_once_and_a_third_are_cancelled(client, url):
    """Streams that go on get what they would get alone; of the others nothing is left."""
    count, params = 64, dict(model=MODEL, prompt=PROMPT, temperature=0.8, max_tokens=60)
    expected = [complete(client, temperature=0.8, max_tokens=60, seed=i).choices[0].text for i in range(count)]

    async def stream(other, seed):
        text = ""
        async for chunk in await other.completions.create(**params, seed=seed, stream=True):
            text += chunk.choices[0].text
        return text

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as other:
            tasks = [asyncio.create_task(stream(other, seed)) for seed in range(count)]
            await asyncio.sleep(0.3)
            for task in tasks[::3]:
                task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    texts = asyncio.run(all_of_them())
    for i, text in enumerate(texts):
        assert text == expected[i] or (i % 3 == 0 and isinstance(text, asyncio.CancelledError)), i
    assert any(isinstance(text, asyncio.CancelledError) for text in texts)
    for _ in range(100):
        left = [metric(url, f"vllm:{name}") for name in ("num_requests_running", "num_requests_waiting")]
        if left == [0, 0]:
            break
        asyncio.run(asyncio.sleep(0.05))
    assert [*left, metric(url, "vllm:kv_cache_usage_perc")] == [0, 0, 0]

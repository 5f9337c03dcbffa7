"""litellm: completions, chats, streams, and its exceptions for a context that is full and a model that is not there."""

import litellm
import pytest

MESSAGES = [{"role": "user", "content": "Tell me a tale."}]


def ask(url, **fields):
    settings = {"model": "openai/tinytales", "api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}
    return litellm.completion(**{**settings, "messages": MESSAGES, "temperature": 0, "max_tokens": 12, **fields})


def test_a_chat_and_its_stream(url, texts):
    assert ask(url).choices[0].message.content == texts[1]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in ask(url, stream=True)) == texts[1]


def test_a_completion(url, texts):
    settings = {"model": "text-completion-openai/tinytales", "api_base": f"{url}/v1", "api_key": "none"}
    answer = litellm.text_completion(**settings, prompt="Once upon a time", temperature=0, max_tokens=12)
    assert answer.choices[0].text == texts[0]


def test_its_exceptions(url):
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(url, messages=[{"role": "user", "content": "word " * 3000}])
    with pytest.raises(litellm.NotFoundError):
        ask(url, model="openai/gpt-9")

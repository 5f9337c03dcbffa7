"""llama-index's OpenAILike: a completion, a chat, and streams of both."""

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


@pytest.mark.parametrize("is_chat_model", [False, True])
def test_answers_and_streams(url, texts, is_chat_model):
    settings = {"api_base": f"{url}/v1", "api_key": "none", "context_window": 1024, "max_retries": 0}
    llm = OpenAILike("tinytales", **settings, is_chat_model=is_chat_model, temperature=0, max_tokens=12)
    if not is_chat_model:
        assert llm.complete("Once upon a time").text == texts[0]
        assert list(llm.stream_complete("Once upon a time"))[-1].text == texts[0]
        return
    messages = [ChatMessage(role="user", content="Tell me a tale.")]
    assert llm.chat(messages).message.content == texts[1]
    assert list(llm.stream_chat(messages))[-1].message.content == texts[1]

"""any-llm: a chat, whole and streamed."""

from any_llm import completion


def test_chats(url, texts):
    asked = {"provider": "openai", "model": "tinytales", "api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
    asked |= {"messages": [{"role": "user", "content": "Tell me a tale."}], "max_tokens": 12}
    assert completion(**asked).choices[0].message.content == texts[1]
    chunks = [chunk.choices[0].delta.content or "" for chunk in completion(**asked, stream=True) if chunk.choices]
    assert "".join(chunks) == texts[1]
    assert len(chunks) >= 12

"""aisuite: a chat."""

import aisuite


def test_a_chat(url, texts):
    client = aisuite.Client({"openai": {"api_key": "none", "base_url": f"{url}/v1"}})
    messages = [{"role": "user", "content": "Tell me a tale."}]
    answer = client.chat.completions.create("openai:tinytales", messages, temperature=0, max_tokens=12)
    assert answer.choices[0].message.content == texts[1]

"""A server for each file of tests, as a user starts it, with a template for chats."""

import json
import urllib.request
from pathlib import Path

import pytest

from tools.server import server

CHAT_TEMPLATE = Path(__file__).with_name("chat.jinja")


@pytest.fixture(scope="module")
def url():
    with server("--stage", 6, "--model", "tinytales", "--chat-template", CHAT_TEMPLATE) as (url, _):
        yield url


@pytest.fixture(scope="module")
def texts(url):
    """What a greedy completion and a greedy chat of 12 tokens say, by plain HTTP."""

    def ask(path, **fields):
        body = json.dumps({"model": "tinytales", "temperature": 0, "max_tokens": 12, **fields}).encode()
        request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)["choices"][0]

    completion = ask("/v1/completions", prompt="Once upon a time")["text"]
    chat = ask("/v1/chat/completions", messages=[{"role": "user", "content": "Tell me a tale."}])["message"]["content"]
    return completion, chat

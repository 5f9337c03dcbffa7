"""Clients that ask for too much, send slowly, don't read or don't leave: no other client waits for them."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from stagewise.openai import answers
from stagewise.openai.limits import Limits
from stagewise.serving import events, reading, service
from stagewise.serving.app import App
from stagewise.serving.reading import MAX_DEPTH
from tests.adapter import ROOT, wait_until
from tests.test_serving import (
    JSON,
    Client,
    ask,
    ask_async,
    error_of,
    held_while,
    limited,
    listening,
    serving,
    slow_steps,
    until,
)

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server():
    """A real server, and its port."""
    with serving(6, "tinytales", max_queue_size=4096) as app, listening(app) as (_, port):
        yield app, port


@pytest.fixture(scope="module")
def tales(server):
    return server[0]


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=600)


def request(**fields):
    body = json.dumps({"model": "tales", "ignore_eos": True, **fields}).encode()
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_all(one):
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(65536):
            data += part
    return data


def post(port, **fields):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps({"model": "tales", **fields}), JSON)
    response = connection.getresponse()
    answer = response.read()
    return response.status, json.loads(answer) if answer.startswith(b"{") else answer


# --- Limits of a request --------------------------------------------------------------------------------------------

BEYOND = [
    ({"stop": ["x"] * 65}, "stop", "stop has 65 strings; the limit is 64"),
    ({"stop": "x" * 1025}, "stop", "stop has 1,025 characters in one; the limit is 1,024"),
    ({"stop": ["a", "x" * 1025]}, "stop", "stop has 1,025 characters in one; the limit is 1,024"),
    ({"stop_token_ids": list(range(1025))}, "stop_token_ids", "stop_token_ids has 1,025 token ids; the limit is 1,024"),
    ({"allowed_token_ids": [1] * 1025}, "allowed_token_ids", "allowed_token_ids has 1,025 token ids; the limit is"),
    ({"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias", "logit_bias has 1,025 token ids; the limit is 1,024"),
    ({"request_id": "x" * 201}, "request_id", "request_id has 201 characters; the limit is 200"),
    ({"n": 129}, "n", "n must be a whole number from 1 to 128"),
    ({"prompt": ["x"] * 65, "n": 2}, "n", "65 prompts and n 2 are more than 128 choices"),
    ({"prompt": "a " * 100_000}, "prompt", "prompt 0 has 200,000 characters, far more than fit"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "message"), BEYOND, ids=lambda value: str(value)[:30])
def test_a_request_beyond_a_limit(tales, fields, param, message):
    error = error_of(ask(tales, "/v1/completions", {"model": "tales", **fields}), 400)
    assert error["param"] == param
    assert message in error["message"]


def test_requests_at_the_limits(tales):
    fields = {"stop": ["x" * 1024] * 64, "stop_token_ids": list(range(1024)), "n": 128, "max_tokens": 0}
    fields |= {"logit_bias": dict.fromkeys(range(1024), 1), "request_id": "x" * 200}
    response = ask(tales, "/v1/completions", {"model": "tales", "prompt": "Once", **fields})
    assert response.status_code == 200, response.text
    assert len(response.json()["choices"]) == 128


def test_limits_of_json(tales):
    app = limited(tales, max_json_values=1000)
    error = error_of(ask(app, "/detokenize", {"tokens": [1] * 1001}), 413)
    assert re.search(r"about 1,00\d JSON values; the limit is 1,000", error["message"])
    assert ask(app, "/detokenize", {"tokens": [1] * 990}).status_code == 200
    for deep in (MAX_DEPTH + 1, 5000, 30_000):
        body = b'{"prompt": ' + b"[" * deep + b"]" * deep + b"}"
        error = error_of(ask(tales, "/tokenize", body), 400)
        assert f"nested too deeply, over {MAX_DEPTH} levels" in error["message"]


def test_a_request_gets_half_of_what_is_free(small_checkpoint):
    """In completions and in tokens; what is over half of all can never be had."""

    async def go(app):
        fields = {"model": "tales", "ignore_eos": True}
        first = Client(app, prompt=[1], n=8, max_tokens=30, ignore_eos=True)
        task = asyncio.create_task(first.run())
        metrics = app.service.metrics
        with held_while(app, lambda: metrics.num_unfinished >= 8):
            await until(lambda: metrics.num_unfinished == 8)
            error = error_of(await ask_async(app, "/v1/completions", {**fields, "n": 9, "prompt": [1]}), 400)
            several = "one for several completions may take half of"
            assert error["message"] == f"the request asks for 9 completions; {several} 16 (--max-queue-size)"
            error = error_of(await ask_async(app, "/v1/completions", {**fields, "n": 5, "prompt": [1]}), 429)
            assert f"5 completions; {several} the 8 that are free now" in error["message"]
            many = {**fields, "prompt": [1], "n": 4, "max_tokens": 47}
            error = error_of(await ask_async(app, "/v1/completions", many), 429)
            assert f"192 tokens; {several} the 352 that are free now" in error["message"]
            four = asyncio.create_task(ask_async(app, "/v1/completions", {**fields, "prompt": [1], "n": 4}))
            await until(lambda: metrics.num_unfinished == 12)
            first.gone.set()
            await task
        assert (await four).status_code == 200
        assert metrics.num_tokens == 0
        assert (await ask_async(app, "/v1/completions", many)).status_code == 200
        error = error_of(await ask_async(app, "/v1/completions", {**many, "n": 8}), 400)
        assert error["message"] == f"the request asks for 384 tokens; {several} 600 (--max-queue-tokens)"

    with serving(5, small_checkpoint, max_queue_size=28) as app:
        asyncio.run(go(limited(app, max_queue_tokens=1200)))


def test_who_asks_for_one_completion_has_its_place(small_checkpoint):
    """Even while many others keep asking for as many as they can get."""

    async def go(app):
        fields, tasks, clients = {"max_tokens": 40, "ignore_eos": True}, [], []
        metrics, body = app.service.metrics, {"model": "tales", "prompt": [1], "max_tokens": 2}
        with held_while(app, lambda: metrics.num_unfinished >= 8):
            for n, so_far in ((8, 8), (4, 12), (2, 14), (2, 14), (2, 14), (2, 14)):  # of 32
                clients.append(Client(app, prompt=[1], n=n, **fields))
                tasks.append(asyncio.create_task(clients[-1].run()))
                await until(lambda so_far=so_far: metrics.num_unfinished == so_far)
            error_of(await ask_async(app, "/v1/completions", {**body, "n": 2}), 429)
            one = asyncio.create_task(ask_async(app, "/v1/completions", body))
            await until(lambda: metrics.num_unfinished == 15)
        assert (await one).status_code == 200
        for client in clients:
            client.gone.set()
        await asyncio.gather(*tasks)

    with serving(5, small_checkpoint, max_queue_size=28) as app:
        asyncio.run(go(app))


def test_log_probabilities_count_as_tokens(tales):
    """A million of them take as much memory as a million tokens, and more."""
    body = {"model": "tales", "prompt": [1], "n": 64, "max_tokens": 1000}
    message = error_of(ask(tales, "/v1/completions", {**body, "logprobs": 20}), 400)["message"]
    assert "asks for 1,344,064 tokens; one for several completions may take half of 2,097,152" in message
    body = {"model": "tales", "prompt": [" a" * 1001] * 100, "max_tokens": 1}
    for fields, each in (({"prompt_logprobs": 20}, 1001 * 21 + 1), ({"echo": True, "logprobs": 20}, 1002 * 21)):
        message = error_of(ask(tales, "/v1/completions", {**body, **fields}), 400)["message"]
        assert f"asks for {100 * each:,} tokens" in message


def test_what_counts_as_a_token(tales):
    """Log-probabilities of the output count with the output, those of the prompt with the prompt, for each choice."""
    fields = {"model": "tales", "prompt": [[1] * 5, [1] * 1020], "max_tokens": 10, "n": 2}
    outputs, prompts = 10 + 4, 5 + 1020
    for more, expected in (
        ({}, prompts + outputs),
        ({"logprobs": 3}, prompts + 4 * outputs),
        ({"prompt_logprobs": 0}, prompts + outputs),
        ({"prompt_logprobs": 2}, 3 * prompts + outputs),
        ({"echo": True}, prompts + outputs),
        ({"echo": True, "logprobs": 3}, 4 * prompts + 4 * outputs),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 1}, 4 * prompts + 4 * outputs),
    ):
        assert tales.service.job({**fields, **more}).num_tokens == 2 * expected


def test_long_texts_are_refused_before_they_are_cut_into_tokens(tales):
    app = limited(tales, max_json_values=10**6)
    for path, body in (("/tokenize", {"prompt": "a " * 100_000}), ("/detokenize", {"tokens": [1] * 200_000})):
        error = error_of(ask(app, path, body), 400)
        assert re.search(
            "maximum context length is 1,024 .* has 200,000 (characters|tokens), far more than fit",
            error["message"],
        )


def test_many_prompts_are_submitted_and_given_up_one_by_one(tales):
    """The event loop goes on to others in between."""

    async def go():
        turns = [0, 0, 0]

        async def others():
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        body = {"model": "tales", "prompt": [[i] for i in range(120)], "max_tokens": 1000, "ignore_eos": True}
        job = await asyncio.to_thread(tales.service.job, body)
        before = turns[0]
        async with service.Run(tales.service, job):
            turns[1] = turns[0] - before
            before = turns[0]
        turns[2] = turns[0] - before
        task.cancel()
        return turns[1:]

    assert min(asyncio.run(go())) > 90


def test_a_long_answer_is_made_beside_the_event_loop(tales, monkeypatch):
    """Its choices, what it says of a long prompt, and its JSON, choice by choice."""
    threads, sizes = set(), []

    def watch(where, name):
        original = getattr(where, name)

        def watched(*arguments):
            made = original(*arguments)
            if isinstance(made, bytes):
                sizes.append(len(made))
            if not isinstance(made, bytes) or len(made) > 10_000:
                threads.add(threading.current_thread().name.partition("_")[0])
            return made

        monkeypatch.setattr(where, name, watched)

    watch(answers, "completion_choice")
    watch(answers.Wording, "piece")
    watch(events, "to_json")
    body = {"model": "tales", "prompt": [[7] * 50] * 3, "max_tokens": 1, "echo": True, "logprobs": 20, "seed": 1}
    answer = ask(tales, "/v1/completions", body)
    assert threads == {"large"}
    assert 3 * max(sizes) < 1.1 * len(answer.content)
    assert json.dumps(answer.json()) == answer.text


def test_a_large_body_is_nobody_elses_matter(tales, monkeypatch):
    """While one is parsed the event loop goes on, and small ones are answered."""
    parse, started, go_on = reading.parse_json, threading.Event(), threading.Event()

    def slow(raw, **more):
        if len(raw) > 100_000:
            started.set()
            assert go_on.wait(60)
        return parse(raw, **more)

    monkeypatch.setattr(reading, "parse_json", slow)
    large = b" " * 200_000 + json.dumps({"prompt": "Once"}).encode()

    async def go():
        tasks = [asyncio.create_task(ask_async(tales, "/tokenize", large)) for _ in range(30)]
        await until(started.is_set)
        for _ in range(20):
            assert (await ask_async(tales, "/tokenize", {"prompt": "a fox"})).json()["count"] == 2
        assert not any(task.done() for task in tasks)
        go_on.set()
        assert {response.status_code for response in await asyncio.gather(*tasks)} == {200}

    asyncio.run(go())


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_only_json(tales, kind):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        response = ask(tales, path, method="POST", headers={} if kind is None else {"content-type": kind})
        assert "must be application/json" in error_of(response, 415)["message"]
    assert ask(
        tales, "/tokenize", {"prompt": "x"}, headers={"content-type": "Application/JSON ; charset=utf-8"}
    ).is_success


# --- Pages of other sites -------------------------------------------------------------------------------------------

PATHS = [
    "/",
    "/live/levers",
    "/v1/models",
    "/v1/completions",
    "/tokenize",
    "/metrics",
    "/version",
    "/health",
    "/nothing",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_foreign_page_is_refused(tales, path):
    app = App(tales.service, page=True, only_here=True)
    own = [{"host": host} for host in ("127.0.0.1:8000", "localhost", "[::1]:80", "127.9.8.7")]
    own += [{"host": "localhost:8000", "origin": "http://localhost:8000"}]
    foreign = [
        {"host": host} for host in ("evil.test", "evil.test:8000", "localhost.evil.test", "", "127.0.0.1.nip.io")
    ]
    here = {"host": "localhost:8000"}
    foreign += [
        {**here, "origin": o} for o in ("http://evil.test", "null", "http://localhost:3000", "http://localhost")
    ]
    for headers in own:
        assert ask(app, path, headers=headers).status_code != 403, headers
    for headers in foreign:
        error = error_of(ask(app, path, headers=headers), 403)
        assert error["code"] == "foreign_origin"
        assert "--allow-origin" in error["message"]
    assert ask(App(tales.service), path, headers=foreign[0]).status_code != 403  # where others are served too


def test_a_key_is_as_good(tales):
    """With the key, any host name may be used for what it protects; the page, which needs none, is for this machine."""
    app = App(tales.service, page=True, only_here=True, api_key="k")
    headers = {"host": "my.proxy", "authorization": "Bearer k"}
    assert ask(app, "/v1/models", headers=headers).status_code == 200
    assert ask(app, "/live/levers", headers=headers).status_code == 403


def test_origins_that_are_allowed(tales):
    """CORS: a browser asks first, and shows the page the answer."""
    app = App(tales.service, only_here=True, allow_origins=["https://mine.test"])
    body, headers = {"model": "tales", "prompt": "Once", "max_tokens": 2}, {"origin": "https://mine.test"}
    asked = {**headers, "host": "localhost", "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization, content-type"
    first = ask(app, "/v1/completions", method="OPTIONS", headers=asked)
    assert first.status_code == 200
    assert first.headers["access-control-allow-origin"] == "https://mine.test"
    assert "content-type" in first.headers["access-control-allow-headers"]
    response = ask(app, "/v1/completions", body, headers={**headers, "host": "localhost"})
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "https://mine.test")
    assert response.headers["access-control-expose-headers"] == "x-request-id"
    assert ask(app, "/v1/completions", body, headers={"host": "mine.test"}).status_code == 200  # a proxy's name
    error_of(ask(app, "/v1/completions", body, headers={"host": "localhost", "origin": "https://other.test"}), 403)
    other = ask(app, "/v1/completions", method="OPTIONS", headers={**asked, "origin": "https://other.test"})
    assert other.status_code == 400
    everybody = App(tales.service, only_here=True, allow_origins=["*"])
    response = ask(everybody, "/v1/completions", body, headers={"host": "any.test", "origin": "https://other.test"})
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "*")


# --- Connections ----------------------------------------------------------------------------------------------------


def health(port):
    """The status of /health."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


def test_a_request_in_small_parts_keeps_nobody_waiting(tales):
    """A body in chunks of one byte, while others are answered."""
    body, num_answered, answers = json.dumps({"prompt": "a fox"}).encode().ljust(100_000), 0, []
    parts = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with listening(limited(tales, idle_seconds=600), close=False) as (_, port), connect(port) as chunked:

        def send():
            chunked.sendall(CHUNKED.replace(b"/v1/completions", b"/tokenize") + parts)
            answers.append(chunked.recv(65536))

        thread = threading.Thread(target=send)
        thread.start()
        while thread.is_alive():
            assert health(port) == 200
            num_answered += 1
    assert answers[0].startswith(b"HTTP/1.1 200 ")
    assert num_answered > 2


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "a URL": (b"GET /", b"a"),
    "a header": (b"GET /health HTTP/1.1\r\nHost: ", b"a"),
    "headers": (b"GET /health HTTP/1.1\r\n", b"a: b\r\n"),
    "a chunk's extension": (CHUNKED + b"1;", b"a"),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n"),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_what_never_ends_has_a_limit_of_size(server, case):
    head, part = ENDLESS[case]
    with connect(server[1]) as one:
        with contextlib.suppress(OSError):  # it ends before everything is sent
            one.sendall(head + part * (2**20 // len(part)))
        assert read_all(one)[:13] in (b"", b"HTTP/1.1 400 ")


def test_requests_that_are_sent_ahead_are_not_answered(server):
    """A client that sends many, and reads nothing: the first is answered, and the connection ends."""
    with connect(server[1]) as one:
        with contextlib.suppress(OSError):
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        assert read_all(one).count(b"HTTP/1.1 200 ") <= 1
        assert health(server[1]) == 200


LATE = {
    "nothing": b"",
    "a part of the URL": b"GET /hea",
    "a part of the headers": b"GET /health HTTP/1.1\r\nHo",
    "a part of the body": POST + b"Content-Length: 999\r\n\r\n{",
    "a part after the answer": b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 999\r\n\r\n{",
    "an answered request": b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.fixture(scope="module")
def hasty(tales):
    with listening(limited(tales, idle_seconds=0.2), close=False) as (_, port):
        yield port


def test_the_time_of_a_request_begins_with_its_first_byte(tales):
    with listening(limited(tales, idle_seconds=60), close=False) as (server, port), connect(port) as one:
        wait_until(lambda: server.server_state.connections)
        (connection,) = server.server_state.connections
        begun = connection.since = connection.since - 59  # as if it had been silent
        for part in (LATE["a part of the headers"], b"st:"):
            before = connection.since
            one.sendall(part)
            wait_until(lambda part=part: connection.conn.trailing_data[0].endswith(part))
        assert connection.since == before > begun + 58


@pytest.mark.parametrize("drips", [False, True])
@pytest.mark.parametrize("case", LATE)
def test_a_request_has_limited_time(hasty, case, drips):
    """Also one that comes byte by byte."""
    with connect(hasty) as one:
        one.sendall(LATE[case])
        with contextlib.suppress(OSError):
            for _ in range(200 * drips):
                one.sendall(b"x")
                time.sleep(0.02)
        answers = read_all(one).split(b"HTTP/1.1 ")[1:]
    if not drips:
        status = {"nothing": [], "an answered request": [b"200"], "a part after the answer": [b"200"]}
        assert [answer[:3] for answer in answers] == status.get(case, [b"400"])
        assert all(b"not complete after 0.2 seconds" in answer for answer in answers if answer[:3] == b"400")


def hold(port, data, size=None):
    """A connection that sends this and does nothing more. size: of the buffer for what it does not read."""
    one = socket.socket()
    one.settimeout(60)
    if size:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    one.connect(("127.0.0.1", port))
    one.sendall(data)
    return one


@pytest.mark.parametrize("case", ["nothing", "a part of the headers", "a part of the body", "an answered request"])
def test_who_waits_for_nothing_keeps_nobody_out(tales, case):
    """Of too many connections, the one that has waited longest for its client ends."""
    with listening(limited(tales, max_connections=4, idle_seconds=600), close=False) as (server, port):
        idle = [hold(port, LATE[case])]
        wait_until(lambda: len(server.server_state.connections) == 1)
        idle += [hold(port, LATE[case]) for _ in range(3)]
        wait_until(lambda: len(server.server_state.connections) == 4)
        assert [health(port) for _ in range(9)] == [200] * 9
        assert read_all(idle[0]) == b"" or case == "an answered request"  # its end
        for one in idle:
            one.close()


def test_who_reads_nothing_keeps_nobody_out_and_others_are_told():
    """Connections that are answered don't end; if there are no others, new ones get 503."""
    fields = {"prompt": "Once", "max_tokens": 1000, "stream": True}
    with (
        serving(6, "tinytales", max_num_seqs=20) as app,
        slow_steps(app, 0.005),
        listening(limited(app, max_connections=4)) as (server, port),
    ):
        deaf = hold(port, request(**fields, n=16, logprobs=20), size=4096)
        connections = server.server_state.connections
        wait_until(lambda: any(one.flow and one.flow.write_paused for one in connections))
        busy = [hold(port, request(**fields)) for _ in range(4)]
        wait_until(lambda: sum(one.is_asked for one in [*connections]) == 4)
        read_all(deaf)  # to its end: the fourth has its place
        assert health(port) == 503
        busy[0].close()
        wait_until(lambda: health(port) == 200)
        for one in (deaf, *busy):
            one.close()


WRONG = {
    "no HTTP": b"\0\1\2\r\n\r\n",
    "no chunk": CHUNKED + b"x\r\n",
    "no chunk, and no route": b"POST /nothing HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    "another protocol": b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n",
}


@pytest.mark.parametrize("case", WRONG)
def test_a_quiet_server_says_nothing_of_bad_requests(server, caplog, case):
    with connect(server[1]) as one:
        one.sendall(WRONG[case])
        assert read_all(one).startswith(b"HTTP/1.1 200 " if "protocol" in case else b"HTTP/1.1 400 ")
    assert not caplog.records


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such limit")
def test_as_many_files_as_connections():
    """`ulimit -n`: the soft limit is raised; where the hard one is too low, a line says so."""
    code = """import resource, sys
from stagewise.serving.server import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
raise_file_limit(512)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
from stagewise.serving.__main__ import main
main(["--max-connections", "513"])
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "(1024, 1024)\n"
    (line,) = result.stderr.splitlines()
    assert "--max-connections 513 needs 1,025 open files, and the system allows 1,024" in line


def test_a_body_that_is_too_long_is_refused(server):
    """A client that sends everything first reads the answer, too."""
    status, answer = post(server[1], prompt="x" * 2**21)
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


@pytest.fixture(scope="module")
def one_place(small_checkpoint):
    """A server that runs one request at once, in steps so long that a client can come and go between two of them."""
    options = {"max_num_seqs": 1, "max_model_len": 48}
    with serving(6, small_checkpoint, **options) as app, slow_steps(app, 0.1), listening(app) as (_, port):
        yield app, port


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=["whole", "stream"])
@pytest.mark.parametrize("waits", [False, True], ids=["runs", "waits"])
def test_a_client_that_has_gone_frees_its_place(one_place, leave, fields, waits):
    app, port = one_place
    first = connect(port)
    if waits:
        first.sendall(request(prompt=[1, 2], max_tokens=40))
        wait_until(lambda: app.service.metrics.num_unfinished == 1)
    one = connect(port)
    one.sendall(request(prompt=[1, 2, 3], max_tokens=40, **fields))
    wait_until(lambda: app.service.metrics.num_unfinished == 1 + waits)
    num_steps = app.service.engine.llm.engine.scheduler.num_steps
    if leave == "close" and fields:  # with something unread it would be a reset
        assert one.recv(65536).startswith(b"HTTP/1.1 200 ")
    if leave == "reset":
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
    wait_until(lambda: app.service.metrics.num_unfinished == waits)
    assert app.service.engine.llm.engine.scheduler.num_steps < num_steps + 30  # of the 40 that it asked for
    first.close()
    wait_until(lambda: app.service.metrics.num_unfinished == 0)


# --- A proxy in front -----------------------------------------------------------------------------------------------

NGINX = (ROOT / "examples" / "nginx.conf").read_text(encoding="utf-8")


def test_the_proxy_of_the_example_has_the_servers_limits():
    """The server accepts whatever the proxy lets through, and everything has a limit."""
    lines = re.findall(r"^ *(\w+) ([^;{]+);", NGINX, re.MULTILINE)
    asked, limits = dict(lines), Limits()
    assert asked["client_max_body_size"] == f"{limits.max_body_bytes // 2**20}m"
    assert int(dict(value.split() for name, value in lines if name == "limit_conn")["all"]) < limits.max_connections
    assert asked["proxy_pass"] == "http://127.0.0.1:8000"
    assert asked["proxy_buffering"] == "off"
    assert "proxy_request_buffering" not in asked  # which is on
    bounds = {"limit_req", "large_client_header_buffers", "client_header_timeout", "client_body_timeout"}
    assert bounds | {"send_timeout", "keepalive_timeout"} <= asked.keys()


@contextlib.contextmanager
def proxy(directory, port):
    """nginx as in the example, with timeouts of a second; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    paths = "".join(f"{name}_temp_path {name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    text = NGINX.replace("listen 8080", f"listen 127.0.0.1:{own}").replace(":8000", f":{port}")
    text = text.replace("timeout 10s", "timeout 1s").replace("http {", f"http {{ access_log off; {paths}", 1)
    (directory / "nginx.conf").write_text(text)
    more = "daemon off; pid pid; error_log stderr;" + (" user root;" if os.geteuid() == 0 else "")
    command = ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", "stderr", "-g", more]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: process.poll() is not None or socket.socket().connect_ex(("127.0.0.1", own)) == 0)
            assert process.poll() is None, process.stderr.read()
            yield own
        finally:
            process.terminate()


@pytest.mark.soak
def test_the_proxy_of_the_example(one_place, tmp_path):
    assert shutil.which("nginx"), "there is no nginx; on Debian: apt-get install nginx-light"
    app, port = one_place
    with proxy(tmp_path, port) as proxied:
        status, answer = post(proxied, prompt=[1], max_tokens=2)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 2)
        one = connect(proxied)
        one.sendall(request(prompt=[1], max_tokens=20, stream=True))
        assert one.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert app.num_active == 1  # an event comes while the others are made
        one.close()
        wait_until(lambda: app.service.metrics.num_unfinished == 0)  # the end of a client is handed on
        assert post(proxied, prompt="x" * 2**20, max_tokens=2)[0] == 413
        assert health(proxied) == 404
        late = [connect(proxied) for _ in range(2)]
        late[0].sendall(b"POST /v1/completions HTTP/1.1\r\nHo")
        late[1].sendall(POST + b"Content-Length: 99\r\n\r\n{")
        endless = connect(proxied)
        with contextlib.suppress(OSError):
            for _ in range(100):
                endless.sendall(POST + b"a: b\r\n" * 1000)
        read_all(endless)  # up to its end: it was cut off
        time.sleep(0.5)
        assert app.num_active == 0  # none of them has come to the server
        assert [read_all(one) for one in late] == [b"", b""]
        statuses = [post(proxied, prompt=[1], max_tokens=-1)[0] for _ in range(40)]  # which the server answers at once
        assert {*statuses} == {400, 429}


# --- The end --------------------------------------------------------------------------------------------------------


def test_the_end_comes_whoever_looks_on_or_does_not_read(caplog):
    """It ends soon after the grace period, and the log has only a line for each request."""
    lines = []
    with serving(6, "tinytales") as shown, slow_steps(shown, 0.005):
        app = App(shown.service, page=True, log=lines.append)
        with listening(app, grace=0.2) as (server, port):
            live, deaf_live, stream, deaf, half = (connect(port) for _ in range(5))
            live.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            deaf_live.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            fields = {"prompt": "Once", "max_tokens": 1000, "stream": True, "n": 4, "logprobs": 20}
            deaf.sendall(request(**fields))
            stream.sendall(request(**fields))
            half.sendall(POST + b"Content-Length: 99\r\n\r\n{")
            assert live.recv(100)
            assert stream.recv(100)
            start = time.monotonic()
            server.handle_exit(signal.SIGTERM, None)
            told = [threading.Thread(target=read_all, args=(one,), daemon=True) for one in (live, stream)]
            for thread in told:
                thread.start()
        assert time.monotonic() - start < 20  # two seconds after the grace, and a lot for a busy machine
        for one in (live, deaf_live, stream, deaf, half):
            one.close()
    assert len(lines) == 5
    assert not caplog.records

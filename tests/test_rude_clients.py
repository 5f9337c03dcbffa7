"""Clients that ask for too much, send slowly or read nothing: each meets a limit, and others are answered."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from stagewise.openai.errors import APIError
from stagewise.openai.limits import Limits
from stagewise.serving.app import App
from stagewise.serving.connection import HEAD_BYTES, Connection
from stagewise.serving.run import allow_files
from tests.adapter import ROOT, wait_until
from tests.test_serving import (
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


@pytest.fixture(scope="module")
def tales():
    with serving(6, "tinytales", max_queue_size=4096) as app:
        yield app


# --- What a request asks for ------------------------------------------------------------------------------------------

COMPLETION, FAR = "/v1/completions", "maximum context length is 1,024 .* has 200,000 "
BEYOND = [
    (COMPLETION, {"stop": ["x"] * 65}, "stop", "stop has 65 strings; the limit is 64"),
    (COMPLETION, {"stop": "x" * 1025}, "stop", "stop has 1,025 characters in one; the limit is 1,024"),
    (COMPLETION, {"stop": ["a", "x" * 1025]}, "stop", "stop has 1,025 characters in one; the limit is 1,024"),
    (COMPLETION, {"bad_words": ["x"] * 65}, "bad_words", "bad_words has 65 strings; the limit is 64"),
    (COMPLETION, {"stop_token_ids": [1] * 1025}, "stop_token_ids", "1,025 token ids; the limit is 1,024"),
    (COMPLETION, {"allowed_token_ids": [1] * 1025}, "allowed_token_ids", "1,025 token ids; the limit is 1,024"),
    (COMPLETION, {"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias", "1,025 token ids; the limit is 1,024"),
    (COMPLETION, {"request_id": "x" * 201}, "request_id", "request_id has 201 characters; the limit is 200"),
    (COMPLETION, {"prompt": "a " * 100_000}, "prompt", FAR + "characters, far more than fit"),
    ("/tokenize", {"prompt": "a " * 100_000}, "prompt", FAR + "characters, far more than fit"),
    ("/detokenize", {"tokens": [1] * 200_000}, "tokens", FAR + "tokens, far more than fit"),
    ("/detokenize", {"tokens": [1] * 210_000}, None, "about 210,002 JSON values; the limit is 210,000 .--max-json-"),
]


@pytest.mark.parametrize(("path", "fields", "param", "words"), BEYOND, ids=lambda value: str(value)[:30])
def test_a_request_beyond_a_limit(tales, path, fields, param, words):
    response = ask(limited(tales, max_json_values=210_000), path, {"model": "tales", **fields})
    error = error_of(response, 400 if param else 413)
    assert error["param"] == param
    assert re.search(words, error["message"])


@pytest.mark.parametrize("depths", [range(880, 1000), [5000, 30_000]], ids=str)
def test_a_body_that_is_nested_too_deeply(tales, depths):
    """Wherever Python's limit is met: while it is parsed, or by the check that refuses it."""
    for depth in depths:
        error_of(ask(tales, "/tokenize", b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"), 400)


def test_requests_at_the_limits(tales):
    fields = {"stop": ["x" * 1024] * 64, "stop_token_ids": list(range(1024)), "n": 128, "max_tokens": 0}
    fields |= {"logit_bias": dict.fromkeys(range(1024), 1), "request_id": "x" * 200}
    response = ask(tales, COMPLETION, {"model": "tales", "prompt": "Once", **fields})
    assert response.status_code == 200, response.text
    assert len(response.json()["choices"]) == 128
    assert ask(limited(tales, max_json_values=1000), "/detokenize", {"tokens": [1] * 999}).status_code == 200


def test_what_counts_as_a_token(tales):
    """A likely token takes as much memory as another token: of the output with the output, of the prompt with the
    prompt, for each choice."""
    fields = {"model": "tales", "prompt": [[1] * 5, [1] * 1020], "max_tokens": 10, "n": 2}
    for more, of_prompts, of_outputs in (
        ({}, 1, 1),
        ({"logprobs": 3}, 1, 4),
        ({"prompt_logprobs": 0}, 1, 1),
        ({"prompt_logprobs": 2}, 3, 1),
        ({"echo": True}, 1, 1),
        ({"echo": True, "logprobs": 3}, 4, 4),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 1}, 4, 4),
    ):
        expected = 2 * (of_prompts * (5 + 1020) + of_outputs * (10 + 4))
        assert tales.service.job({**fields, **more}).num_tokens == expected, more


SEVERAL = "one for several completions may take half of"
ROOM = [  # the completions and tokens of others, what is asked for, the status, and what the error says
    (0, 0, {"n": 8}, None, ""),
    (0, 0, {"n": 9}, 400, f"9 completions; {SEVERAL} 16 (--max-queue-size)"),
    (8, 0, {"n": 4}, None, ""),
    (8, 0, {"n": 5}, 429, f"5 completions; {SEVERAL} the 8 that are free now: try again later"),
    (14, 0, {"n": 2}, 429, f"2 completions; {SEVERAL} the 2 that are free now: try again later"),
    (16, 600, {"n": 1, "max_tokens": 40}, None, ""),
    (0, 0, {"n": 8, "max_tokens": 47}, 400, f"384 tokens; {SEVERAL} 600 (--max-queue-tokens)"),
    (0, 248, {"n": 4, "max_tokens": 47}, 429, f"192 tokens; {SEVERAL} the 352 that are free now: try again later"),
]


@pytest.mark.parametrize(("taken", "tokens", "asked", "status", "says"), ROOM)
def test_a_request_gets_half_of_what_is_free(tales, monkeypatch, taken, tokens, asked, status, says):
    """Of half of all, if it has several completions; what is over half of that can never be had. So there is room for
    one completion while others ask for as many as they can get."""
    service = limited(tales, max_queue_tokens=1200).service
    monkeypatch.setattr(service, "num_places", 32)
    monkeypatch.setattr(service, "metrics", SimpleNamespace(num_unfinished=taken, num_tokens=tokens))
    with pytest.raises(APIError) if status else contextlib.nullcontext() as refused:
        service.job({"model": "tales", "prompt": [1], **asked})
    if status:
        assert (refused.value.status, refused.value.message) == (status, f"the request asks for {says}")


def test_all_completions_are_taken_or_none(small_checkpoint):
    async def go(app):
        metrics, body = app.service.metrics, {"model": "tales", "prompt": [[3], [4], [5]], "max_tokens": 2}
        first = Client(app, prompt=[[1], [2], [3], [4]], max_tokens=40, ignore_eos=True)
        task = asyncio.create_task(first.run())
        with held_while(app, lambda: metrics.num_unfinished == 4):
            await until(lambda: metrics.num_unfinished == 4)
            for streams in (False, True):
                response = await ask_async(app, COMPLETION, {**body, "stream": streams})
                assert error_of(response, 429)["code"] == "queue_full"
                assert response.headers["retry-after"] == "1"
            assert (metrics.num_unfinished, metrics.num_tokens) == (4, 4 * 41)
            first.gone.set()
        await task
        assert (await ask_async(app, COMPLETION, body)).status_code == 200

    with serving(5, small_checkpoint, max_num_seqs=2, max_queue_size=14) as app:
        asyncio.run(go(app))


def test_nobody_waits_for_what_is_large(tales):
    """Neither for a body that is read, nor for an answer that is written."""
    release = threading.Event()

    async def go():
        tales.service.worker.submit(release.wait)  # as if it took long
        large = {"model": "tales", "prompt": [[7] * 50] * 3, "max_tokens": 1, "echo": True, "logprobs": 20}
        tasks = [asyncio.create_task(ask_async(tales, "/tokenize", b" " * 200_000 + b'{"prompt": "Once"}'))]
        tasks += [asyncio.create_task(ask_async(tales, COMPLETION, {**large, "stream": way})) for way in (False, True)]
        await until(lambda: tales.service.worker._work_queue.qsize() == 3)
        for _ in range(5):
            assert (await ask_async(tales, "/tokenize", {"prompt": "a fox"})).json()["count"] == 2
        release.set()
        assert {response.status_code for response in await asyncio.gather(*tasks)} == {200}

    asyncio.run(go())


# --- Pages of other sites ---------------------------------------------------------------------------------------------

HERE = "localhost:8000"
OURS = [{"host": host} for host in ("127.0.0.1:8000", "localhost", "[::1]:80", "127.9.8.7")]
OURS += [{"host": HERE, "origin": f"http://{HERE}"}]
SITES = ("http://evil.test", "null", "http://localhost:3000", "http://localhost")
FOREIGN = [{"host": host} for host in ("evil.test", "evil.test:8000", "localhost.evil.test", "", "127.0.0.1.nip.io")]
FOREIGN += [{"host": HERE, "origin": site} for site in SITES]


@pytest.mark.parametrize("path", ["/live/levers", COMPLETION])
def test_a_foreign_page_is_refused(tales, path):
    app, keyed = (App(tales.service, page=True, only_here=True, api_key=key) for key in (None, "k"))
    for headers in OURS:
        assert ask(app, path, headers=headers).status_code != 403, headers
    for headers in FOREIGN:
        error = error_of(ask(app, path, headers=headers), 403)
        assert (error["code"], "--allow-origin" in error["message"]) == ("foreign_origin", True)
        assert ask(App(tales.service), path, headers=headers).status_code != 403  # where others are served too
    # A key is as good, for what it protects.
    status = ask(keyed, path, headers={"host": "my.proxy", "authorization": "Bearer k"}).status_code
    assert (status != 403) == path.startswith("/v1/")


def test_origins_that_are_allowed(tales):
    """CORS: a browser asks first, and shows the page the answer."""
    body, headers = {"model": "tales", "prompt": "Once", "max_tokens": 2}, {"host": "localhost"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
    mine, all_sites = "https://mine.test", ["*"]
    for allowed, origin, shown in (([mine], mine, mine), ([mine], "https://x.test", None), (all_sites, mine, "*")):
        app = App(tales.service, only_here=True, allow_origins=allowed)
        headers["origin"] = origin
        first = ask(app, COMPLETION, method="OPTIONS", headers={**headers, **asked})
        response = ask(app, COMPLETION, body, headers=headers)
        assert (first.status_code, response.status_code) == ((200, 200) if shown else (400, 403))
        assert {one.headers.get("access-control-allow-origin") for one in (first, response)} == {shown}
        if shown:
            assert "content-type" in first.headers["access-control-allow-headers"]
            assert response.headers["access-control-expose-headers"] == "x-request-id"
    app = App(tales.service, only_here=True, allow_origins=[mine])
    assert ask(app, COMPLETION, body, headers={"host": "mine.test"}).status_code == 200  # a proxy's name


@pytest.mark.parametrize(
    "path", [COMPLETION, "/v1/chat/completions", "/tokenize", "/detokenize", "/live/levers", "/live/visitors"]
)
def test_only_json(tales, path):
    """Which a page of another site can't send."""
    app = App(tales.service, page=True)
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
        response = ask(app, path, method="POST", headers={"content-type": kind} if kind else {})
        assert "must be application/json" in error_of(response, 415)["message"]
    response = ask(app, path, b"{}", headers={"content-type": "Application/JSON ; charset=utf-8"})
    assert response.status_code != 415


# --- Connections ------------------------------------------------------------------------------------------------------

GET = b"GET /health HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
ELSEWHERE = CHUNKED.replace(b"/v1/completions", b"/nothing")
LATE, LONG = (400, "was not complete after 2 seconds"), (400, "The URL, headers or trailers have over 16,384 bytes")
WRONG, BODY = (400, "Invalid HTTP request"), (413, "the body is longer than 50,000 bytes (--max-body-bytes)")
FINE = (200, "")


def up_to(size, head, part):
    """A head of which `part` has no end, of this many bytes."""
    return head, (part * size)[: size - len(head.rpartition(b"\r\n\r\n")[2])]


BAD = {  # what a client sends, in parts, and the answers until its connection ends; None: any error, or none
    # Time.
    "nothing": ([], []),
    "a part of the URL": ([b"GET /hea"], [LATE]),
    "a part of the headers": ([b"GET /health HTTP/1.1\r\nHo"], [LATE]),
    "a part of the body": ([POST + b"Content-Length: 999\r\n\r\n{"], [LATE]),
    "a part of a chunk": ([CHUNKED + b"9\r\n{"], [LATE]),
    "headers byte by byte": ([GET, *[b"x"] * 300], None),
    "a body byte by byte": ([POST + b"Content-Length: 999\r\n\r\n", *[b" "] * 300], None),
    "an answered request": ([GET + b"\r\n"], [FINE]),
    "a part after the answer": ([GET + b"Content-Length: 999\r\n\r\n{"], [FINE]),
    # Size.
    "a URL": (up_to(HEAD_BYTES + 1, b"GET /", b"a"), [LONG]),
    "a URL at the limit": (up_to(HEAD_BYTES, b"GET /", b"a"), [LATE]),
    "a header": (up_to(HEAD_BYTES + 1, GET + b"a: ", b"a"), [LONG]),
    "headers": (up_to(HEAD_BYTES + 1, GET, b"a: b\r\n"), [LONG]),
    "headers that end": ([GET + b"a: b\r\n" * 2**12 + b"\r\n"], None),
    "a chunk's extension": (up_to(HEAD_BYTES + 1, CHUNKED + b"1;", b"a"), [LONG]),
    "trailers": (up_to(HEAD_BYTES + 4, CHUNKED + b"0\r\n", b"a: b\r\n"), [LONG]),
    "a body": ([POST + b"Content-Length: 60000\r\n\r\n" + b" " * 60_000], [BODY]),
    "a body in chunks": ([CHUNKED + b"4000\r\n%b\r\n" % (b" " * 2**14) * 4 + b"0\r\n\r\n"], [BODY]),
    # Number.
    "requests sent ahead": ([(GET + b"\r\n") * 20], [FINE] * 20),
    # What is no request.
    "no HTTP": ([b"\0\1\2\r\n\r\n"], [WRONG]),
    "no chunk": ([CHUNKED + b"x\r\n"], [WRONG]),
    "no chunk, and no route": ([ELSEWHERE + b"x\r\n"], [WRONG]),
    "no chunk after the answer": ([ELSEWHERE, b"x\r\n"], None),
    "another protocol": ([GET + b"Connection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"], [FINE]),
}


def connect(port, data=b"", size=None):
    """A connection that sends this. size: of the buffer for what it does not read."""
    one = socket.socket()
    one.settimeout(60)
    if size:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    one.connect(("127.0.0.1", port))
    one.sendall(data)
    return one


def request(**fields):
    body = json.dumps({"model": "tales", "ignore_eos": True, **fields}).encode()
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_all(one):
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(65536):
            data += part
    return data


def health(port):
    """The status of /health."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


def connections_of(server, number):
    """The server's connections, once there are `number` of them."""
    wait_until(lambda: len(server.server_state.connections) == number)
    return server.server_state.connections


def test_what_bad_clients_get(tales, caplog):
    """All of them at once, and a quiet server says nothing about them."""

    def talk(parts):
        with connect(port) as one:
            with contextlib.suppress(OSError):  # it ends before everything is sent
                for part in parts:
                    one.sendall(part)
                    time.sleep(0.02)
            return read_all(one)

    with (
        listening(limited(tales, idle_seconds=2, max_body_bytes=50_000), close=False) as (_, port),
        ThreadPoolExecutor(len(BAD)) as clients,
    ):
        said = clients.map(talk, [parts for parts, _ in BAD.values()])
        assert [health(port) for _ in range(5)] == [200] * 5
        for (name, (_, expected)), data in zip(BAD.items(), said, strict=True):
            got = [(int(answer[:3]), answer.decode()) for answer in data.split(b"HTTP/1.1 ")[1:]]
            if expected is None:
                assert 200 not in [status for status, _ in got], name
            else:
                assert [status for status, _ in got] == [status for status, _ in expected], (name, got)
                assert all(words in text for (_, text), (_, words) in zip(got, expected, strict=True)), (name, got)
    assert not caplog.records


def test_when_the_time_of_a_request_begins(tales):
    """With its first byte; the silence before that begins with the last answer, or when an answer is not read."""
    with listening(limited(tales, idle_seconds=60), close=False) as (server, port), connect(port) as one:
        (connection,) = connections_of(server, 1)
        begun = connection.since = connection.since - 59  # as if it had been silent
        for part in (GET, b"a:"):
            before = connection.since
            one.sendall(part)
            wait_until(lambda part=part: connection.conn.trailing_data[0].endswith(part))
        assert connection.since == before > begun + 58
        one.sendall(b" b\r\n\r\n")
        assert one.recv(65536).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: connection.since > before)
        answered = connection.since
        connection.loop.call_soon_threadsafe(connection.pause_writing)
        wait_until(lambda: connection.since > answered)


def test_one_connection_too_many_is_told():
    """A client sends requests ahead and reads no answer: little of both is kept. Connections over the limit get 503."""
    stream = request(prompt="Once", max_tokens=1000, stream=True)
    with (
        serving(6, "tinytales", max_num_seqs=20) as app,
        slow_steps(app, 0.005),
        listening(limited(app, max_connections=4)) as (server, port),
    ):
        deaf = connect(port, size=4096)
        (connection,) = connections_of(server, 1)

        def is_full():
            with contextlib.suppress(BlockingIOError):
                deaf.send((GET.replace(b"health", b"metrics") + b"\r\n") * 20, socket.MSG_DONTWAIT)
            return connection.flow.write_paused and connection.flow.read_paused

        wait_until(is_full)
        assert len(connection.conn.trailing_data[0]) + connection.transport.get_write_buffer_size() < 2**18
        busy = [connect(port, stream) for _ in range(3)]
        connections_of(server, 4)
        assert health(port) == 503
        busy[0].close()
        wait_until(lambda: health(port) == 200)
        for one in (deaf, *busy):
            one.close()


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such limit")
def test_a_low_limit_of_open_files_is_raised(monkeypatch):
    import resource

    asked, unlimited = [], resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: asked.append(both))
    for limits in ((256, unlimited), (256, 1024), (8192, 8192), (unlimited, unlimited)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        allow_files()
    assert asked == [(4096, unlimited), (1024, 1024)]


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_has_gone_frees_its_place(small_checkpoint, leave, streams):
    """The steps are so long that it can come and go between two of them."""
    lines = []
    with serving(6, small_checkpoint, log=lines.append) as app, slow_steps(app, 0.1), listening(app) as (_, port):
        llm, scheduler = app.service.engine.llm, app.service.engine.llm.engine.scheduler
        one = connect(port, request(prompt=[[1, 2], [3], [4, 5, 6]], max_tokens=40, stream=streams))
        wait_until(lambda: len(scheduler.running) == 3)
        told = app.service.metrics.text().decode()
        assert 'vllm:num_requests_running{model_name="tales"} 3.0' in told
        assert 'vllm:kv_cache_usage_perc{model_name="tales"} 0.0' not in told
        if streams and leave == "close":  # with something unread it would be a reset
            assert one.recv(65536).startswith(b"HTTP/1.1 200 ")
        if leave == "reset":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
        wait_until(lambda: lines and not scheduler.running)
        assert lines[0].endswith("tokens, abort")
        assert scheduler.num_steps < 30  # of the 40 that it asked for
        assert llm.stats.num_requests == 0  # none of them has finished
        assert llm.engine.block_manager.num_free == llm.engine.block_manager.num_blocks


def test_the_proxy_of_the_example_has_the_servers_limits():
    """The server accepts what the proxy lets through."""
    text = (ROOT / "docs" / "examples" / "nginx.conf").read_text(encoding="utf-8")
    lines = re.findall(r"^ *(\w+) ([^;{]+);", text, re.MULTILINE)
    asked, limits = dict(lines), Limits()
    assert asked["client_max_body_size"] == f"{limits.max_body_bytes // 2**20}m"
    assert int(dict(value.split() for name, value in lines if name == "limit_conn")["all"]) < limits.max_connections
    assert (asked["proxy_pass"], asked["proxy_buffering"]) == ("http://127.0.0.1:8000", "off")


def test_the_end_comes_whoever_looks_on_or_does_not_read(caplog):
    """It ends soon after the grace period, and the log has only a line for each request."""
    lines = []
    with serving(6, "tinytales") as shown, slow_steps(shown, 0.005):
        app = App(shown.service, page=True, log=lines.append)
        with listening(app, grace=0.2) as (server, port):
            stream = request(prompt="Once", max_tokens=1000, stream=True, n=4, logprobs=20)
            live, deaf_live = (connect(port, b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(2))
            told, deaf = (connect(port, stream) for _ in range(2))
            half = connect(port, POST + b"Content-Length: 99\r\n\r\n{")
            assert live.recv(100)
            assert told.recv(100)
            start = time.monotonic()
            server.handle_exit(signal.SIGTERM, None)
            for one in (live, told):
                threading.Thread(target=read_all, args=(one,), daemon=True).start()
        assert time.monotonic() - start < 20  # two seconds after the grace, and a lot for a busy machine
        for one in (live, deaf_live, told, deaf, half):
            one.close()
    assert len(lines) == 5
    assert not caplog.records


@pytest.mark.parametrize(("paused", "silent", "is_closed"), [(True, 61, True), (True, 59, False), (False, 61, False)])
def test_who_does_not_read_an_answer_for_long_is_closed(paused, silent, is_closed):
    """After six times --idle-seconds."""
    closed = []
    one = SimpleNamespace(
        is_asked=True,
        flow=SimpleNamespace(write_paused=paused),
        since=100.0,
        timeout_keep_alive=10,
        loop=SimpleNamespace(time=lambda: 100.0 + silent),
        transport=SimpleNamespace(is_closing=lambda: False, abort=lambda: closed.append(True)),
    )
    Connection.check_time(one)
    assert bool(closed) == is_closed

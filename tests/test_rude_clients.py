"""Clients that ask for too much, say too little, do not read or do not leave: nobody else waits for them."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from stagewise.serving import completions, events, reading
from stagewise.serving.app import App
from stagewise.serving.lanes import Lane
from stagewise.serving.limits import Limits
from stagewise.serving.protocol import MAX_DEPTH
from stagewise.serving.server import Server, listen
from tests.adapter import ROOT
from tests.test_serving import JSON, Client, Process, ask, ask_async, error_of, limited, serving, until, wait_until

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def tales():
    with serving(6, "tinytales", max_queue_size=4096) as app:
        yield app


@contextlib.contextmanager
def server(model, log=None, limits=None, stage=6, **options):
    """A real server in a thread; yields its App and its port."""
    with serving(stage, model, log=log, **options) as app, listen("127.0.0.1", 0) as listener:
        app = limited(app, **(limits or {}))
        app.log = log
        one = Server(app, grace=0)
        thread = threading.Thread(target=one.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield app, listener.getsockname()[1]
        finally:
            app.draining = one.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=60)


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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"model": "tales", **fields}), JSON)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


# --- Limits of a request --------------------------------------------------------------------------------------------

BEYOND = [
    ({"stop": ["x"] * 65}, "stop", "stop has 65 texts; the limit is 64"),
    ({"stop": "x" * 1025}, "stop", "stop has 1,025 characters in one; the limit is 1,024"),
    ({"stop": ["a", "x" * 1025]}, "stop", "stop has 1,025 characters in one; the limit is 1,024"),
    ({"stop_token_ids": list(range(1025))}, "stop_token_ids", "stop_token_ids has 1,025 token ids; the limit is 1,024"),
    ({"n": 1025}, "n", "n must be a whole number from 1 to 1024"),
    ({"prompt": ["x"] * 513, "n": 2}, "n", "513 prompts and n 2 are more than 1024 choices"),
    ({"prompt": "a " * 100_000}, "prompt", "prompt 0 has 200,000 characters, far more than that holds"),
    ({"prompt": [1] * 200_000}, "prompt", "prompt 0 has 200,000 tokens, far more than that holds"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "message"), BEYOND, ids=lambda value: str(value)[:30])
def test_a_request_beyond_a_limit(tales, fields, param, message):
    error = error_of(ask(tales, "/v1/completions", {"model": "tales", **fields}), 400)
    assert error["param"] == param
    assert message in error["message"]


def test_requests_at_the_limits(tales):
    fields = {"stop": ["x" * 1024] * 64, "stop_token_ids": list(range(1024)), "n": 1024, "max_tokens": 0}
    response = ask(tales, "/v1/completions", {"model": "tales", "prompt": "Once", **fields})
    assert response.status_code == 200, response.text
    assert len(response.json()["choices"]) == 1024


def test_limits_of_json(tales):
    app = limited(tales, max_json_values=1000)
    error = error_of(ask(app, "/detokenize", {"tokens": [1] * 1001}), 413)
    assert re.search(r"about 1,00\d values of JSON; the limit is 1,000", error["message"])
    assert ask(app, "/detokenize", {"tokens": [1] * 990}).status_code == 200
    for deep in (MAX_DEPTH + 1, 5000, 100_000):
        body = b'{"prompt": ' + b"[" * deep + b"]" * deep + b"}"
        error = error_of(ask(app if deep < 500 else tales, "/tokenize", body), 400)
        assert f"nested too deeply, over {MAX_DEPTH} levels" in error["message"]


def test_a_request_gets_half_of_what_is_free(small_checkpoint):
    """In completions and in tokens; what is over half of all can never be had."""

    async def go(app):
        fields = {"model": "tales", "ignore_eos": True}
        first = Client(app, prompt=[1], n=8, max_tokens=30, ignore_eos=True)
        task = asyncio.create_task(first.run())
        await until(lambda: app.service.metrics.num_unfinished == 8)
        error = error_of(await ask_async(app, "/v1/completions", {**fields, "n": 9, "prompt": [1]}), 400)
        several = "one for several completions may take half of"
        assert error["message"] == f"the request asks for 9 completions; {several} 16 (--max-queue-size)"
        error = error_of(await ask_async(app, "/v1/completions", {**fields, "n": 5, "prompt": [1]}), 429)
        assert f"5 completions; {several} the 8 that are free now" in error["message"]
        many = {**fields, "prompt": [1], "n": 4, "max_tokens": 47}
        error = error_of(await ask_async(app, "/v1/completions", many), 429)
        assert f"192 tokens; {several} the 352 that are free now" in error["message"]
        assert (await ask_async(app, "/v1/completions", {**fields, "prompt": [1], "n": 4})).status_code == 200
        first.gone.set()
        await task
        assert app.service.metrics.num_tokens == 0
        assert (await ask_async(app, "/v1/completions", many)).status_code == 200
        error = error_of(await ask_async(app, "/v1/completions", {**many, "n": 8}), 400)
        assert error["message"] == f"the request asks for 384 tokens; {several} 600 (--max-queue-tokens)"

    with serving(5, small_checkpoint, max_queue_size=28) as app:
        slow(app)
        asyncio.run(go(limited(app, max_queue_tokens=1200)))


def test_who_asks_for_one_completion_has_its_place(small_checkpoint):
    """However many others ask for as many as they can get, again and again."""

    async def go(app):
        fields, tasks, clients = {"max_tokens": 40, "ignore_eos": True}, [], []
        for n in (8, 4, 2, 2, 2, 2):
            clients.append(Client(app, prompt=[1], n=n, **fields))
            tasks.append(asyncio.create_task(clients[-1].run()))
            await asyncio.sleep(0.1)
        assert app.service.metrics.num_unfinished == 14  # of 32
        for n, status in ((2, 429), (1, 200)):
            body = {"model": "tales", "prompt": [1], "n": n, "max_tokens": 2}
            assert (await ask_async(app, "/v1/completions", body)).status_code == status
        for client in clients:
            client.gone.set()
        await asyncio.gather(*tasks)

    with serving(5, small_checkpoint, max_queue_size=28) as app:
        slow(app)
        asyncio.run(go(app))


def test_log_probabilities_count_as_tokens(tales):
    """A million of them take as much memory as a million tokens, and more."""
    body = {"model": "tales", "prompt": [1], "n": 64, "max_tokens": 1000}
    message = error_of(ask(tales, "/v1/completions", {**body, "logprobs": 20}), 400)["message"]
    assert "asks for 1,345,344 tokens; one for several completions may take half of 2,097,152" in message


def test_long_texts_are_refused_before_they_are_cut_into_tokens(tales):
    for path, body in (("/tokenize", {"prompt": "a " * 100_000}), ("/detokenize", {"tokens": [1] * 200_000})):
        error = error_of(ask(tales, path, body), 400)
        assert re.search(
            "maximum context length is 1,024 .* has 200,000 (characters|tokens), far more than that holds",
            error["message"],
        )


def test_a_lane_does_the_smallest_first():
    done, go_on = [], threading.Event()

    async def go():
        lane = Lane("lane")
        tasks = [asyncio.create_task(lane.do(0, lambda: go_on.wait(60)))]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(lane.do(size, lambda size=size: done.append(size))) for size in (3, 1, 4, 2, 1)]
        await asyncio.sleep(0)
        tasks[3].cancel()  # the one of size 4
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(ZeroDivisionError):
            await lane.do(1, lambda: 1 / 0)

    asyncio.run(go())
    assert done == [1, 1, 2, 3]


def test_a_lane_rests_as_long_as_it_worked():
    async def go():
        lane, start = Lane("lane", rests=True), time.monotonic()
        await lane.do(1, lambda: time.sleep(0.2))
        first = time.monotonic() - start
        return first, await lane.do(1, lambda: time.monotonic() - start)

    first, second = asyncio.run(go())
    assert second > first + 0.15


def test_large_bodies_come_at_a_pace(tales, monkeypatch):
    """All of them together: to read them takes the event loop's time."""
    monkeypatch.setattr(reading, "BYTES_PER_SECOND", 10e6)
    body = b" " * 2_000_000 + json.dumps({"prompt": "a fox"}).encode()
    with server("tinytales") as (_, port):

        def send():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/tokenize", body, JSON)
            assert json.loads(connection.getresponse().read())["count"] == 2

        start, threads = time.monotonic(), [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - start > 0.5


def test_many_prompts_are_submitted_and_given_up_one_by_one(tales):
    """The event loop goes on to others in between."""

    async def go():
        turns = [0, 0, 0]

        async def others():
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        body = {"model": "tales", "prompt": [[i] for i in range(400)], "max_tokens": 1000, "ignore_eos": True}
        job = await asyncio.to_thread(tales.service.job, body)
        before = turns[0]
        async with completions.Run(tales.service, job):
            turns[1] = turns[0] - before
            before = turns[0]
        turns[2] = turns[0] - before
        task.cancel()
        return turns[1:]

    assert min(asyncio.run(go())) > 300


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

    watch(completions, "completion_choice")
    watch(completions.Wording, "piece")
    watch(events, "to_json")
    body = {"model": "tales", "prompt": [[7] * 500] * 3, "max_tokens": 1, "echo": True, "logprobs": 20, "seed": 1}
    answer = ask(tales, "/v1/completions", body)
    assert threads == {"large"}
    assert len(sizes) == 4
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


def test_half_sent_bodies_keep_out_nobody(tales):
    """Those leave that have taken the most memory for the longest time; a body that comes at once is read."""
    with server("tinytales", limits={"max_body_bytes": 200_000}) as (_, port):
        held = [connect(port) for _ in range(20)]
        for one in held:
            one.sendall(POST + b"Content-Length: 199999\r\n\r\n" + b" " * 150_000)
        start = time.monotonic()
        for _ in range(5):
            status, _ = post(port, prompt=["Once"] * 16, max_tokens=0, user="x" * 190_000)
            assert status == 200
        assert time.monotonic() - start < 15  # a body may take 30 s
        refused = [one for one in held if select.select([one], [], [], 0)[0]]
        assert len(refused) >= 10
        head, _, answer = read_all(refused[0]).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert json.loads(answer)["error"]["code"] == "too_many_bodies"
        for one in held:
            one.close()


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
    """Who has it asks by any name, for what it opens; the page, which needs none, is for this machine."""
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
    assert ask(app, "/v1/completions", body, headers={"host": "mine.test"}).status_code == 200  # a proxy's name
    error_of(ask(app, "/v1/completions", body, headers={"host": "localhost", "origin": "https://other.test"}), 403)
    other = ask(app, "/v1/completions", method="OPTIONS", headers={**asked, "origin": "https://other.test"})
    assert other.status_code == 400
    everybody = App(tales.service, only_here=True, allow_origins=["*"])
    response = ask(everybody, "/v1/completions", body, headers={"host": "any.test", "origin": "https://other.test"})
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "*")


# --- Connections ----------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.skipif(os.name != "posix", reason="the limit of open files is POSIX's")
def test_more_idle_connections_than_files_may_be_open():
    """Good clients are answered, and the log has a line."""
    script = 'ulimit -n 256; exec "$0" -m stagewise.serving --port 0 --model tinytales --max-num-seqs 2 --grace 0'
    process = subprocess.Popen(["bash", "-c", script, sys.executable], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    lines, idle = [], []
    threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True).start()
    try:
        wait_until(lambda: lines)
        port = int(lines[0].rpartition(":")[2])
        for i in range(300):
            idle.append(connect(port))
            if i % 3:
                idle[-1].sendall(b"GET /health HTTP/1.1\r\nHo" if i % 3 == 1 else POST + b"Content-Length: 99\r\n\r\n{")
            if i % 50 == 0:
                status, answer = post(port, model="tinytales", prompt="Once", max_tokens=3)
                assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
        status, _ = post(port, model="tinytales", prompt="Once", max_tokens=3)
        assert status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        for one in idle:
            one.close()
    told = [line for line in lines if not re.match(r"Serving|POST .* (200|499|408) ", line)]
    assert len(told) == 1, told
    assert re.fullmatch(r"1 connections were closed: there were more than 128\n", told[0])


def test_what_comes_too_late(tales):
    """A header, a body and a next request each have their time."""
    limits = {"header_seconds": 0.3, "body_seconds": 0.3, "idle_seconds": 0.3}
    with server("tinytales", limits=limits) as (_, port):
        silent, half, body, next_one = (connect(port) for _ in range(4))
        half.sendall(b"GET /health HTTP/1.1\r\nHo")
        body.sendall(POST + b"Content-Length: 99\r\n\r\n{")
        next_one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for one, status, told in (
            (silent, 408, "no header came within 0.3 seconds"),
            (half, 408, "no header came within 0.3 seconds"),
            (body, 408, "the body did not come within 0.3 seconds"),
            (next_one, 200, ""),
        ):
            head, _, answer = read_all(one).partition(b"\r\n\r\n")
            assert int(head.split()[1]) == status
            assert told in (json.loads(answer)["error"]["message"] if answer else "")


def test_a_client_that_never_reads_is_cut_off(tales):
    """Its answers lie in memory no longer than that."""
    with server("tinytales", limits={"unread_seconds": 0.3}) as (app, port):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        one.connect(("127.0.0.1", port))
        one.sendall(request(prompt="Once", n=64, max_tokens=200, stream=True, logprobs=20))
        wait_until(lambda: app.num_active)
        wait_until(lambda: not app.num_active)
        one.close()


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_shuts_down_its_side_gets_its_answer(tales, streams):
    fields = {"prompt": "Once", "max_tokens": 30, "seed": 3}
    expected = ask(tales, "/v1/completions", {"model": "tales", "ignore_eos": True, **fields}).json()["choices"][0]
    lines = []
    with server("tinytales", log=lines.append) as (app, port):
        slow(app)
        one = connect(port)
        one.sendall(request(stream=streams, **fields))
        one.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(one)
        response.begin()
        answer = response.read().decode()
    if streams:
        events = [line.removeprefix("data: ") for line in answer.split("\n\n") if line.startswith("data: {")]
        text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    else:
        text = json.loads(answer)["choices"][0]["text"]
    assert text == expected["text"]
    assert " 200 " in lines[0]


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=["whole", "stream"])
@pytest.mark.parametrize("waits", [False, True], ids=["runs", "waits"])
def test_a_client_that_has_gone_frees_its_place(small_checkpoint, leave, fields, waits):
    """TCP tells this as it tells that a client has shut down its side; the request is aborted all the same."""
    with server(small_checkpoint, max_num_seqs=1, max_model_len=48) as (app, port):
        slow(app)
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


def slow(app):
    """Steps that take so long that a client can come and go between two of them."""
    engine = app.service.engine.llm.engine
    step = engine.step
    engine.step = lambda: (time.sleep(0.03), step())[1]


# --- The end --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_end_comes_whoever_looks_on_or_does_not_read(number):
    """Over soon after the grace, with the exit status of an end, and nothing on stderr but the log."""
    with Process("--model", "tinytales", "--grace", "0.2", "--max-num-seqs", "4") as server:
        live, deaf_live, stream, deaf, half = (connect(server.port) for _ in range(5))
        live.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        deaf_live.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        fields = {"model": "tinytales", "prompt": "Once", "max_tokens": 1000, "stream": True, "n": 4, "logprobs": 20}
        deaf.sendall(request(**fields))
        stream.sendall(request(**fields))
        half.sendall(POST + b"Content-Length: 99\r\n\r\n{")
        assert live.recv(100)
        assert stream.recv(100)
        start = time.monotonic()
        server.signal(number)
        threading.Thread(target=read_all, args=(live,), daemon=True).start()
        threading.Thread(target=read_all, args=(stream,), daemon=True).start()
        assert server.wait() == 0
        assert time.monotonic() - start < 5  # two seconds after the grace, and something for a busy machine
        for one in (live, deaf_live, stream, deaf, half):
            one.close()
        wait_until(lambda: len(server.lines) >= 6)
    assert all(re.match(r"Serving|(GET|POST) /\S+ \d+ \d+ ms", line) for line in server.lines), server.lines


def test_the_limits_are_flags(capsys):
    from stagewise.serving.__main__ import main

    for flag, value in (("--max-connections", "0"), ("--header-seconds", "0"), ("--max-stop-texts", "x")):
        with contextlib.suppress(SystemExit):
            assert main(["--model", "tinytales", flag, value]) == 2
        assert flag in capsys.readouterr().err
    assert Limits().max_queue_size == 4096

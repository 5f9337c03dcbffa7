"""Looking on while an engine serves: what a viewer is told, what that costs nobody, and the levers."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from stagewise.replay.trace import check_header, check_step
from stagewise.serving.app import App
from tests.adapter import ROOT, random_prompts
from tests.test_serving import SERVING, ask, ask_async, error_of, serving


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Look often, for the steps of a small model are quick."""
    monkeypatch.setattr("stagewise.serving.live.PAUSE", 0.001)


@contextlib.contextmanager
def shown(stage, model, **options):
    with serving(stage, model, **options) as app:
        yield App(app.service, page=True)


class Onlooker:
    """One who looks on, in this process.

    Attributes:
        told: what came, the header first.
    """

    def __init__(self, app):
        self.app, self.told = app, []
        self.reading, self.gone = asyncio.Event(), asyncio.Event()
        self.reading.set()

    async def __aenter__(self):
        scope = {"type": "http", "method": "GET", "path": "/live", "headers": [], "query_string": b"", "root_path": ""}
        self.task = asyncio.create_task(self.app(scope, self.receive, self.send))
        await until(lambda: self.told)
        return self

    async def __aexit__(self, *_):
        self.gone.set()
        await self.task

    async def receive(self):
        if not hasattr(self, "asked"):
            self.asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.reading.wait()
        if message["type"] == "http.response.body" and message["body"]:
            events = message["body"].decode().split("\n\n")
            assert events.pop() == ""
            self.told += [json.loads(event.removeprefix("data: ")) for event in events]

    def tokens(self):
        """Of each completion: what it has by now."""
        made = {}
        for event in (event for step in self.told[1:] for event in (*step["before"], *step["after"])):
            key = event.get("request_id"), event.get("index")
            if event["kind"] == "queued":
                made[key] = list(event["output_token_ids"])
            elif event["kind"] == "token":
                made.setdefault(key, []).append(event["token_id"])
        return list(made.values())


async def until(condition):
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")


def body(prompt, **fields):
    return {"model": "tales", "prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}


def expected(app, prompts, max_tokens):
    llm = app.service.engine.llm
    params = app.service.stage.SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


@pytest.mark.parametrize("stage", SERVING)
def test_a_viewer_sees_all_from_when_it_comes(stage, small_checkpoint):
    """It may come in the middle: what is there already is told first; the schema holds, and the steps count up."""
    prompts = random_prompts(211, [5, 9, 3, 7, 6])

    async def go(app):
        async with Onlooker(app) as first:
            tasks = [asyncio.create_task(ask_async(app, "/v1/completions", body(p, max_tokens=30))) for p in prompts]
            await until(lambda: len(first.told) > 6)
            async with Onlooker(app) as second:
                await asyncio.gather(*tasks)
                await until(lambda: sum(map(len, first.tokens())) == sum(map(len, second.tokens())) == 150)
                return first, second

    with shown(stage, small_checkpoint) as app:
        first, second = asyncio.run(go(app))
        assert app.service.engine.llm._observer.listeners == []
        answers = expected(app, prompts, 30)
    for onlooker in (first, second):
        header, *steps = onlooker.told
        check_header(header)
        numbers = [step["step"] for step in steps]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        for step in steps:
            check_step(step, step["step"])
        assert sorted(onlooker.tokens()) == sorted(answers)
        named = {int(i) for step in steps for i in step["texts"]}
        assert named >= {token for tokens in answers for token in tokens}
    assert len(second.told) < len(first.told)


def test_a_viewer_that_does_not_read_is_cut_off(small_checkpoint, monkeypatch):
    monkeypatch.setattr("stagewise.serving.live.MAX_BEHIND", 20)

    async def go(app):
        onlooker = Onlooker(app)
        async with onlooker:
            onlooker.reading.clear()
            for _ in range(2):
                await ask_async(app, "/v1/completions", body([1, 2], max_tokens=30))
            onlooker.reading.set()
            await onlooker.task  # it ends, and a browser would come again
            assert app.service.engine.llm._observer.listeners == []

    with shown(6, small_checkpoint) as app:
        asyncio.run(go(app))


def test_nothing_is_left_of_a_viewer_that_goes_or_never_reads(small_checkpoint, monkeypatch):
    monkeypatch.setattr("stagewise.serving.live.MAX_BEHIND", 5)

    async def go(app):
        llm = app.service.engine.llm
        with llm._router.turn.lock:  # a step takes long, and the viewer is gone before it has joined
            gone = Onlooker(app)
            gone.gone.set()
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/live",
                "headers": [],
                "query_string": b"",
                "root_path": "",
            }
            task = asyncio.create_task(app(scope, gone.receive, gone.send))
            await asyncio.sleep(0.1)
        await task
        assert llm._observer.listeners == []
        async with Onlooker(app) as stuck:
            stuck.reading.clear()
            await ask_async(app, "/v1/completions", body([1, 2], max_tokens=30))
            (listener,) = llm._observer.listeners
            assert len(listener.__self__._records) <= 5
            stuck.reading.set()
        assert llm._observer.listeners == []

    with shown(6, small_checkpoint) as app:
        asyncio.run(go(app))


def test_visitors(small_checkpoint):
    """They come, are answered, and nobody waits for them; another site's page can't send them."""

    async def go(app):
        for i in range(3):
            response = await ask_async(app, "/live/visitors", body([1, 2, i], max_tokens=20))
            assert response.status_code == 202
        assert response.json()["here"] > 1
        await until(lambda: app.service.engine.llm.stats.num_requests == 3)
        await until(lambda: not app._visits)

    with shown(5, small_checkpoint) as app:
        asyncio.run(go(app))
        error_of(ask(app, "/live/visitors", {"model": "tales", "prompt": 7}), 400)
        error_of(ask(app, "/live/visitors", b"{}", headers={"content-type": "text/plain"}), 415)


def test_the_page_is_for_browsers_on_this_machine(small_checkpoint):
    with serving(4, small_checkpoint) as plain:
        app = App(plain.service, page=True, only_here=True)
        for host, status in {
            "127.0.0.1:8000": 200,
            "localhost": 200,
            "[::1]:80": 200,
            "evil.test:8000": 403,
            "": 403,
        }.items():
            for path in ("/", "/live/levers"):
                assert ask(app, path, headers={"host": host}).status_code == status, host


@pytest.mark.parametrize("stage", SERVING[1:])
def test_levers(stage, small_checkpoint):
    """Less of everything while requests run: the same tokens, and no more run at once; then all is there again."""
    prompts = random_prompts(211, [5, 9, 3, 7, 6, 8])

    async def go(app):
        scheduler, answers = app.service.engine.llm.engine.scheduler, []
        tasks = [asyncio.create_task(ask_async(app, "/v1/completions", body(p, max_tokens=30))) for p in prompts]
        await until(lambda: len(scheduler.running) == 4)
        response = await ask_async(app, "/live/levers", {"max_num_seqs": 2, "num_blocks": 12})
        assert {name: lever["now"] for name, lever in response.json().items()} == {"max_num_seqs": 2, "num_blocks": 12}
        assert len(scheduler.running) <= 2
        answers = [(await task).json()["choices"][0]["text"] for task in tasks]
        response = await ask_async(app, "/live/levers", {"max_num_seqs": 4, "num_blocks": 40})
        assert all(lever["now"] == lever["high"] for lever in response.json().values())
        return answers

    with shown(stage, small_checkpoint, block_size=4, num_blocks=40, watermark=0.0) as app:
        told = asyncio.run(go(app))
        decode = app.service.tokenizer.decode
        assert told == [decode(token_ids) for token_ids in expected(app, prompts, 30)]
        assert app.service.engine.llm.stats.num_preemptions > 0
        for wrong in ({"max_num_seqs": 0}, {"max_num_seqs": 5}, {"num_blocks": 11}, {"num_blocks": True}, {"else": 1}):
            error = error_of(ask(app, "/live/levers", wrong), 400)
            assert error["param"] == next(iter(wrong))
        error_of(ask(app, "/live/levers", b'{"max_num_seqs": 1}', headers={"content-type": "text/plain"}), 415)
        assert ask(app, "/live/levers").json()["max_num_seqs"] == {"now": 4, "low": 1, "high": 4}


def test_nobody_is_shown_anything_unless_it_is_asked_for(small_checkpoint):
    with serving(4, small_checkpoint) as app:
        for path in ("/", "/live", "/live/levers"):
            error_of(ask(app, path), 404)
        assert ask(App(app.service, page=True), "/live/levers").json() == {}


@pytest.mark.skipif(os.name != "posix", reason="a signal as POSIX has it")
def test_a_viewer_does_not_hold_up_the_end():
    start = [sys.executable, "-m", "stagewise.serving", "--port", "0"]
    command = [*start, "--model", "tinytales", "--quiet", "--grace", "300"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stderr.readline().split()[-1]
            with urllib.request.urlopen(f"{url}/live", timeout=600) as response:
                assert json.loads(response.readline().removeprefix(b"data: "))["stage"] == "stage06_fast"
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=200) == 0
        finally:
            process.kill()

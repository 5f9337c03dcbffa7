"""Watching an engine serve: what a viewer receives, at no one else's cost, and the levers."""

import asyncio
import contextlib
import json
import signal
import threading
import urllib.request

import pytest

from stagewise.replay.page import make_page
from stagewise.serving.app import App
from stagewise.trace_file import Trace, check_blocks, check_header, check_names, check_step
from stagewise.tracing import detach, recorder_of
from tests.adapter import random_prompts, wait_until, write_checkpoint
from tests.test_serving import SERVING, ask, ask_async, error_of, held_while, listening, serving, slow_steps, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Look often, because a small model's steps are short."""
    monkeypatch.setattr("stagewise.serving.live.PAUSE", 0.001)


@contextlib.contextmanager
def shown(stage, model, **options):
    with serving(stage, model, **options) as app:
        yield App(app.service, page=True)


@pytest.fixture
def app(request, small_checkpoint):
    """The server of stage 6, or of the one that the test names."""
    with shown(getattr(request, "param", 6), small_checkpoint) as app:
        yield app


class Onlooker:
    """A viewer, in this process.

    Attributes:
        told: what came since the latest header, that first.
        asked: the requests that were named: id -> [when it came, x-request-id].
        runs, now: the events of these kinds.
        ended: whether the server has said goodbye.
    """

    def __init__(self, app, query=""):
        self.app, self.query, self.told, self.asked, self.runs, self.now = app, query, [], {}, [], []
        self.ended = False
        self.reading, self.gone = asyncio.Event(), asyncio.Event()
        self.reading.set()

    async def __aenter__(self):
        self.task = asyncio.create_task(self.app(scope_of("/live", self.query), self.receive, self.send))
        await until(lambda: self.runs)
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
            for event in events:
                kind, data = event.split("\n")
                self.take(kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")))

    def take(self, kind, data):
        if kind == "run":
            self.runs.append(data)
            self.told = [data["header"]] if "header" in data else self.told
        elif kind == "step":
            self.told.append(data)
        elif kind == "asked":
            self.asked |= data
        elif kind == "now":
            self.now.append(data)
        else:
            assert kind == "bye"
            self.ended = True

    def tokens(self):
        """The tokens that each completion has so far."""
        made = {}
        for event in (event for step in self.told[1:] for event in (*step["before"], *step["after"])):
            key = event.get("request_id"), event.get("index")
            if event["kind"] == "queued":
                made[key] = list(event["output_token_ids"])
            elif event["kind"] == "token":
                made.setdefault(key, []).append(event["token_id"])
        return list(made.values())

    def unfinished(self):
        """The requests that came and have not ended."""
        events = [event for step in self.told[1:] for event in (*step["before"], *step["after"])]
        came, ended = ({e["request_id"] for e in events if e["kind"] == kind} for kind in ("queued", "finished"))
        return came - ended


def scope_of(path, query=""):
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "root_path": ""}
    return {**scope, "query_string": query.encode()}


def body(prompt, **fields):
    return {"model": "tales", "prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}


def expected(app, prompts, max_tokens):
    llm = app.service.engine.llm
    params = app.service.stage.SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def check_trace(onlooker):
    """Check that the schema holds, the steps count up, and each token has a text. Returns the numbers of the steps."""
    header, *steps = onlooker.told
    check_header(header)
    numbers = [step["step"] for step in steps]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    free = set(header.get("free", ()))
    known = set()
    for step in steps:
        check_step(step, step["step"])
        check_names(step, known)
        check_blocks(step, free, header)
    named = {int(i) for step in steps for i in step["texts"]}
    assert named >= {token for tokens in onlooker.tokens() for token in tokens}
    assert named >= {token for step in steps for row in step["rows"] for token in row.get("drafts", ())}
    return numbers


def listeners(app) -> list:
    return recorder_of(app.service.engine.llm)._listeners


def gone(app):
    """Whether nothing is left of any viewer."""
    return not listeners(app) and not app.recorder.chunks


@pytest.mark.parametrize("stage", SERVING)
def test_all_viewers_see_the_same_steps(stage, small_checkpoint):
    """Whenever they come: later viewers get the earlier steps under the same numbers."""
    prompts = random_prompts(211, [5, 9, 3, 7, 6])

    async def go(app):
        async with Onlooker(app) as first:
            tasks = [asyncio.create_task(ask_async(app, "/v1/completions", body(p, max_tokens=15))) for p in prompts]
            await until(lambda: len(first.told) > 6)
            async with Onlooker(app) as second:
                await asyncio.gather(*tasks)
                await until(lambda: sum(map(len, first.tokens())) == sum(map(len, second.tokens())) == 75)
        async with Onlooker(app) as third:
            await until(lambda: len(third.told) >= len(first.told))
        return first, second, third

    with shown(stage, small_checkpoint) as app:
        first, second, third = asyncio.run(go(app))
        assert gone(app)
        answers = expected(app, prompts, 15)
    check_trace(first)
    assert sorted(first.tokens()) == sorted(answers)
    shortest = min(len(viewer.told) for viewer in (first, second, third))  # the engine at rest may be told behind it
    assert first.told[:shortest] == second.told[:shortest] == third.told[:shortest]


def test_refused_guesses_have_a_text_too(small_checkpoint, tmp_path):
    """A draft model guesses tokens that appear nowhere else."""
    sizes = dict(n_layer=1, n_head=1, n_embd=16, n_positions=48, vocab_size=211)
    draft = write_checkpoint(tmp_path / "draft", seed=1, **sizes)

    async def go(app):
        async with Onlooker(app) as onlooker:
            await ask_async(app, "/v1/completions", body([5, 3], max_tokens=15))
            await until(lambda: sum(map(len, onlooker.tokens())) == 15)
        return onlooker

    with shown(7, small_checkpoint, speculate=str(draft)) as app:
        onlooker = asyncio.run(go(app))
    check_trace(onlooker)
    drafts = {token for step in onlooker.told[1:] for row in step["rows"] for token in row.get("drafts", ())}
    assert drafts - {token for tokens in onlooker.tokens() for token in tokens}


async def test_what_is_kept_is_bounded(app, monkeypatch):
    """The oldest steps are dropped. A viewer that comes then, in the middle of a run, is told at which step the record
    begins, and what was there already."""
    monkeypatch.setattr("stagewise.serving.live.KEPT_STEPS", 80)
    prompts = random_prompts(211, [5, 9, 3, 7] * 8)
    recorder, stats, late = app.recorder, app.service.engine.llm.stats, Onlooker(app)
    with held_while(app, lambda: stats.num_forwards > 120 and not late.runs):
        async with Onlooker(app) as first:
            work = asyncio.gather(*[ask_async(app, "/v1/completions", body(p, max_tokens=38)) for p in prompts])
            await until(lambda: recorder.has_begun and recorder.chunks[0].first > 20)
            async with late:
                await work
                await until(lambda: late.told[-1] == first.told[-1] and not late.unfinished())
                await until(lambda: sum(len(chunk.lines) for chunk in recorder.chunks) < 160)
    answers = expected(app, prompts, 38)
    assert late.runs[0]["first"] > 20
    assert check_trace(late)[0] == late.runs[-1]["first"]
    check_trace(first)
    told = sorted(late.tokens())
    assert len(told) > 4
    assert all(tokens in answers for tokens in told)


async def test_steps_between_two_parts_of_the_record_are_told_once(app, monkeypatch):
    """For a moment both parts listen."""
    monkeypatch.setattr("stagewise.serving.live.KEPT_STEPS", 80)

    def late(llm, listen):
        before = llm.stats.num_forwards
        wait_until(lambda: llm.stats.num_forwards > before + 2 or not llm.loop.callbacks)
        detach(llm, listen)

    monkeypatch.setattr("stagewise.serving.live.detach", late)
    with slow_steps(app):
        async with Onlooker(app) as onlooker:
            await ask_async(app, "/v1/completions", body([1, 2], max_tokens=40))
            await until(lambda: sum(map(len, onlooker.tokens())) >= 40 and not onlooker.unfinished())
    check_trace(onlooker)


async def test_who_lost_the_connection_goes_on_where_it_was(app):
    async with Onlooker(app) as first:
        await ask_async(app, "/v1/completions", body([1, 2], max_tokens=30))
        await until(lambda: sum(map(len, first.tokens())) == 30 and not first.unfinished())
        await asyncio.sleep(0.05)  # if the engine at rest is told, too
    (run,) = first.runs
    assert (run["first"], run["next"], run["server"]) == (None, None, app.recorder.server)
    async with Onlooker(app, f"run={run['run']}&after=9") as again:
        assert again.runs == [{"run": run["run"], "server": run["server"], "resumed": True}]
        await until(lambda: again.told == first.told[11:])
    for query in ("run=other&after=9", f"run={run['run']}&after=99", f"run={run['run']}&after=-1", "run&after=x"):
        async with Onlooker(app, query) as other:
            await until(lambda: other.told == first.told)
            assert (other.runs[0]["first"], other.runs[0]["next"]) == (0, len(first.told) - 1)


def test_steps_that_nobody_could_write_down_are_missing(small_checkpoint, monkeypatch):
    """If the engine is faster than the recorder, the record begins again, and says at which step."""
    monkeypatch.setattr("stagewise.serving.live.MAX_BEHIND", 5)

    async def go(app):
        async with Onlooker(app) as onlooker:
            await until(lambda: app.recorder.has_begun)
            app.service.engine.llm.generate([[1, 2]], params)  # the event loop has no turn meanwhile
            await until(lambda: len(onlooker.runs) == 2)
            assert onlooker.runs[0]["run"] != onlooker.runs[1]["run"]
            await ask_async(app, "/v1/completions", body([3], max_tokens=3))
            await until(lambda: sum(map(len, onlooker.tokens())) == 3)
            numbers = check_trace(onlooker)
            assert numbers[0] >= 30
            assert onlooker.runs[1]["first"] in (None, numbers[0])

    with shown(6, small_checkpoint) as app:
        params = app.service.stage.SamplingParams(temperature=0, ignore_eos=True, max_tokens=30)
        asyncio.run(go(app))


async def test_a_viewer_that_does_not_read_misses_steps_and_nobody_else_does(app, monkeypatch):
    monkeypatch.setattr("stagewise.serving.live.KEPT_STEPS", 80)
    async with Onlooker(app) as slow, Onlooker(app) as quick:
        await ask_async(app, "/v1/completions", body([1, 2], max_tokens=5))
        await until(lambda: slow.tokens() and not slow.unfinished())
        slow.reading.clear()
        for last in range(44, 325, 40):
            await ask_async(app, "/v1/completions", body([1, 2], max_tokens=40))
            await until(lambda last=last: quick.told[-1]["step"] >= last)
        slow.reading.set()
        await until(lambda: len(slow.runs) == 2 and slow.told[-1]["step"] >= last)
        assert check_trace(slow)[0] == slow.runs[1]["first"] > 200
        assert len(quick.runs) == 1


async def test_nothing_is_left_of_a_viewer_that_goes_or_never_reads(app, monkeypatch):
    monkeypatch.setattr("stagewise.serving.live.KEPT_SECONDS", 0)
    vanished, step_ends = Onlooker(app), threading.Event()
    app.service.engine.llm.loop.commands.put(lambda: step_ends.wait(30))  # a step takes long, and the viewer goes
    vanished.gone.set()
    await app(scope_of("/live"), vanished.receive, vanished.send)
    step_ends.set()  # before the recorder has joined
    await until(lambda: gone(app))
    async with Onlooker(app) as stuck:
        stuck.reading.clear()
        await ask_async(app, "/v1/completions", body([1, 2], max_tokens=30))
        assert len(listeners(app)) == 1
        stuck.reading.set()
    await until(lambda: gone(app))


def test_whose_a_request_is_and_when_it_came(small_checkpoint):
    """A page knows its own requests by their x-request-id; the times are by the clock of the trace."""

    async def go(app):
        async with Onlooker(app) as onlooker:
            for name in ("page-1", "page-2"):
                await ask_async(app, "/v1/completions", body([1, 2], max_tokens=3, n=2), headers={"x-request-id": name})
            await until(lambda: sum(map(len, onlooker.tokens())) == 12)
            return onlooker

    with shown(6, small_checkpoint) as app:
        onlooker = asyncio.run(go(app))
    assert [name for _, name in onlooker.asked.values()] == ["page-1", "page-1", "page-2", "page-2"]
    for step in onlooker.told[1:]:
        for event in step["before"]:
            if event["kind"] == "queued":
                assert 0 < step["start"] - onlooker.asked[event["request_id"]][0] < 10


async def test_the_end_is_told(app):
    async with Onlooker(app) as onlooker:
        app.draining = True
        await onlooker.task
        assert onlooker.ended
    await until(lambda: gone(app))


@pytest.mark.parametrize("app", [5], indirect=True)
async def test_a_replay_to_put_steps_into(app):
    """It is the page that the command line makes of the first step."""
    async with Onlooker(app) as onlooker:
        error_of(await ask_async(app, "/live/replay"), 404)
        await ask_async(app, "/v1/completions", body([1, 2], max_tokens=3))
        await until(lambda: len(onlooker.told) >= 4)
        response = await ask_async(app, "/live/replay")
        header, first, *_ = onlooker.told
        assert response.text == make_page([Trace("run", header, [first])])


@pytest.mark.parametrize("app", [5], indirect=True)
async def test_visitors(app):
    """Visitors' requests come and are answered, and nobody waits for them; another site's page can't send any."""
    with held_while(app, lambda: True):
        for i in range(3):
            response = await ask_async(app, "/live/visitors", body([1, 2, i], max_tokens=20))
            assert response.status_code == 202
    assert response.json()["here"] == 3
    await until(lambda: app.service.engine.llm.stats.num_requests == 3)
    await until(lambda: not app._visits)
    error_of(await ask_async(app, "/live/visitors", {"model": "tales", "prompt": 7}), 400)
    error_of(await ask_async(app, "/live/visitors", b"{}", headers={"content-type": "text/plain"}), 415)


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
    """With less of everything while requests run, tokens are the same, and fewer run at once; then all is restored."""
    prompts = random_prompts(211, [5, 9, 3, 7, 6, 8])

    async def go(app):
        scheduler, answers = app.service.engine.llm.engine.scheduler, []
        tasks = [asyncio.create_task(ask_async(app, "/v1/completions", body(p, max_tokens=30))) for p in prompts]
        with held_while(app, lambda: len(scheduler.running) == 4):
            await until(lambda: len(scheduler.running) == 4)
            response = await ask_async(app, "/live/levers", {"max_num_seqs": 2, "num_blocks": 12})
        now = {name: lever["now"] for name, lever in response.json().items()}
        assert now == {"max_num_seqs": 2, "num_blocks": 12}
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
        for wrong in ({"max_num_seqs": 0}, {"max_num_seqs": 5}, {"num_blocks": 0}, {"num_blocks": True}, {"else": 1}):
            error = error_of(ask(app, "/live/levers", wrong), 400)
            assert error["param"] == next(iter(wrong))
        error_of(ask(app, "/live/levers", b'{"max_num_seqs": 1}', headers={"content-type": "text/plain"}), 415)
        assert ask(app, "/live/levers").json()["max_num_seqs"] == {"now": 4, "low": 1, "high": 4}


@pytest.mark.parametrize("app", [5], indirect=True)
async def test_a_lever_hands_out_seats(app):
    """With one seat the others wait outside the engine; with four they run, although none has ended."""
    with slow_steps(app):
        scheduler = app.service.engine.llm.engine.scheduler
        await ask_async(app, "/live/levers", {"max_num_seqs": 1})
        bodies = [body([1, 2, i], max_tokens=40) for i in range(4)]
        tasks = [asyncio.create_task(ask_async(app, "/v1/completions", one)) for one in bodies]
        await until(lambda: app.service.metrics.num_unfinished == 4)
        await until(lambda: len(scheduler.running) == 1)
        assert len(app.service.feed.waiting) == 3
        await ask_async(app, "/live/levers", {"max_num_seqs": 4})
        assert app.service.feed.waiting == {}
        assert not any(task.done() for task in tasks)
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    ("stage", "num_blocks"),
    [
        *((5, num_blocks) for num_blocks in (9, 64, 1000)),
        (7, 64),
        *(pytest.param(stage, number, marks=pytest.mark.soak) for stage in (6, 7, 8) for number in (9, 64, 1000)),
    ],
)
def test_the_lever_for_blocks_works_with_any_pool(stage, num_blocks, small_checkpoint):
    """It goes down to one block, or to what an unfinished request may need; and up again for one that needs more."""

    def blocks(app):
        return ask(app, "/live/levers").json()["num_blocks"]

    async def go(app):
        async with Onlooker(app) as onlooker:
            bodies = [body([1] * 10, max_tokens=20 if i == 0 else 10) for i in range(12)]
            asked = asyncio.gather(*(ask_async(app, "/v1/completions", one) for one in bodies))
            running = app.service.engine.llm.engine.scheduler.running
            with held_while(app, lambda: any(request.output_token_ids for request in running)):
                await until(lambda: onlooker.tokens())
                response = await ask_async(app, "/live/levers", {"num_blocks": 1})
            assert response.json()["num_blocks"] == {"now": 8, "low": 8, "high": num_blocks}  # 10 + 20 - 1 tokens
            longest, *others = [answer.json()["choices"][0]["text"] for answer in await asked]
            assert len({*others}) == 1
            await until(lambda: onlooker.now[-1]["levers"]["num_blocks"]["low"] == 1)
            check_trace(onlooker)
            return longest

    with shown(stage, small_checkpoint, num_blocks=num_blocks, block_size=4, watermark=0.1) as app:
        scheduler = app.service.engine.llm.engine.scheduler
        reserve = scheduler.watermark_blocks
        assert ask(app, "/live/levers", {"num_blocks": 2}).json()["num_blocks"] == {
            "now": 2, "low": 1, "high": num_blocks
        }  # fmt: skip
        assert scheduler.watermark_blocks == 0
        assert ask(app, "/v1/completions", body([1, 2], max_tokens=7)).status_code == 200
        assert blocks(app)["now"] == 2
        told = asyncio.run(go(app))
        assert blocks(app)["now"] == 8
        ask(app, "/live/levers", {"num_blocks": num_blocks})
        assert (scheduler.watermark_blocks, scheduler.block_manager.num_free) == (reserve, num_blocks)
        (tokens,) = expected(app, [[1] * 10], 20)
        assert told == app.service.tokenizer.decode(tokens)


def test_nobody_is_shown_anything_unless_it_is_asked_for(small_checkpoint):
    with serving(4, small_checkpoint) as app:
        for path in ("/", "/live", "/live/levers"):
            error_of(ask(app, path), 404)
        assert ask(App(app.service, page=True), "/live/levers").json() == {}


def test_a_viewer_does_not_hold_up_the_end(small_checkpoint):
    with shown(7, small_checkpoint) as app, listening(app, grace=300) as (server, port):
        response = urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=60)
        assert response.readline() == b"event: run\n"
        about = json.loads(response.readline().removeprefix(b"data: "))
        assert about["header"]["stage"] == "stage07_speculative"
        server.handle_exit(signal.SIGTERM, None)
        assert response.read().endswith(b"event: bye\ndata: {}\n\n")
        response.close()

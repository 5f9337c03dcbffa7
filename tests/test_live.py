"""Watching an engine serve: what a viewer receives, at no one else's cost, and the levers."""

import asyncio
import contextlib
import json
import signal
import threading
import urllib.request

import pytest

from stagewise.serving.app import App
from stagewise.trace_file import check_blocks, check_header, check_names, check_step
from stagewise.tracing import detach, recorder_of
from tests.adapter import random_prompts, wait_until
from tests.test_serving import SERVING, ask, ask_async, error_of, held_while, listening, serving, slow_steps, until

pytestmark = pytest.mark.anyio


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
    """

    def __init__(self, app, query=""):
        self.app, self.query, self.told, self.asked, self.runs, self.now = app, query, [], {}, [], []
        self.reading, self.gone = asyncio.Event(), asyncio.Event()
        self.reading.set()

    async def __aenter__(self):
        self.task = asyncio.create_task(self.look())
        await until(lambda: self.runs)
        return self

    async def __aexit__(self, *_):
        self.gone.set()
        await self.task

    async def look(self):
        scope = {"type": "http", "method": "GET", "path": "/live", "headers": [], "root_path": ""}
        await self.app({**scope, "query_string": self.query.encode()}, self.receive, self.send)

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.reading.wait()
        *events, rest = message.get("body", b"").decode().split("\n\n")
        assert rest == ""
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
        else:
            assert kind == "now"
            self.now.append(data)

    def events(self):
        return [event for step in self.told[1:] for event in (*step["before"], *step["after"])]

    def tokens(self):
        """The tokens that each completion has so far."""
        made = {}
        for event in self.events():
            key = event.get("request_id"), event.get("index")
            if event["kind"] == "queued":
                made[key] = list(event["output_token_ids"])
            elif event["kind"] == "token":
                made.setdefault(key, []).append(event["token_id"])
        return list(made.values())

    def num_tokens(self):
        return sum(map(len, self.tokens()))

    def drafts(self):
        return {token for step in self.told[1:] for row in step["rows"] for token in row.get("drafts", ())}

    def unfinished(self):
        """The requests that came and have not ended."""
        came, ended = ({e["request_id"] for e in self.events() if e["kind"] == kind} for kind in ("queued", "finished"))
        return came - ended


def body(prompt, **fields):
    return {"model": "tales", "prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}


def start(app, prompts, **fields):
    """Completions of these prompts, one by one, at once."""
    return [asyncio.create_task(ask_async(app, "/v1/completions", body(prompt, **fields))) for prompt in prompts]


def expected(app, prompts, max_tokens):
    llm = app.service.engine.llm
    params = app.service.stage.SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def check_trace(onlooker):
    """Check that the schema holds, the steps count up, and each token has a text. Returns the number of the first."""
    header, *steps = onlooker.told
    check_header(header)
    first, free, known = steps[0]["step"], set(header.get("free", ())), set()
    for number, step in enumerate(steps, first):
        check_step(step, number)
        check_names(step, known)
        check_blocks(step, free, header)
    named = {int(i) for step in steps for i in step["texts"]}
    assert named >= {token for tokens in onlooker.tokens() for token in tokens} | onlooker.drafts()
    return first


def listeners(app) -> list:
    return recorder_of(app.service.engine.llm)._listeners


def gone(app):
    """Whether nothing is left of any viewer."""
    return not listeners(app) and not app.recorder.chunks


@pytest.mark.parametrize("stage", [SERVING[0], 5, SERVING[-1]])
def test_all_viewers_see_the_same_steps(stage, small_checkpoint):
    """Whenever they come: later viewers get the earlier steps under the same numbers."""
    prompts = random_prompts(211, [5, 9, 3, 7, 6])

    async def go(app):
        async with Onlooker(app) as first:
            tasks = start(app, prompts, max_tokens=15)
            await until(lambda: len(first.told) > 6)
            async with Onlooker(app) as second:
                await asyncio.gather(*tasks)
                await until(lambda: first.num_tokens() == second.num_tokens() == 75)
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


def test_refused_guesses_have_a_text_too(small_checkpoint, draft_checkpoint):
    """A draft model guesses tokens that appear nowhere else."""

    async def go(app):
        async with Onlooker(app) as onlooker:
            await ask_async(app, "/v1/completions", body([5, 3], max_tokens=15))
            await until(lambda: onlooker.num_tokens() == 15)
        return onlooker

    with shown(7, small_checkpoint, speculate=draft_checkpoint) as app:
        onlooker = asyncio.run(go(app))
    check_trace(onlooker)
    assert onlooker.drafts() - {token for tokens in onlooker.tokens() for token in tokens}


async def test_what_is_kept_is_bounded(app, monkeypatch):
    """The oldest steps are dropped. A viewer that comes then, in the middle of a run, is told at which step the record
    begins, and what was there already."""
    monkeypatch.setattr("stagewise.serving.live.KEPT_STEPS", 80)
    prompts = random_prompts(211, [5, 9, 3, 7] * 8)
    recorder, stats, late = app.recorder, app.service.engine.llm.stats, Onlooker(app)
    with held_while(app, lambda: stats.num_forwards > 120 and not late.runs):
        async with Onlooker(app) as first:
            tasks = start(app, prompts, max_tokens=38)
            await until(lambda: recorder.has_begun and recorder.chunks[0].first > 20)
            async with late:
                await asyncio.gather(*tasks)
                await until(lambda: late.told[-1] == first.told[-1] and not late.unfinished())
                await until(lambda: sum(len(chunk.lines) for chunk in recorder.chunks) < 160)
    check_trace(first)
    assert check_trace(late) == late.runs[-1]["first"]
    assert late.runs[0]["first"] > 20
    told, answers = late.tokens(), expected(app, prompts, 38)
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
            await until(lambda: onlooker.num_tokens() >= 40 and not onlooker.unfinished())
    check_trace(onlooker)


async def test_who_lost_the_connection_goes_on_where_it_was(app):
    async with Onlooker(app) as first:
        await ask_async(app, "/v1/completions", body([1, 2], max_tokens=30))
        await until(lambda: first.num_tokens() == 30 and not first.unfinished())
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


async def test_steps_that_nobody_could_write_down_are_missing(app, monkeypatch):
    """If the engine is faster than the recorder, the record begins again, and says at which step."""
    monkeypatch.setattr("stagewise.serving.live.MAX_BEHIND", 5)
    async with Onlooker(app) as onlooker:
        await until(lambda: app.recorder.has_begun)
        expected(app, [[1, 2]], 30)  # the event loop has no turn meanwhile
        await until(lambda: len(onlooker.runs) == 2)
        assert onlooker.runs[0]["run"] != onlooker.runs[1]["run"]
        await ask_async(app, "/v1/completions", body([3], max_tokens=3))
        await until(lambda: onlooker.num_tokens() == 3)
        first = check_trace(onlooker)
        assert first >= 30
        assert onlooker.runs[1]["first"] in (None, first)


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
        assert check_trace(slow) == slow.runs[1]["first"] > 200
        assert len(quick.runs) == 1


async def test_nothing_is_left_of_a_viewer_that_goes_or_never_reads(app, monkeypatch):
    monkeypatch.setattr("stagewise.serving.live.KEPT_SECONDS", 0)
    vanished, step_ends = Onlooker(app), threading.Event()
    app.service.engine.llm.loop.commands.put(lambda: step_ends.wait(30))  # a step takes long, and the viewer goes
    vanished.gone.set()
    await vanished.look()
    step_ends.set()  # before the recorder has joined
    await until(lambda: gone(app))
    async with Onlooker(app) as stuck:
        stuck.reading.clear()
        await ask_async(app, "/v1/completions", body([1, 2], max_tokens=30))
        assert len(listeners(app)) == 1
        stuck.reading.set()
    await until(lambda: gone(app))


async def test_whose_a_request_is_and_when_it_came(app):
    """A page knows its own requests by their x-request-id; the times are by the clock of the trace."""
    async with Onlooker(app) as onlooker:
        for name in ("page-1", "page-2"):
            await ask_async(app, "/v1/completions", body([1, 2], max_tokens=3, n=2), headers={"x-request-id": name})
        await until(lambda: onlooker.num_tokens() == 12)
    assert [name for _, name in onlooker.asked.values()] == ["page-1", "page-1", "page-2", "page-2"]
    for step in onlooker.told[1:]:
        for event in step["before"]:
            if event["kind"] == "queued":
                assert 0 < step["start"] - onlooker.asked[event["request_id"]][0] < 10


@pytest.mark.parametrize("app", [5], indirect=True)
async def test_visitors(app):
    """Visitors' requests come and are answered, and nobody waits for them."""
    with held_while(app, lambda: True):
        for i in range(3):
            response = await ask_async(app, "/live/visitors", body([1, 2, i], max_tokens=20))
            assert response.status_code == 202
    assert response.json()["here"] == 3
    await until(lambda: app.service.engine.llm.stats.num_requests == 3)
    await until(lambda: not app._visits)
    error_of(await ask_async(app, "/live/visitors", {"model": "tales", "prompt": 7}), 400)


def test_levers(small_checkpoint):
    """With less of everything while requests run, tokens are the same, and fewer run at once; then all is restored."""
    prompts = random_prompts(211, [5, 9, 3, 7, 6, 8])

    async def go(app):
        scheduler = app.service.engine.llm.engine.scheduler
        tasks = start(app, prompts, max_tokens=30)
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

    with shown(5, small_checkpoint, block_size=4, num_blocks=40, watermark=0.0) as app:
        told = asyncio.run(go(app))
        decode = app.service.tokenizer.decode
        assert told == [decode(token_ids) for token_ids in expected(app, prompts, 30)]
        assert app.service.engine.llm.stats.num_preemptions > 0
        for wrong in ({"max_num_seqs": 0}, {"max_num_seqs": 5}, {"num_blocks": 0}, {"num_blocks": True}, {"else": 1}):
            assert error_of(ask(app, "/live/levers", wrong), 400)["param"] == next(iter(wrong))
        assert ask(app, "/live/levers").json()["max_num_seqs"] == {"now": 4, "low": 1, "high": 4}


@pytest.mark.parametrize("app", [5], indirect=True)
async def test_a_lever_hands_out_seats(app):
    """With one seat the others wait outside the engine; with four they run, although none has ended."""
    with slow_steps(app):
        scheduler = app.service.engine.llm.engine.scheduler
        await ask_async(app, "/live/levers", {"max_num_seqs": 1})
        tasks = start(app, [[1, 2, i] for i in range(4)], max_tokens=40)
        await until(lambda: app.service.metrics.num_unfinished == 4)
        await until(lambda: len(scheduler.running) == 1)
        assert len(app.service.feed.waiting) == 3
        await ask_async(app, "/live/levers", {"max_num_seqs": 4})
        assert app.service.feed.waiting == {}
        assert not any(task.done() for task in tasks)
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(("stage", "num_blocks"), [(5, 9), (5, 1000), (8, 64)])
def test_the_lever_for_blocks_works_with_any_pool(stage, num_blocks, small_checkpoint):
    """It goes down to one block, or to what an unfinished request may need; and up again for one that needs more."""

    async def go(app):
        async with Onlooker(app) as onlooker:
            longest, *others = [*start(app, [[1] * 10], max_tokens=20), *start(app, [[1] * 10] * 11, max_tokens=10)]
            running = app.service.engine.llm.engine.scheduler.running
            with held_while(app, lambda: any(request.output_token_ids for request in running)):
                await until(lambda: onlooker.tokens())
                response = await ask_async(app, "/live/levers", {"num_blocks": 1})
            assert response.json()["num_blocks"] == {"now": 8, "low": 8, "high": num_blocks}  # 10 + 20 - 1 tokens
            longest, *others = [(await one).json()["choices"][0]["text"] for one in (longest, *others)]
            assert len({*others}) == 1
            await until(lambda: onlooker.now[-1]["levers"]["num_blocks"]["low"] == 1)
            check_trace(onlooker)
            return longest

    with shown(stage, small_checkpoint, num_blocks=num_blocks, block_size=4, watermark=0.1) as app:
        scheduler = app.service.engine.llm.engine.scheduler
        reserve = scheduler.watermark_blocks
        lever = ask(app, "/live/levers", {"num_blocks": 2}).json()["num_blocks"]
        assert lever == {"now": 2, "low": 1, "high": num_blocks}
        assert scheduler.watermark_blocks == 0
        assert ask(app, "/v1/completions", body([1, 2], max_tokens=7)).status_code == 200
        told = asyncio.run(go(app))
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

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
from stagewise.tracing import recorder_of
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

    def __init__(self, app):
        self.app, self.told, self.asked, self.runs, self.now = app, [], {}, [], []
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
        scope = {"type": "http", "method": "GET", "path": "/live", "headers": [], "root_path": "", "query_string": b""}
        await self.app(scope, self.receive, self.send)

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
            self.told = [data["header"]]
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

    def is_at_rest(self):
        """Whether the last step says that nothing is left to do."""
        return len(self.told) > 1 and not self.told[-1]["rows"]

    def steps(self):
        """Without the texts: a viewer gets each once."""
        return [{**step, "texts": {}} for step in self.told[1:]]


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


def listeners(app):
    """Who listens to the engine, when nobody is about to come or go."""
    app.audience.thread.submit(int).result(60)
    return [listener for listener, _ in recorder_of(app.service.engine.llm)._listeners]


@pytest.mark.parametrize("stage", [SERVING[0], 5, SERVING[-1]])
def test_viewers_see_the_same_steps_whenever_they_come(stage, small_checkpoint):
    """One that comes in the middle of a run begins with what is there, and then sees what the others see."""
    prompts = random_prompts(211, [5, 9, 3, 7, 6])

    async def go(app):
        early, late, stats = Onlooker(app), Onlooker(app), app.service.engine.llm.stats
        with held_while(app, lambda: stats.num_forwards > 2 and not late.runs):
            async with early:
                tasks = start(app, prompts, max_tokens=30)
                await until(lambda: early.num_tokens() > 2)
                async with late:
                    await asyncio.gather(*tasks)
                    await until(lambda: early.num_tokens() == 150 and early.is_at_rest())
                    await until(lambda: late.steps()[-1:] == early.steps()[-1:])
        return early, late

    with shown(stage, small_checkpoint) as app:
        early, late = asyncio.run(go(app))
        assert listeners(app) == []
        answers = expected(app, prompts, 30)
    begin = check_trace(late)
    assert check_trace(early) < begin
    assert any(event.get("output_token_ids") for event in late.steps()[0]["before"])
    assert sorted(early.tokens()) == sorted(answers)
    assert all(tokens in answers for tokens in late.tokens())
    assert late.asked.items() <= early.asked.items()
    ours, theirs = ([step for step in one.steps() if step["step"] > begin] for one in (early, late))
    assert ours == theirs


async def test_a_request_that_came_just_before_a_viewer_is_told_once(app):
    """Both come between the same two steps."""
    commands, step_ends, late = app.service.engine.llm.loop.commands, threading.Event(), Onlooker(app)
    async with Onlooker(app):
        commands.put(lambda: step_ends.wait(60))
        await until(commands.empty)
        (task,) = start(app, [[1, 2]], max_tokens=3)
        await until(lambda: commands.qsize() == 1)
        looking = asyncio.create_task(late.look())
        await until(lambda: commands.qsize() == 2)
        step_ends.set()
        await until(late.is_at_rest)
        late.gone.set()
        await asyncio.gather(task, looking)
    assert [event["kind"] for event in late.events()].count("queued") == 1


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


async def test_a_viewer_that_does_not_read_begins_again_and_nobody_else_does(app, monkeypatch):
    monkeypatch.setattr("stagewise.serving.live.MAX_BEHIND", 50)
    async with Onlooker(app) as slow, Onlooker(app) as quick:
        slow.reading.clear()
        for number in range(1, 6):
            await ask_async(app, "/v1/completions", body([1, 2], max_tokens=40))
            await until(lambda number=number: quick.num_tokens() == 40 * number)
        assert max(len(listener.__self__._records) for listener in listeners(app)) == 50
        slow.reading.set()
        await until(lambda: len(slow.runs) == 2)
        await ask_async(app, "/v1/completions", body([1, 2], max_tokens=40))
        await until(lambda: slow.num_tokens() == 40)
        assert check_trace(slow) >= 200
        assert check_trace(quick) == 0
        assert len(quick.runs) == 1


async def test_nothing_is_left_of_a_viewer_that_goes_or_never_reads(app):
    vanished, step_ends = Onlooker(app), threading.Event()
    app.service.engine.llm.loop.commands.put(lambda: step_ends.wait(30))  # a step takes long, and the viewer goes
    vanished.gone.set()
    await vanished.look()
    step_ends.set()  # before it has joined
    assert listeners(app) == []
    async with Onlooker(app) as stuck:
        stuck.reading.clear()
        await ask_async(app, "/v1/completions", body([1, 2], max_tokens=30))
        assert len(listeners(app)) == 1
    assert listeners(app) == []


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


def test_viewers_do_not_hold_up_the_end(small_checkpoint):
    """Neither one that looks on, nor two that wait for a long step until they may."""
    with shown(7, small_checkpoint) as app, listening(app) as (server, port), contextlib.ExitStack() as stack:

        def look():
            return stack.enter_context(urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=60))

        first, loop = look(), app.service.engine.llm.loop
        assert first.readline() == b"event: run\n"
        about = json.loads(first.readline().removeprefix(b"data: "))
        assert about["header"]["stage"] == "stage07_speculative"
        loop.commands.put(lambda: wait_until(lambda: loop.aborting))
        viewers = [first, look(), look()]
        server.handle_exit(signal.SIGTERM, None)
        for viewer in viewers:
            assert viewer.read().endswith(b"event: bye\ndata: {}\n\n")


def test_without_a_page_no_method_of_an_engine_is_wrapped(small_checkpoint):
    for page in (False, True):
        with serving(6, small_checkpoint) as app:
            llm = app.service.engine.llm
            App(app.service, page=page)
            assert ("add" in vars(llm.engine), "request" in vars(llm.inputs)) == (page, page)

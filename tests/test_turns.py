"""Code of others that Python runs in the middle of a step: finalizers, signal handlers, listeners, and forks.

What it asks for happens between two steps or is refused with a clear error, and no request gets another token for it.
"""

import asyncio
import gc
import itertools
import multiprocessing
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.adapter import ROOT, STAGES, random_prompts, without_notes
from tests.test_interrupts import Interrupter, drive, jobs, shares, small_engine, some, tokens_of, whole

SERVING = [stage for stage in STAGES if stage.number >= 4]
IN_A_STEP = "in the middle of a step"


@pytest.fixture(params=SERVING, ids=lambda stage: stage.directory)
def serving(request):
    return request.param


@pytest.fixture
def quick_collector():
    """The garbage collector looks only at what a test has made."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def everything(llm, stage, beams: bool):
    """The jobs, with a loop of their own around `step`; where a stage has beam search, that too."""
    prompts, params = jobs(stage)
    results = {}
    for i, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
        llm.add_request(f"r{i}", prompt, p)
    drive(llm, results)
    made = tokens_of(results[f"r{i}"] for i in range(len(prompts)))
    return made + (tokens_of(llm.beam_search([prompts[0]], beam_width=3, max_tokens=3)) if beams else [])


def moments(serving, small_checkpoint) -> tuple[list, list[int]]:
    """What the jobs give, and one moment for every line of the engine that they execute."""
    llm = small_engine(serving, small_checkpoint)
    with Interrupter(ROOT / serving.directory) as watch:
        expected = everything(llm, serving, serving.number >= 5)
    return expected, watch.each()


class Abandoned:
    """Generators that nobody has any more, but for a cycle: the garbage collector finds and closes them."""

    def __init__(self, llm, stage):
        self.params = [stage.SamplingParams(max_tokens=most, seed=5, ignore_eos=True) for most in (5, 25)]
        self.kinds = itertools.cycle([llm.stream, llm.as_completed])

    def leave(self, num_read: int) -> None:
        events = next(self.kinds)(random_prompts(211, [4, 2], seed=num_read), self.params)
        for _ in itertools.islice(events, num_read):
            pass
        cycle = [events]
        cycle.append(cycle)


@shares(30)
def test_abandoned_generators_are_collected_at_every_line(serving, small_checkpoint, quick_collector, share):
    expected, lines = moments(serving, small_checkpoint)
    llm = small_engine(serving, small_checkpoint)
    aborted, abort = [], llm.engine.abort
    llm.engine.abort = lambda request: (aborted.append(request.request_id), abort(request))
    for at in some(lines, share, serving):
        gc.disable()
        try:
            left = Abandoned(llm, serving)
            for num_read in (0, 1, 3):
                left.leave(num_read)
            with Interrupter(ROOT / serving.directory, at, gc.collect):
                assert everything(llm, serving, serving.number >= 5) == expected, at
        finally:
            gc.enable()
            gc.collect()
        drive(llm, {})
        whole(llm)
        assert not llm._router.unfinished
    assert len(set(aborted)) >= len(some(lines, share, serving))


class Visitor:
    """Asks for everything at once, in the middle of whatever runs."""

    def __init__(self, llm, stage):
        self.llm, self.stage, self.results, self.refusals, self.number = llm, stage, {}, 0, 0
        self.short = stage.SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        self.answer = llm.generate([[7, 8]], self.short)[0].outputs[0].token_ids
        long = stage.SamplingParams(seed=6, max_tokens=9, ignore_eos=True)
        self.told = tokens_of(llm.generate([[9] * 5], long))[0][0]
        llm.add_request("to abort", [1, 2, 3], long)
        self.stream = llm.stream([[9] * 5], long)
        self.read = list(next(self.stream).token_ids)

    def noted(self) -> None:
        """What happens between two steps."""
        self.llm.abort_request("to abort")
        self.number += 1
        self.llm.add_request(f"visitor {self.number}", [7, 8], self.short)
        assert self.llm.stats.num_forwards > 0
        assert self.llm.has_unfinished_requests()
        assert self.llm.trace

    def refused(self) -> None:
        """What can't wait."""
        calls = [
            lambda: self.llm.generate([[7, 8]], self.short),
            lambda: list(self.llm.as_completed([[7, 8]], self.short)),
            lambda: self.llm.score([[7]], [[8]]),
            lambda: self.read.extend(next(self.stream).token_ids),
        ]
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                if IN_A_STEP not in str(error):
                    raise
                self.refusals += 1
            except StopIteration:  # between two steps it is not refused, and ends
                pass

    def check(self) -> None:
        """All that was asked for has happened, and what was refused can be asked for again."""
        outputs = {}
        drive(self.llm, outputs)
        for event in self.stream:
            self.read += event.token_ids
        assert self.read == self.told
        assert not self.llm._router.unfinished
        whole(self.llm)


@shares(30)
def test_a_handler_asks_for_everything_at_every_line(serving, small_checkpoint, share):
    expected, lines = moments(serving, small_checkpoint)
    refusals = 0
    for at in some(lines, share, serving):
        llm = small_engine(serving, small_checkpoint, trace=True)
        visitor = Visitor(llm, serving)

        def visit(visitor=visitor):
            visitor.noted()
            visitor.refused()

        with Interrupter(ROOT / serving.directory, at, visit):
            assert everything(llm, serving, serving.number >= 5) == expected, at
        assert visitor.number == 1
        visitor.check()
        refusals += visitor.refusals
    assert refusals > len(some(lines, share, serving))


@shares(30)
def test_threads_ask_for_everything_at_every_line(serving, small_checkpoint, share):
    """Nobody waits for a step to add, to abort or to look; who asks for steps takes turns."""
    expected, lines = moments(serving, small_checkpoint)
    for at in some(lines, share, serving):
        llm, errors = small_engine(serving, small_checkpoint, trace=True), []
        visitor = Visitor(llm, serving)

        def visit(visitor=visitor, errors=errors, llm=llm):
            try:
                visitor.noted()
                assert tokens_of(llm.generate([[7, 8]], visitor.short)) == [[visitor.answer]]
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=visit, daemon=True) for _ in range(2)]
        with Interrupter(ROOT / serving.directory, at, lambda threads=threads: [t.start() for t in threads]):
            assert everything(llm, serving, serving.number >= 5) == expected, at
        for thread in threads:
            thread.join(300)
        assert errors == []
        visitor.check()


def test_a_listener_of_the_trace_is_in_the_step(serving, small_checkpoint):
    """It may add and abort, and is told that it can't run a step; the step is none the worse for it."""
    expected = everything(small_engine(serving, small_checkpoint), serving, False)
    llm = small_engine(serving, small_checkpoint, trace=True)
    visitor = Visitor(llm, serving)
    before = visitor.refusals

    def listener(_):
        if visitor.number < 3:
            visitor.noted()
            visitor.refused()

    llm._observer.look_on(listener)
    assert everything(llm, serving, False) == expected
    llm._observer.look_away(listener)
    assert visitor.refusals == before + 12
    visitor.check()


def test_abandoned_generators_beside_an_engine_that_runs_in_a_thread(serving, small_checkpoint, quick_collector):
    """Streams and asynchronous generators, collected at lines of the engine's own thread."""
    AsyncLLM, directory = serving.part("llm").AsyncLLM, ROOT / serving.directory
    prompts = random_prompts(211, [3, 9, 2])
    params = serving.SamplingParams(seed=1, max_tokens=6, ignore_eos=True)
    endless = serving.SamplingParams(max_tokens=60, ignore_eos=True)
    expected = tokens_of(small_engine(serving, small_checkpoint).generate(prompts, params))

    async def leave(engine):
        events = engine.generate([5, 6], endless)
        await anext(events)
        cycle = [events]
        cycle.append(cycle)

    async def all_of(engine):
        return [await anext(engine.generate([5, 6], params))]

    def run(at):
        watch = Interrupter(directory, at, gc.collect)
        threading.settrace(watch)
        gc.disable()
        try:
            with AsyncLLM(model=str(small_checkpoint), device="cpu", max_num_seqs=3) as engine:
                threading.settrace(None)
                asyncio.run(leave(engine))
                asyncio.run(all_of(engine))
                for _ in range(2):
                    events = engine.stream([[5, 6, 7]], endless)
                    next(events)
                    cycle = [events]
                    cycle.append(cycle)
                    del events, cycle
                assert tokens_of(engine.complete_all(prompts, params)) == expected, at
                gc.collect()
                deadline = time.monotonic() + 300
                while engine.llm._router.unfinished and time.monotonic() < deadline:
                    time.sleep(0.01)
                assert not engine.llm._router.unfinished
                whole(engine.llm)
        finally:
            threading.settrace(None)
            gc.enable()
        return watch.lines

    lines = run(None)
    for at in range(0, len(lines), max(1, len(lines) // 12)):
        run(at)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.directory)
def test_a_stream_that_is_collected_with_its_engine_is_silent(stage, small_checkpoint, monkeypatch):
    """In a cycle with it: the collector has cleared what knows the engine weakly when it closes the stream."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    llm = stage.LLM(small_checkpoint, device="cpu")
    events = llm.stream([[1, 2], [3]], stage.SamplingParams(max_tokens=9, ignore_eos=True))
    next(events)
    cycle = [llm, events]
    cycle.append(cycle)
    del llm, events, cycle
    gc.collect()
    assert [str(one.exc_value) for one in told] == []


@pytest.mark.parametrize("simple", STAGES[:3], ids=lambda stage: stage.directory)
def test_an_abandoned_run_of_the_simple_stages_leaves_the_trace(simple, small_checkpoint):
    """Its requests have ended, also for who looks at the trace; the next run is as if it had not been."""
    prompts, params = random_prompts(211, [3, 9, 2]), simple.SamplingParams(seed=1, max_tokens=6, ignore_eos=True)
    llm = simple.LLM(small_checkpoint, device="cpu", trace=True)
    expected = tokens_of(llm.generate(prompts, params))
    seen = len(llm.trace)
    for num_read in (0, 1, 4):
        events = llm.stream(prompts, params)
        for _ in range(num_read):
            next(events)
        del events
        gc.collect()
        assert tokens_of(llm.generate(prompts, params)) == expected
    happened = [event for record in llm.trace[seen:] for event in record.before + record.after]
    queued, ended = (sorted(e["request_id"] for e in happened if e["kind"] == kind) for kind in ("queued", "finished"))
    assert len(queued) == 15
    assert queued == ended


@pytest.mark.parametrize("simple", STAGES[:3], ids=lambda stage: stage.directory)
def test_a_step_of_the_simple_stages_refuses_another_one_inside(simple, small_checkpoint):
    prompts, params = random_prompts(211, [3, 9, 2]), simple.SamplingParams(seed=1, max_tokens=3, ignore_eos=True)
    llm, refusals = simple.LLM(small_checkpoint, device="cpu", trace=True), 0
    expected = tokens_of(llm.generate(prompts, params))
    with Interrupter(ROOT / simple.directory) as watch:
        assert tokens_of(llm.generate(prompts, params)) == expected

    def visit():
        nonlocal refusals
        try:
            llm.generate(prompts[:1], params)
        except RuntimeError as error:
            if IN_A_STEP not in str(error):
                raise
            refusals += 1

    for at in watch.each()[simple.number % 3 :: 3]:
        with Interrupter(ROOT / simple.directory, at, visit):
            assert tokens_of(llm.generate(prompts, params)) == expected
    assert refusals > 20


FORK = """
import os, sys, time
import {module} as stage

def ask(what):
    start = time.monotonic()
    try:
        what()
    except RuntimeError as error:
        assert "fork" in str(error) and "spawn" in str(error), error
        assert time.monotonic() - start < 10
        return
    raise SystemExit("not refused")

def complete():
    if {name!r} == "LLM":
        return engine.generate([[1, 2, 3]], params)[0].outputs
    return engine.complete([1, 2, 3], params).outputs

params, model = stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), {checkpoint!r}
engine = stage.{name}(model=model, device="cpu")
expected = complete()[0].token_ids
child = os.fork()
if not child:
    ask(complete)
    ask(lambda: next(iter(engine.stream([[1, 2, 3]], params))))
    ask(lambda: stage.LLM(model, device="cpu"))
    if hasattr(engine, "add_request"):
        ask(lambda: engine.add_request("a", [1, 2, 3], params))
        ask(lambda: engine.abort_request("a"))
        ask(engine.step)
    if {name!r} == "AsyncLLM":
        engine.close()
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert complete()[0].token_ids == expected
"""


@pytest.mark.parametrize(
    ("forked", "name"),
    # What refuses is the same file in every stage: for `make test` the first and the last, and one of the threads.
    [
        (STAGES[0], "LLM"),
        (STAGES[4], "AsyncLLM"),
        (STAGES[5], "LLM"),
        *(pytest.param(stage, "LLM", marks=pytest.mark.soak) for stage in STAGES[1:5]),
        *(pytest.param(stage, "AsyncLLM", marks=pytest.mark.soak) for stage in (STAGES[3], STAGES[5])),
    ],
    ids=lambda value: getattr(value, "directory", value),
)
def test_a_fork_is_refused_at_its_first_call(forked, name, small_checkpoint):
    """Its threads are missing in the child, where it would wait for them for ever; the parent goes on."""
    script = FORK.format(module=forked.directory, name=name, checkpoint=str(small_checkpoint))
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, without_notes(done.stderr)) == (0, "")


def tokens_in_a_process(directory: str, checkpoint: str) -> list[int]:
    (stage,) = [stage for stage in STAGES if stage.directory == directory]
    params = stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    return stage.LLM(checkpoint, device="cpu").generate([[1, 2, 3]], params)[0].outputs[0].token_ids


@pytest.mark.soak
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_with_engines_of_their_own(method, small_checkpoint):
    jobs = [(stage.directory, str(small_checkpoint)) for stage in (STAGES[0], STAGES[-1])]
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap(tokens_in_a_process, jobs) == [tokens_in_a_process(*job) for job in jobs]


def test_a_real_signal(serving, small_checkpoint):
    """A timer's signals, hundreds of them, wherever they fall."""
    expected = everything(small_engine(serving, small_checkpoint), serving, False)
    llm = small_engine(serving, small_checkpoint, trace=True)
    visitor = Visitor(llm, serving)

    def visit(*_):
        if visitor.number < 100:  # on a busy machine requests would come faster than they are answered
            visitor.noted()
        visitor.refused()

    before = signal.signal(signal.SIGALRM, visit)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        for _ in range(10):
            assert everything(llm, serving, False) == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert visitor.number > 3
    assert visitor.refusals > 3
    visitor.check()

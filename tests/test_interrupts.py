"""Interruptions: Ctrl-C, abandoned generators, finalizers, signal handlers, threads, forks, failing steps.

The engine goes on, none of its memory is lost, and no request gets other tokens because of it.
"""

import asyncio
import functools
import gc
import itertools
import linecache
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref

import numpy as np
import pytest

from tests.adapter import ROOT, STAGES, in_threads, random_prompts, wait_until, without_notes
from tools.engines import traced

pytestmark = pytest.mark.covers("engine.py", "engine_loop.py", "llm.py", "beam_search.py")
about_streams = pytest.mark.covers("llm.py", "engine_loop.py")
SERVING = [stage for stage in STAGES if stage.number >= 4]
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@pytest.fixture(params=SERVING, ids=lambda stage: stage.directory)
def serving(request):
    return request.param


@pytest.fixture
def hectic():
    """Threads switch a thousand times more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def small_engine(stage, checkpoint, kind="LLM"):
    """So little memory that requests are preempted, where a stage can."""
    options = dict(num_blocks=9, block_size=4) if stage.number >= 5 else {}
    options |= dict(max_num_batched_tokens=8) if stage.number >= 4 else {}
    options |= dict(max_num_seqs=3) if stage.number >= 2 else {}
    return getattr(stage, kind)(model=str(checkpoint), device="cpu", **options)


def jobs(stage):
    """Prompts of unequal lengths: greedy, drawn, with a stop string that never comes, scored, and n of them."""
    several = {"n": 2} if stage.number >= 5 else {}
    scored = {"prompt_logprobs": 1} if stage.number >= 4 else {}
    params = [
        stage.SamplingParams(temperature=0, max_tokens=5, ignore_eos=True),
        stage.SamplingParams(seed=1, max_tokens=6, stop=["never this"], logprobs=1, ignore_eos=True, **scored),
        stage.SamplingParams(seed=3, max_tokens=4, ignore_eos=True, **several),
    ]
    return random_prompts(211, [3, 9, 2]), params


def tokens_of(outputs) -> list:
    """The tokens of each completion; and, where its prompt was scored, how many of its tokens were."""
    outputs = list(outputs)
    scored = [getattr(output, "prompt_logprobs", None) for output in outputs]
    tokens = [[completion.token_ids for completion in output.outputs] for output in outputs]
    return tokens + [len(entries) for entries in scored if entries]


def ways(stage, llm) -> dict:
    """All ways to give the jobs to an LLM: (call, what it has to return)."""
    prompts, params = jobs(stage)

    def streamed():
        made = {}
        for event in llm.stream(prompts, params):
            made.setdefault((event.index, getattr(event, "completion_index", 0)), []).extend(event.token_ids)
        return sorted(made.items())

    calls = {
        "generate": lambda: tokens_of(llm.generate(prompts, params)),
        "stream": streamed,
        "as_completed": lambda: tokens_of(output for _, output in sorted(llm.as_completed(prompts, params))),
    }
    if stage.number >= 5:
        calls["beam_search"] = lambda: tokens_of(llm.beam_search(prompts[:2], beam_width=2, max_tokens=5))
    return {name: (call, call()) for name, call in calls.items()}


def in_coroutine(engine, prompt, params):
    """What AsyncLLM gives, in an event loop of its own."""

    async def main():
        return [token async for event in engine.generate(prompt, params) for token in event.token_ids]

    return lambda: asyncio.run(main())


def at_rest(llm) -> None:
    """Check that nothing is left of earlier requests."""
    wait_until(lambda: not llm.loop.callbacks)
    llm.loop.call(lambda: None)  # what was asked for before has happened
    scheduler = llm.engine.scheduler
    scheduler.check_integrity()
    assert not scheduler.running
    assert not scheduler.waiting
    if hasattr(llm.engine, "block_manager"):
        assert llm.engine.block_manager.num_free == llm.engine.block_manager.num_blocks
    else:
        assert len(scheduler.free_slots) == scheduler.max_num_seqs


def llm_as_async(stage, llm):
    """An AsyncLLM of an LLM that is there."""
    engine = stage.AsyncLLM.__new__(stage.AsyncLLM)
    engine.llm = llm
    return engine


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------


def ctrl_c(call, seconds) -> bool:
    """Whether a real SIGINT, this many seconds after its beginning, interrupts the call."""
    signals = threading.Timer(seconds, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    try:
        signals.start()
        call()
        signals.cancel()
        signals.join()
        for _ in range(3):  # where Python looks for signals
            time.sleep(0)
    except KeyboardInterrupt:
        return True
    return False


@POSIX
# Of asyncio.run that is interrupted while it makes its event loop, or before it has started its coroutine.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function BaseEventLoop.__del__")
@pytest.mark.filterwarnings("ignore:coroutine 'in_coroutine.<locals>.main' was never awaited")
def test_ctrl_c_at_any_moment(serving, small_checkpoint):
    """It interrupts the caller, whose requests are dropped; a step is never cut short."""
    with small_engine(serving, small_checkpoint, "AsyncLLM") as engine:
        llm, chance = engine.llm, random.Random(serving.number)
        calls = [*ways(serving, llm).values()]
        call = in_coroutine(engine, [1, 2, 3], serving.SamplingParams(seed=1, max_tokens=9, ignore_eos=True))
        calls.append((call, call()))
        num_interrupted = 0
        for call, expected in calls * 4:
            start = time.perf_counter()
            assert call() == expected
            num_interrupted += ctrl_c(call, chance.uniform(0, time.perf_counter() - start))
            at_rest(llm)
        assert num_interrupted > 2


@POSIX
def test_who_leaves_takes_its_requests_along(serving, small_checkpoint):
    """They are not computed to their ends, in the engine's thread, while others wait."""
    llm = small_engine(serving, small_checkpoint)
    owner = llm.beams if serving.number >= 5 else llm.engine
    params, steps, interrupt_at = serving.SamplingParams(max_tokens=30, ignore_eos=True), itertools.count(1), set()

    def waiting(step):
        def counted():
            if next(steps) in interrupt_at:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            # For whoever leaves, but not forever: Python notices a signal that comes just before a wait only after it.
            deadline = time.monotonic() + 0.2
            while llm.loop.commands.empty() and time.monotonic() < deadline:
                time.sleep(0.002)
            return step()

        return counted

    llm.engine.step = waiting(llm.engine.step)
    if owner is not llm.engine:
        owner.step = waiting(owner.step)
    events = llm.stream([[1, 2], [3]], params)
    next(events)
    events.close()
    at_rest(llm)
    calls = [lambda: llm.generate([[1, 2], [3]], params)]
    if serving.number >= 5:
        calls.append(lambda: llm.beam_search([[1, 2]] * 9, beam_width=2, max_tokens=15))
    for call in calls:
        interrupt_at.add(number := next(steps) + 3)
        with pytest.raises(KeyboardInterrupt):
            call()
        at_rest(llm)
        assert next(steps) < number + 12
    assert llm.stats.num_truncated == 0  # none has reached its end


@POSIX
def test_ctrl_c_while_a_model_loads(serving, small_checkpoint, monkeypatch):
    module, go_on, threads = serving.part("llm"), threading.Event(), []
    Engine = module.Engine

    def slow(config):
        threads.append(threading.current_thread())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        go_on.wait(5)  # not forever, either
        return Engine(config)

    monkeypatch.setattr(module, "Engine", slow)
    with pytest.raises(KeyboardInterrupt):
        serving.LLM(small_checkpoint, device="cpu")
    go_on.set()
    threads[0].join(300)
    assert not threads[0].is_alive()


# --- Abandoned generators, finalizers, handlers ---------------------------------------------------------------------


@about_streams
def test_abandoned_generators(serving, small_checkpoint):
    """Dropped at once, after some events, or in a cycle, which the collector finds in any thread and in any step."""
    llm = small_engine(serving, small_checkpoint)
    (generate, expected), *_ = ways(serving, llm).values()
    long = serving.SamplingParams(max_tokens=25, ignore_eos=True)
    gc.collect()
    gc.freeze()  # the collector looks only at what this test makes
    thresholds = gc.get_threshold()
    gc.set_threshold(200)
    try:
        for num_read, ask in itertools.product((0, 1, 3), (llm.stream, llm.as_completed)):
            for in_cycle in (False, True):
                events = ask(random_prompts(211, [4, 2], seed=num_read), [long, jobs(serving)[1][0]])
                for _ in itertools.islice(events, num_read):
                    pass
                cycle = [events]
                if in_cycle:
                    cycle.append(cycle)
                del events, cycle
            assert generate() == expected
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    at_rest(llm)


@about_streams
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.directory)
def test_a_stream_and_its_engine_live_and_go_together(stage, small_checkpoint, monkeypatch):
    """A stream keeps its engine; in a cycle with it both are collected, silently."""
    told, params = [], stage.SamplingParams(max_tokens=9, ignore_eos=True)
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    assert sum(len(event.token_ids) for event in stage.LLM(small_checkpoint, device="cpu").stream([[1]], params)) == 9
    assert len([*stage.LLM(small_checkpoint, device="cpu").as_completed([[1], [2]], params)]) == 2
    llm = stage.LLM(small_checkpoint, device="cpu")
    engine, events = weakref.ref(llm.engine), llm.stream([[1, 2], [3]], params)
    next(events)
    cycle = [llm, events]
    cycle.append(cycle)
    del llm, events, cycle
    gc.collect()
    wait_until(lambda: engine() is None)
    assert [str(one.exc_value) for one in told] == []


@pytest.mark.parametrize("simple", STAGES[:3], ids=lambda stage: stage.directory)
def test_an_abandoned_run_of_the_simple_stages_leaves_the_trace(simple, small_checkpoint):
    """Its requests have ended, also in the trace; the next run is as if it had never been."""
    prompts, params = jobs(simple)
    llm = traced(simple.LLM(small_checkpoint, device="cpu"))
    expected = tokens_of(llm.generate(prompts, params))
    seen = len(llm.trace)
    for num_read in (1, 4):
        events = llm.stream(prompts, params)
        for _ in range(num_read):
            next(events)
        del events
        gc.collect()
        assert tokens_of(llm.generate(prompts, params)) == expected
    happened = [event for record in llm.trace[seen:] for event in record.before + record.after]
    queued, ended = (sorted(e["request_id"] for e in happened if e["kind"] == kind) for kind in ("queued", "finished"))
    assert queued == ended


def test_code_in_the_engines_thread_may_leave_and_not_wait(serving, small_checkpoint):
    """A processor, and a finalizer that runs in a step: what has to wait is refused, at once."""
    llm, refusals = small_engine(serving, small_checkpoint), []
    params = serving.SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    left = llm.stream([[5, 6]], serving.SamplingParams(max_tokens=30, ignore_eos=True))
    next(left)

    def processor(prompt_token_ids, output_token_ids, logits):
        left.close()
        for call in (
            lambda: llm.generate([[1]], params),
            lambda: next(llm.stream([[1]], params)),
            lambda: llm.score([[1]], [[2]]),
        ):
            with pytest.raises(RuntimeError, match=r"engine's thread .* can't wait") as refused:
                call()
            refusals.append(refused)
        return logits

    expected = tokens_of(llm.generate([[1, 2]], params))
    steered = serving.SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logits_processors=[processor])
    assert tokens_of(llm.generate([[1, 2]], steered)) == expected
    assert len(refusals) == 15
    at_rest(llm)


@POSIX
def test_a_signal_handler_may_ask_for_everything(serving, small_checkpoint):
    """It runs in the main thread, which only waits. It may make whole calls, and abort others."""
    llm = small_engine(serving, small_checkpoint)
    asked, inside = ways(serving, llm), []
    handled, left = itertools.cycle(asked.values()), []

    def visit(*_):
        if len(inside) % 2:  # it is slow, and the next signal is there already
            return
        inside.append("begins")
        call, expected = next(handled)
        assert call() == expected
        left.append(llm.stream([[1, 2]], serving.SamplingParams(max_tokens=30, ignore_eos=True)))
        next(left[-1])
        del left[:-1]
        inside.append("ends")

    before = signal.signal(signal.SIGALRM, visit)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        for call, expected in [*asked.values()] * 3:
            assert call() == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(inside) > 2
    left.clear()
    at_rest(llm)


def at_lines(functions, act):
    """A function for `sys.settrace` that calls `act` before each line of these functions, but for `try:`, which does
    nothing that can fail."""
    codes = {function.__code__ for function in functions}

    def trace(frame, event, _):
        if frame.f_code not in codes:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line.strip() != "try:":
            act()
        return trace

    return trace


def test_calls_in_the_middle_of_another(serving, small_checkpoint):
    """Between any two lines of `submit` and `send`, as from a signal handler, calls are answered."""
    llm = small_engine(serving, small_checkpoint)
    asked, done = ways(serving, llm), []

    def act():
        sys.settrace(None)
        done.append(all(call() == expected for call, expected in asked.values()))
        llm.loop.call(lambda: None)
        sys.settrace(trace)

    loop = serving.part("engine_loop").EngineLoop
    trace = at_lines([loop.submit, loop.send], act)

    def interrupted():
        sys.settrace(trace)
        done.append(asked["generate"][0]() == asked["generate"][1])
        sys.settrace(None)

    with in_threads(interrupted):
        pass
    assert len(done) > 4
    assert all(done)
    at_rest(llm)


# --- Threads --------------------------------------------------------------------------------------------------------


def test_threads_get_their_own_tokens(stage, small_checkpoint, hectic):
    """Several threads at once, in all ways, repeatedly."""
    llm = small_engine(stage, small_checkpoint)
    calls = [*ways(stage, llm).values()]

    def work(call, expected):
        for _ in range(3):
            assert call() == expected

    with in_threads(*(functools.partial(work, *one) for one in calls + calls[:2])):
        pass


# --- Steps that fail ------------------------------------------------------------------------------------------------


class Failing:
    """A method that fails at some of its calls (counted from 1), before or after it has done its work."""

    def __init__(self, owner, name, fails, late=False):
        self.owner, self.name, self.fails, self.late, self.num_calls = owner, name, fails, late, 0

    def __call__(self, *arguments):
        self.num_calls += 1
        fails = self.fails(self.num_calls)
        if fails and not self.late:
            raise MemoryError("no memory left")
        result = self.method(*arguments)
        if fails:
            raise MemoryError("no memory left")
        return result

    def __enter__(self):
        self.method = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self)
        return self

    def __exit__(self, *_):
        delattr(self.owner, self.name)


def parts(llm) -> list:
    """The parts of a step, each before and after it has done its work."""
    engine = llm.engine
    owners = [(engine.scheduler, "schedule"), (engine.runner, "forward"), (engine, "commit"), (engine, "step")]
    return [(*one, late) for one in owners for late in (False, True)]


def test_steps_that_fail_once_are_noticed_by_nobody(serving, small_checkpoint, caplog):
    """The second, or every thirteenth, wherever it fails: all start over, with the tokens that they have."""
    llm = small_engine(serving, small_checkpoint)
    asked = ways(serving, llm)
    asked.pop("beam_search", None)
    for part in parts(llm):
        for fails in (lambda number: number == 2, lambda number: number % 13 == 0):
            with Failing(*part[:2], fails, part[2]):
                for name, (call, expected) in asked.items():
                    assert call() == expected, (part, name)
    assert "a step failed: MemoryError: no memory left" in caplog.text
    at_rest(llm)


@pytest.mark.covers("engine_loop.py")
@pytest.mark.parametrize("stage", STAGES[3:], ids=str)
def test_an_engine_that_fails_in_recovery_leaves_nobody_waiting(stage, small_checkpoint, monkeypatch, caplog):
    """Its callers get the error, and so do requests that came before the end; later ones get it as the cause."""
    llm = stage.LLM(small_checkpoint, device="cpu")
    defect = RuntimeError("a defect")

    def fails(*_):
        raise defect

    monkeypatch.setattr(llm.engine, "step", fails)
    monkeypatch.setattr(llm.engine, "restart", fails)
    begin = threading.Barrier(3)

    def ask():
        begin.wait()
        with pytest.raises(RuntimeError) as raised:
            llm.generate([[1, 2]])
        return raised.value if raised.value is defect else raised.value.__cause__

    with in_threads(*[ask] * 3) as errors:
        pass
    assert errors == [defect] * 3
    assert "the engine has failed" in caplog.text
    for late in (lambda: llm.generate([[1, 2]]), lambda: llm.loop.call(lambda: None)):
        with pytest.raises(RuntimeError, match="the engine is closed") as raised:
            late()
        assert raised.value.__cause__ is defect


def test_a_step_that_always_fails_is_told_and_the_engine_lives(serving, small_checkpoint):
    """Every caller gets the error itself, with a traceback that says where it was raised."""
    llm = small_engine(serving, small_checkpoint)
    asked = ways(serving, llm)
    for owner, name, late in parts(llm):
        for way, (call, expected) in asked.items():
            if way == "beam_search" and (owner, name) != (llm.engine.runner, "forward"):
                continue  # it has other parts
            with Failing(owner, name, lambda _: True, late), pytest.raises(MemoryError, match="no memory") as raised:
                call()
            assert "in __call__" in "".join(traceback.format_tb(raised.value.__traceback__))
            assert call() == expected
            at_rest(llm)


@pytest.mark.covers("engine_loop.py")
@pytest.mark.parametrize("number", [1, 2, 4, 7, 11, 16, 22, 29, 40])
def test_a_defect_in_the_loop_leaves_nobody_waiting(serving, small_checkpoint, number):
    """After an error in one of its own lines, every caller, including later ones, gets tokens or an error."""
    llm, loop = small_engine(serving, small_checkpoint), serving.part("engine_loop").EngineLoop
    asked, ended, lines = ways(serving, llm), [], itertools.count(1)
    asked.pop("beam_search", None)
    call = in_coroutine(llm_as_async(serving, llm), [1, 2, 3], serving.SamplingParams(seed=1, max_tokens=4))
    calls = [*asked.values(), (call, call())]

    def ask(call, expected):
        try:
            ended.append(call() == expected)
        except (MemoryError, serving.EngineClosedError):
            ended.append(True)

    def fail():
        if next(lines) == number:
            raise MemoryError("no memory left")

    functions = [loop._add, loop._abort, loop._step, loop._notify, loop._fail, loop._run_commands]
    llm.loop.call(lambda: sys.settrace(at_lines(functions, fail)))
    # `call` itself has left the frames that are not traced: the engine's next ones are.
    for _ in range(2):
        with in_threads(*(functools.partial(ask, *one) for one in calls)):
            pass
    assert len(ended) == 2 * len(calls)
    assert all(ended)
    assert next(lines) > number


def test_engines_that_close_while_threads_ask(serving, small_checkpoint):
    """Each call is answered, aborted or refused, and each thread ends."""
    params = serving.SamplingParams(max_tokens=9, ignore_eos=True)
    for number in range(6):
        engine = small_engine(serving, small_checkpoint, "AsyncLLM")

        def work(llm=engine.llm):
            try:
                while True:
                    llm.generate([[1, 2], [3]], params)
            except serving.EngineClosedError:
                pass

        with in_threads(*[work] * 6):
            wait_until(lambda engine=engine: engine.llm.stats.num_output_tokens > 5)
            engine.close(abort=number % 2 == 0)
        assert not engine.llm.loop.callbacks


def test_an_ended_completion_is_told_once(small_checkpoint):
    """Even if a step fails after its end, while its siblings go on."""
    for stage in STAGES[4:6]:
        llm, parameters = small_engine(stage, small_checkpoint), dict(seed=3, n=2, max_tokens=9, ignore_eos=True)
        ((first, second),) = tokens_of(llm.generate([[1, 2]], stage.SamplingParams(**parameters)))
        stop = next(token for token in first[:3] if token not in second)
        params = stage.SamplingParams(stop_token_ids=[stop], **parameters)
        with Failing(llm.engine, "commit", {first.index(stop) + 1, 6}.__contains__, late=True):
            events = list(llm.stream([[1, 2]], params))
        ends = [(event.completion_index, event.finish_reason) for event in events if event.finish_reason]
        assert ends == [(0, "stop"), (1, "length")]
        assert [t for event in events if event.completion_index for t in event.token_ids] == second


# --- Processes ------------------------------------------------------------------------------------------------------

FORK = """
import asyncio, os, sys, time, warnings
import {module} as stage

warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, os.fork warns
def ask(what):
    start = time.monotonic()
    try:
        what()
    except RuntimeError as error:
        assert "fork" in str(error) and "spawn" in str(error), error
        assert time.monotonic() - start < 10
        return
    raise SystemExit("not refused")

params, model = stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), {checkpoint!r}
engine = stage.AsyncLLM(model=model, device="cpu") if {number} >= 4 else None
llm = engine.llm if engine else stage.LLM(model, device="cpu")
expected = llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids
stream = llm.stream([[1, 2, 3]], stage.SamplingParams(max_tokens=40, ignore_eos=True))
next(stream)
child = os.fork()
if not child:
    ask(lambda: list(stream))
    ask(lambda: llm.generate([[1, 2, 3]], params))
    ask(lambda: next(iter(llm.stream([[1, 2, 3]], params))))
    ask(lambda: stage.LLM(model, device="cpu"))
    if engine:
        async def main():
            async for event in engine.generate([1, 2, 3], params):
                pass
        ask(lambda: asyncio.run(main()))
        engine.close()
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert len(list(stream)) == 39
assert llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids == expected
"""


def run_script(script: str, stage, checkpoint) -> tuple[int, str]:
    script = script.format(module=stage.directory, number=stage.number, checkpoint=str(checkpoint))
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done.returncode, without_notes(done.stderr)


@POSIX
@about_streams
@pytest.mark.parametrize("stage", [STAGES[0], STAGES[3], STAGES[5]], ids=str)
def test_a_fork_is_refused_at_its_first_call(stage, small_checkpoint):
    """Its threads are missing in the child, where calls would wait for them forever; the parent goes on."""
    assert run_script(FORK, stage, small_checkpoint) == (0, "")


EXIT = """
import atexit, sys, threading, time
def tell():  # registered first, so it is called last
    if llm.stats.num_requests > 500:
        print(llm.stats.num_requests, "requests were waited for", file=sys.stderr)
atexit.register(tell)
from {module} import LLM, SamplingParams
llm = LLM(model={checkpoint!r}, device="cpu")
params = SamplingParams(max_tokens=46, ignore_eos=True, seed=1)
def work():
    try:
        while True:
            llm.generate([[1, 2, 3]], params)
    except RuntimeError:
        pass  # closed
if {number} == 5:
    threading.Thread(target=llm.beam_search, args=([[1, 2]] * 1000, 4, 40), daemon=True).start()
else:
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    stream = llm.stream([[1, 2]], params)
    next(stream)
while not llm.stats.num_forwards:
    time.sleep(0.001)
sys.exit(3)
"""


@about_streams
@pytest.mark.parametrize("stage", STAGES[3:6], ids=str)
def test_a_program_that_ends_with_a_running_engine_ends_as_it_wants(stage, small_checkpoint):
    """With threads that ask again and again, and with a thousand searches, in stage 5."""
    assert run_script(EXIT, stage, small_checkpoint) == (3, "")


CTRL_C_AT_EXIT = """
import threading, torch
from {module} import LLM, SamplingParams
llm = LLM(model={checkpoint!r}, device="cpu")
begun, step, numbers = threading.Event(), llm.engine.step, torch.ones(64, 64)
def slow():  # many calls of torch, each of which takes Python's lock again when it ends
    begun.set()
    for _ in range(50_000):
        numbers @ numbers
    return step()
llm.engine.step = slow
stream = llm.stream([[1, 2]], SamplingParams(max_tokens=9, ignore_eos=True))
threading.Thread(target=next, args=(stream,), daemon=True).start()
begun.wait()
print("ends", flush=True)
"""


@POSIX
@about_streams
@pytest.mark.parametrize("stage", [STAGES[3]], ids=str)
def test_ctrl_c_while_python_waits_for_the_engine_at_exit(stage, small_checkpoint):
    """Once or twice: the process ends as it wants, or by the interrupt, and never crashes."""
    script = CTRL_C_AT_EXIT.format(module=stage.directory, checkpoint=str(small_checkpoint))
    for pauses in ([0.0], [0.05], [0.0, 0.02], [0.1, 0.1]):
        process = subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout.readline() == b"ends\n"
        for pause in pauses:
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=300)
        assert process.returncode in (0, 1, 130, -signal.SIGINT), stderr.decode()
        assert b"terminate called" not in stderr


def test_results_are_the_receivers_alone(batched_stage, small_checkpoint, monkeypatch):
    """What has been handed out is not kept: a file of results may be larger than memory."""
    request_class, made = batched_stage.part("request").Request, weakref.WeakSet()
    own = request_class.__init__
    monkeypatch.setattr(request_class, "__init__", lambda self, *a, **k: own(self, *a, **k) or made.add(self))
    llm, left = batched_stage.LLM(small_checkpoint, device="cpu", max_num_seqs=2), 8
    params = batched_stage.SamplingParams(max_tokens=3, logprobs=1)
    gc.collect()
    gc.freeze()  # the collector looks only at what comes now
    for _ in llm.as_completed(random_prompts(211, [3] * left), params):
        left -= 1
        gc.collect()
        assert len(made) <= left + 2  # at most a batch more
    assert left == 0
    left = 8 if batched_stage.number >= 4 else 0  # before, a stream holds its prompts' requests
    for event in llm.stream(random_prompts(211, [3] * left), params):
        left -= event.finish_reason is not None
        if event.finish_reason is not None:
            gc.collect()
            assert len(made) <= left + 2
    assert left == 0


# --- Values ---------------------------------------------------------------------------------------------------------

NUMPY = dict(
    temperature=np.float64(0.7), top_k=np.int16(5), top_p=np.float32(0.5), min_p=np.float16(0.25), seed=np.uint64(7),
    repetition_penalty=np.float64(1.5), presence_penalty=np.float32(0.5), frequency_penalty=np.float64(0.25),
    max_tokens=np.int8(100), min_tokens=np.uint8(2), stop_token_ids=[np.int32(3)], ignore_eos=np.True_,
    logprobs=np.int8(2), stop=[np.str_("never")],
)  # fmt: skip


@pytest.mark.covers("support/sampling_params.py", "support/inputs.py", "support/options.py", "config.py")
def test_numpy_values_become_pythons(stage, small_checkpoint):
    """An int8 that should count to 100 would overflow, and a float64 would not fit into the sampler's tensors."""
    given = stage.SamplingParams(**NUMPY)
    own = {name: value.item() if hasattr(value, "item") else value for name, value in NUMPY.items()}
    plain = stage.SamplingParams(**own | {"stop_token_ids": [3], "stop": ["never"]})
    for name in NUMPY:
        value = getattr(given, name)
        assert value == getattr(plain, name)
        assert type(value) in (int, float, bool, tuple)
        assert {type(item) for item in value} <= {int, str} if isinstance(value, tuple) else True
    llm = stage.engine(small_checkpoint)
    prompt = [np.int64(5), np.uint8(6)]
    outputs = [llm.generate([prompt], params)[0].outputs[0].token_ids for params in (given, plain)]
    assert outputs[0] == outputs[1]
    assert 2 <= len(outputs[0]) <= 48
    at_once = {"max_num_seqs": np.int8(2)} if stage.number >= 2 else {}
    llm = stage.LLM(small_checkpoint, device="cpu", max_model_len=np.int16(40), seed=np.uint8(3), **at_once)
    assert len(llm.generate([[1, 2], [3], [4]], stage.SamplingParams(max_tokens=3))) == 3
    for bad in (True, 2.0, np.float64(2), "2", np.int8(0)):
        with pytest.raises(ValueError, match="max_model_len must be a whole number of at least 2, got"):
            stage.LLM(small_checkpoint, device="cpu", max_model_len=bad)


def test_beams_of_any_length_penalty(small_checkpoint):
    for stage in STAGES[4:]:
        search = stage.part("beam_search").BeamSearch
        llm = stage.engine(small_checkpoint)
        beams = search(llm.inputs.request([1, 2], stage.SamplingParams()), 2, 100.0)
        assert beams.score(-5.0, 1500) > beams.score(-5.0, 1400) > beams.score(-6.0, 1400)
        assert beams.score(0.0, 3) == float("inf")
        beams = search(llm.inputs.request([1, 2], stage.SamplingParams()), 2, -100.0)
        assert beams.score(-5.0, 1500) < beams.score(-5.0, 1400)

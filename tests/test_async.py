"""From stage 4 on: the engine in a background thread, for coroutines and threads."""

import asyncio
import functools
import random
import threading

import pytest

from tests.adapter import in_threads, random_prompts, wait_until

pytestmark = pytest.mark.covers("async_llm.py", "llm.py", "engine_loop.py")
NUMBERS = range(4, 9)  # of the stages that this runs on, see conftest.py


@pytest.fixture
def engine(stage, small_checkpoint):
    engine = stage.AsyncLLM(model=str(small_checkpoint), device="cpu", max_num_seqs=4)
    yield engine
    engine.close(abort=True)
    engine.llm.engine.scheduler.check_integrity()
    assert not engine.llm.loop.callbacks


def endless(stage):
    return stage.SamplingParams(max_tokens=46, ignore_eos=True, seed=1)


async def collect(engine, prompt, params):
    return [token async for event in engine.generate(prompt, params) for token in event.token_ids]


def test_coroutines_get_what_generate_gives(stage, engine, small_checkpoint):
    prompts = random_prompts(211, [3, 9, 1, 14, 6, 2, 8])
    params = [stage.SamplingParams(max_tokens=4 + i, seed=i) for i in range(7)]

    async def main():
        return await asyncio.gather(*(collect(engine, p, s) for p, s in zip(prompts, params, strict=True)))

    with pytest.raises(ValueError, match="outside the model's vocabulary"):
        asyncio.run(collect(engine, [999], None))
    expected = stage.engine(small_checkpoint).generate(prompts, params)
    assert asyncio.run(main()) == [output.outputs[0].token_ids for output in expected]


def test_32_threads_stream_complete_and_abort_at_once(stage, engine, small_checkpoint):
    """Half of them leave in the middle; those that stay get what they would get alone."""
    prompts = random_prompts(211, [1 + i % 9 for i in range(32)])
    params = [stage.SamplingParams(max_tokens=10, seed=i, ignore_eos=True) for i in range(32)]
    expected = [o.outputs[0].token_ids for o in stage.engine(small_checkpoint).generate(prompts, params)]
    results = {}

    async def leave_early(i):
        async for event in engine.generate(prompts[i], params[i]):
            if random.random() < 0.3:
                return
            assert event.token_ids

    def work(i):
        for _ in range(3):
            if i % 4 == 0:
                results[i] = engine.llm.generate([prompts[i]], params[i])[0].outputs[0].token_ids
            elif i % 4 == 1:
                results[i] = asyncio.run(collect(engine, prompts[i], params[i]))
            else:
                asyncio.run(leave_early(i))

    with in_threads(*(functools.partial(work, i) for i in range(32))):
        pass
    assert results == {i: expected[i] for i in range(32) if i % 4 in (0, 1)}
    wait_until(lambda: not engine.llm.loop.callbacks)
    engine.llm.engine.scheduler.check_integrity()
    assert engine.llm.loop.callbacks == {}


def test_cancelling_a_stream_frees_its_slot(stage, engine):
    cancelled, step = threading.Event(), engine.llm.engine.step

    def held():
        news = step()
        assert cancelled.wait(300)  # else a fast engine is through before it is cancelled
        return news

    engine.llm.engine.step = held

    async def main():
        task = asyncio.create_task(collect(engine, [1, 2], endless(stage)))
        while not engine.llm.engine.scheduler.running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        while engine.llm.engine.scheduler.running:  # while the event loop lives: closing it would abort too
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), timeout=300))
    assert engine.llm.stats.num_requests == 0  # it did not finish


def test_a_huge_prompt_does_not_hold_up_the_engine(stage, engine, monkeypatch):
    """Its text is tokenized in its caller's thread, not in the engine's."""
    inside, release = threading.Event(), threading.Event()

    def slow(text):
        inside.set()
        assert release.wait(300)
        return [1]

    monkeypatch.setattr(engine.llm.engine.tokenizer, "encode", slow)
    with in_threads(lambda: engine.llm.generate("a text that takes long", endless(stage))):
        assert inside.wait(300)
        assert engine.llm.generate([[5, 6]], stage.SamplingParams(max_tokens=3))[0].finished  # meanwhile
        release.set()


def num_submitted(engine):
    """While a step is held, each request is a command, or has a callback already."""
    return len(engine.llm.loop.callbacks) + engine.llm.loop.commands.qsize()


def test_an_error_in_the_engine_reaches_every_waiter(stage, engine):
    """The error itself, after a second try; then the engine works for others."""
    forward, release = engine.llm.engine.runner.forward, threading.Event()

    def fail(*_):
        assert release.wait(300)
        raise MemoryError("no memory left")

    engine.llm.engine.runner.forward = fail

    def wait_for_it(call):
        with pytest.raises(MemoryError, match="no memory left"):
            call()

    calls = [lambda: engine.llm.generate([[1, 2]]), lambda: asyncio.run(collect(engine, [3], None))] * 3
    with in_threads(*(functools.partial(wait_for_it, call) for call in calls)):
        wait_until(lambda: num_submitted(engine) == 6)
        release.set()
    engine.llm.engine.runner.forward = forward
    assert engine.llm.generate([[1]], stage.SamplingParams(max_tokens=2))[0].finished


def test_close_finishes_or_aborts(stage, small_checkpoint):
    for abort in (False, True):
        engine = stage.AsyncLLM(model=str(small_checkpoint), device="cpu", max_num_seqs=1)
        step, release = engine.llm.engine.step, threading.Event()

        def held(step=step, release=release):
            assert release.wait(300)  # else a fast engine is through before the third request
            return step()

        engine.llm.engine.step = held
        with in_threads(*[functools.partial(engine.llm.generate, [[1, 2]], endless(stage))] * 3) as outputs:
            wait_until(lambda e=engine: num_submitted(e) == 3)
            engine.llm.loop.close(abort=abort)
            release.set()
        assert [output.outputs[0].finish_reason for (output,) in outputs] == ["abort" if abort else "length"] * 3
        for (output,) in outputs:  # those that never ran have no times, rather than wrong ones
            times = output.metrics.ttft, output.metrics.e2e, output.metrics.queue_time
            assert all(seconds is None or seconds >= 0 for seconds in times)
        with pytest.raises(RuntimeError, match="the engine is closed"):
            engine.llm.generate([[1]])
        engine.close()  # twice does no harm


def test_with_statement(stage, small_checkpoint):
    with stage.AsyncLLM(model=str(small_checkpoint), device="cpu") as engine:
        assert engine.llm.generate([[1]], stage.SamplingParams(max_tokens=2))[0].finished
    with pytest.raises(RuntimeError, match="closed"):
        engine.llm.generate([[1]])


@pytest.mark.parametrize("most", [1, 3])
def test_news_that_can_not_be_made_are_an_error_for_their_reader(stage, small_checkpoint, monkeypatch, most):
    """No reader waits forever, in a thread or in a coroutine, and the engine goes on; also if its first news are its
    last."""
    params = stage.SamplingParams(max_tokens=most, ignore_eos=True)
    with stage.AsyncLLM(model=str(small_checkpoint), device="cpu") as engine:
        expected = engine.llm.generate([[1, 2]], params)[0].outputs[0].token_ids
        with monkeypatch.context() as patch:
            patch.setattr(stage.StreamEvent, "take", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                list(engine.llm.stream([[1, 2]], params))
            with pytest.raises(ZeroDivisionError):
                asyncio.run(collect(engine, [1, 2], params))
            patch.setattr(stage.RequestOutput, "of", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                list(engine.llm.as_completed([[1, 2]], params))
        wait_until(lambda: not engine.llm.loop.callbacks)
        assert len(expected) == most
        assert len(engine.llm.generate([[1, 2]], params)[0].outputs[0].token_ids) == most


def test_a_request_that_comes_while_the_engine_ends_is_done(stage, small_checkpoint):
    """It is submitted, and the engine is closed, before the engine's thread looks again."""
    llm = stage.LLM(small_checkpoint, device="cpu")
    loop, request = llm.loop, llm.inputs.request([1, 2], stage.SamplingParams(max_tokens=3, ignore_eos=True))
    commands, looks = loop.commands, []

    class Late:
        put, get, get_nowait = commands.put, commands.get, commands.get_nowait

        def empty(self):
            was_empty = commands.empty()
            if was_empty and not looks:
                looks.append(True)
                other = threading.Thread(target=lambda: (loop.submit([request], lambda *_: None), loop.close()))
                other.start()
                other.join()
            return was_empty

    loop.commands = Late()
    commands.put(lambda: None)  # wakes the thread, which then looks again
    loop.thread.join(60)
    assert not loop.thread.is_alive()
    assert request.finish_reason == "length"

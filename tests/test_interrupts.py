"""Whatever ends a step in the middle, the engine goes on: Ctrl-C at any line, a request that fails, threads, exits."""

import asyncio
import contextlib
import gc
import itertools
import linecache
import math
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.adapter import BATCHED, ROOT, STAGES, random_prompts, without_notes

SERVING = [stage for stage in STAGES if stage.number >= 4]


@pytest.fixture(params=SERVING, ids=lambda stage: stage.directory)
def serving(request):
    return request.param


class Interrupter:
    """Raises KeyboardInterrupt, or calls something, at the n-th line that is executed in a stage's directory; without n
    notes them all.

    Where a `with` block has ended well, Python goes on to its `__exit__` without a look at signals, so that a lock is
    always freed; a tracer sees the `with` line once more there, and this one passes it over.
    """

    def __init__(self, directory: Path, at: int | None = None, act=None):
        self.directory, self.at, self.act, self.count = str(directory), at, act or self.interrupt, 0
        self.lines: list[tuple[str, int]] = []  # (file, line) of each
        self.before: dict[int, int] = {}  # the line that a frame was in

    @staticmethod
    def interrupt() -> None:
        raise KeyboardInterrupt

    def __call__(self, frame, event, _):
        code, line = frame.f_code, frame.f_lineno
        if not code.co_filename.startswith(self.directory):
            return None
        if event == "line":
            before, self.before[id(frame)] = self.before.get(id(frame), 0), line
            if before > line and linecache.getline(code.co_filename, line).lstrip().startswith("with "):
                return self
            if self.at is None:
                self.lines.append((code.co_filename, line))
            self.count += 1
            if self.count - 1 == self.at:
                self.act()
        elif event == "call":
            self.before.pop(id(frame), None)
        return self

    def __enter__(self):
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def each(self, seed: int = 0, file: str = "") -> list[int]:
        """One moment for every line that was executed (in this file): where each of them is interrupted once."""
        moments: dict[tuple[str, int], list[int]] = {}
        for i, line in enumerate(self.lines):
            if line[0].endswith(file):
                moments.setdefault(line, []).append(i)
        choose = random.Random(seed)
        return [choose.choice(times) for times in moments.values()]


def small_engine(stage, checkpoint, **more):
    """So little memory that requests are preempted, where a stage can; and nothing in it depends on the time."""
    options = dict(num_blocks=9, block_size=4) if stage.number >= 5 else {}
    options |= dict(num_drafts=2) if stage.number >= 7 else {}  # "auto" asks how long steps took
    llm = stage.LLM(checkpoint, device="cpu", max_num_seqs=3, max_num_batched_tokens=8, **options, **more)
    if stage.number >= 6:
        llm.engine.runner.thread_limit = contextlib.nullcontext()
    else:
        llm._threads._looked = (math.inf, 0.0, 0.0)  # and it never looks again
    return llm


def jobs(stage):
    """Prompts of unequal lengths: greedy, drawn, with a stop text that never comes, scored, n where a stage has it."""
    prompts = random_prompts(211, [3, 9, 2])
    several = {"n": 2} if stage.number >= 5 else {}
    params = [
        stage.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True),
        stage.SamplingParams(seed=1, max_tokens=4, stop=["never this"], logprobs=1, prompt_logprobs=1, ignore_eos=True),
        stage.SamplingParams(seed=3, max_tokens=2, ignore_eos=True, **several),
    ]
    return prompts, params


def tokens_of(outputs) -> list:
    """The tokens of each completion; and, where its prompt was scored, how many of its tokens were."""
    outputs = list(outputs)
    scored = [getattr(output, "prompt_logprobs", None) for output in outputs]
    tokens = [[completion.token_ids for completion in output.outputs] for output in outputs]
    return tokens + [len(entries) for entries in scored if entries]


def drive(llm, results: dict) -> None:
    """Steps until all is done, as a user's loop does it; whatever has finished is in `results`."""
    for _ in range(500):
        if not llm.has_unfinished_requests():
            return
        for output in llm.step():
            if output.finished:
                results[output.request_id] = output
    raise AssertionError("it never ends")


def whole(llm) -> None:
    """Nothing is left behind."""
    llm.engine.scheduler.check_integrity()
    assert not llm.engine.scheduler.running
    if hasattr(llm.engine, "block_manager"):
        assert llm.engine.block_manager.num_free == llm.engine.block_manager.num_blocks
    else:
        assert len(llm.engine.scheduler.free_slots) == llm.engine.scheduler.max_num_seqs


def shares(quick: int):
    """Parameters of a test: for `make test` one of so many moments, with others in each stage; for `make soak` all."""
    return pytest.mark.parametrize("share", [quick, pytest.param(1, marks=pytest.mark.soak)])


def some(moments: list[int], share: int, stage) -> list[int]:
    return moments[stage.number % share :: share]


def start(llm, stage) -> None:
    prompts, params = jobs(stage)
    for i, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
        llm.add_request(f"r{i}", prompt, p)


@shares(8)
def test_ctrl_c_at_every_line_of_every_step(serving, small_checkpoint, share):
    """Whoever catches it and goes on gets the tokens that an undisturbed run gives, all of them, once."""
    prompts, params = jobs(serving)
    expected = tokens_of(small_engine(serving, small_checkpoint).generate(prompts, params))
    directory = ROOT / serving.directory
    llm = small_engine(serving, small_checkpoint)
    start(llm, serving)
    drive(llm, {})  # the first run makes what the engine keeps
    if serving.number >= 5:
        llm.engine.block_manager.clear()  # else the prefix cache makes each run another one
    start(llm, serving)
    results = {}
    with Interrupter(directory) as counter:
        drive(llm, results)
    assert tokens_of(results[f"r{i}"] for i in range(len(prompts))) == expected
    for at in some(counter.each(), share, serving):
        if serving.number >= 5:
            llm.engine.block_manager.clear()
        start(llm, serving)
        results = {}
        with Interrupter(directory, at), pytest.raises(KeyboardInterrupt):
            drive(llm, results)
        drive(llm, results)
        assert results.keys() == {f"r{i}" for i in range(len(prompts))}, f"line {at}"
        assert tokens_of(results[f"r{i}"] for i in range(len(prompts))) == expected, f"line {at}"
        whole(llm)


@shares(2)
def test_ctrl_c_at_every_line_of_generate(serving, small_checkpoint, share):
    """The interrupted call is gone with all it held, and the next one is right."""
    prompts, params = jobs(serving)
    llm = small_engine(serving, small_checkpoint)
    directory = ROOT / serving.directory
    with Interrupter(directory) as counter:
        expected = tokens_of(llm.generate(prompts, params))
    for at in some(counter.each(seed=1, file="router.py"), share, serving):
        with Interrupter(directory, at), contextlib.suppress(KeyboardInterrupt):
            llm.generate(prompts, params)
        assert tokens_of(llm.generate(prompts, params)) == expected, f"line {at}"
        assert not llm.has_unfinished_requests(), f"line {at}"
        whole(llm)


@shares(4)
def test_ctrl_c_in_a_beam_search(small_checkpoint, share):
    for stage in STAGES[4:]:
        llm = small_engine(stage, small_checkpoint)
        prompts, directory = random_prompts(211, [3, 9]), ROOT / stage.directory
        with Interrupter(directory) as counter:
            expected = tokens_of(llm.beam_search(prompts, beam_width=2, max_tokens=3))
        moments = counter.each(file="beam_search.py") + counter.each(file="block_manager.py")
        for at in some(moments, share, stage):
            with Interrupter(directory, at), contextlib.suppress(KeyboardInterrupt):
                llm.beam_search(prompts, beam_width=2, max_tokens=3)
            assert tokens_of(llm.beam_search(prompts, beam_width=2, max_tokens=3)) == expected, f"line {at}"
            whole(llm)


def test_a_token_is_added_whole_or_not_at_all(serving, small_checkpoint):
    llm, directory = small_engine(serving, small_checkpoint), ROOT / serving.directory
    requests = [llm._intake.request([1, 2, 3], serving.SamplingParams(stop=["xyz"], max_tokens=9)) for _ in range(200)]
    grown = requests.pop()
    restore = serving.part("recovery").restore

    def add_and_restore(request):
        request.add(7)
        restore(request)

    with Interrupter(directory) as counter:
        add_and_restore(grown)
    assert len(counter.lines) < len(requests)
    for at, request in zip(range(len(counter.lines)), requests, strict=False):
        with Interrupter(directory, at), pytest.raises(KeyboardInterrupt):
            add_and_restore(request)
        restore(request)
        if not request.output_token_ids:
            assert (request.text.text, request.token_times, request.finished) == ("", [], False)
            request.add(7)
        assert (request.output_token_ids, len(request.token_times)) == ([7], 1)
        assert (request.text.text, request.finish_reason) == (grown.text.text, grown.finish_reason)


def test_one_request_that_fails_in_a_step_leaves_the_others(serving, small_checkpoint, monkeypatch, caplog):
    """An error in the sampler on one row, whatever it is: that request is aborted, with a warning that says why."""
    module = serving.part("sampler")
    choose, prompts = module.choose, random_prompts(211, [3, 9, 5])
    params = [serving.SamplingParams(seed=i, max_tokens=5, ignore_eos=True) for i in range(3)]
    expected = tokens_of(small_engine(serving, small_checkpoint).generate(prompts, params))

    def picky(logits, requests, *how):
        if any(request.seed == 1 and len(request.output_token_ids) == 2 for request in requests):
            raise ZeroDivisionError("not this one")
        return choose(logits, requests, *how)

    monkeypatch.setattr(module, "choose", picky)
    llm = small_engine(serving, small_checkpoint)
    outputs = llm.generate(prompts, params)
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "abort", "length"]
    assert tokens_of(outputs)[::2] == expected[::2]
    assert outputs[1].outputs[0].token_ids == expected[1][0][:2]
    assert "not this one" in caplog.text
    whole(llm)
    for i in range(3):
        llm.add_request(f"r{i}", prompts[i], params[i])
    results = {}
    drive(llm, results)
    assert [results[f"r{i}"].outputs[0].finish_reason for i in range(3)] == ["length", "abort", "length"]
    with pytest.raises(ZeroDivisionError):  # alone, it is the engine's error
        llm.generate([prompts[1]], params[1])
    assert not llm.has_unfinished_requests()
    whole(llm)


@pytest.fixture
def hectic():
    """Threads change a thousand times more often than they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_take_turns(small_checkpoint, hectic):
    """generate, stream and steps from several threads at once: each gets what it gets alone."""
    for stage in BATCHED:
        llm = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=3)
        work = [
            (random_prompts(211, [3 + i, 9, 5], seed=i), stage.SamplingParams(seed=i, max_tokens=7)) for i in range(4)
        ]
        expected = [tokens_of(llm.generate(prompts, params)) for prompts, params in work]
        wrong = []

        def run(i, llm=llm, work=work, expected=expected, wrong=wrong):
            try:
                for _ in range(4):
                    prompts, params = work[i]
                    if i % 2:
                        made = tokens_of(llm.generate(prompts, params))
                    else:
                        made = [[[]] for _ in prompts]
                        for event in llm.stream(prompts, params):
                            made[event.index][0] += event.token_ids
                    if made != expected[i]:
                        wrong.append((i, made, expected[i]))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=600)
            assert not thread.is_alive()
        assert wrong == [], stage


def test_ids_of_add_request_are_the_users_alone(serving, small_checkpoint):
    """Those that `generate` and streams give themselves are others, though they may read the same."""
    llm = small_engine(serving, small_checkpoint)
    params = serving.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    events = llm.stream([[1, 2]], params)
    next(events)
    for number in range(4):
        llm.add_request(str(number), [3, 4], params)
    llm.abort_request("0")
    assert len(llm.generate([[5, 6], [7]], params)) == 2
    assert sum(len(event.token_ids) for event in events) == 3
    results = {}
    drive(llm, results)
    assert sorted(results) == ["1", "2", "3"]
    whole(llm)


NUMPY = dict(
    temperature=np.float64(0.7), top_k=np.int16(5), top_p=np.float32(0.5), min_p=np.float16(0.25), seed=np.uint64(7),
    repetition_penalty=np.float64(1.5), presence_penalty=np.float32(0.5), frequency_penalty=np.float64(0.25),
    max_tokens=np.int8(100), min_tokens=np.uint8(2), stop_token_ids=[np.int32(3)], ignore_eos=np.True_,
    logprobs=np.int8(2), stop=[np.str_("never")],
)  # fmt: skip


def test_numpy_values_become_pythons(stage, small_checkpoint):
    """An int8 that is to count to 100 would overflow, and a float64 not fit into the sampler's tensors."""
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


def test_numpy_values_for_the_engine(small_checkpoint):
    for stage in BATCHED:
        llm = stage.LLM(
            small_checkpoint, device="cpu", max_num_seqs=np.int8(2), max_model_len=np.int16(40), seed=np.uint8(3)
        )
        assert len(llm.generate([[1, 2], [3], [4]], stage.SamplingParams(max_tokens=3))) == 3
        for bad in (True, 2.0, np.float64(2), "2", np.int8(0)):
            with pytest.raises(ValueError, match="max_num_seqs must be a whole number of at least 1, got"):
                stage.LLM(small_checkpoint, device="cpu", max_num_seqs=bad)


def test_more_memory_than_there_is_is_refused(small_checkpoint):
    for stage in STAGES[2:]:
        for options in (
            {"kv_cache_bytes": 10**15},
            {"num_blocks": 10**12} if stage.number >= 5 else {"kv_cache_bytes": 10**13},
        ):
            with pytest.raises(
                ValueError, match=r"the KV cache would take [\d,]+ bytes of memory, there are [\d,]+ free"
            ):
                stage.LLM(small_checkpoint, device="cpu", **options)


def test_beams_of_any_length_penalty(small_checkpoint):
    for stage in STAGES[4:]:
        search = stage.part("beam_search").BeamSearch
        llm = stage.engine(small_checkpoint)
        beams = search(llm._intake.request([1, 2], stage.SamplingParams()), 2, 100.0)
        assert beams.score(-5.0, 1500) > beams.score(-5.0, 1400) > beams.score(-6.0, 1400)
        assert beams.score(0.0, 3) == float("inf")
        beams = search(llm._intake.request([1, 2], stage.SamplingParams()), 2, -100.0)
        assert beams.score(-5.0, 1500) < beams.score(-5.0, 1400)


def test_an_abort_that_is_cut_short(serving, small_checkpoint):
    """Ctrl-C at every line of it: the request ends one way or the other, and whoever streams it hears of that."""
    llm, directory = small_engine(serving, small_checkpoint), ROOT / serving.directory
    params = serving.SamplingParams(max_tokens=4, ignore_eos=True)

    def begin():
        stream = llm.stream([[1, 2, 3]], params)
        next(stream)
        return stream, next(iter(llm._router.unfinished)).request_id

    stream, request_id = begin()
    with Interrupter(directory) as counter:
        llm.abort_request(request_id)
    assert [event.finish_reason for event in stream] == ["abort"]
    for at in range(len(counter.lines)):
        stream, request_id = begin()
        with Interrupter(directory, at), pytest.raises(KeyboardInterrupt):
            llm.abort_request(request_id)
        rest = list(itertools.islice(stream, 20))  # it would go on for ever
        assert rest[-1].finish_reason in ("abort", "length"), f"line {at}"
        assert not llm.has_unfinished_requests(), f"line {at}"
        whole(llm)


def test_a_completion_that_fails_after_its_sibling_has_ended(small_checkpoint, monkeypatch):
    """One event ends each completion: what ended before is not told again."""
    for stage in STAGES[4:]:
        module, parameters = stage.part("sampler"), dict(seed=3, n=2, max_tokens=9)
        llm = small_engine(stage, small_checkpoint)
        ((first, second),) = tokens_of(llm.generate([[1, 2]], stage.SamplingParams(ignore_eos=True, **parameters)))
        stop = next(token for token in first[:3] if token not in second)
        params = stage.SamplingParams(ignore_eos=True, stop_token_ids=[stop], **parameters)
        choose = module.choose

        def picky(logits, requests, *how, choose=choose):
            if any(request.index == 1 and len(request.output_token_ids) == 5 for request in requests):
                raise ZeroDivisionError("not this one")
            return choose(logits, requests, *how)

        monkeypatch.setattr(module, "choose", picky)
        other = stage.SamplingParams(max_tokens=9, ignore_eos=True)  # the step goes on with it
        events = list(llm.stream([[1, 2], [3]], [params, other]))
        ends = [(event.index, event.completion_index, event.finish_reason) for event in events if event.finish_reason]
        assert sorted(ends) == [(0, 0, "stop"), (0, 1, "abort"), (1, 0, "length")]

        async def ends_of(engine, params=params):
            events = [event async for event in engine.generate([1, 2], params)]
            return [(event.completion_index, event.finish_reason) for event in events if event.finish_reason]

        with stage.part("llm").AsyncLLM(model=str(small_checkpoint), device="cpu") as engine:
            forever = stage.SamplingParams(max_tokens=40, ignore_eos=True)
            thread = threading.Thread(target=engine.complete, args=([3], forever))
            thread.start()
            while not engine.llm.engine.scheduler.running:
                time.sleep(0.001)
            assert asyncio.run(ends_of(engine)) == [(0, "stop"), (1, "abort")]
            thread.join(timeout=600)


def test_a_request_that_fails_in_a_part_of_its_own(small_checkpoint, monkeypatch):
    """Many completions are sampled in parts; where all of a part fail, the others still go on."""
    for stage in STAGES[4:]:
        module = stage.part("sampler")
        choose = module.choose

        def picky(logits, requests, *how, choose=choose):
            if any(request.seed == 1 for request in requests):
                raise ZeroDivisionError("not this one")
            return choose(logits, requests, *how)

        monkeypatch.setattr(module, "choose", picky)
        llm = small_engine(stage, small_checkpoint)
        params = [stage.SamplingParams(seed=seed, n=n, max_tokens=3, ignore_eos=True) for seed, n in ((0, 1), (1, 7))]
        outputs = llm.generate([[1, 2], [3, 4]], params)
        assert [[c.finish_reason for c in output.outputs] for output in outputs] == [["length"], ["abort"] * 7]
        whole(llm)


EXIT = """
import sys
from {stage} import AsyncLLM, SamplingParams
import threading, time
engine = AsyncLLM(model={checkpoint!r}, device="cpu")
params = SamplingParams(max_tokens=46, ignore_eos=True, seed=1)
def work():
    try:
        while True:
            engine.complete([1, 2, 3], params)
    except RuntimeError:
        pass  # closed
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
while not engine.llm.stats.num_output_tokens:
    time.sleep(0.001)
sys.exit(3)
"""


@pytest.mark.parametrize("stage", [STAGES[3], pytest.param(STAGES[4], marks=pytest.mark.soak), STAGES[5]], ids=str)
def test_a_program_that_ends_with_a_running_engine_ends_as_it_wants(stage, small_checkpoint):
    code = EXIT.format(stage=stage.directory, checkpoint=str(small_checkpoint))
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, without_notes(ended.stderr)) == (3, "")


def test_an_engine_that_is_dropped_ends_its_thread(serving, small_checkpoint):
    AsyncLLM = serving.part("llm").AsyncLLM
    engine = AsyncLLM(model=str(small_checkpoint), device="cpu")
    engine.complete([1, 2], serving.SamplingParams(max_tokens=3))
    thread = engine._loop.thread
    del engine
    thread.join(timeout=600)
    assert not thread.is_alive()


def test_async_requests_hear_of_steps_that_others_run(serving, small_checkpoint, hectic):
    """`generate` beside a running AsyncLLM, from another thread: both get theirs."""
    with serving.part("llm").AsyncLLM(model=str(small_checkpoint), device="cpu", max_num_seqs=2) as engine:
        params = [serving.SamplingParams(max_tokens=9, seed=i, ignore_eos=True) for i in range(6)]
        expected = [tokens_of(engine.llm.generate([[1, 2, i]], params[i])) for i in range(6)]
        made = {}
        threads = [
            threading.Thread(target=lambda i=i: made.update({i: tokens_of([engine.complete([1, 2, i], params[i])])}))
            for i in range(3)
        ]
        for thread in threads:
            thread.start()
        for i in range(3, 6):
            made[i] = tokens_of(engine.llm.generate([[1, 2, i]], params[i]))
        for thread in threads:
            thread.join(timeout=600)
            assert not thread.is_alive()
    assert [made[i] for i in range(6)] == expected


@pytest.mark.soak
def test_results_are_the_receivers_alone(small_checkpoint):
    """What has been handed out is not kept: a file of results may be larger than memory."""
    for stage in BATCHED:
        llm, request_class = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=2), stage.part("request").Request
        left = 8
        for _ in llm.as_completed(random_prompts(211, [3] * left), stage.SamplingParams(max_tokens=3, logprobs=1)):
            left -= 1
            gc.collect()
            alive = sum(isinstance(thing, request_class) for thing in gc.get_objects())
            assert alive <= left + 2, stage  # at most a batch more

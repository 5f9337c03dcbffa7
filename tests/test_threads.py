"""Threads: torch has as many as there are free cores, and the kernels' wait for each other whatever else is running."""

import builtins
import functools
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.adapter import ROOT, STAGES, random_prompts

about_limits = pytest.mark.covers("support/threads.py")
LIMITED = [stage for stage in STAGES if stage.number >= 6]


@pytest.fixture(params=[LIMITED[0], LIMITED[-1]], ids=lambda stage: stage.directory)
def limit(request, monkeypatch, any_threads):
    """A limit on a machine of four cores, whose past the test writes: `limit.passes(seconds, idle, own)`."""
    torch.set_num_threads(4)
    past = [100.0, 0.0, 0.0]
    threads = request.param.part("threads")
    monkeypatch.setattr(threads.ThreadLimit, "_measure", staticmethod(lambda: tuple(past)))
    monkeypatch.setattr(threads.time, "monotonic", lambda: past[0])
    limit = threads.ThreadLimit()

    def passes(seconds, idle, own):
        for i, value in enumerate((seconds, idle, own)):
            past[i] += value

    limit.passes = passes
    return limit


def inside(limit) -> int:
    with limit:
        return torch.get_num_threads()


@about_limits
def test_threads_are_as_many_as_there_are_free_cores(limit):
    assert inside(limit) == 4  # nothing is known yet
    for seconds, idle, own, threads in (
        (1.0, 0.1, 3.8, 4),  # nobody else
        (1.0, 0.0, 3.0, 3),  # one core is somebody else's
        (1.0, 0.0, 2.6, 3),
        (1.0, 0.0, 0.2, 1),  # all are
        (0.01, 0.04, 0.0, 1),  # too short to say anything
        (1.0, 3.0, 1.0, 4),  # they have gone
    ):
        limit.passes(seconds, idle, own)
        assert inside(limit) == threads
        assert torch.get_num_threads() == 4


@about_limits
def test_the_number_that_was_there_is_the_most_and_is_back_afterwards(limit):
    limit.passes(1.0, idle=0.0, own=2.0)
    assert inside(limit) == 2
    assert torch.get_num_threads() == 4
    torch.set_num_threads(3)  # the user's
    limit.passes(1.0, idle=4.0, own=0.0)
    assert inside(limit) == 3
    assert torch.get_num_threads() == 3
    with pytest.raises(KeyboardInterrupt), limit:
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 3


@about_limits
def test_after_an_exit_that_was_interrupted_the_number_comes_back(limit):
    limit.passes(1.0, idle=0.0, own=1.0)
    limit.__enter__()  # and nothing
    assert torch.get_num_threads() == 1
    limit.passes(1.0, idle=3.0, own=1.0)
    assert inside(limit) == 4
    assert torch.get_num_threads() == 4


@about_limits
@pytest.mark.parametrize("stage", LIMITED, ids=str)
def test_which_cores_a_look_counts(stage, monkeypatch):
    threads = stage.part("threads")
    cores = [SimpleNamespace(idle=1.0, iowait=0.5), SimpleNamespace(idle=2.0), SimpleNamespace(idle=4.0)]
    monkeypatch.setattr(threads.psutil, "cpu_times", lambda percpu: cores)
    for ours, idle in (({0, 2}, 5.5), ({0, 1, 2}, 7.5), ({0, 5}, 7.5)):  # the last: the system does not tell of one
        monkeypatch.setattr(os, "sched_getaffinity", {0: ours}.__getitem__, raising=False)
        assert threads.ThreadLimit._measure()[1] == idle
    monkeypatch.delattr(os, "sched_getaffinity")
    assert threads.ThreadLimit._measure()[1] == 7.5


WAITING = (
    "import os, {0}.support.openmp as openmp, torch; print(openmp.WAITS_BRIEFLY, os.environ.get('GOMP_SPINCOUNT'))"
)


@pytest.mark.covers("support/openmp.py")
@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP runtime")
def test_the_runtime_waits_briefly():
    """The setting is there while torch is loaded, and for nobody else."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_WAIT", "GOMP_"))}
    command = [sys.executable, "-c", WAITING.format(STAGES[5].directory)]
    ended = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=600)
    assert (ended.stdout.strip(), ended.stderr) == ("True None", "")


@pytest.mark.covers("support/openmp.py")
@pytest.mark.parametrize("stage", LIMITED, ids=str)
def test_what_torch_finds_when_it_is_loaded(stage, monkeypatch):
    """The setting is only there while torch is loaded, even if that fails; and the user's own is not changed."""
    openmp, own, seen = stage.part("openmp"), builtins.__import__, []

    def load(system="Linux", loaded=(), broken=False, **environment):
        def spy(name, *arguments):
            if name == "torch":
                seen.append(dict(environment))
                if broken:
                    raise ImportError("no torch")
            return own(name, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(openmp, "sys", SimpleNamespace(modules=dict.fromkeys(loaded)))
            patch.setattr(openmp, "os", SimpleNamespace(environ=environment))
            patch.setattr(openmp, "platform", SimpleNamespace(system=lambda: system))
            patch.setattr(builtins, "__import__", spy)
            return openmp.load_torch(), environment

    assert load() == (True, {})
    assert load(PATH="here") == (True, {"PATH": "here"})
    assert [found.pop("GOMP_SPINCOUNT").isdecimal() for found in seen] == [True, True]
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        assert load(**{name: "1"}) == (False, {name: "1"})
    assert load(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="7")[0]
    assert load(loaded=["torch"]) == load(system="Darwin") == (False, {})
    assert len(seen) == 2
    with pytest.raises(ImportError, match="no torch"):
        load(broken=True)
    assert seen[2] == {"GOMP_SPINCOUNT": openmp.SPIN_COUNT}


def test_more_threads_than_cores_and_than_work(small_checkpoint, any_threads):
    """Threads sleep and are woken, some have nothing to do, and the results are the same."""
    stage = STAGES[5]
    prompts = random_prompts(211, [3, 30, 1, 9])
    params = stage.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    answers = []
    for threads in (1, 2, 5, 100):
        torch.set_num_threads(threads)
        llm = stage.LLM(small_checkpoint, device="cpu", attention_backend="c")
        llm.engine.runner.thread_limit.free = 1000.0
        answers.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.covers("kernels/c_kernel.py")
@pytest.mark.parametrize("stage", STAGES[4:], ids=str)
def test_kernels_without_memory(stage):
    """If they can't allocate memory, it is an error, not a crash."""
    kernel, many = stage.part("kernels.c_kernel"), 2**55
    query, cache = torch.zeros(1, 2, 64), torch.zeros(1, 2, 64, 16)
    arguments = [query, cache, cache.clone().transpose(2, 3).contiguous(), torch.zeros(1, 1, dtype=torch.int64)]
    starts, lens = torch.tensor([0, 1]), torch.tensor([1])
    assert kernel.paged_attention(*arguments, starts, lens).shape == query.shape
    if stage.number == 5:
        attend = functools.partial(kernel.paged_attention, *arguments, torch.tensor([0, many]), lens)
    else:
        rows, step = kernel.Rows(query.data_ptr(), 512, 0, 0), kernel.Step(num_tokens=many, num_seqs=0)
        attend = functools.partial(
            kernel.load_kernel().paged_attention, rows, rows, kernel.cache_struct(*arguments[1:3]), step, 0, True, 2
        )
    with pytest.raises(MemoryError, match="no memory for a step's attention"):
        attend()


# --- Stop strings ----------------------------------------------------------------------------------------------------


def ends_where(stop: str, text: str, old_length: int) -> int | None:
    """The obvious way: where in the text a stop string that ends in its new part ends for the first time."""
    position = text.find(stop, max(0, old_length + 1 - len(stop)))
    return None if position < 0 else position + len(stop)


@pytest.mark.covers("support/text.py")
@pytest.mark.parametrize("seed", range(4))
def test_stop_texts_are_found_as_the_obvious_way_finds_them(stage, seed):
    rng, Text = random.Random(seed), stage.part("text").Text
    for _ in range(200):
        letters = "ab"[: rng.randrange(1, 3)] + "é" * rng.randrange(2)
        stop = "".join(rng.choices(letters, k=rng.randrange(1, 8)))
        text, grown = "", Text(stage.tokenizer(), stage.SamplingParams(stop=stop))
        for _ in range(rng.randrange(1, 8)):
            piece = "".join(rng.choices(letters, k=rng.randrange(0, 5)))
            text, before = text + piece, text
            assert grown.num_final == len(before) - max(n for n in range(len(stop)) if before.endswith(stop[:n]))
            found, end = grown._append(piece, past_min_tokens=True), ends_where(stop, text, len(before))
            assert (found, grown.text) == ((None, text) if end is None else (stop, text[: end - len(stop)]))
            if found:
                break

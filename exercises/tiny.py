"""Engines of the stages with a very small random model, for exercises that compare with them, and what small tensors
need to be quick."""

import contextlib
import functools
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from tools.engines import Stage

SIZES = dict(n_layer=1, n_head=1, n_embd=8, vocab_size=97, eos_token_id=0)


@contextlib.contextmanager
def one_thread():
    """Torch on one thread: for tensors of a few numbers, threads that wait for each other take most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Counted(NamedTuple):
    forwards: int
    computed: int
    padding: int


def tiny_engine(stage: Stage, n_positions: int = 64, make: str = "LLM", **arguments):
    """The engine of a stage, on a CPU, with random weights that need no file. make: the method that makes it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**SIZES, "n_positions": n_positions}))
        return getattr(stage, make)(folder, load_format="dummy", device="cpu", **arguments)


@functools.cache
@one_thread()
def counted(stage: Stage, prompts: tuple[int, ...], outputs: tuple[int, ...], **arguments) -> Counted:
    """What a stage counts for requests of these lengths: forward passes, tokens computed, padding."""
    llm = _kept_engine(stage, **arguments)
    before = _counts(llm)
    parameters = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]
    for _ in llm.stream(
        [[1] * n for n in prompts], parameters
    ):  # in this order; stages 4 to 6 plan another in `generate`
        pass
    return Counted(*(new - old for new, old in zip(_counts(llm), before, strict=True)))


_kept_engine = functools.cache(tiny_engine)


def _counts(llm) -> Counted:
    stats = llm.stats
    return Counted(stats.num_forwards, stats.num_tokens_computed, getattr(stats, "num_padding_tokens", 0))

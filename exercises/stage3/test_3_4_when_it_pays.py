"""3.4 When the cache pays: counts by hand, against stages 1 and 3, and the extremes of the trade."""

import random

import pytest

from exercises.tiny import counted
from tools.engines import STAGES


def test_without_a_cache(work):
    """Prompt 4, output 3: the sequence grows by a token each step, and the last token is never computed."""
    assert work.tokens_without(4, 3) == 4 + 5 + 6


def test_with_a_cache(work):
    """Prompt 4, output 3: the prompt once, then one token each step; the last token is never computed."""
    assert work.tokens_with(4, 3) == 4 + 1 + 1


@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (7, 12), (30, 5)])
def test_the_engines_compute_as_many(work, prompt, output):
    """Stage 1 has no cache, stage 3 has one"""
    assert work.tokens_without(prompt, output) == counted(STAGES[0], (prompt,), (output,)).computed
    assert work.tokens_with(prompt, output) == counted(STAGES[2], (prompt,), (output,)).computed


@pytest.mark.parametrize(("prompt", "output", "expected"), [
    pytest.param(4, 3, 2.5, id="the number without, divided by the number with"),
    pytest.param(500, 1, 1.0, id="an output of one token saves nothing"),
    pytest.param(10, 1000, 504.955, id="a long output saves much"),
])  # fmt: skip
def test_saving(work, prompt, output, expected):
    assert work.saving(prompt, output) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("parameters", "n_layer", "n_embd", "batch", "expected"), [
    pytest.param(9000, 1, 1, 1, 4500.0, id="a token brings a key and a value"),
    pytest.param(9000, 1, 10, 1, 450.0, id="of n_embd numbers"),
    pytest.param(9000, 3, 10, 1, 150.0, id="in every layer; bytes cancel"),
    pytest.param(9000, 3, 10, 30, 5.0, id="the batch reads the weights once, and a cache for each sequence"),
    pytest.param(1, 1, 1, 400, 0.00125, id="a float, however small"),
])  # fmt: skip
def test_even_context(work, parameters, n_layer, n_embd, batch, expected):
    assert work.even_context(parameters, n_layer, n_embd, batch) == pytest.approx(expected, rel=1e-9)


def test_any_lengths(work):
    """The sequences as lists, token by token"""
    for seed in range(200):
        choose = random.Random(seed)
        prompt, output, sequence, without, cached = *choose.choices(range(1, 21), k=2), [], [], []
        for step in range(output):
            sequence += ["prompt"] * prompt if step == 0 else ["output"]
            without += sequence
            cached += sequence[len(cached) :]
        case = f"prompt {prompt}, output {output}"
        assert work.tokens_without(prompt, output) == len(without), case
        assert work.tokens_with(prompt, output) == len(cached), case
        assert work.saving(prompt, output) == pytest.approx(len(without) / len(cached)), case

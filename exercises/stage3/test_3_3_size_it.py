"""3.3 Size it: cases by hand, and machines that are filled until nothing more fits."""

import random

import pytest


@pytest.mark.parametrize(("n_layer", "n_embd", "itemsize", "expected"), [
    pytest.param(1, 1, 1, 2, id="a token brings a key and a value"),
    pytest.param(3, 1, 1, 6, id="each layer has a key and a value"),
    pytest.param(1, 5, 1, 10, id="a key has n_embd numbers, however many heads share them"),
    pytest.param(1, 1, 2, 4, id="a number takes itemsize bytes"),
    pytest.param(12, 768, 4, 73_728, id="GPT-2 small in float32"),
    pytest.param(48, 1600, 2, 307_200, id="GPT-2 XL in 16 bits"),
])  # fmt: skip
def test_bytes_per_token(work, n_layer, n_embd, itemsize, expected):
    assert work.bytes_per_token(n_layer, n_embd, itemsize) == expected


@pytest.mark.parametrize(("memory", "parameters", "activations", "itemsize", "expected"), [
    pytest.param(32_000, 0, 0, 4, 4, id="a sequence takes 2 * 2 * 10 * 4 * 50 = 8,000 bytes"),
    pytest.param(31_999, 0, 0, 4, 3, id="a sequence that does not fit whole does not fit"),
    pytest.param(32_000, 5000, 0, 4, 1, id="the weights take memory, itemsize bytes each"),
    pytest.param(16_000, 5000, 0, 2, 1, id="the weights take memory, itemsize bytes each, also if that is 2"),
    pytest.param(32_000, 0, 9000, 4, 2, id="a step needs memory, once for all sequences"),
    pytest.param(3000, 5000, 9000, 4, 0, id="nothing fits, not even the weights: the answer is 0"),
])  # fmt: skip
def test_largest_batch(work, memory, parameters, activations, itemsize, expected):
    got = work.largest_batch(memory, parameters, activations, n_layer=2, n_embd=10, max_len=50, itemsize=itemsize)
    assert got == expected


@pytest.mark.parametrize(("memory", "parameters", "activations", "batch", "expected"), [
    pytest.param(16_000, 0, 0, 1, 100, id="a token takes 2 * 2 * 10 * 4 = 160 bytes"),
    pytest.param(15_999, 0, 0, 1, 99, id="a token that does not fit whole does not fit"),
    pytest.param(16_000, 0, 0, 4, 25, id="every sequence of the batch grows"),
    pytest.param(16_000, 1000, 4000, 1, 50, id="the weights and a step take memory"),
    pytest.param(3000, 1000, 2000, 1, 0, id="nothing fits, not even the weights: the answer is 0"),
])  # fmt: skip
def test_longest_context(work, memory, parameters, activations, batch, expected):
    got = work.longest_context(memory, parameters, activations, n_layer=2, n_embd=10, batch=batch, itemsize=4)
    assert got == expected


def test_any_machine(work):
    """Random machines, from a few bytes to terabytes, with a byte more or less than needed."""
    for seed in range(200):
        choose = random.Random(seed)
        parameters, activations, n_layer, n_embd, number, fits = (
            choose.randint(1, 1 + most * (seed + 1) // 200) for most in (10**10, 10**10, 100, 10_000, 1000, 10_000)
        )
        itemsize = choose.choice((1, 2, 4))
        one = number * n_layer * (n_embd + n_embd) * itemsize
        memory = parameters * itemsize + activations + fits * one + choose.choice((-1, 0, 1))
        expected = fits - (memory < parameters * itemsize + activations + fits * one)
        arguments = (memory, parameters, activations, n_layer, n_embd, number, itemsize)
        assert work.largest_batch(*arguments) == expected, f"largest_batch{arguments}"
        assert work.longest_context(*arguments) == expected, f"longest_context{arguments}"

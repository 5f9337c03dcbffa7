"""3.3 Size it: sizes by hand, against what the engine allocates, and against filling a machine sequence by sequence."""

import random

import pytest
import torch

from tools.engines import STAGES


@pytest.mark.parametrize(("n_layer", "n_embd", "itemsize", "expected"), [
    pytest.param(1, 1, 1, 2, id="a key and a value"),
    pytest.param(12, 1, 1, 24, id="in each layer"),
    pytest.param(12, 768, 1, 18_432, id="of n_embd numbers: the heads divide this width, they do not multiply it"),
    pytest.param(12, 768, 4, 73_728, id="in bytes, not in numbers"),
    pytest.param(48, 1600, 2, 307_200, id="in 16 bits too"),
])  # fmt: skip
def test_bytes_per_token(work, n_layer, n_embd, itemsize, expected):
    assert work.bytes_per_token(n_layer, n_embd, itemsize) == expected


def test_the_engine_allocates_as_much(work):
    cache = STAGES[2].part("kv_cache").KVCache(3, 2, 4, 7, 5, torch.float32, torch.device("cpu"))
    assert work.bytes_per_token(3, 20, 4) * 2 * 7 == cache.data.nbytes, "2 rows of 7 tokens, 3 layers, width 20"


# A sequence takes 2 * 2 * 10 * 4 * 50 = 8,000 bytes, the weights 20,000, a step 40,000.
SIZES = dict(parameters=5000, activations=40_000, n_layer=2, n_embd=10, max_len=50, itemsize=4)


@pytest.mark.parametrize(("memory", "changes", "expected"), [
    pytest.param(24_000, {"parameters": 0, "activations": 0}, 3, id="three sequences fill the memory"),
    pytest.param(44_000, {"activations": 0}, 3, id="the weights take memory too: parameters times itemsize"),
    pytest.param(84_000, {}, 3, id="a step needs memory too: the activations"),
    pytest.param(83_999, {}, 2, id="a sequence that does not fit whole does not fit"),
    pytest.param(62_000, {"itemsize": 2}, 3, id="weights and cache have itemsize bytes a number"),
    pytest.param(63_000, {}, 0, id="not even one sequence fits"),
    pytest.param(3_000, {}, 0, id="not even the weights fit: 0, not a negative number"),
])  # fmt: skip
def test_largest_batch(work, memory, changes, expected):
    assert work.largest_batch(memory, **SIZES | changes) == expected


# A token of each of three sequences takes 3 * 160 = 480 bytes, the weights 4,000, a step 2,000.
BATCH = dict(parameters=1000, activations=2000, n_layer=2, n_embd=10, batch=3, itemsize=4)


@pytest.mark.parametrize(("memory", "expected"), [
    pytest.param(30_000, 50, id="every sequence of the batch grows"),
    pytest.param(29_999, 49, id="a token that does not fit whole does not fit"),
    pytest.param(3_000, 0, id="not even the weights fit: 0, not a negative number"),
])  # fmt: skip
def test_longest_context(work, memory, expected):
    assert work.longest_context(memory, **BATCH) == expected


def test_any_machine(work):
    """Sequences, and then their tokens, are put in one after another until the next has no room."""
    for seed in range(200):
        choose = random.Random(seed)
        n_layer, n_embd, number = (choose.randint(1, most) for most in (3, 5, 6))
        parameters, activations, itemsize = choose.randint(0, 50), choose.randint(0, 200), choose.choice([1, 2, 4])
        one = number * n_layer * n_embd * 2 * itemsize
        memory, fits = parameters * itemsize + activations + choose.randint(0, 9) * one + choose.randint(-1, 1), 0
        while parameters * itemsize + activations + (fits + 1) * one <= memory:
            fits += 1
        arguments = memory, parameters, activations, n_layer, n_embd, number, itemsize
        assert work.largest_batch(*arguments) == fits, f"largest_batch{arguments}"
        assert work.longest_context(*arguments) == fits, f"longest_context{arguments}"


def test_terabytes(work):
    """To the last byte: whole numbers, no floats."""
    memory = 5 * 10**9 * 4 + 10**10 + 100_001 * 1001 * 2 * 300 * 70_001 * 4
    assert work.largest_batch(memory - 1, 5 * 10**9, 10**10, 300, 70_001, 1001, 4) == 100_000

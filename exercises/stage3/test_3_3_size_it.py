"""Sizes by hand, and against what the engine allocates."""

import torch

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect
from tools.engines import STAGES


def test_bytes_per_token(work):
    said = {
        "a key and a value make two": 12 * 768 * 4,
        "every layer has its own cache": 2 * 768 * 4,
        "numbers, not bytes": 2 * 12 * 768,
        "the heads divide the width n_embd among them; they do not multiply it": 2 * 12 * 768 * 12 * 4,
    }
    expect("GPT-2 small, float32", work.bytes_per_token(12, 768, 4), 73_728, said)
    expect("GPT-2 XL, 16 bits", work.bytes_per_token(48, 1600, 2), 307_200)


def test_against_the_engine(work):
    cache = STAGES[2].part("kv_cache").KVCache(3, 2, 4, 7, 5, torch.float32, torch.device("cpu"))
    expect("what stage 3 allocates for 2 rows of 7 tokens, 3 layers, width 20", work.bytes_per_token(3, 20, 4) * 2 * 7,
           cache.data.nbytes)  # fmt: skip


def test_largest_batch(work):
    # a sequence takes 2 * 2 * 10 * 4 * 50 = 8,000 bytes, the weights 20,000, a step 40,000
    sizes = dict(parameters=5000, activations=40_000, n_layer=2, n_embd=10, max_len=50, itemsize=4)
    said = {
        "a sequence that does not fit whole does not fit": 3,
        "the weights take memory too": (83_999 - 40_000) // 8000,
        "weights are numbers of itemsize bytes": (83_999 - 45_000) // 8000,
        "a step needs memory too: the activations": (83_999 - 20_000) // 8000,
    }
    expect(f"memory 83,999, {sizes}", work.largest_batch(83_999, **sizes), 2, said)
    expect(f"memory 84,000, {sizes}", work.largest_batch(84_000, **sizes), 3)
    half = {**sizes, "itemsize": 2}
    expect(f"memory 62,000, {half}", work.largest_batch(62_000, **half), 3,
           {"weights have itemsize bytes too": 0})  # fmt: skip
    expect(f"memory 3,000, {sizes}", work.largest_batch(3_000, **sizes), 0,
           {"a negative number of bytes means 0": OneOf([-8, -7])})  # fmt: skip


def test_longest_context(work):
    sizes = dict(parameters=1000, activations=2000, n_layer=2, n_embd=10, batch=3, itemsize=4)
    # a token of each of the three takes 3 * 160 = 480 bytes
    expect(f"memory 30,000, {sizes}", work.longest_context(30_000, **sizes), 50,
           {"every sequence of the batch grows": 150})  # fmt: skip
    expect(f"memory 29,999, {sizes}", work.longest_context(29_999, **sizes), 49,
           {"every sequence of the batch grows": 149, "a token that does not fit whole does not fit": 50})  # fmt: skip
    expect(f"memory 3,000, {sizes}", work.longest_context(3_000, **sizes), 0,
           {"a negative number of bytes means 0": OneOf([-7, -6])})  # fmt: skip


def test_together(work):
    for batch in (1, 7, 32):
        rest = dict(parameters=124_439_808, activations=10**8, n_layer=12, n_embd=768, itemsize=2)
        longest = work.longest_context(4 * 10**9, batch=batch, **rest)
        fits = work.largest_batch(4 * 10**9, max_len=longest, **rest)
        expect(
            f"GPT-2 small in 4 GB, 16 bits: how many fit at the longest context for {batch}",
            fits >= batch,
            True,
        )


def test_any_machine(work):
    """Sequences, and then their tokens, are put in one after another until the next has no room."""

    def check(choose):
        parameters, activations = choose.upto(50), choose.upto(200)
        n_layer = choose.between(1, 3)
        n_embd = choose.between(1, 5)
        number = choose.between(1, 6)
        itemsize = choose.one_of([1, 2, 4])
        cell = sum(itemsize for _ in range(n_layer) for _ in ("key", "value") for _ in range(n_embd))
        memory, fits = parameters * itemsize + activations + choose.upto(9) * number * cell + choose.upto(2) - 1, 0
        while parameters * itemsize + activations + (fits + 1) * number * cell <= memory:
            fits += 1
        arguments = f"{memory}, {parameters}, {activations}, {n_layer}, {n_embd}, {number}, {itemsize}"
        example = Example(work, __file__)
        example.look(f"work.bytes_per_token({n_layer}, {n_embd}, {itemsize})", cell)
        example.look(f"work.largest_batch({arguments})", fits)
        example.look(f"work.longest_context({arguments})", fits)

    at_random(check)


def test_large_machines(work):
    """Terabytes, to the last byte."""
    cell = 2 * 300 * 70_001 * 4
    expect("300 layers of width 70,001", work.bytes_per_token(300, 70_001, 4), cell)
    for fits in (1, 300, 100_001):
        memory = 5 * 10**9 * 4 + 10**10 + fits * 1001 * cell
        for less in (0, 1):
            case = f"memory {memory - less:,}, room for {fits} sequences of 1,001 tokens" + ", less one byte" * less
            expect(case, work.largest_batch(memory - less, 5 * 10**9, 10**10, 300, 70_001, 1001, 4), fits - less)
            expect(case, work.longest_context(memory - less, 5 * 10**9, 10**10, 300, 70_001, 1001, 4), fits - less)

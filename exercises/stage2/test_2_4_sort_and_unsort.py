"""Batches by length, and results back in their order."""

import random

from exercises.grading import expect, require


def test_the_picture(work):
    said = {
        "the longest come first": [[2, 0], [1, 3]],
        "equal lengths keep the order in which they came": [[3, 1], [0, 2]],
        "a batch holds indices, not lengths": [[9, 9], [3, 1]],
        "sort all of them, then cut into batches": [[1, 0], [3, 2]],
    }
    expect("lengths 3, 9, 1, 9, two at once", work.make_batches([3, 9, 1, 9], 2), [[1, 3], [0, 2]], said)


def test_sizes(work):
    expect("five requests, two at once", [len(b) for b in work.make_batches([1, 2, 3, 4, 5], 2)], [2, 2, 1],
           {"the last batch may be smaller, but nobody is left out": [2, 2]})  # fmt: skip
    expect("no request", work.make_batches([], 2), [], {"no request needs no batch": [[]]})


def test_restore(work):
    batches = [[2, 0], [1]]
    said = {"the permutation was applied where its inverse is needed": ["b", "x", "a"],
            "these are still in the order of the batches": ["x", "a", "b"]}  # fmt: skip
    expect("batches [2, 0] [1], results x a b", work.restore(batches, ["x", "a", "b"]), ["a", "b", "x"], said)


def test_there_and_back(work):
    rng = random.Random(0)
    for _ in range(50):
        lengths = [rng.randrange(1, 6) for _ in range(rng.randrange(1, 12))]
        batches = work.make_batches(lengths, 3)
        results = [f"result {i}" for batch in batches for i in batch]
        expect(
            f"lengths {lengths}, there and back",
            work.restore(batches, results),
            sorted(results, key=lambda r: int(r[7:])),
        )
        padding = sum(max(lengths[i] for i in batch) * len(batch) - sum(lengths[i] for i in batch) for batch in batches)
        by_length = sorted(lengths, reverse=True)
        best = sum(
            by_length[s] * len(by_length[s : s + 3]) - sum(by_length[s : s + 3]) for s in range(0, len(lengths), 3)
        )
        require(padding == best, f"padding of {batches} for lengths {lengths}", best, padding)

"""Batches by length, and results back in their order."""

from exercises.examples import Example, at_random
from exercises.grading import expect, require


def test_the_picture(work):
    said = {
        "the longest come first": [[2, 0], [1, 3]],
        "equal lengths keep the order in which they came": [[3, 1], [0, 2]],
        "a batch holds indices, not lengths": [[9, 9], [3, 1]],
        "an index appears twice: two lengths are equal, and index() finds the first": [[1, 1], [0, 2]],
        "sort all of them, then cut into batches": [[1, 0], [3, 2]],
    }
    expect("lengths 3, 9, 1, 9, two at once", work.make_batches([3, 9, 1, 9], 2), [[1, 3], [0, 2]], said)


def test_sizes(work):
    expect("five requests, two at once", [len(b) for b in work.make_batches([1, 2, 3, 4, 5], 2)], [2, 2, 1],
           {"the last batch may be smaller, but no request is left out": [2, 2]})  # fmt: skip
    expect("no request", work.make_batches([], 2), [], {"without requests there are no batches": [[]]})


def test_restore(work):
    batches = [[2, 0], [1]]
    said = {"the permutation was applied where its inverse is needed": ["b", "x", "a"],
            "these are still in the order of the batches": ["x", "a", "b"]}  # fmt: skip
    expect("batches [2, 0] [1], results x a b", work.restore(batches, ["x", "a", "b"]), ["a", "b", "x"], said)


def test_any_lengths(work):
    """Many equal lengths; the longest is picked again and again."""

    def check(choose):
        lengths, size = choose.some(lambda: choose.between(1, 4), 9), choose.between(1, 4)
        order = [i for length in range(4, 0, -1) for i in range(len(lengths)) if lengths[i] == length]
        batches = []
        for i in order:
            if not batches or len(batches[-1]) == size:
                batches.append([])
            batches[-1].append(i)
        example = Example(work, __file__)
        example.do(f"lengths = {lengths}")
        example.expect(f"work.make_batches(lengths, {size})", batches)
        example.look("lengths", lengths, likely="the caller's list was changed: sort indices, or a copy")

    at_random(check)


def test_any_order(work):
    """Results that are equal, None or 0, from batches in any order."""

    def check(choose):
        left, batches = list(range(choose.upto(7))), []
        while left:
            batches.append([left.pop(choose.upto(len(left) - 1)) for _ in range(choose.between(1, len(left)))])
        order = [i for batch in batches for i in batch]
        results = [choose.one_of([0, None, "a", "b"]) for _ in order]
        expected = [result for i in range(len(order)) for j, result in zip(order, results, strict=True) if i == j]
        example = Example(work, __file__)
        example.do(f"batches, results = {batches}, {results}")
        example.expect("work.restore(batches, results)", expected)
        example.look("batches, results", (batches, results), likely="the caller's lists were changed: make a new one")

    at_random(check)


def test_many_requests(work):
    """A thousand lengths, some of them equal, beyond 65,535."""
    lengths = [i * i % 70_001 for i in range(1200)] + [300] * 50
    order = sorted(range(1250), key=lambda i: -lengths[i])
    for size in (300, 70_000, 1):
        batches = [order[i : i + size] for i in range(0, 1250, size)]
        expect(f"1,250 lengths, {size} at once", work.make_batches(lengths, size), batches)
        results = [f"result {i}" for i in order]
        expect("their results restored", work.restore(batches, results), [f"result {i}" for i in range(1250)])
    many = list(range(70_001))
    got = work.restore([many[::-1]], many)
    require(got == many[::-1], "70,001 results of one batch, the last request first", "turned round", "something else")
    expect("no results", work.restore([], []), [])

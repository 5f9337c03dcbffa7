"""2.4 Sort and unsort: batches by length, and results back in their order."""

import random

import pytest


@pytest.mark.parametrize(("lengths", "size", "expected"), [
    pytest.param([3, 9, 1], 3, [[1, 0, 2]], id="indices, the longest first"),
    pytest.param([3, 9, 3], 3, [[1, 0, 2]], id="equal lengths keep the order of the input, and every index comes once"),
    pytest.param([3, 9, 1, 9], 2, [[1, 3], [0, 2]], id="sort all of them, then form batches"),
    pytest.param([5, 4, 3, 2, 1], 2, [[0, 1], [2, 3], [4]], id="the last batch need not be full, and nothing is left out"),
    pytest.param([], 2, [], id="no requests, no batches"),
])  # fmt: skip
def test_make_batches(work, lengths, size, expected):
    given = [*lengths]
    assert work.make_batches(given, size) == expected
    assert given == lengths, "the list that is given was changed"


@pytest.mark.parametrize(("batches", "results", "expected"), [
    pytest.param([[1, 0]], ["b", "a"], ["a", "b"], id="the results are still in the order of the batches"),
    pytest.param([[2, 0], [1]], ["c", "a", "b"], ["a", "b", "c"],
                 id="results[i] goes to the i-th index of the batches: it is not read from there"),
    pytest.param([[1, 0], [2]], ["b", "a", None], ["a", "b", None], id="a result may be None"),
    pytest.param([[2, 0], [1]], ["a", "a", "b"], ["a", "b", "a"], id="results may be equal"),
    pytest.param([], [], [], id="no batches, no results"),
])  # fmt: skip
def test_restore(work, batches, results, expected):
    given = [[*batch] for batch in batches], [*results]
    restored = work.restore(*given)
    assert restored == expected
    assert given == (batches, results), "the lists that are given were changed"
    assert restored is not given[1], "a new list"


def test_there_and_back(work):
    """Any lengths: the longest is picked again and again, and each request gets its result."""
    for seed in range(200):
        choose, most = random.Random(seed), seed // 20
        lengths, size = [choose.randint(1, 4) for _ in range(choose.randint(0, most))], choose.randint(1, 4)
        order = [i for length in (4, 3, 2, 1) for i in range(len(lengths)) if lengths[i] == length]
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        assert work.make_batches(lengths, size) == batches, f"make_batches({lengths}, {size})"
        got = work.restore(batches, [f"result {i}" for i in order])
        assert got == [f"result {i}" for i in range(len(order))], f"restore({batches}, the results)"

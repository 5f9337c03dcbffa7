"""4.2 Static against continuous: the picture, the edges, and a simulation pass by pass."""

import random

import pytest


@pytest.mark.parametrize(("outputs", "slots", "sort", "expected"), [
    pytest.param([4, 1, 2, 3], 2, False, 7, id="a batch ends with its longest request, and the next begins in the next pass"),
    pytest.param([1, 4, 2, 3], 2, False, 7, id="without `sort` the batches are in the order given"),
    pytest.param([3, 1, 2], 2, False, 5, id="the last batch may have fewer requests than slots"),
    pytest.param([4, 1, 2, 3], 2, True, 6, id="with `sort` the longest are batched together"),
    pytest.param([1, 5, 5], 2, True, 6, id="with `sort` the longest come first"),
    pytest.param([3, 1, 2], 1, False, 6, id="one slot: the sum of the lengths"),
    pytest.param([3, 1, 2], 5, False, 3, id="as many slots as requests: the maximum"),
    pytest.param([], 2, False, 0, id="without requests the answer is 0"),
])  # fmt: skip
def test_static(work, outputs, slots, sort, expected):
    assert work.static(list(outputs), slots, sort=sort) == expected


@pytest.mark.parametrize(("outputs", "slots", "expected"), [
    pytest.param([4, 1, 2, 3], 2, 6, id="the next request takes a free slot in the next pass"),
    pytest.param([6, 1, 6, 1, 1], 2, 8, id="a request takes the slot that is free first"),
    pytest.param([1, 1, 4], 2, 5, id="requests come in the order given, not the longest first"),
    pytest.param([3, 1, 2], 1, 6, id="one slot: the sum of the lengths"),
    pytest.param([3, 1, 2], 5, 3, id="as many slots as requests: the maximum"),
    pytest.param([], 2, 0, id="without requests the answer is 0"),
])  # fmt: skip
def test_continuous(work, outputs, slots, expected):
    assert work.continuous(list(outputs), slots) == expected


def test_the_list_stays(work):
    """The lists that are given are not changed."""
    outputs = [1, 3, 2]
    work.static(outputs, 2, sort=True)
    work.continuous(outputs, 2)
    assert outputs == [1, 3, 2]


def passes(outputs, slots, batches):
    """Counted pass by pass. A free slot gets the next request at once, or with `batches` when all slots are free."""
    waiting, running, count = list(outputs), [], 0
    while waiting or running:
        if not (batches and running):
            free = slots - len(running)
            running, waiting = running + waiting[:free], waiting[free:]
        running = [left - 1 for left in running if left > 1]
        count += 1
    return count


def test_any_outputs(work):
    """Random outputs: the same as counting pass by pass."""
    for seed in range(300):
        choose = random.Random(seed)
        outputs, slots = (
            choose.choices(range(1, 7), k=choose.randint(0, 2 + seed // 10)),
            choose.randint(1, 2 + seed // 40),
        )
        longest_first = sorted(outputs, reverse=True)
        case = f"outputs {outputs}, {slots} slots"
        assert work.static(outputs, slots) == passes(outputs, slots, batches=True), f"static, {case}"
        assert work.static(outputs, slots, sort=True) == passes(longest_first, slots, batches=True), f"sorted, {case}"
        assert work.continuous(outputs, slots) == passes(outputs, slots, batches=False), f"continuous, {case}"

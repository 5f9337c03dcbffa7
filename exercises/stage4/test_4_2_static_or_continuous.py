"""4.2 Static against continuous: the picture, the edges, the engines of stages 3 and 4, and pass by pass."""

import random

import pytest

from exercises.tiny import counted
from tools.engines import STAGES


@pytest.mark.parametrize(("outputs", "slots", "sort", "expected"), [
    pytest.param([4, 1, 2, 3], 2, False, 4 + 3, id="a batch ends with its longest request, in the order given"),
    pytest.param([4, 1, 2, 3], 2, True, 4 + 2, id="with `sort` the longest outputs first"),
    pytest.param([1, 5, 5], 2, True, 5 + 1, id="the longest are batched together"),
    pytest.param([3, 1, 2], 1, False, 6, id="one slot: the sum of the lengths"),
    pytest.param([3, 1, 2], 5, False, 3, id="a slot for each: the longest"),
    pytest.param([], 2, False, 0, id="no request, no pass"),
])  # fmt: skip
def test_static(work, outputs, slots, sort, expected):
    given = list(outputs)
    assert work.static(given, slots, sort=sort) == expected
    assert given == outputs, "the caller's list was changed: sorted() makes a new one, list.sort() does not"


@pytest.mark.parametrize(("outputs", "slots", "expected"), [
    pytest.param([4, 1, 2, 3], 2, 6, id="a free slot is taken at the next pass, in the order given"),
    pytest.param([6, 1, 6, 1, 1], 2, 8, id="a request takes the slot that is free first, not one assigned in advance"),
    pytest.param([3, 1, 2], 1, 6, id="one slot: the sum of the lengths"),
    pytest.param([3, 1, 2], 5, 3, id="a slot for each: the longest"),
    pytest.param([], 2, 0, id="no request, no pass"),
])  # fmt: skip
def test_continuous(work, outputs, slots, expected):
    given = list(outputs)
    assert work.continuous(given, slots) == expected
    assert given == outputs, "the caller's list was changed"


@pytest.mark.parametrize("slots", [2, 5])
def test_the_engines_take_as_many(work, slots):
    """Stage 3 batches, stage 4 schedules"""
    choose = random.Random(slots)
    outputs = [choose.choice([1, 2, 3, 20]) for _ in range(13)]
    for stage, count in ((STAGES[2], work.static), (STAGES[3], work.continuous)):
        passes = counted(stage, (2,) * 13, tuple(outputs), max_num_seqs=slots).forwards
        assert count(outputs, slots) == passes, f"{count.__name__}({outputs}, {slots}), against {stage}"


def slowly(outputs, slots, batches):
    """Pass by pass. A finished request leaves its slot, which is refilled at once, or with the others when all are empty."""
    waiting, running, passes = list(outputs), [], 0
    while waiting or running:
        if not (batches and running):
            while waiting and len(running) < slots:
                running.append(waiting.pop(0))
        running = [left - 1 for left in running if left > 1]
        passes += 1
    return passes


def test_any_outputs(work):
    """Counted pass by pass"""
    for seed in range(200):
        choose = random.Random(seed)
        outputs, slots = choose.choices(range(1, 7), k=choose.randint(0, 1 + seed // 20)), choose.randint(1, 4)
        longest_first, case = sorted(outputs, reverse=True), f"outputs {outputs}, {slots} slots"
        assert work.static(outputs, slots) == slowly(outputs, slots, True), case
        assert work.static(outputs, slots, sort=True) == slowly(longest_first, slots, True), f"{case}, sorted"
        assert work.continuous(outputs, slots) == slowly(outputs, slots, False), case

"""The picture, the edges, and the engines of stages 3 and 4."""

import random

from exercises.examples import Example, at_random
from exercises.grading import expect
from exercises.tiny import counted
from tools.engines import STAGES


def test_static(work):
    said = {"a batch ends with its longest request": 10, "one pass serves the whole batch": 10, "a batch for each pass": 4,
            "this is longest first: sort only if asked to": 6}  # fmt: skip
    expect("static, outputs 4 1 2 3, two slots", work.static([4, 1, 2, 3], 2), 7, said)
    said = {"the longest first: 4 with 3, 2 with 1": 7}
    expect("the same, sorted", work.static([4, 1, 2, 3], 2, sort=True), 6, said)
    got = work.static([1, 5, 5], 2, sort=True)
    expect(
        "sorted, outputs 1 5 5, two slots", got, 6, {"batch the longest ones together, starting with the longest": 10}
    )


def test_continuous(work):
    said = {
        "a free slot is taken at once; this waits for both slots": 7,
        "the last request to finish counts, not the sum": 10,
        "so few passes need another order (longest first) or split requests; here they come whole, in the order given": 5,
    }
    expect("continuous, outputs 4 1 2 3, two slots", work.continuous([4, 1, 2, 3], 2), 6, said)
    said = {"requests were assigned to slots in advance; take the slot that becomes free first": 13}
    expect("continuous, outputs 6 1 6 1 1, two slots", work.continuous([6, 1, 6, 1, 1], 2), 8, said)


def test_edges(work):
    for name in ("static", "continuous"):
        count = getattr(work, name)
        expect(f"{name}, one slot", count([3, 1, 2], 1), 6)
        expect(f"{name}, a slot for each", count([3, 1, 2], 5), 3)
        expect(f"{name}, no request", count([], 2), 0)


def test_the_list_stays(work):
    outputs = [1, 3, 2]
    work.static(outputs, 2, sort=True)
    work.continuous(outputs, 2)
    expect(
        "the list that was given",
        outputs,
        [1, 3, 2],
        likely="sorted() makes a new list, list.sort() changes the caller's",
    )


def test_against_the_engines(work):
    rng = random.Random(1)
    for slots in (2, 5):
        outputs = [rng.choice([1, 2, 3, 20]) for _ in range(13)]
        for stage, count in ((STAGES[2], work.static), (STAGES[3], work.continuous)):
            passes = counted(stage, (2,) * 13, tuple(outputs), max_num_seqs=slots).forwards
            expect(f"outputs {outputs}, {slots} slots, against {stage}", count(outputs, slots), passes)


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
    def check(choose):
        outputs, slots = choose.some(lambda: choose.between(1, 6), 9), choose.between(1, 4)
        example = Example(work, __file__)
        example.do(f"outputs = {outputs}")
        example.look(f"work.static(outputs, {slots})", slowly(outputs, slots, True))
        example.look(f"work.static(outputs, {slots}, sort=True)", slowly(sorted(outputs, reverse=True), slots, True))
        example.look(f"work.continuous(outputs, {slots})", slowly(outputs, slots, False))
        example.look("outputs", outputs, likely="sorted() makes a new list, list.sort() changes the caller's")

    at_random(check)


def test_many_requests(work):
    """Thousands of requests, long outputs, many slots: exact counts."""
    rng = random.Random(2)
    for count, most, slots in ((1200, 300, 7), (1200, 300, 300), (400, 100_003, 1), (3, 100_003, 70_000)):
        outputs = [rng.randrange(1, most) for _ in range(count)]
        batches = [outputs[i : i + slots] for i in range(0, count, slots)]
        ordered = sorted(outputs, reverse=True)
        case = f"{count} outputs of up to {most}, {slots} slots"
        expect(f"static, {case}", work.static(outputs, slots), sum(map(max, batches)))
        expect(f"static, sorted, {case}", work.static(outputs, slots, sort=True), sum(ordered[::slots]))
        free = [0] * min(slots, count)
        for n in outputs:
            free[free.index(min(free))] += n
        expect(f"continuous, {case}", work.continuous(outputs, slots), max(free))

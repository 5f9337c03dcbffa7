"""One thread in place of all, in every order; threads that never come; threads that switch at any instruction."""

import random
from itertools import pairwise

import torch
from exercises.grading import expect, require

PANEL = 32


def counters(taken):
    """A cache line, 8 integers, for each thread."""
    made = torch.zeros(len(taken), 8, dtype=torch.int64)
    made[:, 0] = torch.tensor(taken, dtype=torch.int64)
    return made


class Shares:
    """What `take` does, slowly: lists of panels."""

    def __init__(self, size, num_panels, taken=None):
        bounds = [num_panels * v // size for v in range(size + 1)]
        self.left = [range(first, end) for first, end in pairwise(bounds)]
        self.left = [share[n:] for share, n in zip(self.left, taken or [0] * size, strict=True)]

    def take(self, rank):
        for v in [*range(rank, len(self.left)), *range(rank)]:
            if self.left[v]:
                first, self.left[v] = self.left[v][0], self.left[v][1:]
                return first
        return -1


def take_mistakes(order, size, num_panels):
    """What some known mistakes return for these calls."""
    width = -(-num_panels // size)
    equal = Shares(size, num_panels)
    equal.left = [range(min(num_panels, v * width), min(num_panels, (v + 1) * width)) for v in range(size)]
    alone, down, single = (Shares(size, num_panels) for _ in range(3))
    single.left = [range(num_panels), *[range(0)] * (size - 1)]
    alone_takes, down_takes = [], []
    for rank in order:
        own = alone.left[rank]
        alone_takes.append(own[0] if own else -1)
        alone.left[rank] = own[1:]
        v = next((v for v in [*range(rank, -1, -1), *range(size - 1, rank, -1)] if down.left[v]), None)
        down_takes.append(-1 if v is None else down.left[v][0])
        if v is not None:
            down.left[v] = down.left[v][1:]
    return {
        "the share of thread v begins at num_panels * v / size, rounded down": [equal.take(rank) for rank in order],
        "when its own share is empty, a thread helps the others": alone_takes,
        "after its own share a thread helps `rank + 1`, and after the last one thread 0": down_takes,
        "each thread takes its own share first": [single.take(rank) for rank in order],
    }


def check_takes(work, case, order, size, num_panels, taken=None):
    shares = Shares(size, num_panels, taken)
    right = [shares.take(rank) for rank in order]
    said = {} if taken else take_mistakes(order, size, num_panels)
    answers = [*said.values(), right]
    said = {words: wrong for words, wrong in said.items() if answers.count(wrong) == 1}
    got = torch.full((len(order),), -99, dtype=torch.int64)
    work.takes(counters(taken or [0] * size), torch.tensor(order, dtype=torch.int64), got, len(order), size, num_panels)
    expect(case, got.tolist(), right, said, tolerance=0)


def test_take(work):
    check_takes(work, "10 panels, 4 threads: thread 2 asks 12 times, the others never", [2] * 12, 4, 10)
    check_takes(work, "10 panels, 4 threads: each asks in turn, five times", [0, 1, 2, 3] * 5, 4, 10)
    check_takes(work, "1 panel, 1 thread, which asks three times", [0] * 3, 1, 1)
    check_takes(work, "2 panels, 5 threads: thread 0 asks, and thread 4, and each again", [0, 4, 0, 4], 5, 2)
    check_takes(work, "no panels, 3 threads", [0, 1, 2, 0], 3, 0)


def test_take_in_any_order(work):
    rng = random.Random(0)
    for i in range(300):
        size, num_panels = rng.randint(1, 2 + i // 8), rng.randint(0, 3 + i // 2)
        order = [rng.randrange(size) for _ in range(num_panels + rng.randint(0, 5))]
        check_takes(work, f"{num_panels} panels, {size} threads, asking in the order {order}", order, size, num_panels)


def test_take_many(work):
    """A long layer, nearly all of which is taken: numbers beyond 32 bits."""
    for size, num_panels in ((3, 10**10 + 1), (64, 10**12 + 7), (1, 70_001), (40, 3), (300, 1000), (70_001, 10)):
        bounds = [num_panels * v // size for v in range(size + 1)]
        taken = [max(0, end - first - 2) for first, end in pairwise(bounds)]
        order = [(5 * i + 1) % size for i in range(min(2 * size, 130, 400_000 // size) + 3)] + [size - 1]
        check_takes(
            work, f"{num_panels} panels, {size} threads, two panels left in each share", order, size, num_panels, taken
        )


def race(work, case, size, present, num_panels, taken, rounds):
    """How often each panel was taken, by threads that take all there are."""
    done = torch.zeros(1 + num_panels, dtype=torch.int64)
    work.race(counters(taken), torch.arange(present), done, present, size, num_panels, rounds)
    left = torch.zeros(num_panels, dtype=torch.int64)
    for share in Shares(size, num_panels, taken).left:
        left[share.start : share.stop] = rounds
    twice, missing = int((done[1:] > left).sum()), int((done[1:] < left).sum())
    require(not twice, f"{case}: panels taken more than once", 0, twice,
            "reading the counter and raising it are two steps here, and another thread got in between")  # fmt: skip
    require(not missing, f"{case}: panels that no thread got", 0, missing)


# --- Threads ----------------------------------------------------------------------------------------------------------


def whole(*shape, seed=0):
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def check_layer(work, case, size, present, out, n=2, in_=3):
    """Each panel exactly once, and nothing else."""
    num_panels = -(-out // PANEL)
    weight = whole(num_panels, in_, PANEL)
    x = whole(n, in_, seed=1)
    bias = whole(out, seed=2)
    before = whole(n, out, seed=3)
    y, room = before.clone(), num_panels + 64
    done = torch.zeros(1 + room, dtype=torch.int64)
    work.together(counters([0] * size), torch.tensor(present, dtype=torch.int64), done, x, weight, bias, y,
                  len(present), room, size, n, in_, out)  # fmt: skip
    panels = done[1 : 1 + min(room, int(done[0]))].tolist()
    outside = [panel for panel in panels if not 0 <= panel < num_panels]
    require(
        not outside,
        f"{case}: calls of one_panel",
        f"panels 0 to {num_panels - 1}",
        outside[:8],
        "there is no such panel",
    )
    twice = sorted({panel for panel in panels if panels.count(panel) > 1}) if len(panels) > num_panels else []
    require(not twice, f"{case}: panels computed more than once", [], twice[:8],
            "two threads took it: the shares overlap, or another thread got in between reading a counter and raising it")  # fmt: skip
    missing = sorted(set(range(num_panels)) - set(panels))
    likely = "the threads that are there must compute everything" if len(present) < size else ""
    if not likely and out % PANEL and missing == [num_panels - 1]:
        likely = "a partly filled panel counts: round up"
    require(not missing, f"{case}: panels that no thread computes", [], missing[:8], likely)
    columns = weight.transpose(1, 2).reshape(-1, in_)[:out]
    right = before + (x @ columns.T + bias)
    require(torch.equal(y, right), f"{case}: y", right, y)
    if len(present) == 1:
        shares = Shares(size, num_panels)
        order = [shares.take(present[0]) for _ in range(num_panels)]
        expect(f"{case}: the order of the panels", panels[:64], order[:64], tolerance=0)


def test_a_layer_by_one(work):
    check_layer(work, "one thread, 64 columns", 1, [0], 64)
    check_layer(work, "one thread, 65 columns", 1, [0], 65)
    check_layer(work, "one thread, 1 column", 1, [0], 1)


def test_threads_that_stay_away(work):
    for size, present in (
        (2, [0]),
        (2, [1]),
        (4, [2]),
        (4, [1, 3]),
        (7, [6]),
        (9, [0, 8]),
        (64, [63]),
        (70_001, [70_000]),
    ):
        for out in (1, 32, 33, 10 * PANEL, 333):
            check_layer(work, f"{size} threads, {present} of which come, {out} columns", size, present, out)


def test_threads_that_change_places(work):
    """Most panels in one share, or a few in each of many: every possible interleaving occurs."""
    for threads in (2, 3, 4):
        size = 20_000
        taken = [0] + [size] * (threads - 1)
        race(
            work,
            f"{threads} threads that take {size:,} panels from one share at once",
            threads,
            threads,
            size * threads,
            taken,
            60,
        )
    for threads in (2, 4):
        case = f"{threads} threads of 1000 that come, and take 3 panels from each share at once"
        race(work, case, 1000, threads, 3000, [0] * 1000, 5)


def test_any_number_of_threads(work):
    for size in (2, 3, 4, 8, 16, 64):
        for out in (1, 31, 64, 200, 64 * PANEL, 3001):
            check_layer(work, f"{size} threads, {out} columns", size, list(range(size)), out)


def test_many_panels(work):
    check_layer(work, "3 threads, 70,001 columns", 3, [0, 1, 2], 70_001, 1, 1)

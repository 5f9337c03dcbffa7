"""6.5 Share the panels: one thread in place of all, in any order; threads that never come; threads that switch at any
instruction."""

import random
from itertools import pairwise

import numpy as np
import pytest

PANEL = 32


def takes(work, order, size, num_panels):
    """What each thread gets that asks, in this order."""
    taken = np.full(len(order), -99, np.int64)
    work.takes(np.array(order, np.int64), taken, len(order), size, num_panels)
    return taken.tolist()


def takes_slowly(order, size, num_panels):
    """The shares as lists."""
    bounds = [num_panels * v // size for v in range(size + 1)]
    shares, taken = [list(range(first, end)) for first, end in pairwise(bounds)], []
    for rank in order:
        share = next((share for share in [*shares[rank:], *shares[:rank]] if share), None)
        taken.append(share.pop(0) if share else -1)
    return taken


def case(rule, order, size, num_panels, *expected):
    return pytest.param(order, size, num_panels, [*expected], id=rule)


@pytest.mark.parametrize(("order", "size", "num_panels", "expected"), [
    case("a thread takes its own share in order", [0, 0, 0], 1, 3, 0, 1, 2),
    case("when all shares are empty, -1, as often as it asks", [0, 0, 0], 1, 1, 0, -1, -1),
    case("each thread takes its own share first", [1, 0], 2, 4, 2, 0),
    case("the share of thread v begins at num_panels * v / size, rounded down", [0, 1, 2, 3], 4, 10, 0, 2, 5, 7),
    case("when its own share is empty, a thread helps the next one", [0, 0], 3, 3, 0, 1),
    case("after the last thread comes thread 0", [2, 2], 3, 3, 2, 0),
    case("with more threads than panels some have no share", [0, 4, 0], 5, 2, 0, 1, -1),
    case("the picture", [2] * 12, 4, 10, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, -1, -1),
])  # fmt: skip
def test_take(work, order, size, num_panels, expected):
    assert takes(work, order, size, num_panels) == expected


def test_take_in_any_order(work):
    """Random numbers of threads and panels, asking in any order."""
    for seed in range(200):
        choose = random.Random(seed)
        size, num_panels = choose.randint(1, 2 + seed // 8), choose.randint(0, 3 + seed // 2)
        order = [choose.randrange(size) for _ in range(num_panels + choose.randint(0, 5))]
        said = f"{num_panels} panels, {size} threads, asking in the order {order}"
        assert takes(work, order, size, num_panels) == takes_slowly(order, size, num_panels), said


@pytest.mark.parametrize(("threads", "size", "share", "full"), [
    pytest.param(2, 2, 200_000, 1, id="reading a counter and raising it must be one operation, for two threads"),
    pytest.param(4, 4, 200_000, 1, id="reading a counter and raising it must be one operation, for four threads"),
    pytest.param(4, 4000, 1, 4000, id="seeing that a share has a panel and taking it must be one operation"),
])  # fmt: skip
def test_threads_that_change_places(work, threads, size, share, full):
    for _ in range(4):
        noted = np.zeros(full * share + 1, np.int64)
        work.race(np.arange(threads), noted, threads, size, share, full)
        twice, missing, strays = np.sum(noted[:-1] > 1), np.sum(noted[:-1] < 1), noted[-1]
        said = "panels that two threads took, that no thread took, and that don't exist"
        assert (int(twice), int(missing), int(strays)) == (0, 0, 0), said


@pytest.mark.parametrize(("size", "ranks"), [
    pytest.param(1, [0], id="a partly filled panel counts: round up"),
    pytest.param(2, [1], id="it waits for no other thread: thread 0 never comes"),
    pytest.param(9, [8, 3], id="it waits for no other thread: seven never come"),
    pytest.param(3, [0, 1, 2], id="three threads compute each panel once"),
    pytest.param(64, [*range(64)], id="64 threads compute each panel once"),
])  # fmt: skip
def test_a_layer(work, size, ranks):
    for out in (1, 31, 32, 33, 64, 200, 10 * PANEL, 3001):
        num_panels = -(-out // PANEL)
        noted = np.full(1 + num_panels + 64, -99)
        noted[0] = 0
        work.together(np.array(ranks), noted, len(ranks), len(noted) - 1, size, out)
        panels = noted[1 : 1 + noted[0]].tolist()
        said = f"{out} columns are {num_panels} panels; the calls of one_panel:"
        if len(ranks) == 1:
            assert panels == takes_slowly(ranks * num_panels, size, num_panels), said
        assert sorted(panels) == list(range(num_panels)), said

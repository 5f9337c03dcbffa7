"""6.6 When packing pays: full caches by hand, break-even points, and both at random against slow references."""

import random

import pytest


def loaded_slowly(places, capacity):
    """The cache as a list, the line that was used last at its end."""
    kept, loads = [], 0
    for line in [place // 16 for place in places]:
        loads += line not in kept
        kept = [*(other for other in kept if other != line), line][-capacity:]
    return loads


def case(rule, places, capacity, expected):
    return pytest.param(places, capacity, expected, id=rule)


@pytest.mark.parametrize(("places", "capacity", "expected"), [
    case("nothing is read", [], 4, 0),
    case("a line holds 16 numbers: what is in the cache is not fetched", [*range(32)], 4, 2),
    case("a line holds places 0 to 15, 16 to 31 and so on, wherever reading begins", [15, 16], 4, 2),
    case("the least recently used line goes", [0, 16, 32, 16], 2, 3),
    case("a line that had to go is fetched again when it is needed again", [0, 16, 32, 0], 2, 4),
    case("the cache keeps `capacity` lines", [0, 16, 32, 0], 3, 3),
    case("a line that is used again becomes the newest", [0, 16, 0, 32, 0], 2, 3),
    case("a cache of one line", [0, 1, 16, 0], 1, 3),
])  # fmt: skip
def test_lines(work, places, capacity, expected):
    assert work.lines_loaded(places, capacity) == expected


def test_any_places(work):
    """Random places: the same as with a list of lines."""
    for seed in range(200):
        choose = random.Random(seed)
        places = [choose.randrange(32 + seed) for _ in range(choose.randint(0, 4 + seed // 2))]
        capacity = choose.randint(1, 2 + seed // 16)
        got, expected = work.lines_loaded(iter(places), capacity), loaded_slowly(places, capacity)
        assert got == expected, f"lines_loaded(iter({places}), {capacity})"


def fetched(out, in_, width, capacity):
    """Lines that are fetched (by packing, by a call on the panels, by a call on the matrix)."""
    groups = [range(first, min(first + width, out)) for first in range(0, out, width)]
    matrix, panels = -(-out * in_ // 16), -(-len(groups) * width * in_ // 16)
    walk = [c * in_ + i for group in groups for i in range(in_) for c in group]
    return matrix + panels, panels, loaded_slowly(walk, capacity)


def check_pays(work, *sizes):
    packing, panels, matrix = fetched(*sizes)
    calls = range(1, packing + 2) if matrix > panels else ()
    expected = next((n for n in calls if packing + n * panels < n * matrix), None)
    said = (
        f"pays_after{sizes}: packing fetches {packing} lines, a call on the panels {panels}, one on the matrix {matrix}"
    )
    assert work.pays_after(*sizes) == expected, said


@pytest.mark.parametrize(("out", "in_", "width", "capacity"), [
    pytest.param(2, 16, 2, 1, id="one column after another: if the cache is too small, each number fetches its line again"),
    pytest.param(12, 3, 2, 1, id="the first call need not pay for packing"),
    pytest.param(6, 3, 2, 1, id="with equally many lines it has not paid for itself yet"),
    pytest.param(5, 9, 4, 2, id="zeros for columns that don't exist take room in the panels, and are not read in the matrix"),
    pytest.param(64, 64, 32, 32, id="it never pays if the cache has a line for each column"),
    pytest.param(33, 64, 32, 64, id="it never pays if the panels have more lines than a call on the matrix fetches"),
    pytest.param(52, 76, 12, 13, id="it may take hundreds of calls"),
    pytest.param(32, 3072, 32, 8, id="32 columns of GPT-2's second feed-forward matrix, which share a set of 8 lines"),
])  # fmt: skip
def test_pays_after(work, out, in_, width, capacity):
    check_pays(work, out, in_, width, capacity)


def test_any_size(work):
    """Random sizes: the same as trying, call by call."""
    for seed in range(150):
        choose = random.Random(seed)
        check_pays(work, *(choose.randint(1, 4 + seed // 4) for _ in range(3)), choose.randint(1, 2 + seed // 8))

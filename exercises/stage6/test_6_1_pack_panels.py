"""Panels by hand, recorded reads, full caches, and everything again at random against slow references."""

import math
import random
from itertools import pairwise
from numbers import Integral

from exercises.grading import Wrong, expect, require

MATRIX = [[10.0 * column + i for i in range(3)] for column in range(1, 6)]  # column c, input i: the number "ci"


def telling(mistakes, right):
    """The mistakes whose answers differ here from the right one and from each other."""
    answers = [*mistakes.values(), right]
    return {said: answer for said, answer in mistakes.items() if answers.count(answer) == 1}


class Number(float):
    """A number that records when it is multiplied."""

    def __new__(cls, value, place, used):
        self = super().__new__(cls, value)
        self.place, self.used = place, used
        return self

    def __mul__(self, other):
        self.used.append(self.place)
        return float(self) * other

    __rmul__ = __mul__


class Watched:
    """Numbers that record the order in which they were read and used."""

    def __init__(self, numbers):
        self.places, self.used = [], []
        self.numbers = [Number(number, place, self.used) for place, number in enumerate(numbers)]

    def __len__(self):
        return len(self.numbers)

    def __iter__(self):
        return (self[i] for i in range(len(self.numbers)))

    def __getitem__(self, key):
        places = range(len(self.numbers))[key]
        self.places += [places] if isinstance(places, int) else places
        return self.numbers[key]


# --- Slow references --------------------------------------------------------------------------------------------------


def packed_slowly(weight, width):
    """Puts every number where the formula says."""
    out, in_ = len(weight), len(weight[0])
    packed = [0.0] * (math.ceil(out / width) * in_ * width)
    for column in range(out):
        for i in range(in_):
            packed[(column // width * in_ + i) * width + column % width] = weight[column][i]
    return packed


def multiplied_slowly(weight, x):
    return [[float(sum(a * w for a, w in zip(row, column, strict=True))) for column in weight] for row in x]


def loaded_slowly(places, capacity):
    """A list ordered by use, most recent last."""
    kept, loads = [], 0
    for place in places:
        line = place // 16
        if line in kept:
            kept.remove(line)
        else:
            loads += 1
        kept.append(line)
        if len(kept) > capacity:
            kept.pop(0)
    return loads


def walk(out, in_, width):
    """The places of the matrix in the order in which a kernel reads them."""
    return [
        column * in_ + i
        for first in range(0, out, width)
        for i in range(in_)
        for column in range(first, min(first + width, out))
    ]


def costs(out, in_, width, capacity):
    """Lines fetched by (packing: the matrix, packing: the panels, a call on panels, a call on the matrix)."""
    panels = math.ceil(math.ceil(out / width) * width * in_ / 16)
    return math.ceil(out * in_ / 16), panels, panels, loaded_slowly(walk(out, in_, width), capacity)


def first_call(packing, packed, plain):
    """By trying, call by call."""
    if packed >= plain:
        return None
    return next(n for n in range(1, packing + 2) if packing + n * packed < n * plain)


# --- pack -------------------------------------------------------------------------------------------------------------


def pack_mistakes(weight, width):
    out, in_ = len(weight), len(weight[0])
    padded = [*weight, *[[0] * in_] * (-out % width)]
    groups = [padded[i : i + width] for i in range(0, len(padded), width)]
    return {
        "within a panel, the weights of one input stand side by side: first input 0 of all its columns, then input 1":
            [w for group in groups for column in group for w in column],
        "panel after panel: each is one run of memory with its own columns alone":
            [column[i] for i in range(in_) for column in padded],
        "all panels are equally long: columns that don't exist are zeros":
            [column[i] for g in range(0, out, width) for i in range(in_) for column in weight[g : g + width]],
        "the last panel has fewer columns than the others, but it is there":
            [column[i] for group in groups[: out // width] for i in range(in_) for column in group],
    }  # fmt: skip


def test_pack(work):
    weight, case = [row[:] for row in MATRIX], "the matrix of the picture (12 is column 1, input 2), panels of 2"
    expect(case, work.pack(weight, 2), packed_slowly(MATRIX, 2), pack_mistakes(MATRIX, 2))
    require(weight == MATRIX, case, "an unchanged matrix", weight, "pack must not change its argument")
    expect("the same, one panel of 5", work.pack(MATRIX, 5), packed_slowly(MATRIX, 5), pack_mistakes(MATRIX, 5))
    expect("the same, panels of 1: the matrix itself", work.pack(MATRIX, 1), packed_slowly(MATRIX, 1))
    expect("the same, a panel of 8", work.pack(MATRIX, 8), packed_slowly(MATRIX, 8), pack_mistakes(MATRIX, 8))
    expect("weights 0.5 and -0.25, a panel of 2", work.pack([[0.5], [-0.25]], 2), [0.5, -0.25],
           {"weights are floats: nothing may round them": [0, 0]})  # fmt: skip


# --- multiply ---------------------------------------------------------------------------------------------------------


def check_product(work, weight, x, width):
    out = len(weight)
    packed, right = Watched(packed_slowly(weight, width)), multiplied_slowly(weight, x)
    rows = [row[:] for row in x]
    got = work.multiply(packed, rows, width, out)
    case = f"weights {weight} in panels of {width}, x = {x}"
    require(rows == x, f"{case}: x afterwards", x, rows, "multiply must not change its argument")
    added = [row + [0.0] * (-out % width) for row in right]
    said = {"columns that packing added are not part of the result": added,
            "this is [out][rows]: return a row for each row of x": [list(column) for column in zip(*right, strict=True)]}  # fmt: skip
    expect(case, got, right, said)
    once, reads, used = list(range(len(packed))), packed.places, packed.used
    if reads != once:
        likely = "read the weights in the order in which they are stored: that is what packing is for"
        if len(reads) == len(x) * len(packed) > len(packed):
            likely = "the weights are read again for every row: use each weight for all rows once it is read"
        elif sorted(reads) != once and set(reads) <= set(once):
            likely = "each packed number is read exactly once, zeros too"
        require(False, f"{case}: the places that were read", once, reads, likely)
    back = [place for before, place in pairwise(used) if place // width < before // width]
    require(not back, f"{case}: the places that were used", "from front to back", used,
            "they were read once and kept: use each group for all rows before you read the next")  # fmt: skip


def test_multiply(work):
    check_product(work, MATRIX, [[1, 0, 0]], 2)
    check_product(work, MATRIX, [[1, 2, 3], [4, 5, 6]], 2)
    check_product(work, MATRIX, [[1, 2, 3], [4, 5, 6], [7, 8, 9]], 5)
    check_product(work, MATRIX, [[1, 2, 3]], 8)
    check_product(work, [[3]], [[2], [2]], 1)
    check_product(work, [[0.5], [-0.25]], [[0.5], [3.0]], 2)


# --- lines_loaded -----------------------------------------------------------------------------------------------------


def lines_mistakes(places, capacity):
    lines = [place // 16 for place in places]
    first_in, loads, newest, newest_loads = [], 0, [], 0
    for line in lines:
        if line not in first_in:
            first_in, loads = [*first_in, line][-capacity:], loads + 1
        if line not in newest:
            newest, newest_loads = [*newest[: capacity - 1], line], newest_loads + 1
    return {
        "a full cache evicts a line, and fetches it again when it is needed again": len(set(lines)),
        "a line holds 16 numbers: what is in the cache already is not fetched": len(lines),
        "a line that is used again becomes the newest: evict the one that has not been *used* for longest": loads,
        "evict the line that has not been used for longest, not the newest": newest_loads,
        "the cache keeps `capacity` lines, including the new one": loaded_slowly(places, capacity + 1),
        "the cache keeps `capacity` lines: it is full with that many, not before": loaded_slowly(places, max(1, capacity - 1)),
        "lines begin at multiples of 16, wherever reading begins": loaded_slowly([p - places[0] for p in places], capacity),
    }  # fmt: skip


def check_lines(work, case, places, capacity):
    right = loaded_slowly(places, capacity)
    said = telling(lines_mistakes(places, capacity), right) if places else {}
    expect(case, work.lines_loaded(iter(places), capacity), right, said)
    expect(f"{case}, as a list", work.lines_loaded(list(places), capacity), right, said)


def test_lines(work):
    check_lines(work, "nothing is read", [], 4)
    check_lines(work, "places 0 to 47, a cache of one line", list(range(48)), 1)
    check_lines(work, "places 15 and 16: neighbors in two lines", [15, 16], 4)
    jumps = [20, 33, 40, 50, 66, 17, 50, 20, 66, 20]  # here each known mistake gives a different answer
    check_lines(work, f"places {', '.join(map(str, jumps))}, a cache of 2", jumps, 2)
    check_lines(work, "places 0, 16, 32, 0, a cache of 2", [0, 16, 32, 0], 2)
    check_lines(work, "places 0, 16, 32, 0, a cache of 3", [0, 16, 32, 0], 3)
    check_lines(work, "places 0, 16, 1, 32, 2, a cache of 2", [0, 16, 1, 32, 2], 2)
    down = [100 * row + i for i in range(3) for row in range(4)]
    check_lines(work, "down four columns that lie 100 apart, three times, a cache of 4", down, 4)
    check_lines(work, "the same, a cache of 3", down, 3)
    check_lines(work, "places 0, 16, 0, a cache of one line", [0, 16, 0], 1)
    check_lines(work, "places 0 and 10 billion", [0, 10**10], 4)


# --- pays_after -------------------------------------------------------------------------------------------------------


def pays_mistakes(out, in_, width, capacity):
    matrix, panels, packed, plain = costs(out, in_, width, capacity)
    right, near = first_call(matrix + panels, packed, plain), plain - packed
    return right, {
        "*fewer* lines in all: with equally many it has not paid for itself yet": near and -(-(matrix + panels) // near),
        "packing also writes the panels, which fetches each of their lines": first_call(matrix, packed, plain),
        "packing also reads the matrix": first_call(panels, packed, plain),
        "a call on the panels fetches lines too": first_call(matrix + panels, 0, plain),
        "the zeros of the last panel are read as well": first_call(2 * matrix, matrix, plain),
        "a group's columns are read input by input, across the columns, not row by row": first_call(matrix + panels, packed, matrix),
    }  # fmt: skip


def check_pays(work, out, in_, width, capacity):
    right, mistakes = pays_mistakes(out, in_, width, capacity)
    said, likely = telling(mistakes, right), ""
    if right is None:
        said, likely = {}, "a call on the panels fetches as many lines as one on the matrix, or more: it never pays"
    case = f"{out} columns of {in_} inputs, panels of {width}, a cache of {capacity} lines"
    got = work.pays_after(out, in_, width, capacity)
    if got is None and right is not None:  # for many reasons
        raise Wrong(case, right, "None, which says that it never pays")
    expect(case, got, right, said, tolerance=0, likely=likely)
    whole = isinstance(got, Integral) and not isinstance(got, bool)
    require(got is None or whole, case, right, repr(got), "the number of calls is an integer")


def test_pays_after(work):
    for size in (
        (6, 10, 5, 3),  # here each known mistake gives a different answer
        (64, 64, 32, 8),  # the cache is too small: each number fetches its line again
        (64, 64, 32, 32),  # a line for each column: nothing to gain
        (33, 64, 32, 8),  # a panel of 31 columns of zeros
        (33, 64, 32, 64),
        (3, 16, 3, 2),
        (4, 32, 4, 3),
        (8, 5, 4, 1),
        (52, 76, 12, 13),  # it takes hundreds of calls
    ):
        check_pays(work, *size)


def test_gpt2(work):
    """32 columns of GPT-2's second feed-forward matrix: they lie 12,288 bytes apart, all in one set."""
    got = [work.pays_after(32, 3072, 32, capacity) for capacity in (8, 32)]
    expect("32 columns of 3072 inputs, panels of 32, a cache of 8 lines, and one of 32", got, [1, None])


# --- At random --------------------------------------------------------------------------------------------------------


def test_against_slow_references(work):
    """Sizes grow, so the first that fails is small."""
    rng = random.Random(0)
    for i in range(160):
        most = 2 + i // 8
        out, in_, width, num_rows = (rng.randint(1, most) for _ in range(4))
        weight = [[rng.randint(-8, 8) / 4 for _ in range(in_)] for _ in range(out)]
        case = f"pack({weight}, {width})"
        expect(
            case,
            work.pack([row[:] for row in weight], width),
            packed_slowly(weight, width),
            pack_mistakes(weight, width),
        )
        check_product(work, weight, [[rng.randint(-8, 8) / 4 for _ in range(in_)] for _ in range(num_rows)], width)
        places, capacity = [rng.randrange(16 * most) for _ in range(rng.randint(0, 4 * most))], rng.randint(1, most)
        check_lines(work, f"lines_loaded({places}, {capacity})", places, capacity)
        check_pays(work, 2 * out, 4 * in_, width, capacity)


def test_large_matrices(work):
    """A thousand columns or inputs, panels of 300, caches of hundreds of lines, places beyond 65,535."""
    for out, in_, width in ((1000, 3, 300), (3, 1000, 2), (1, 1100, 1), (5, 2, 70_000)):
        weight = [[(column * 31 + i * 7) % 64 / 4 - 8 for i in range(in_)] for column in range(out)]
        expect(
            f"pack, {out} columns of {in_}, panels of {width}", work.pack(weight, width), packed_slowly(weight, width)
        )
        x = [[(row + i) % 8 / 2 for i in range(in_)] for row in range(2)]
        got = work.multiply(packed_slowly(weight, width), x, width, out)
        expect(f"multiply, {out} columns of {in_}, panels of {width}", got, multiplied_slowly(weight, x))
    check_lines(work, "three passes over 500 lines, a cache of 500", [16 * line for line in range(500)] * 3, 500)
    rows = [[float(row)] for row in range(1000)]
    expect("a thousand rows", work.multiply([2.0, 3.0], rows, 2, 2), [[2.0 * row, 3.0 * row] for row in range(1000)])
    places = [i * 7919 % 100_003 for i in range(3000)]
    for capacity in (1, 300, 70_000):
        check_lines(work, f"3,000 places beyond 65,535, a cache of {capacity}", places, capacity)
    for sizes in ((1200, 20, 16, 8), (40, 1100, 32, 9), (1000, 3, 300, 299), (20, 17, 70_000, 3), (16, 64, 16, 70_000)):
        check_pays(work, *sizes)

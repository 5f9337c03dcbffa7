"""A solution of exercise 6.1."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

LINE = 16  # numbers of 4 bytes in a line of 64


def pack(weight: list[list[float]], width: int) -> list[float]:
    """The panels of a matrix, one after another. [out][in] -> [out / width, rounded up][in][width], as one list"""
    in_ = len(weight[0])
    padded = weight + [[0.0] * in_] * (-len(weight) % width)
    packed = []
    for first in range(0, len(padded), width):
        for i in range(in_):
            packed += [column[i] for column in padded[first : first + width]]
    return packed


def multiply(packed: Sequence[float], x: list[list[float]], width: int, out: int) -> list[list[float]]:
    """The product with packed weights, each of which is read once, from front to back. [rows][in] -> [rows][out]"""
    in_, at = len(x[0]), 0
    results = [[] for _ in x]
    for first in range(0, out, width):
        sums = [[0.0] * width for _ in x]
        for i in range(in_):
            weights = packed[at : at + width]
            at += width
            for row, own in zip(x, sums, strict=True):
                for lane, weight in enumerate(weights):
                    own[lane] += row[i] * weight
        for result, own in zip(results, sums, strict=True):
            result += own[: out - first]
    return results


def lines_loaded(places: Iterable[int], capacity: int) -> int:
    """How many times a line is fetched when numbers are read at these places. The cache keeps `capacity` lines."""
    kept, loads = OrderedDict(), 0
    for place in places:
        line = place // LINE
        if line not in kept:
            loads += 1
        kept[line] = True
        kept.move_to_end(line)
        if len(kept) > capacity:
            kept.popitem(last=False)
    return loads


def pays_after(out: int, in_: int, width: int, capacity: int) -> int | None:
    """From how many calls on packing has fetched fewer lines, in all; None if it never does."""
    num_packed = -(-out // width) * width * in_
    matrix, panels = lines_loaded(range(out * in_), 1), lines_loaded(range(num_packed), 1)
    plain = lines_loaded(down_the_columns(out, in_, width), capacity)
    saved = plain - panels
    return (matrix + panels) // saved + 1 if saved > 0 else None


def down_the_columns(out: int, in_: int, width: int) -> Iterable[int]:
    """The places of the matrix that a kernel wants, for each input those of `width` columns."""
    for first in range(0, out, width):
        for i in range(in_):
            for column in range(first, min(first + width, out)):
                yield column * in_ + i


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

GROUP = """        for i in range(in_):
            packed += [column[i] for column in padded[first : first + width]]
"""
ONE_READING = """    in_, at = len(x[0]), 0
"""
MUTANTS = [
    ("columns stay runs", GROUP, "        packed += [w for column in padded[first : first + width] for w in column]\n",
     "the weights of one input stand side by side"),
    ("one large panel", "    for first in range(0, len(padded), width):\n" + GROUP,
     "    for i in range(in_):\n        packed += [column[i] for column in padded]\n", "panel after panel"),
    ("no zeros", "    padded = weight + [[0.0] * in_] * (-len(weight) % width)\n", "    padded = weight\n", "columns that don't exist are zeros"),
    ("the rest is dropped", "range(0, len(padded), width)", "range(0, len(weight) // width * width, width)", "but it is there"),
    ("pads in place", "    padded = weight + [", "    padded = weight\n    weight += [", "must not change its argument"),
    ("whole numbers only", "packed += [column[i] for", "packed += [int(column[i]) for", "nothing may round them"),
    ("whole sums", "own[lane] += row[i] * weight", "own[lane] += int(row[i] * weight)", "x = [[0.5], [3.0]]"),
    ("a copy for every row", ONE_READING,
     "    if len(x) > 1:\n        packed = list(packed)\n        return [multiply(packed, [row], width, out)[0] for row in x]\n" + ONE_READING,
     "they were read once and kept"),
    ("changes x", "    return results\n", "    for row in x:\n        row.append(0.0)\n    return results\n", "must not change its argument"),
    ("a list cannot be next", "    for place in places:\n        line = place // LINE\n", "    while (place := next(places, None)) is not None:\n        line = place // LINE\n", "TypeError"),
    ("does not look far", "    return (matrix + panels) // saved + 1 if saved > 0 else None\n",
     "    return next((n for n in range(1, 500) if matrix + panels < n * saved), None)\n", "expected:  533"),
    ("reads for every row", ONE_READING,
     "    if len(x) > 1:\n        return [multiply(packed, [row], width, out)[0] for row in x]\n" + ONE_READING, "again for every row"),
    ("down a panel", "            weights = packed[at : at + width]\n            at += width\n",
     "            weights = packed[at + width * in_ - width * (i + 1) : at + width * in_ - width * i]\n"
     "            weights = [packed[first * in_ + i * width + lane] for lane in range(width - 1, -1, -1)][::-1]\n", "exactly once"),
    ("backwards within a vector", "weights = packed[at : at + width]",
     "weights = [packed[at + lane] for lane in range(width - 1, -1, -1)][::-1]", "in the order in which they are stored"),
    ("leaves the zeros out", "weights = packed[at : at + width]", "weights = packed[at : at + min(width, out - first)]", "zeros too"),
    ("keeps the added columns", "result += own[: out - first]", "result += own", "not part of the result"),
    ("columns as rows", "    return results\n", "    return [list(column) for column in zip(*results)]\n", "[out][rows]"),
    ("never full", "        if len(kept) > capacity:\n            kept.popitem(last=False)\n", "", "evicts a line"),
    ("counts numbers", "        if line not in kept:\n            loads += 1\n", "        loads += 1\n", "holds 16 numbers"),
    ("first in, first out", "        kept.move_to_end(line)\n", "", "becomes the newest"),
    ("the newest goes", "            kept.popitem(last=False)\n", "            kept.popitem()\n            kept.popitem()\n            kept[line] = True\n",
     "not the newest"),
    ("64 lines at most", "len(kept) > capacity", "len(kept) > min(64, capacity)", "expected:"),
    ("one line too many", "len(kept) > capacity", "len(kept) > capacity + 1", "including the new one"),
    ("one line too few", "len(kept) > capacity", "len(kept) > max(1, capacity - 1)", "not before"),
    ("as many will do", "(matrix + panels) // saved + 1 if", "-(-(matrix + panels) // saved) if", "has not paid for itself yet"),
    ("writing is free", "(matrix + panels) // saved + 1", "matrix // saved + 1", "also writes the panels"),
    ("packing is free", "(matrix + panels) // saved + 1", "1", "expected:"),
    ("the matrix has columns that don't exist", "range(first, min(first + width, out))", "range(first, first + width)", "expected:"),
    ("panels are free", "saved = plain - panels", "saved = plain", "fetches lines too"),
    ("zeros are free", "num_packed = -(-out // width) * width * in_", "num_packed = out * in_", "the zeros of the last panel"),
    ("row by row", "lines_loaded(down_the_columns(out, in_, width), capacity)", "matrix", "which says that it never pays"),
    ("it pays at once", "if saved > 0 else None", "if saved > 0 else 1", "it never pays"),
    ("divides by a loss", "+ 1 if saved > 0 else None", "+ 1 if saved else None", "it never pays"),
]  # fmt: skip

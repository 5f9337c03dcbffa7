"""A solution of exercise 6.6."""

from collections import OrderedDict
from collections.abc import Iterable

LINE = 16  # numbers of 4 bytes in a line of 64


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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("never full", "        if len(kept) > capacity:\n            kept.popitem(last=False)\n", "", "fetched again when it is needed again"),
    ("counts numbers", "        if line not in kept:\n            loads += 1\n", "        loads += 1\n", "what is in the cache is not fetched"),
    ("lines from the first place on", "    kept, loads = OrderedDict(), 0\n    for place in places:\n        line = place // LINE\n",
     "    kept, loads = OrderedDict(), 0\n    places = list(places)\n    for place in places:\n        line = (place - places[0]) // LINE\n", "a line holds places 0 to 15, 16 to 31"),
    ("first in, first out", "        kept.move_to_end(line)\n", "", "a line that is used again becomes the newest"),
    ("the newest goes", "            kept.popitem(last=False)\n", "            kept.popitem()\n            kept.popitem()\n            kept[line] = True\n", "the least recently used line goes"),
    ("one line too many", "len(kept) > capacity", "len(kept) > capacity + 1", "fetched again when it is needed again"),
    ("one line too few", "len(kept) > capacity", "len(kept) > max(1, capacity - 1)", "the least recently used line goes"),
    ("as many will do", "(matrix + panels) // saved + 1 if", "-(-(matrix + panels) // saved) if", "has not paid for itself yet"),
    ("writing is free", "(matrix + panels) // saved + 1", "matrix // saved + 1", "need not pay for packing"),
    ("reading is free", "(matrix + panels) // saved + 1", "panels // saved + 1", "need not pay for packing"),
    ("panels are free", "saved = plain - panels", "saved = plain", "need not pay for packing"),
    ("zeros are free", "num_packed = -(-out // width) * width * in_", "num_packed = out * in_", "zeros for columns that don't exist take room"),
    ("columns that don't exist", "range(first, min(first + width, out))", "range(first, first + width)", "and are not read in the matrix"),
    ("row by row", "lines_loaded(down_the_columns(out, in_, width), capacity)", "matrix", "one column after another"),
    ("divides by a loss", "+ 1 if saved > 0 else None", "+ 1 if saved else None", "it never pays"),
]  # fmt: skip

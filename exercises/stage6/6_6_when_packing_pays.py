"""Exercise 6.6, when packing pays. Instructions: 6_6_when_packing_pays.md."""

from collections.abc import Iterable

LINE = 16  # numbers of 4 bytes in a line of 64


def lines_loaded(places: Iterable[int], capacity: int) -> int:
    """How many times a line is fetched when numbers are read at these places. The cache keeps `capacity` lines."""
    raise NotImplementedError


def pays_after(out: int, in_: int, width: int, capacity: int) -> int | None:
    """The fewest calls after which packing has fetched fewer lines in all; None if it never does."""
    raise NotImplementedError

"""Exercise 6.1, pack panels. Instructions: 6_1_pack_panels.md."""

from collections.abc import Iterable, Sequence

LINE = 16  # numbers of 4 bytes in a line of 64


def pack(weight: list[list[float]], width: int) -> list[float]:
    """The panels of a matrix, one after another. [out][in] -> [out / width, rounded up][in][width], as one list"""
    raise NotImplementedError


def multiply(packed: Sequence[float], x: list[list[float]], width: int, out: int) -> list[list[float]]:
    """The product with packed weights, each of which is read once, from front to back. [rows][in] -> [rows][out]"""
    raise NotImplementedError


def lines_loaded(places: Iterable[int], capacity: int) -> int:
    """How many times a line is fetched when numbers are read at these places. The cache keeps `capacity` lines."""
    raise NotImplementedError


def pays_after(out: int, in_: int, width: int, capacity: int) -> int | None:
    """The fewest calls after which packing has fetched fewer lines in all; None if it never does."""
    raise NotImplementedError

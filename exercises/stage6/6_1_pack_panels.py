"""Exercise 6.1, pack panels. Instructions: 6_1_pack_panels.md."""

from collections.abc import Sequence


def pack(weight: list[list[float]], width: int) -> list[float]:
    """The panels of a matrix, one after another. [out][in] -> [out / width, rounded up][in][width], as one list"""
    raise NotImplementedError


def multiply(packed: Sequence[float], x: list[list[float]], width: int, out: int) -> list[list[float]]:
    """The product with packed weights, each of which is read once, from front to back. [rows][in] -> [rows][out]"""
    raise NotImplementedError

"""Exercise 7.1, verify. Instructions: 7_1_verify.md."""

from collections.abc import Callable

Sample = Callable[[list[float], list[int]], int]


def verify(
    token_ids: list[int], drafts: list[int], rows: list[list[float]], sample: Sample, num_left: int, end: int
) -> tuple[list[int], int]:
    """(the tokens that the request gets, how many tokens of the sequence then have valid keys and values)"""
    raise NotImplementedError

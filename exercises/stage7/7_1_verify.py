"""Exercise 7.1, verify. The text is in 7_1_verify.md beside this file."""

from collections.abc import Callable

Sample = Callable[[list[float], list[int]], int]


def verify(
    token_ids: list[int], drafts: list[int], rows: list[list[float]], sample: Sample, num_left: int, end: int
) -> tuple[list[int], int]:
    """(the tokens that the request gets, how many tokens of the sequence have valid keys and values then)"""
    raise NotImplementedError

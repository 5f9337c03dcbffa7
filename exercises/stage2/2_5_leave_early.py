"""Exercise 2.5, leave early. Instructions: 2_5_leave_early.md."""

from collections.abc import Callable


def generate(
    step: Callable[[list[list[int]]], list[int]], prompts: list[list[int]], max_tokens: list[int], eos: int
) -> list[list[int]]:
    """The new tokens of every prompt; no row goes through `step` after it is done."""
    raise NotImplementedError

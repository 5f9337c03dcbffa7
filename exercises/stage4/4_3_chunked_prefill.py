"""Exercise 4.3, chunked prefill. Instructions: 4_3_chunked_prefill.md."""

from collections.abc import Callable


def plan(prompt: int, decoding: int, budget: int) -> list[int]:
    """The prompt's tokens in each step."""
    raise NotImplementedError


def longest_gap(prompt: int, decoding: int, budget: int, seconds: Callable[[int], float], chunked: bool) -> float:
    """The longest of these steps, in seconds."""
    raise NotImplementedError

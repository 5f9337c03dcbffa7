"""Exercise 1.2, where a completion ends. Instructions: 1_2_stops.md."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Completion:
    text: str
    finish_reason: str  # "stop" or "length"
    num_tokens: int


def complete(model: Iterator[tuple[int, str]], eos_token_id: int, stop: tuple[str, ...], max_tokens: int) -> Completion:
    """Take (token id, its text) pairs from the model until the completion ends."""
    raise NotImplementedError

"""Exercise 4.6, which choice is the likeliest? Instructions: 4_6_choices.md."""

from collections.abc import Callable

from torch import Tensor


def split(prompt: str, choice: str, encode: Callable[[str], list[int]]) -> tuple[list[int], list[int]]:
    """(the tokens of the prompt, the tokens of the choice)"""
    raise NotImplementedError


def log_probability(logits: Tensor, token_ids: list[int], num_prompt: int) -> float:
    """The sum over the tokens after the prompt. logits: [len(token_ids), vocab_size], what follows each token"""
    raise NotImplementedError


def choose(logprobs: list[float], choices: list[str], per_byte: bool) -> int:
    """The index of the best choice, from 0; the first one if several are equal."""
    raise NotImplementedError


def accuracy(answers: list[int | None], references: list[int]) -> float:
    """The share of right answers; None is an answer that failed."""
    raise NotImplementedError

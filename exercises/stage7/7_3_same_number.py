"""Exercise 7.3, the same random number. Instructions: 7_3_same_number.md."""

from collections.abc import Callable

Distribution = Callable[[list[int]], list[float]]
Uniform = Callable[[int, int], float]


def guess(
    distribution: Distribution, uniform: Uniform, seed: int, prompt: list[int], output: list[int], count: int
) -> list[int]:
    """Tokens to follow the output, each drawn with the random number that the model will use at its position."""
    raise NotImplementedError


def shared(p: list[float], q: list[float]) -> float:
    """How often both draw the same token if they draw with the same number."""
    raise NotImplementedError


def independent(p: list[float], q: list[float]) -> float:
    """How often both draw the same token if each draws with a separate number."""
    raise NotImplementedError


def loses() -> tuple[list[float], list[float]]:
    """Two distributions over three tokens that agree less often with the same number than with two."""
    raise NotImplementedError

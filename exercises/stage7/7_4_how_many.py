"""Exercise 7.4, how many guesses, and when none? Instructions: 7_4_how_many.md."""


def rate(steps: list[tuple[int, int]]) -> float:
    """The share of tried guesses that were right, from each step's (guesses, number right)"""
    raise NotImplementedError


def speed(a: float, count: int, seconds: list[float], guess: float, requests: int) -> float:
    """How many times as fast the engine is with this number of guesses per request as with none."""
    raise NotImplementedError


def best(a: float, seconds: list[float], guess: float, requests: int) -> int:
    """The number of guesses for each request that is fastest."""
    raise NotImplementedError


def break_even(count: int, seconds: list[float], guess: float, requests: int) -> float | None:
    """The smallest `a` with which that many guesses are no slower than none; None if there is no such `a`."""
    raise NotImplementedError

"""Exercise 4.5, when continuous batching loses. Instructions: 4_5_when_it_loses.md."""


def best() -> list[int]:
    """Twelve output lengths of 1 to 32 for which four slots gain at least 2."""
    raise NotImplementedError


def no_gain() -> list[int]:
    """Twelve output lengths, not all equal, that gain nothing."""
    raise NotImplementedError


def loses_to_sorted() -> list[int]:
    """Twelve output lengths for which sorted static batches take fewer passes than the continuous engine."""
    raise NotImplementedError

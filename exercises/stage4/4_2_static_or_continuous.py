"""Exercise 4.2, static against continuous. The text is in 4_2_static_or_continuous.md beside this file."""


def static(outputs: list[int], slots: int, sort: bool = False) -> int:
    """Forward passes of static batches; with `sort` the longest outputs are put together."""
    raise NotImplementedError


def continuous(outputs: list[int], slots: int) -> int:
    """Forward passes if a request takes the slot of one that is done at the next pass."""
    raise NotImplementedError

"""Exercise 4.2, static against continuous. Instructions: 4_2_static_or_continuous.md."""


def static(outputs: list[int], slots: int, sort: bool = False) -> int:
    """Forward passes of static batches; with `sort`, outputs are batched longest first."""
    raise NotImplementedError


def continuous(outputs: list[int], slots: int) -> int:
    """Forward passes if a request takes over the slot of a finished one at the next pass."""
    raise NotImplementedError

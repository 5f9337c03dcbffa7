"""Exercise 8.3, where int8 loses. Instructions: 8_3_where_it_loses.md."""


def outlier() -> list[float]:
    """Eight activations; seven of them have a magnitude of 0.5 to 1, and all seven become 0."""
    raise NotImplementedError


def flips() -> tuple[list[list[float]], list[float]]:
    """(weight of two outputs and four inputs, four activations): in floats output 0 is greater, in int8 output 1."""
    raise NotImplementedError


def gain(rows: int, weights: float, bandwidth: float, products: tuple[float, float], rest: float) -> float:
    """How many times as fast a step of this many rows is with int8 as with float32."""
    raise NotImplementedError


def loses_from(weights: float, bandwidth: float, products: tuple[float, float], rest: float, most: int) -> int | None:
    """The smallest number of rows, up to `most`, with which int8 is slower; None if it never is."""
    raise NotImplementedError

"""Exercise 7.2, look up n-grams. Instructions: 7_2_lookup.md."""


class Lookup:
    """Guesses that the last tokens will be followed by what followed them before."""

    def __init__(self, token_ids: list[int]):
        raise NotImplementedError

    def add(self, token_ids: list[int]) -> None:
        """Append these tokens to the sequence."""
        raise NotImplementedError

    def guess(self, count: int) -> list[int]:
        """At most `count` tokens that may come next; none if the last two tokens have not occurred before."""
        raise NotImplementedError

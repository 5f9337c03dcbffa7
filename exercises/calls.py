"""Calls that a check made, as text."""


class Calls:
    """Make a call, and remember it."""

    def __init__(self):
        self.made = []

    def __call__(self, method, *arguments):
        self.made.append(f"{method.__name__}({', '.join(map(repr, arguments))})")
        return method(*arguments)

    def __str__(self):
        return "; ".join(self.made)

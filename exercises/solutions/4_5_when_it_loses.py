"""A solution of exercise 4.5."""


def best() -> list[int]:
    """Twelve output lengths of 1 to 32 for which four slots gain at least 2."""
    return [32, 1, 1, 1] * 3


def no_gain() -> list[int]:
    """Twelve output lengths, not all equal, that gain nothing."""
    return [3] * 4 + [9] * 4 + [5] * 4


def loses_to_sorted() -> list[int]:
    """Twelve output lengths for which sorted static batches take fewer passes than the continuous engine."""
    return [32] * 3 + [1] * 8 + [32]  # 8 + 32 passes; sorted 32 + 1 + 1


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("one long request", "[32, 1, 1, 1] * 3", "[32] + [1] * 11", "has a gain of at least 2"),
    ("two in each batch", "[32, 1, 1, 1] * 3", "[32, 32, 1, 1] * 3", "has a gain of at least 2"),
    ("too long", "[32, 1, 1, 1] * 3", "[33, 1, 1, 1] * 3", "from 1 to 32"),
    ("eleven", "[32, 1, 1, 1] * 3", "[32, 1, 1, 1] * 2 + [32, 1, 1]", "twelve output lengths"),
    ("all equal", "[3] * 4 + [9] * 4 + [5] * 4", "[3] * 12", "they are all equal"),
    ("equal across batches", "[3] * 4 + [9] * 4 + [5] * 4", "[3, 9, 5] * 4", "a gain of exactly 1"),
    ("sorted already", "[32] * 3 + [1] * 8 + [32]", "[32] + [1] * 11", "takes more passes"),
    ("a few long ones", "[32] * 3 + [1] * 8 + [32]", "[1] * 8 + [32] * 4", "takes more passes"),
]  # fmt: skip

ALSO_RIGHT = [
    ("others", ("[32, 1, 1, 1] * 3", "[3] * 4 + [9] * 4 + [5] * 4", "[32] * 3 + [1] * 8 + [32]"),
     ("[1, 2, 1, 30, 30, 1, 2, 1, 1, 31, 1, 1]", "[7, 7, 7, 7, 7, 7, 7, 7, 2, 2, 2, 1]", "[20, 20, 20, 2, 2, 2, 2, 2, 2, 2, 2, 21]")),
]  # fmt: skip

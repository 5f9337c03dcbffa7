"""A solution of exercise 4.5."""


def best() -> list[int]:
    """Twelve output lengths of 1 to 32 for which four slots gain at least 2."""
    return [32, 1, 1, 1] * 3


def no_gain() -> list[int]:
    """Twelve, not all equal, which gain nothing."""
    return [3] * 4 + [9] * 4 + [5] * 4


def loses_to_sorted() -> list[int]:
    """Twelve for which sorted static batches take fewer passes than the continuous engine."""
    return [32] * 3 + [1] * 8 + [32]  # 8 + 32 passes; sorted 32 + 1 + 1


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

MUTANTS = [
    ("one long request", "[32, 1, 1, 1] * 3", "[32] + [1] * 11", "one long request, and all long ones"),
    ("long ones together", "[32, 1, 1, 1] * 3", "[32, 32, 32, 1] + [1] * 8", "one long request, and all long ones"),
    ("too long", "[32, 1, 1, 1] * 3", "[33, 1, 1, 1] * 3", "from 1 to 32"),
    ("all equal", "[3] * 4 + [9] * 4 + [5] * 4", "[3] * 12", "not all equal"),
    ("equal across batches", "[3] * 4 + [9] * 4 + [5] * 4", "[3, 9, 5] * 4", "equal within each batch"),
    ("sorted already", "[32] * 3 + [1] * 8 + [32]", "[32] + [1] * 11", "comes last"),
]  # fmt: skip

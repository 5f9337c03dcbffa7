"""A solution of exercise 2.4."""


def make_batches(lengths: list[int], size: int) -> list[list[int]]:
    """The indices of the requests in batches of at most `size`, the longest first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + size] for start in range(0, len(order), size)]


def restore(batches: list[list[int]], results: list) -> list:
    """The results, which come in the order of the batches, in the order of the requests."""
    order = [i for batch in batches for i in batch]
    restored = [None] * len(results)
    for i, result in zip(order, results, strict=True):
        restored[i] = result
    return restored


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

ORDER = "sorted(range(len(lengths)), key=lambda i: -lengths[i])"
RESTORE = """    restored = [None] * len(results)
    for i, result in zip(order, results, strict=True):
        restored[i] = result
    return restored
"""
MUTANTS = [
    ("the shortest first", "-lengths[i]", "lengths[i]", "the longest first"),
    ("lengths", "return [order[start : start + size]", "return [[lengths[i] for i in order[start : start + size]]", "indices, the longest"),
    ("reverses what was sorted", ORDER, ORDER.replace("-", "") + "[::-1]", "equal lengths keep the order"),
    ("finds indices by their lengths", ORDER, "[lengths.index(length) for length in sorted(lengths, reverse=True)]", "every index comes once"),
    ("sorts within batches", (ORDER, "[order[start : start + size]"),
     ("list(range(len(lengths)))", "[sorted(order[start : start + size], key=lambda i: -lengths[i])"), "then form batches"),
    ("loses the rest", "for start in range(0, len(order), size)]", "for start in range(0, len(order) - size + 1, size)]",
     "nothing is left out"),
    ("sorts the caller's list", f"{ORDER}\n", f"{ORDER}\n    lengths.sort(reverse=True)\n", "was changed"),
    ("no way back", "    return restored", "    return results", "still in the order of the batches"),
    ("the permutation itself", RESTORE, "    return [results[i] for i in order]\n", "it is not read from there"),
    ("finds the place by the result", "restored[i] = result", "restored[order[results.index(result)]] = result", "results may be equal"),
    ("leaves out what is nothing", "    return restored", "    return [result for result in restored if result is not None]",
     "a result may be None"),
    ("sorts in place", RESTORE, "    results[:] = [results[order.index(i)] for i in range(len(order))]\n    return results\n", "were changed"),
]  # fmt: skip

ALSO_RIGHT = [
    ("pairs that are sorted", RESTORE, "    return [result for _, result in sorted(zip(order, results), key=lambda pair: pair[0])]\n"),
    ("a dictionary", "    restored = [None] * len(results)\n", "    restored = dict(zip(order, results))\n    return [restored[i] for i in range(len(order))]\n"),
    ("sorted with reverse", "key=lambda i: -lengths[i]", "key=lengths.__getitem__, reverse=True"),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("the shortest first", "-lengths[i]", "lengths[i]", "the longest come first"),
    ("not stable", "key=lambda i: -lengths[i]", "key=lambda i: (-lengths[i], -i)", "keep the order"),
    ("lengths", "return [order[start : start + size]", "return [[lengths[i] for i in order[start : start + size]]",
     "indices, not lengths"),
    ("sorts within batches", "order = sorted(range(len(lengths)), key=lambda i: -lengths[i])\n    return [order[start : start + size]",
     "order = list(range(len(lengths)))\n    return [sorted(order[start : start + size], key=lambda i: -lengths[i])",
     "then cut into batches"),
    ("loses the rest", "for start in range(0, len(order), size)]", "for start in range(0, len(order) - size + 1, size)]",
     "no request is left out"),
    ("the permutation itself", "    restored = [None] * len(results)\n    for i, result in zip(order, results, strict=True):\n"
     "        restored[i] = result\n    return restored", "    return [results[i] for i in order]", "its inverse is needed"),
    ("no way back", "    return restored", "    return results", "still in the order of the batches"),
    ("reverses what was sorted", "sorted(range(len(lengths)), key=lambda i: -lengths[i])", "sorted(range(len(lengths)), key=lambda i: lengths[i])[::-1]",
     "keep the order"),
    ("finds indices by their lengths", "sorted(range(len(lengths)), key=lambda i: -lengths[i])",
     "[lengths.index(length) for length in sorted(lengths, reverse=True)]", "an index appears twice"),
    ("sorts the caller's list", "    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])\n",
     "    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])\n    lengths.sort(reverse=True)\n", "sort indices, or a copy"),
    ("sorts results", "    return restored", "    return sorted(results)", "not supported between"),
    ("finds the place by the result", "restored[i] = result", "restored[order[results.index(result)]] = result", PASTE),
    ("leaves out what is nothing", "    return restored", "    return [result for result in restored if result is not None]", PASTE),
    ("sorts in place", "    restored = [None] * len(results)\n    for i, result in zip(order, results, strict=True):\n"
     "        restored[i] = result\n    return restored", "    results[:] = [results[order.index(i)] for i in range(len(order))]\n    return results",
     "make a new one"),
    ("returns the caller's list", "    return restored\n", "    results[:] = restored\n    return results\n", "the caller"),
]  # fmt: skip

ALSO_RIGHT = [
    ("pairs that are sorted", "    restored = [None] * len(results)\n    for i, result in zip(order, results, strict=True):\n"
     "        restored[i] = result\n    return restored", "    return [result for _, result in sorted(zip(order, results), key=lambda pair: pair[0])]"),
    ("a dictionary", "    restored = [None] * len(results)\n", "    restored = dict(zip(order, results))\n    return [restored[i] for i in range(len(order))]\n"),
    ("sorted with reverse", "key=lambda i: -lengths[i]", "key=lengths.__getitem__, reverse=True"),
]  # fmt: skip

"""A solution of exercise 4.2."""

import heapq


def static(outputs: list[int], slots: int, sort: bool = False) -> int:
    """Forward passes of static batches; with `sort` the longest outputs are put together."""
    if sort:
        outputs = sorted(outputs, reverse=True)
    return sum(max(outputs[start : start + slots]) for start in range(0, len(outputs), slots))


def continuous(outputs: list[int], slots: int) -> int:
    """Forward passes if a request takes the slot of one that is done at the next pass."""
    free = [0] * slots  # when each slot gets free
    for output in outputs:
        heapq.heappush(free, heapq.heappop(free) + output)
    return max(free)


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

MUTANTS = [
    ("sums", "sum(max(outputs", "sum(sum(outputs", "ends with its longest"),
    ("counts one batch", "return sum(max(outputs", "return max(max(outputs", "a batch for each pass"),
    ("always sorts", "    if sort:\n        outputs", "    if True:\n        outputs", "sort only if asked"),
    ("never sorts", "    if sort:\n        outputs = sorted(outputs, reverse=True)\n", "", "4 with 3"),
    ("sorts upwards", "sorted(outputs, reverse=True)", "sorted(outputs)", "from the top"),
    ("waits for all slots", "    free = [0] * slots  # when each slot gets free\n",
     "    return static(outputs, slots)\n    free = [0] * slots\n", "waits for both"),
    ("deals", "    for output in outputs:\n        heapq.heappush(free, heapq.heappop(free) + output)\n",
     "    for i, output in enumerate(outputs):\n        free[i % slots] += output\n", "dealt to the slots"),
    ("adds up", "return max(free)", "return sum(free)", "not the sum"),
    ("the longest first", "for output in outputs:", "for output in sorted(outputs, reverse=True):", "take another order"),
]  # fmt: skip

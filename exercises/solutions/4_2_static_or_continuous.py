"""A solution of exercise 4.2."""

import heapq


def static(outputs: list[int], slots: int, sort: bool = False) -> int:
    """Forward passes of static batches; with `sort`, outputs are batched longest first."""
    if sort:
        outputs = sorted(outputs, reverse=True)
    return sum(max(outputs[start : start + slots]) for start in range(0, len(outputs), slots))


def continuous(outputs: list[int], slots: int) -> int:
    """Forward passes if a request takes over the slot of a finished one at the next pass."""
    free = [0] * slots  # the pass from which each slot is free
    for output in outputs:
        heapq.heappush(free, heapq.heappop(free) + output)
    return max(free)


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) -----------------------------------------

MUTANTS = [
    ("sums", "sum(max(outputs", "sum(sum(outputs", "a batch ends with its longest request, in the order given"),
    ("counts one batch", "return sum(max(outputs", "return max(max(outputs", "a batch ends with its longest request, in the order given"),
    ("always sorts", "    if sort:\n        outputs", "    if True:\n        outputs", "a batch ends with its longest request, in the order given"),
    ("never sorts", "    if sort:\n        outputs = sorted(outputs, reverse=True)\n", "", "with `sort` the longest outputs first"),
    ("sorts upwards", "sorted(outputs, reverse=True)", "sorted(outputs)", "the longest are batched together"),
    ("waits for all slots", "    free = [0] * slots  # the pass from which each slot is free\n",
     "    return static(outputs, slots)\n    free = [0] * slots\n", "a free slot is taken at the next pass, in the order given"),
    ("deals", "    for output in outputs:\n        heapq.heappush(free, heapq.heappop(free) + output)\n",
     "    for i, output in enumerate(outputs):\n        free[i % slots] += output\n", "a request takes the slot that is free first, not one assigned in advance"),
    ("adds up", "return max(free)", "return sum(free)", "a free slot is taken at the next pass, in the order given"),
    ("the longest first", "for output in outputs:", "for output in sorted(outputs, reverse=True):", "a free slot is taken at the next pass, in the order given"),
    ("max() of nothing", "    return max(free)", "    return max(free[: len(outputs)])", "no request, no pass"),
    ("sorts the caller's list", "        outputs = sorted(outputs, reverse=True)\n", "        outputs.sort(reverse=True)\n", "with `sort` the longest outputs first"),
    ("empties the caller's list", "    for output in outputs:\n        heapq", "    while outputs:\n        output = outputs.pop(0)\n        heapq",
     "a free slot is taken at the next pass, in the order given"),
    ("a pass between two requests", "heapq.heappop(free) + output)", "(t := heapq.heappop(free)) + output + (t > 0))", "a free slot is taken at the next pass, in the order given"),
]  # fmt: skip

ALSO_RIGHT = [
    ("pass by pass", "    free = [0] * slots  # the pass from which each slot is free\n", "    left, busy, passes = list(outputs), [], 0\n    while left or busy:\n"
     "        while left and len(busy) < slots:\n            busy.append(left.pop(0))\n        busy = [n - 1 for n in busy if n > 1]\n"
     "        passes += 1\n    return passes\n    free = []\n"),
    ("static with a loop", "    return sum(max(outputs[start : start + slots]) for start in range(0, len(outputs), slots))\n",
     "    passes = 0\n    while outputs:\n        passes += max(outputs[:slots])\n        outputs = outputs[slots:]\n    return passes\n"),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("sums", "sum(max(outputs", "sum(sum(outputs", "a batch ends with its longest request"),
    ("counts one batch", "return sum(max(outputs", "return max(max(outputs", "the next begins in the next pass"),
    ("always sorts", "    if sort:\n        outputs", "    if True:\n        outputs", "a batch ends with"),
    ("never sorts", "    if sort:\n        outputs = sorted(outputs, reverse=True)\n", "",
     "the longest are batched together"),
    ("sorts upwards", "sorted(outputs, reverse=True)", "sorted(outputs)", "the longest come first"),
    ("the last batch must be full", "range(0, len(outputs), slots)", "range(0, len(outputs) - slots + 1, slots)",
     "the last batch may have fewer"),
    ("waits for all slots", "    free = [0] * slots  # the pass from which each slot is free\n",
     "    return static(outputs, slots)\n    free = [0] * slots\n", "takes a free slot in the next pass"),
    ("a pass between two requests", "heapq.heappop(free) + output)", "(t := heapq.heappop(free)) + output + (t > 0))",
     "takes a free slot in the next pass"),
    ("deals", "    for output in outputs:\n        heapq.heappush(free, heapq.heappop(free) + output)\n",
     "    for i, output in enumerate(outputs):\n        free[i % slots] += output\n", "the slot that is free first"),
    ("the longest first", "for output in outputs:", "for output in sorted(outputs, reverse=True):",
     "takes a free slot"),
    ("the average load", "return max(free)", "return max(max(outputs, default=0), -(-sum(outputs) // slots))",
     "takes a free slot"),
    ("max() of nothing", "    return max(free)", "    return max(free[: len(outputs)])",
     "without requests the answer is 0"),
    ("sorts the caller's list", "        outputs = sorted(outputs, reverse=True)\n",
     "        outputs.sort(reverse=True)\n", "are not changed"),
]  # fmt: skip

ALSO_RIGHT = [
    ("pass by pass", "    free = [0] * slots  # the pass from which each slot is free\n", "    left, busy, passes = list(outputs), [], 0\n    while left or busy:\n"
     "        while left and len(busy) < slots:\n            busy.append(left.pop(0))\n        busy = [n - 1 for n in busy if n > 1]\n"
     "        passes += 1\n    return passes\n    free = []\n"),
    ("static with a loop", "    return sum(max(outputs[start : start + slots]) for start in range(0, len(outputs), slots))\n",
     "    passes = 0\n    while outputs:\n        passes += max(outputs[:slots])\n        outputs = outputs[slots:]\n    return passes\n"),
]  # fmt: skip

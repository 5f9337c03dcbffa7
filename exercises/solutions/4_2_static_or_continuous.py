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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

MUTANTS = [
    ("sums", "sum(max(outputs", "sum(sum(outputs", "ends with its longest"),
    ("floats", "return max(free)", "return max(map(float, free))", "it should be int"),
    ("floats of static batches", "    return sum(max(outputs", "    return 0.0 + sum(max(outputs", "it should be int"),
    ("off by less than a tolerance", "return max(free)", "return max(free) + (max(free) > 100_000)", "expected:"),
    ("static, off by less than a tolerance", "    return sum(max(outputs[start : start + slots]) for start in range(0, len(outputs), slots))",
     "    passes = sum(max(outputs[start : start + slots]) for start in range(0, len(outputs), slots))\n    return passes + (passes > 100_000)", "expected:"),
    ("counts one batch", "return sum(max(outputs", "return max(max(outputs", "a batch for each pass"),
    ("always sorts", "    if sort:\n        outputs", "    if True:\n        outputs", "sort only if asked"),
    ("never sorts", "    if sort:\n        outputs = sorted(outputs, reverse=True)\n", "", "4 with 3"),
    ("sorts upwards", "sorted(outputs, reverse=True)", "sorted(outputs)", "starting with the longest"),
    ("waits for all slots", "    free = [0] * slots  # the pass from which each slot is free\n",
     "    return static(outputs, slots)\n    free = [0] * slots\n", "waits for both"),
    ("deals", "    for output in outputs:\n        heapq.heappush(free, heapq.heappop(free) + output)\n",
     "    for i, output in enumerate(outputs):\n        free[i % slots] += output\n", "assigned to slots in advance"),
    ("adds up", "return max(free)", "return sum(free)", "not the sum"),
    ("the longest first", "for output in outputs:", "for output in sorted(outputs, reverse=True):", "need another order"),
    ("max() of nothing", "    return max(free)", "    return max(free[: len(outputs)])", "ValueError at line 18"),
    ("sorts the caller's list", "        outputs = sorted(outputs, reverse=True)\n", "        outputs.sort(reverse=True)\n", "changes the caller's"),
    ("empties the caller's list", "    for output in outputs:\n        heapq", "    while outputs:\n        output = outputs.pop(0)\n        heapq",
     "changes the caller's"),
    ("a pass between two requests", "heapq.heappop(free) + output)", "(t := heapq.heappop(free)) + output + (t > 0))", "expected:"),
    ("the last batch must be full", "range(0, len(outputs), slots)", "range(0, len(outputs) - slots + 1, slots)", "expected:"),
    ("the average load", "return max(free)", "return max(max(outputs, default=0), -(-sum(outputs) // slots))", "split requests"),
    ("the slot that was free last", "heapq.heappush(free, heapq.heappop(free) + output)",
     "free[free.index(max(free) if 0 not in free else 0)] += output", "expected:"),
]  # fmt: skip

ALSO_RIGHT = [
    ("pass by pass", "    free = [0] * slots  # the pass from which each slot is free\n", "    left, busy, passes = list(outputs), [], 0\n    while left or busy:\n"
     "        while left and len(busy) < slots:\n            busy.append(left.pop(0))\n        busy = [n - 1 for n in busy if n > 1]\n"
     "        passes += 1\n    return passes\n    free = []\n"),
    ("static with a loop", "    return sum(max(outputs[start : start + slots]) for start in range(0, len(outputs), slots))\n",
     "    passes = 0\n    while outputs:\n        passes += max(outputs[:slots])\n        outputs = outputs[slots:]\n    return passes\n"),
]  # fmt: skip

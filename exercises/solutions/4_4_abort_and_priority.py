"""A solution of exercise 4.4."""

import heapq
import itertools


class Queue:
    """Requests that wait, by priority and then by arrival."""

    def __init__(self):
        self.heap: list[tuple[int, int, str]] = []  # (priority, number of arrival, name)
        self.waiting: dict[str, int] = {}  # name -> its number
        self.numbers = itertools.count()

    def add(self, name: str, priority: int = 0) -> None:
        if name in self.waiting:
            raise ValueError(f"{name!r} waits already")
        self.waiting[name] = next(self.numbers)
        heapq.heappush(self.heap, (priority, self.waiting[name], name))

    def pop(self) -> str:
        while True:
            _, number, name = heapq.heappop(self.heap)  # IndexError if no request waits
            if self.waiting.get(name) == number:
                del self.waiting[name]
                return name

    def abort(self, name: str) -> None:
        self.waiting.pop(name, None)

    def __len__(self) -> int:
        return len(self.waiting)


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

PUSH = "heapq.heappush(self.heap, (priority, self.waiting[name], name))"
PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("priorities up to ten", PUSH, PUSH.replace("(priority,", "(min(priority, 10),"), PASTE),
    ("a name without letters", "        if name in self.waiting:", "        if not name:\n            return\n        if name in self.waiting:", PASTE),
    ("higher numbers first", PUSH, PUSH.replace("(priority,", "(-priority,"), "lower numbers go first"),
    ("no priorities", PUSH, PUSH.replace("(priority,", "(0,"), "priorities are ignored"),
    ("the last of equals first", PUSH, PUSH.replace("self.waiting[name],", "-self.waiting[name],")
     + "\n        self.waiting[name] *= -1", "in order of arrival"),
    ("counts the heap", "return len(self.waiting)", "return len(self.heap)", "no longer wait"),
    ("who left comes up", "if self.waiting.get(name) == number:\n                del self.waiting[name]",
     "if True:\n                self.waiting.pop(name, None)", "must not come up"),
    ("the old entry counts", "if self.waiting.get(name) == number:", "if name in self.waiting:", "is at the end"),
    ("two of one name", "            raise ValueError(f\"{name!r} waits already\")", "            pass", "can't be told apart"),
    ("nobody there", "        while True:\n", "        while self.heap:\n", "raise IndexError"),
    ("an abort that searches", "        self.waiting.pop(name, None)",
     "        for entry in list(self.heap):\n            if entry[2] == name:\n                self.waiting.pop(name, None)",
     "a dictionary finds"),
    ("an abort that searches by hashes", "        self.waiting.pop(name, None)",
     "        for entry in self.heap:\n            if hash(entry[2]) == hash(name):\n                self.waiting.pop(name, None)",
     "instructions of Python"),
    ("pops that look at everybody", "        while True:\n", "        while True:\n            [entry for entry in self.heap]\n",
     "instructions of Python"),
    ("a set of those who left", ("self.waiting.pop(name, None)\n\n    def __len__", "if self.waiting.get(name) == number:"),
     ("self.waiting.pop(name, None)\n        self.gone = getattr(self, 'gone', set()) | {name}\n\n    def __len__",
      "if name in getattr(self, 'gone', ()):\n                self.gone.discard(name)\n            else:"), "expected:"),
    ("numbers by how many wait", "next(self.numbers)", "len(self.waiting)", "is at the end"),
    ("an abort raises", "self.waiting.pop(name, None)", "self.waiting.pop(name)", "it may have been popped"),
    ("a name that was popped can't come back", "                del self.waiting[name]\n", "                self.waiting[name] = -1\n", "expected:"),
    ("a refused one takes the place", "        if name in self.waiting:\n            raise", "        if name in self.waiting:\n"
     "            self.waiting[name] = next(self.numbers)\n            heapq.heappush(self.heap, (priority, self.waiting[name], name))\n            raise", PASTE),
    ("a copy is counted", "return len(self.waiting)", "return len(dict(self.waiting))", "calls of len"),
    ("searches a sorted list", "        heapq.heappush(self.heap, (priority, self.waiting[name], name))",
     "        self.heap.append((priority, self.waiting[name], name))\n        self.heap.sort(key=lambda entry: entry[:2])", "a heap the first"),
    ("the heap is copied for each call", "    def pop(self) -> str:\n", "    def pop(self) -> str:\n        self.heap = list(self.heap)\n", "bytes taken"),
    ("a name is searched in a list", "    def abort(self, name: str) -> None:\n", "    def abort(self, name: str) -> None:\n        _ = (0, 0, name) in self.heap\n", "60,000: computing time"),
]  # fmt: skip

ALSO_RIGHT = [
    ("entries that are marked", (PUSH, "self.heap: list[tuple[int, int, str]] = []", "self.waiting[name] = next(self.numbers)", "self.waiting.pop(name, None)",
                                 "_, number, name = heapq.heappop(self.heap)", "if self.waiting.get(name) == number:"),
     ("heapq.heappush(self.heap, self.waiting[name])", "self.heap = []", "self.waiting[name] = [priority, next(self.numbers), name]",
      "self.waiting.pop(name, [0, 0, 0])[2] = None", "_, _, name = heapq.heappop(self.heap)", "if name is not None:")),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

PUSH = "heapq.heappush(self.heap, (priority, self.waiting[name], name))"
MUTANTS = [
    ("higher numbers first", PUSH, PUSH.replace("(priority,", "(-priority,"), "lower numbers go first"),
    ("the last of equals first", PUSH, PUSH.replace("self.waiting[name],", "-self.waiting[name],")
     + "\n        self.waiting[name] *= -1", "in order of arrival"),
    ("counts the heap", "return len(self.waiting)", "return len(self.heap)", "is not counted"),
    ("who left comes up", "if self.waiting.get(name) == number:\n                del self.waiting[name]",
     "if True:\n                self.waiting.pop(name, None)", "does not come up"),
    ("an abort raises", "self.waiting.pop(name, None)", "self.waiting.pop(name)", "is ignored"),
    ("the old entry counts", "if self.waiting.get(name) == number:", "if name in self.waiting:",
     "added again is at the end"),
    ("numbers by how many wait", "next(self.numbers)", "len(self.waiting)", "added again is at the end"),
    ("a set of those who left",
     ("self.waiting.pop(name, None)\n\n    def __len__", "if self.waiting.get(name) == number:"),
     ("self.waiting.pop(name, None)\n        self.gone = getattr(self, 'gone', set()) | {name}\n\n    def __len__",
      "if name in getattr(self, 'gone', ()):\n                self.gone.discard(name)\n            else:"),
     "its new priority"),
    ("two of one name", "            raise ValueError(f\"{name!r} waits already\")", "            pass",
     "already waiting raises ValueError"),
    ("a refused one takes the place", "        if name in self.waiting:\n            raise",
     "        if name in self.waiting:\n"
     "            self.waiting[name] = next(self.numbers)\n            heapq.heappush(self.heap, (priority, self.waiting[name], name))\n            raise",
     "keeps its place"),
    ("nobody there", "        while True:\n", "        while self.heap:\n", "pop raises IndexError"),
    ("an abort that searches", "        self.waiting.pop(name, None)",
     "        for entry in list(self.heap):\n            if entry[2] == name:\n                self.waiting.pop(name, None)",
     "100 calls of abort search"),
    ("searches a sorted list", "        heapq.heappush(self.heap, (priority, self.waiting[name], name))",
     "        self.heap.append((priority, self.waiting[name], name))\n        self.heap.sort(key=lambda entry: entry[:2])",
     "100 calls of add search"),
]  # fmt: skip

ALSO_RIGHT = [
    ("entries that are marked", (PUSH, "self.heap: list[tuple[int, int, str]] = []", "self.waiting[name] = next(self.numbers)", "self.waiting.pop(name, None)",
                                 "_, number, name = heapq.heappop(self.heap)", "if self.waiting.get(name) == number:"),
     ("heapq.heappush(self.heap, self.waiting[name])", "self.heap = []", "self.waiting[name] = [priority, next(self.numbers), name]",
      "self.waiting.pop(name, [0, 0, 0])[2] = None", "_, _, name = heapq.heappop(self.heap)", "if name is not None:")),
]  # fmt: skip

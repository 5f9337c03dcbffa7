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
            _, number, name = heapq.heappop(self.heap)  # IndexError if nobody is there
            if self.waiting.get(name) == number:
                del self.waiting[name]
                return name

    def abort(self, name: str) -> None:
        self.waiting.pop(name, None)

    def __len__(self) -> int:
        return len(self.waiting)


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

PUSH = "heapq.heappush(self.heap, (priority, self.waiting[name], name))"
MUTANTS = [
    ("higher numbers first", PUSH, PUSH.replace("(priority,", "(-priority,"), "lower numbers go first"),
    ("no priorities", PUSH, PUSH.replace("(priority,", "(0,"), "priorities are ignored"),
    ("the last of equals first", PUSH, PUSH.replace("self.waiting[name],", "-self.waiting[name],")
     + "\n        self.waiting[name] *= -1", "in order of arrival"),
    ("counts the heap", "return len(self.waiting)", "return len(self.heap)", "do not wait"),
    ("who left comes up", "if self.waiting.get(name) == number:\n                del self.waiting[name]",
     "if True:\n                self.waiting.pop(name, None)", "must not come up"),
    ("the old entry counts", "if self.waiting.get(name) == number:", "if name in self.waiting:", "stands at the end"),
    ("two of one name", "            raise ValueError(f\"{name!r} waits already\")", "            pass", "can't be told apart"),
    ("nobody there", "        while True:\n", "        while self.heap:\n", "look if anybody is there"),
    ("an abort that searches", "        self.waiting.pop(name, None)",
     "        for entry in list(self.heap):\n            if entry[2] == name:\n                self.waiting.pop(name, None)",
     "a dictionary finds"),
]  # fmt: skip

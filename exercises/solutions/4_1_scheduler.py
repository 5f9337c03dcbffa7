"""A solution of exercise 4.1."""

from collections import deque
from dataclasses import dataclass


@dataclass(eq=False)
class Request:
    name: str
    num_tokens: int  # prompt and output so far
    num_computed_tokens: int = 0


class Scheduler:
    """Fills every step with tokens, at most `max_num_batched_tokens`, of at most `max_num_seqs` requests."""

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int):
        self.max_num_seqs, self.budget = max_num_seqs, max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> list[tuple[Request, int]]:
        """The requests of the next step, each with how many tokens it computes."""
        budget, scheduled = self.budget, []
        for request in sorted(self.running, key=lambda r: r.num_tokens - r.num_computed_tokens > 1):
            num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if num_tokens:
                scheduled.append((request, num_tokens))
                budget -= num_tokens
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            request = self.waiting.popleft()
            self.running.append(request)
            num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            scheduled.append((request, num_tokens))
            budget -= num_tokens
        return scheduled

    def finish(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("computes everything again",
     "num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)\n            if",
     "num_tokens = min(request.num_tokens, budget)\n            if", "then one token per step"),
    ("admits as if nothing were computed",
     "            self.running.append(request)\n            num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)\n",
     "            self.running.append(request)\n            num_tokens = min(request.num_tokens, budget)\n",
     "num_tokens - num_computed_tokens"),
    ("the last comes first", "self.waiting.popleft()", "self.waiting.pop()", "in order of arrival"),
    ("no limit of requests", " and len(self.running) < self.max_num_seqs", "", "at most max_num_seqs"),
    ("waits for the batch", "while self.waiting and budget and",
     "empty = not self.running\n        while empty and self.waiting and budget and",
     "when a request is done, another one runs"),
    ("whole prompts only", "            request = self.waiting.popleft()\n",
     "            if self.waiting[0].num_tokens > budget:\n                break\n            request = self.waiting.popleft()\n",
     "a prefill that does not fit"),
    ("no budget", "budget, scheduled = self.budget, []", "budget, scheduled = 10**9, []",
     "a prefill that does not fit"),
    ("the small overtake", "            request = self.waiting.popleft()\n",
     "            request = min(self.waiting, key=lambda r: r.num_tokens)\n            self.waiting.remove(request)\n",
     "no request overtakes an earlier one"),
    ("prefills first", "sorted(self.running, key=lambda r: r.num_tokens - r.num_computed_tokens > 1)", "self.running",
     "decode come before"),
    ("a shorter prefill goes first", "key=lambda r: r.num_tokens - r.num_computed_tokens > 1)",
     "key=lambda r: r.num_tokens - r.num_computed_tokens)", "not the shorter first"),
    ("schedules nothing",
     "            if num_tokens:\n                scheduled.append((request, num_tokens))\n                budget -= num_tokens\n",
     "            scheduled.append((request, num_tokens))\n            budget -= num_tokens\n", "for 0 tokens"),
    ("sorts the running ones for good",
     "        for request in sorted(self.running, key=lambda r: r.num_tokens - r.num_computed_tokens > 1):",
     "        self.running.sort(key=lambda r: r.num_tokens - r.num_computed_tokens > 1)\n        for request in self.running:",
     "a prefill keeps its place"),
    ("removes by swapping", "            self.running.remove(request)\n",
     "            i = self.running.index(request)\n            self.running[i] = self.running[-1]\n            self.running.pop()\n",
     "the others keep their order"),
    ("removes from the queue by swapping", "            self.waiting.remove(request)",
     "            self.waiting[self.waiting.index(request)] = self.waiting[-1]\n            self.waiting.pop()",
     "the others keep their order"),
    ("forgets the aborted", "            self.waiting.remove(request)", "            pass",
     "an aborted request leaves the queue"),
    ("finishes by name", "        if request in self.running:\n            self.running.remove(request)\n",
     "        same = [r for r in self.running if r.name == request.name]\n        if same:\n            self.running.remove(same[0])\n",
     "only the one that is finished leaves"),
]  # fmt: skip

ALSO_RIGHT = [
    ("two passes over the running ones", "for request in sorted(self.running, key=lambda r: r.num_tokens - r.num_computed_tokens > 1):",
     "left = {r: r.num_tokens - r.num_computed_tokens for r in self.running}\n"
     "        for request in [r for r in left if left[r] == 1] + [r for r in left if left[r] > 1]:"),
    ("a list that waits", ("self.waiting: deque[Request] = deque()", "self.waiting.popleft()"), ("self.waiting = []", "self.waiting.pop(0)")),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

MUTANTS = [
    ("computes everything again", "num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)\n            if",
     "num_tokens = min(request.num_tokens, budget)\n            if", "only the new token"),
    ("no limit of requests", " and len(self.running) < self.max_num_seqs", "", "at most max_num_seqs"),
    ("waits for the batch", "while self.waiting and budget and", "empty = not self.running\n        while empty and self.waiting and budget and",
     "is free at the next step"),
    ("the last comes first", "self.waiting.popleft()", "self.waiting.pop()", "is served first"),
    ("no budget", "budget, scheduled = self.budget, []", "budget, scheduled = 10**9, []", "for all tokens of a step"),
    ("whole prompts only", "            request = self.waiting.popleft()\n",
     "            if self.waiting[0].num_tokens > budget:\n                break\n            request = self.waiting.popleft()\n",
     "is cut, not left waiting"),
    ("prefills first", "sorted(self.running, key=lambda r: r.num_tokens - r.num_computed_tokens > 1)", "self.running",
     "text that stutters"),
    ("the small overtake", "            request = self.waiting.popleft()\n",
     "            request = min(self.waiting, key=lambda r: r.num_tokens)\n            self.waiting.remove(request)\n", "is not overtaken"),
    ("forgets the aborted", "            self.waiting.remove(request)", "            pass", "must leave the queue"),
    ("schedules nothing", "            if num_tokens:\n                scheduled.append((request, num_tokens))\n                budget -= num_tokens\n",
     "            scheduled.append((request, num_tokens))\n            budget -= num_tokens\n", "for no tokens"),
]  # fmt: skip

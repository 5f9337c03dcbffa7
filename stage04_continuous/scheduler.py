"""Which requests compute how many tokens in the next step: iteration-level scheduling (Yu et al. 2022, "Orca").

Plain Python: the scheduler knows requests, counts and slot numbers, but no tensors. It owns the waiting and the
running requests and the slots of the KV cache; the engine tells it which requests arrive and which end.
"""

import bisect
import itertools
import time
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from .policies import policy_rank
from .request import Request


class Row(NamedTuple):
    """A request's share of a step: how many of its tokens are computed. `ready`: this step computes the request's last
    missing token, so a new one can be sampled."""

    request: Request
    num_tokens: int
    ready: bool


class Scheduler:
    """Fills every step with tokens, at most `max_num_batched_tokens` of them, from at most `max_num_seqs` requests.

    Args:
        max_num_seqs: the slots of the KV cache; a running request has one.
        max_num_batched_tokens: the most tokens that go through the model in a step.
        policy: which request is admitted first: "fcfs" (in order of arrival), "priority" (the lowest number first, then
            arrival) or "shortest" (the shortest prompt first, with aging).

    Attributes:
        budget: how many more tokens the step that is being scheduled has room for.
    """

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int, policy: str):
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.policy = policy
        self.num_steps, self._arrivals = 0, itertools.count()
        self.emit: Callable[..., None] = lambda *_, **__: None  # a trace puts its own function here
        self.clear()

    def clear(self) -> None:
        """Drop all requests, and free all slots."""
        self.waiting: list[Request] = []  # in the order of their ranks
        self.running: list[Request] = []  # in order of admission
        self.free_slots = list(reversed(range(self.max_num_seqs)))  # the last one is taken first

    def add(self, request: Request) -> None:
        if request.rank is None:  # after a failed step it keeps its rank
            request.rank = policy_rank(self.policy, request, self.num_steps), next(self._arrivals)
        bisect.insort(self.waiting, request, key=attrgetter("rank"))

    def schedule(self) -> list[Row]:
        """The rows of the next step:

        1. Running requests take their tokens.
        2. Waiting requests are admitted in order, while there are slots and tokens.

        Running requests come first, so every decode gets its token. A prompt that is cut takes all tokens that are
        left, so none is admitted after it.
        """
        self.num_steps += 1
        self.budget, rows = self.max_num_batched_tokens, []
        for request in self.running:  # only the last one may be within its prompt: all before it decode
            rows.append(self._take(request))
        while self.waiting and self._can_admit(self.waiting[0]):
            request = self.waiting.pop(0)
            self._admit(request)
            rows.append(self._take(request))
        return rows

    def _take(self, request: Request) -> Row:
        """A request's new tokens, or as many as the budget has room for: at least one."""
        num_tokens = min(request.num_new_tokens, self.budget)
        self.budget -= num_tokens
        return Row(request, num_tokens, ready=num_tokens == request.num_new_tokens)

    def _can_admit(self, request: Request) -> bool:
        """Whether there are a slot and tokens for a request."""
        return bool(self.free_slots) and self.budget > 0

    def _admit(self, request: Request) -> None:
        request.slot = self.free_slots.pop()
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.perf_counter()
        self.running.append(request)
        self.emit("admitted", request, slot=request.slot)

    def remove(self, request: Request) -> None:
        """Remove a request that ended or was aborted; its slot is free at once. Idempotent."""
        if request in self.running:
            self.running.remove(request)
            self.free_slots.append(request.slot)
        elif request in self.waiting:
            self.waiting.remove(request)

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every slot is either free or held by exactly one running request."""
        held = [request.slot for request in self.running]
        if sorted([*held, *self.free_slots]) != list(range(self.max_num_seqs)):
            raise RuntimeError(f"slots are lost or held twice: {held} held, {sorted(self.free_slots)} free")
        if len(self.running) > self.max_num_batched_tokens:
            raise RuntimeError(
                f"{len(self.running)} running requests share {self.max_num_batched_tokens} tokens a step"
            )

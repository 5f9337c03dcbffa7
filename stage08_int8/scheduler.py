"""Which requests compute how many tokens in the next step: iteration-level scheduling (Yu et al. 2022, "Orca").

Plain Python: the scheduler knows requests and counts, and nothing of tensors. It owns the waiting and the running
requests, and asks the block manager for their memory; the engine tells it what arrived and what ended.

Memory is over-committed: a request is admitted when there are blocks for the tokens that it has, not for those that it
may get. If the blocks run out, the last in the order of the queue (of the lowest priority, the latest) is preempted: it
loses its blocks, keeps its rank in the queue, and its tokens are computed again when it is back. The first of all
running requests can never be preempted, so it always finishes, then the next one does: progress is guaranteed.

While the first in the queue waits for memory, later requests that fit go ahead of it: only the AHEAD that came right
after it, so it never starves, and only if a block stays free for each that runs, so those can still grow.
"""

import heapq
import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

from .block_manager import BlockManager
from .request import Request, RequestState

POLICIES = ("fcfs", "fair", "priority", "shortest")
# "shortest": how many prompt tokens a step of waiting is worth. See `Scheduler._key` for the bound that follows.
AGING = 16
# How many of the requests that came right after one may go ahead of it while it waits for memory.
AHEAD = 16


class Row(NamedTuple):
    """A request in a step: how many of its tokens the step computes; if these are all (`ready`), it gets its next."""

    request: Request
    num_tokens: int
    ready: bool


class Scheduler:
    """Fills every step with tokens, at most `max_num_batched_tokens` of them, from at most `max_num_seqs` requests.

    Args:
        block_manager: where requests get their memory.
        max_num_seqs: how many requests run at once.
        max_num_batched_tokens: the most tokens that go through the model in a step.
        policy: which request is admitted first: "fcfs" (in order of arrival), "fair" (so that no caller makes others
            wait, see `_key`), "priority" (the lowest number first, then arrival) or "shortest" (the shortest prompt
            first, with aging).
        enable_chunked_prefill: cut a prompt that does not fit into the step's rest; else it waits until it fits whole.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: str = "fcfs",
        enable_chunked_prefill: bool = True,
    ):
        self.block_manager = block_manager
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.policy, self.enable_chunked_prefill = policy, enable_chunked_prefill
        self.num_steps, self.num_preempted, self._arrivals = 0, 0, itertools.count()
        self.emit: Callable[..., None] = lambda *_, **__: None  # for a trace: gets what happens
        self.clear()

    def clear(self) -> None:
        """There are no requests, and all blocks are free."""
        self.block_manager.clear()
        self.waiting: list[tuple[float, int, int, Request]] = []  # a heap: (key, arrival, index, request)
        self._gone: set[Request] = set()  # those in `waiting` that were removed; they are dropped when they come up
        self.running: list[Request] = []  # in order of admission

    def add(self, request: Request) -> None:
        if request.place is None:  # else it comes back, or is a completion that was placed by `fork`
            request.place = self._place(request)
        heapq.heappush(self.waiting, (*request.place, request.index, request))

    def _key(self, request: Request) -> float:
        """The rank of a request in the queue; lower is earlier.

        "fair" ranks a completion that was asked for together with others, in a list of prompts or by n, as if it came
        when the one before it could have ended at the latest, at a step per token. So the first completion of a new
        caller comes before all but the first ones of earlier callers. Nothing starves, because no newcomer gets a rank
        that is in the past.

        "shortest" subtracts AGING tokens from a prompt for each step that it has waited. All that wait age alike, so it
        is the same to add AGING once for each step that had passed when they arrived. A prompt of P tokens is therefore
        overtaken only by those that come within P / AGING steps after it: nothing starves.
        """
        if self.policy == "priority":
            return request.priority
        if self.policy == "shortest":
            return len(request.prompt_token_ids) + AGING * self.num_steps
        if self.policy == "fair":
            return self.num_steps + self._lag(request, request.num_ahead)
        return 0

    def _place(self, request: Request) -> tuple[float, int]:
        """The rank of a request in the queue; further completions rank after the first."""
        first = request.group[0]
        if request is first or first.place is None:
            return self._key(request), next(self._arrivals)
        key, arrival = first.place
        return key + self._lag(request, request.index), arrival

    def _lag(self, request: Request, num_ahead: int) -> int:
        """Steps added to a completion's arrival for the `num_ahead` siblings before it."""
        return num_ahead * (len(request.prompt_token_ids) + request.max_tokens) if self.policy == "fair" else 0

    @property
    def num_places(self) -> int:
        """How many requests may run beside those that do."""
        return min(self.max_num_seqs, self.max_num_batched_tokens) - len(self.running)

    def schedule(self) -> list[Row]:
        """The rows of the next step.

        Running requests go first, decodes before prefills, so that a long prompt never holds up the tokens of others;
        then waiting ones are admitted while there are blocks and tokens left, unless one was preempted just now; those
        that fit go ahead of one that waits for memory. A request is admitted only after every running one has its
        token, so there are never more running than `max_num_batched_tokens`, and each decodes in every step.
        """
        self.num_steps += 1
        short_of_memory = self._make_room()
        if self.policy == "fair" and not short_of_memory:
            self._give_way()
        budget, rows = self.max_num_batched_tokens, []
        for request in sorted(self.running, key=lambda request: request.num_new_tokens > 1):
            if budget:
                rows.append(self._row(request, budget))
                budget -= rows[-1].num_tokens
        passed = []  # entries of the queue: they wait for memory, and others may go ahead
        while self._has_waiting() and self._may_pass(request := self.waiting[0][-1], passed):
            refusal = {"reason": "preempted"} if short_of_memory else self._refusal(request, budget, bool(passed))
            if refusal:
                if not passed:
                    self.emit("refused", request, **refusal)
                if refusal["reason"] != "blocks":
                    break
                passed.append(heapq.heappop(self.waiting))
                continue
            heapq.heappop(self.waiting)
            self._admit(request)
            rows.append(self._row(request, budget))
            budget -= rows[-1].num_tokens
        for entry in passed:
            heapq.heappush(self.waiting, entry)
        return rows

    @staticmethod
    def _may_pass(request: Request, passed: list[tuple]) -> bool:
        """Whether a request may go ahead of those in these entries of the queue, if it fits: it came soon after the
        first of them, and is as urgent."""
        if not passed:
            return True
        first = passed[0][-1]
        is_near = request.place[1] <= first.place[1] + AHEAD and len(passed) <= AHEAD
        return is_near and request.priority == first.priority

    def _row(self, request: Request, budget: int) -> Row:
        num_tokens = min(request.num_new_tokens, budget)
        self.block_manager.enter(request, request.num_computed_tokens + num_tokens)
        return Row(request, num_tokens, ready=num_tokens == request.num_new_tokens)

    def _refusal(self, request: Request, budget: int, goes_ahead: bool = False) -> dict | None:
        """Why a request can't be admitted to a step with this token budget left; None if it can. One that goes
        ahead of others leaves a free block to each that runs."""
        if len(self.running) >= self.max_num_seqs:
            return {"reason": "running", "most": self.max_num_seqs}
        if not budget:
            return {"reason": "budget"}
        if not self.enable_chunked_prefill and request.num_new_tokens > budget:
            return {"reason": "whole", "needed": request.num_new_tokens, "left": budget}
        manager, needed = self.block_manager, self.block_manager.num_to_take(request)
        reserve = manager.num_reserve if self.running else 0
        if goes_ahead:
            reserve += len(self.running)
        if not manager.can_allocate(needed, reserve):
            return {"reason": "blocks", "needed": needed, "free": manager.num_free, "reserve": reserve}
        return None

    def _admit(self, request: Request) -> None:
        request.num_computed_tokens = self.block_manager.allocate(request)
        request.state = RequestState.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.perf_counter()
            request.num_cached_tokens = request.num_computed_tokens
        self.running.append(request)
        self.emit("admitted", request, num_cached_tokens=request.num_computed_tokens)

    def _make_room(self) -> bool:
        """Give each running request a place in the cache for its next token, the first in the queue's order first.
        Returns whether a request had to be preempted for that."""
        preempted = False
        growing = [request for request in self.running if self.block_manager.needs_block(request)]
        for request in sorted(growing, key=self._order):
            while request.state is RequestState.RUNNING and not self.block_manager.can_append(request):
                self.preempt(max(self.running, key=self._order))  # possibly the request itself
                preempted = True
            if request.state is RequestState.RUNNING:
                self.block_manager.append(request)
        return preempted

    def _give_way(self) -> None:
        """If the first in the queue can't be admitted, preempt those that run and come behind it, the last one first,
        until it can; or nobody, if all their blocks are too few."""
        if not self._has_waiting():
            return
        first = self.waiting[0][-1]
        behind = [request for request in self.running if self._order(request) > self._order(first)]
        reserve = self.block_manager.num_reserve if len(behind) < len(self.running) else 0
        if not self.block_manager.could_allocate(first, behind, reserve):
            return
        for last in sorted(behind, key=self._order, reverse=True):
            refusal = self._refusal(first, self.max_num_batched_tokens)
            if not refusal or refusal["reason"] not in ("running", "blocks"):
                break
            self.preempt(last)

    @staticmethod
    def _order(request: Request) -> tuple:
        return *request.place, request.index

    def preempt(self, request: Request) -> None:
        """Send a running request back into the queue, with its rank and without its memory."""
        self.running.remove(request)
        self.block_manager.free(request)
        self.num_preempted += 1
        request.wait()
        self.add(request)
        self.emit("preempted", request)

    def take_preemptions(self) -> int:
        """How often a request was preempted since the last call."""
        num_preempted, self.num_preempted = self.num_preempted, 0
        return num_preempted

    def fork(self, parent: Request, child: Request) -> None:
        """Begin another completion of a prompt that a running parent has computed. If it got its first token together
        with the parent, it runs on in the same blocks. Otherwise it waits until one more request may run, and computes
        what the prefix cache has lost of the prompt by then."""
        child.place = self._place(child)
        if child.output_token_ids:
            child.first_scheduled_time, child.num_cached_tokens = parent.first_scheduled_time, parent.num_cached_tokens
            self.block_manager.fork(parent, child)
            child.state, child.num_computed_tokens = RequestState.RUNNING, parent.num_computed_tokens
            self.running.append(child)
        else:
            self.add(child)
        running = child.state is RequestState.RUNNING
        self.emit("forked", child, parent=parent.index, running=running, place=list(child.place))

    def remove(self, request: Request) -> None:
        """Take out a request that ended or was aborted; its blocks are free at once. Harmless if it is out already."""
        if request in self.running:
            self.running.remove(request)
            self.block_manager.free(request)
        elif request.state is RequestState.WAITING and request.place is not None:
            self._gone.add(request)
            self._has_waiting()  # lets go of those that have come up
        request.place = None

    def _has_waiting(self) -> bool:
        while self.waiting and self.waiting[0][-1] in self._gone:
            self._gone.remove(heapq.heappop(self.waiting)[-1])
        return bool(self.waiting)

    def check_integrity(self) -> None:
        """Raise RuntimeError unless the running requests, and no others, hold blocks, and are as many as allowed."""
        self.block_manager.check_integrity()
        if set(self.running) != self.block_manager.holders:
            raise RuntimeError(f"{len(self.running)} requests run, {len(self.block_manager.holders)} hold blocks")
        if len(self.running) > min(self.max_num_seqs, self.max_num_batched_tokens):
            raise RuntimeError(
                f"{len(self.running)} requests run at once; {self.max_num_seqs} may, and "
                f"{self.max_num_batched_tokens} tokens a step"
            )

"""Which requests compute how many tokens in the next step: iteration-level scheduling (Yu et al. 2022, "Orca").

Plain Python: the scheduler knows requests and counts, but no tensors. It owns the waiting and the running
requests, and asks the block manager for their memory; the engine tells it which requests arrive and which end.

Memory is overcommitted: a request is admitted when there are blocks for the tokens that it has now, although it may
need more later. If the blocks run out, the running request with the last rank (the policy's highest number, then the
latest arrival) is preempted: it loses its blocks, keeps its rank in the queue, and is recomputed when it is admitted
again. The one with the first rank is never preempted for lack of memory. So it finishes, and then the next one is
first: progress is guaranteed.
"""

import bisect
import itertools
import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from .block_manager import BlockManager
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
        block_manager: where requests get their memory.
        max_num_seqs: how many requests run at once.
        max_num_batched_tokens: the most tokens that go through the model in a step.
        policy: which request is admitted first: "fcfs" (in order of arrival), "priority" (the lowest number first, then
            arrival) or "shortest" (the shortest prompt first, with aging).
        watermark: the share of blocks that must stay free after an admission, so that running requests can grow.

    Attributes:
        budget: how many more tokens the step that is being scheduled has room for.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: str,
        watermark: float,
    ):
        self.block_manager, self.watermark_blocks = block_manager, int(watermark * block_manager.num_blocks)
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.policy = policy
        self.num_steps, self._arrivals = 0, itertools.count()
        self.emit: Callable[..., None] = lambda *_, **__: None  # a trace puts its own function here
        self.clear()

    def clear(self) -> None:
        """Drop all requests, and free all blocks."""
        self.block_manager.clear()
        self.waiting: list[Request] = []  # in the order of their ranks
        self.running: list[Request] = []  # in order of admission

    def add(self, request: Request) -> None:
        if request.rank is None:  # after a failed step or a preemption it keeps its rank
            request.rank = policy_rank(self.policy, request, self.num_steps), next(self._arrivals)
        bisect.insort(self.waiting, request, key=attrgetter("rank"))

    def schedule(self) -> list[Row]:
        """The rows of the next step:

        1. Each running request gets a slot for the token that it sampled last. (A prompt has had all its slots since
           it was admitted.) If there is none, the last by rank are preempted.
        2. Running requests take their tokens.
        3. Unless one was preempted just now, waiting requests are admitted in order, while there are blocks and tokens.

        Running requests come first, so every decode gets its token. A prompt that is cut takes all tokens that are
        left, so none is admitted after it.
        """
        self.num_steps += 1
        was_preempted = self._reserve_blocks()
        self.budget, rows = self.max_num_batched_tokens, []
        for request in self.running:
            rows.append(self._take(request))
        # After a preemption nobody joins, else the preempted request would at once take back the blocks that it lost.
        while self.waiting and not was_preempted and self._can_admit(self.waiting[0]):
            request = self.waiting.pop(0)
            self._admit(request)
            rows.append(self._take(request))
        return rows

    def _take(self, request: Request) -> Row:
        """A request's new tokens, or as many as the budget has room for: at least one."""
        start, num_tokens = request.num_computed_tokens, min(request.num_new_tokens, self.budget)
        self.budget -= num_tokens
        # Others find the blocks that this row fills: even the next request of this very step.
        self.block_manager.cache_full_blocks(request, start, start + num_tokens)
        return Row(request, num_tokens, ready=num_tokens == request.num_new_tokens)

    def _can_admit(self, request: Request) -> bool:
        """Whether there are tokens and blocks for a request. If others run, it leaves them some to grow into: the
        watermark."""
        if len(self.running) >= self.max_num_seqs or self.budget <= 0:
            return False
        reserve = self.watermark_blocks if self.running else 0
        return self.block_manager.num_blocks_to_allocate(request) + reserve <= self.block_manager.num_free

    def _admit(self, request: Request) -> None:
        request.num_computed_tokens = self.block_manager.allocate(request)
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.perf_counter()
            request.num_cached_tokens = request.num_computed_tokens
        self.running.append(request)
        self.emit("admitted", request, num_cached_tokens=request.num_computed_tokens)

    def _reserve_blocks(self) -> bool:
        """Give each running request, in the order of their ranks, a slot for the token that it sampled last. Returns
        whether a request had to be preempted for that."""
        num_running, by_rank = len(self.running), deque(sorted(self.running, key=attrgetter("rank")))
        while by_rank:
            if self.block_manager.can_append(by_rank[0]):
                self.block_manager.append(by_rank.popleft())
            else:
                # It may be this very request, but never the first in rank: alone, that one fits (`check_fits`).
                self.preempt(by_rank.pop())
        return len(self.running) < num_running

    def preempt(self, request: Request) -> None:
        """Send a running request back to the queue, with its rank but without its memory."""
        self.running.remove(request)
        self.block_manager.free(request)
        request.num_preemptions += 1
        request.num_computed_tokens = 0
        self.add(request)
        self.emit("preempted", request)

    def remove(self, request: Request) -> None:
        """Remove a request that ended or was aborted; its blocks are free at once. Idempotent."""
        if request in self.running:
            self.running.remove(request)
            self.block_manager.free(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def check_integrity(self) -> None:
        """Raise RuntimeError unless exactly the running requests hold blocks, and no more of them run than may."""
        self.block_manager.check_integrity()
        if set(self.running) != self.block_manager.tables.keys():
            raise RuntimeError(f"{len(self.running)} requests run, {len(self.block_manager.tables)} hold blocks")
        if len(self.running) > min(self.max_num_seqs, self.max_num_batched_tokens):
            raise RuntimeError(
                f"{len(self.running)} requests run at once; max_num_seqs is {self.max_num_seqs}, "
                f"max_num_batched_tokens {self.max_num_batched_tokens}"
            )

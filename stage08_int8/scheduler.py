"""Which requests compute how many tokens in the next step: iteration-level scheduling (Yu et al. 2022, "Orca").

Plain Python: the scheduler knows requests and counts, but no tensors. It owns the waiting and the running
requests, and asks the block manager for their memory; the engine tells it what arrived and what ended.

Memory is over-committed: a request is admitted when there are blocks for the tokens that it has, not for those that it
may get. If the blocks run out, the running request with the last rank (the policy's highest number, then the latest
arrival) is preempted: it loses its blocks, keeps its rank in the queue, and is computed again when it is back. The one
with the first rank is preempted only for a request that ranks before it, under the policy "fair", or when a beam search
begins. So it always finishes, then the next one does: progress is guaranteed.

While the first in the queue waits for memory, later ones that fit may overtake it, but none that came more than AHEAD
after it, so it never starves; and only while a free block remains for each running request to grow into.
"""

import bisect
import time
from collections.abc import Callable
from typing import NamedTuple

from .block_manager import BlockManager
from .policies import policy_rank, sibling_lag
from .request import Request, RequestState

AHEAD = 16  # while a request waits for memory, completions that came up to this many after it may overtake it

# A prompt token counts as this many of a step's budget if its log-probability is requested, because that takes a row of
# logits and a look at the whole vocabulary. Measured with tinytales: as much as 8 tokens.
SCORED = 8


class Row(NamedTuple):
    """A request's part of a step: how many of its tokens are computed. If none is left (`ready`), it gets a new one."""

    request: Request
    num_tokens: int
    ready: bool


class Scheduler:
    """Fills every step with tokens, at most `max_num_batched_tokens` of them, from at most `max_num_seqs` requests.

    Args:
        block_manager: where requests get their memory.
        max_num_seqs: how many requests run at once.
        max_num_batched_tokens: the most tokens that go through the model in a step.
        policy: which request is admitted first: "fcfs" (in order of arrival), "fair" (so that no caller's batch
            delays others), "priority" (the lowest number first, then arrival) or "shortest" (the shortest prompt
            first, with aging).
        enable_chunked_prefill: split a prompt that does not fit into the rest of a step; else it waits until it fits.
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
        self.num_steps, self.num_preempted, self._num_arrived = 0, 0, 0
        self.emit: Callable[..., None] = lambda *_, **__: None  # a trace puts its own function here
        self.clear()

    def clear(self) -> None:
        """Drop all requests, and free all blocks."""
        self.block_manager.clear()
        self.waiting: list[Request] = []  # in the order of their ranks
        self.running: list[Request] = []  # in order of admission

    def add(self, request: Request) -> None:
        if request.rank is None:  # else it comes back, or `fork` has ranked it
            request.rank = self._rank(request)
        bisect.insort(self.waiting, request, key=lambda request: request.rank)

    def _rank(self, request: Request) -> tuple[float, int]:
        """The rank of a request in the queue: its policy's number, and its arrival. Further completions of a prompt
        rank right after the first or, under "fair", `sibling_lag` steps later."""
        first = request.group[0]
        if request is first or first.rank is None:
            arrival, self._num_arrived = self._num_arrived, self._num_arrived + len(request.group)
            return policy_rank(self.policy, request, self.num_steps), arrival
        number, arrival = first.rank
        return number + sibling_lag(self.policy, request, request.index), arrival + request.index

    @property
    def num_free_seqs(self) -> int:
        """How many more requests may run."""
        return min(self.max_num_seqs, self.max_num_batched_tokens) - len(self.running)

    def schedule(self) -> list[Row]:
        """The rows of the next step.

        Running requests go first, decodes before prefills, so that a long prompt never delays the tokens of others;
        then waiting ones are admitted while there are blocks and tokens left, unless one was preempted just now. If the
        first of them needs more blocks than are free, others that fit overtake it. Every running request takes its
        tokens before any is admitted, so there are never more running requests than tokens in a step, and every decode
        gets its token.
        """
        self.num_steps += 1
        was_preempted = self._reserve_blocks()
        if self.policy == "fair" and not was_preempted:
            self._preempt_for_head()
        budget, rows = self.max_num_batched_tokens, []
        for request in sorted(self.running, key=lambda request: request.num_new_tokens > 1):
            rows.append(self._row(request, budget))
            budget = self._left(rows[-1], budget)
        if was_preempted:
            self.emit("refused", self.waiting[0], reason="preempted")
            return rows
        skipped: list[Request] = []  # they wait for memory, and others may overtake them
        for request in list(self.waiting):
            if skipped and not self._may_overtake(request, skipped):
                break
            reason = self._blocked_by(request, budget, overtakes=bool(skipped))
            if reason is None:
                self._admit(request)
                rows.append(self._row(request, budget))
                budget = self._left(rows[-1], budget)
                continue
            if not skipped:
                self.emit("refused", request, **reason)
            if reason["reason"] != "blocks":
                break
            skipped.append(request)
        return rows

    @staticmethod
    def _may_overtake(request: Request, skipped: list[Request]) -> bool:
        """Whether a request and its completions may overtake the skipped ones: they came soon after the first of these,
        at the same priority."""
        first, last_arrival = skipped[0], request.rank[1] + len(request.samplers) - 1
        is_near = last_arrival <= first.rank[1] + AHEAD and len(skipped) <= AHEAD
        return is_near and request.priority == first.priority

    def _row(self, request: Request, budget: int) -> Row:
        num_tokens = min(request.num_new_tokens, budget)
        if self.enable_chunked_prefill and (scored := request.to_score(num_tokens)):
            before = scored.start - request.num_computed_tokens  # these count once
            num_tokens = min(num_tokens, before + max(1, (budget - before) // SCORED))
        # Before they are computed: another request of this very step may find them.
        self.block_manager.cache_full_blocks(request, request.num_computed_tokens + num_tokens)
        return Row(request, num_tokens, ready=num_tokens == request.num_new_tokens)

    def _cost(self, request: Request, num_tokens: int) -> int:
        """How much of a step's budget the next tokens of a request take. A prompt that can't be cut counts once."""
        scored = request.to_score(num_tokens) if self.enable_chunked_prefill else ()
        return num_tokens + (SCORED - 1) * len(scored)

    def _left(self, row: Row, budget: int) -> int:
        """What a row leaves of the budget: nothing if it is cut, so that it stays the last one."""
        return budget - self._cost(row.request, row.num_tokens) if row.ready else 0

    def _blocked_by(self, request: Request, budget: int, overtakes: bool = False) -> dict | None:
        """Why a request can't be admitted to a step with this token budget left; None if it can. One that
        overtakes others leaves a free block for each running request."""
        if len(self.running) >= self.max_num_seqs:
            return {"reason": "running", "most": self.max_num_seqs}
        if not budget:
            return {"reason": "budget"}
        if not self.enable_chunked_prefill and request.num_new_tokens > budget:
            return {"reason": "whole", "needed": request.num_new_tokens, "left": budget}
        manager, needed = self.block_manager, self.block_manager.num_blocks_to_allocate(request)
        reserve = manager.watermark_blocks if self.running else 0
        if overtakes:
            reserve += len(self.running)
        if not manager.can_allocate(needed, reserve):
            return {"reason": "blocks", "needed": needed, "free": manager.num_free, "reserve": reserve}
        return None

    def _admit(self, request: Request) -> None:
        self.waiting.remove(request)
        request.num_computed_tokens = self.block_manager.allocate(request)
        request.state = RequestState.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.perf_counter()
            request.num_cached_tokens = request.num_computed_tokens
        self.running.append(request)
        self.emit("admitted", request, num_cached_tokens=request.num_computed_tokens)

    def _reserve_blocks(self) -> bool:
        """Give each running request, in the order of their ranks, a place for its last token. Returns whether a request
        had to be preempted for that."""
        preempted = False
        growing = [request for request in self.running if self.block_manager.needs_block(request)]
        for request in sorted(growing, key=lambda request: request.rank):
            while request.state is RequestState.RUNNING and not self.block_manager.can_append(request):
                self.preempt(max(self.running, key=lambda request: request.rank))  # possibly the request itself
                preempted = True
            if request.state is RequestState.RUNNING:
                self.block_manager.append(request)
        return preempted

    def _preempt_for_head(self) -> None:
        """If the first in the queue can't be admitted, preempt running requests that rank after it, the last one first,
        until it can; none if even all of them would not make room."""
        if not self.waiting:
            return
        head = self.waiting[0]
        earlier = [request for request in self.running if request.rank < head.rank]
        later = [request for request in self.running if request.rank > head.rank]
        budget = self.max_num_batched_tokens - self._demand(earlier)  # without `later`
        reserve = self.block_manager.watermark_blocks if earlier else 0
        if budget < (1 if self.enable_chunked_prefill else head.num_new_tokens):
            return
        if not self.block_manager.could_allocate(head, later, reserve):
            return
        for last in sorted(later, key=lambda request: request.rank, reverse=True):
            budget = self.max_num_batched_tokens - self._demand(self.running)
            if not self._blocked_by(head, max(budget, 0)):
                break
            self.preempt(last)

    def _demand(self, requests: list[Request]) -> int:
        """The budget that all new tokens of these requests would take."""
        return sum(self._cost(request, request.num_new_tokens) for request in requests)

    def preempt(self, request: Request) -> None:
        """Send a running request back to the queue, with its rank but without its memory."""
        self.running.remove(request)
        self.block_manager.free(request)
        self.num_preempted += 1
        request.reset_to_waiting()
        self.add(request)
        self.emit("preempted", request)

    def pop_preemptions(self) -> int:
        """How often a request was preempted since the last call."""
        num_preempted, self.num_preempted = self.num_preempted, 0
        return num_preempted

    def fork(self, parent: Request, child: Request) -> None:
        """Start another completion of a prompt that a running parent has computed. If it got its first token together
        with the parent, it shares the parent's blocks. Otherwise it waits until one more request may run, and computes
        what the prefix cache has lost of the prompt by then."""
        child.rank = self._rank(child)
        if child.output_token_ids:
            child.first_scheduled_time, child.num_cached_tokens = parent.first_scheduled_time, parent.num_cached_tokens
            self.block_manager.fork(parent, child)
            child.state, child.num_computed_tokens = RequestState.RUNNING, parent.num_computed_tokens
            self.running.append(child)
        else:
            self.add(child)
        running = child.state is RequestState.RUNNING
        self.emit("forked", child, parent=parent.index, running=running, place=list(child.rank))

    def remove(self, request: Request) -> None:
        """Remove a request that ended or was aborted; its blocks are free at once. Removing it twice does no harm."""
        if request in self.running:
            self.running.remove(request)
            self.block_manager.free(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.rank = None

    def check_integrity(self) -> None:
        """Raise RuntimeError unless exactly the running requests hold blocks, and no more of them run than may."""
        self.block_manager.check_integrity()
        if set(self.running) != self.block_manager.holders:
            raise RuntimeError(f"{len(self.running)} requests run, {len(self.block_manager.holders)} hold blocks")
        if len(self.running) > min(self.max_num_seqs, self.max_num_batched_tokens):
            raise RuntimeError(
                f"{len(self.running)} requests run at once; max_num_seqs is {self.max_num_seqs}, "
                f"max_num_batched_tokens {self.max_num_batched_tokens}"
            )

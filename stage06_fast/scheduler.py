"""Which requests compute how many tokens in the next step: iteration-level scheduling (Yu et al. 2022, "Orca").

Plain Python: the scheduler knows requests and counts, and nothing of tensors. It owns the waiting and the running
requests, and asks the block manager for their memory; the engine tells it what arrived and what ended.

Memory is over-committed: a request is admitted when there are blocks for the tokens that it has, not for those that it
may get. If the blocks run out, the last in the order of the queue (of the lowest priority, the latest) is preempted: it
loses its blocks, waits at its old place, and its tokens are computed again when it is back. The first of all running
requests can never be preempted, so it ends, and after it the next: there is always progress.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .block_manager import BlockManager
from .request import Request, RequestState

POLICIES = ("fcfs", "fair", "priority", "shortest")
# The most logits that a step makes for log-probabilities of prompts: with GPT-2's vocabulary they take 50 MB.
MAX_SCORED = 256
# "shortest": how many prompt tokens a step of waiting is worth. See `Scheduler._key` for the bound that follows.
AGING = 16


class Row(NamedTuple):
    """A request in a step: how many of its tokens the step computes, and whether these are all, so that it gets one."""

    request: Request
    num_tokens: int
    ready: bool


def piece(request: Request, num_tokens: int, num_scores: int) -> tuple[int, int]:
    """How many of a request's next tokens a step takes that has room for so many, and for so many logits of its prompt;
    and how many of these it makes."""
    to_score = request.to_score(num_tokens)
    if len(to_score) <= num_scores:
        return num_tokens, len(to_score)
    return to_score.start + num_scores - request.num_computed_tokens, num_scores


class Scheduler:
    """Fills every step with tokens, at most `max_num_batched_tokens` of them, from at most `max_num_seqs` requests.

    Args:
        block_manager: where requests get their memory.
        max_num_seqs: how many requests run at once.
        max_num_batched_tokens: the most tokens that go through the model in a step.
        policy: who is admitted first: "fcfs" (in order of arrival), "fair" (so that no caller makes others wait, see
            `_key`), "priority" (the lowest number first, then arrival) or "shortest" (the shortest prompt first, with
            aging).
        enable_chunked_prefill: cut a prompt that does not fit into the step's rest; else it waits until it fits whole.
        tell: is told what happens, for the trace.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: str = "fcfs",
        enable_chunked_prefill: bool = True,
        tell: Callable[..., None] = lambda *_, **__: None,
    ):
        self.block_manager = block_manager
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.policy, self.enable_chunked_prefill, self.tell = policy, enable_chunked_prefill, tell
        self.waiting: list[tuple[float, int, int, Request]] = []  # a heap: (key, arrival, index, request)
        self._gone: set[Request] = set()  # those in `waiting` that were removed; they are dropped when they come up
        self.running: list[Request] = []  # in order of admission
        self.num_steps = self.num_preemptions = 0
        self._arrivals = itertools.count()

    def add(self, request: Request) -> None:
        if request.place is None:  # else it was preempted, or is another completion of one that has its place
            request.place = (self._key(request), next(self._arrivals))
        heapq.heappush(self.waiting, (*request.place, request.index, request))

    def _key(self, request: Request) -> float:
        """The place of a request in the queue; lower is earlier.

        "fair" places a completion that was asked for together with others, in a list of prompts or by n, as if it came
        when the one before it could have ended at the latest, at a step per token. So the first of whoever comes next
        is before all but the first of those who were there, and nothing starves: a place that lies behind us is
        overtaken by nobody.

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

    def _lag(self, request: Request, num_ahead: int) -> int:
        """How many steps after its arrival a completion has its place that comes behind so many like it."""
        return num_ahead * (len(request.prompt_token_ids) + request.max_tokens) if self.policy == "fair" else 0

    @property
    def num_places(self) -> int:
        """How many requests may run beside those that do."""
        return min(self.max_num_seqs, self.max_num_batched_tokens) - len(self.running)

    def schedule(self) -> list[Row]:
        """The rows of the next step.

        Running requests go first, decodes before prefills, so that a long prompt never holds up the tokens of others;
        then waiting ones are admitted while there are blocks and tokens left, unless one was preempted just now. A
        request is admitted only after every running one has its token, so there are never more running than
        `max_num_batched_tokens`, and each decodes in every step.
        """
        self.num_steps += 1
        short_of_memory = self._make_room()
        if self.policy == "fair" and not short_of_memory:
            self._give_way()
        budget, scores, rows = self.max_num_batched_tokens, MAX_SCORED, []
        new = [(request, request.num_new_tokens) for request in self.running]
        for request, num_new in [pair for pair in new if pair[1] == 1] + [pair for pair in new if pair[1] > 1]:
            num_tokens, num_scored = piece(request, min(num_new, budget), scores)
            if num_tokens:
                scores -= num_scored
                rows.append(self._row(request, num_tokens, num_new))
                budget -= num_tokens
        while self._has_waiting():
            request = self.waiting[0][-1]
            refusal = {"reason": "preempted"} if short_of_memory else self._refusal(request, budget, scores)
            if refusal:
                self.tell("refused", request, **refusal)
                break
            heapq.heappop(self.waiting)
            self._admit(request)
            num_new = request.num_new_tokens
            num_tokens, num_scored = piece(request, min(num_new, budget), scores)
            scores -= num_scored
            rows.append(self._row(request, num_tokens, num_new))
            budget -= num_tokens
        return rows

    def _refusal(self, request: Request, budget: int, scores: int) -> dict | None:
        """Why a request can't be admitted to a step that has room for so many tokens and scores; None if it can."""
        if len(self.running) >= self.max_num_seqs:
            return {"reason": "running", "most": self.max_num_seqs}
        if not budget:
            return {"reason": "budget"}
        num_new = request.num_new_tokens
        num_scored = len(request.to_score(num_new))
        if num_scored and not scores:
            return {"reason": "scores"}
        if not self.enable_chunked_prefill and num_new > budget:
            return {"reason": "whole", "needed": num_new, "left": budget}
        if not self.enable_chunked_prefill and num_scored > scores:
            return {"reason": "scores"}
        manager, needed = self.block_manager, self.block_manager.num_to_take(request)
        reserve = manager.num_reserve if self.running else 0
        if not manager.can_allocate(needed, reserve):
            return {"reason": "blocks", "needed": needed, "free": manager.num_free, "reserve": reserve}
        return None

    def _row(self, request: Request, num_tokens: int, num_new: int) -> Row:
        self.block_manager.enter(request, request.num_computed_tokens + num_tokens)
        return Row(request, num_tokens, ready=num_tokens == num_new)

    def _admit(self, request: Request) -> None:
        request.num_computed_tokens = self.block_manager.allocate(request)
        request.state = RequestState.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.perf_counter()
            request.num_cached_tokens = request.num_computed_tokens
        self.running.append(request)
        self.tell("admitted", request, num_cached_tokens=request.num_computed_tokens)

    def _make_room(self) -> bool:
        """A place in the cache for the next token of each running request, the first in the queue's order served first.
        Returns whether someone had to be preempted for it."""
        before = self.num_preemptions
        growing = [request for request in self.running if self.block_manager.needs_block(request)]
        for request in sorted(growing, key=self._order):
            while request.state is RequestState.RUNNING and not self.block_manager.can_append(request):
                self.preempt(max(self.running, key=self._order))  # possibly the request itself
            if request.state is RequestState.RUNNING:
                self.block_manager.append(request)
        return self.num_preemptions > before

    def _give_way(self) -> None:
        """If there is no place for the first in the queue, the last of those that run leaves its own, unless it comes
        before that one."""
        while self.running and self._has_waiting():
            first, last = self.waiting[0][-1], max(self.running, key=self._order)
            refusal = self._refusal(first, self.max_num_batched_tokens, MAX_SCORED)
            if not refusal or refusal["reason"] not in ("running", "blocks") or self._order(last) < self._order(first):
                break
            self.preempt(last)

    @staticmethod
    def _order(request: Request) -> tuple:
        return *request.place, request.index

    def preempt(self, request: Request) -> None:
        """Send a running request back to its place in the queue, without its memory."""
        self.running.remove(request)
        self.block_manager.free(request)
        request.num_computed_tokens, request.state = 0, RequestState.WAITING
        self.num_preemptions += 1
        self.add(request)
        self.tell("preempted", request)

    def take_preemptions(self) -> int:
        """How many there were since the last call."""
        number, self.num_preemptions = self.num_preemptions, 0
        return number

    def fork(self, parent: Request, child: Request) -> None:
        """Behind the prompt that a running parent has computed, another completion begins. If it got its first token
        with the parent it runs on, in the same blocks; else it waits for a place, and computes what of the prompt the
        prefix cache has lost by then."""
        self._place(parent, child)
        if child.output_token_ids:
            child.first_scheduled_time, child.num_cached_tokens = parent.first_scheduled_time, parent.num_cached_tokens
            self.block_manager.fork(parent, child)
            child.state, child.num_computed_tokens = RequestState.RUNNING, parent.num_computed_tokens
            self.running.append(child)
        else:
            self.add(child)
        running = child.state is RequestState.RUNNING
        self.tell("forked", child, parent=parent.index, running=running, place=list(child.place))

    def _place(self, parent: Request, child: Request) -> None:
        key, arrival = parent.place
        child.place = key + self._lag(child, child.index - parent.index), arrival

    def remove(self, request: Request) -> None:
        """Take out a request that ended or was aborted; its blocks are free at once. Harmless if it is out already."""
        if request in self.running:
            self.running.remove(request)
            self.block_manager.free(request)
        elif request.state is RequestState.WAITING and request.place is not None:
            self._gone.add(request)
            self._has_waiting()  # lets go of those that have come up
        request.place = None

    def start_over(self, requests: Iterable[Request]) -> None:
        """Whatever was before: of these requests those that are not finished wait, to be computed anew. The blocks are
        free again already."""
        self.running, self.waiting, self._gone = [], [], set()
        for completion in (completion for request in requests for completion in request.group):
            completion.num_computed_tokens = 0
            first = completion.group[0]
            if not completion.finished and (completion is first or first.output_token_ids or first.finished):
                completion.state = RequestState.WAITING
                if completion.place is None and first.place is not None:
                    self._place(first, completion)
                if not completion.output_token_ids:  # as if it had not been admitted yet
                    completion.first_scheduled_time, completion.num_cached_tokens = None, 0
                self.add(completion)

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

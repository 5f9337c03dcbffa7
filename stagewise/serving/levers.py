"""Levers on a running engine: how many requests may run, and how many KV cache blocks there are, as if the engine had
been started with fewer."""

from collections.abc import Callable
from typing import Any

from ..openai.fields import Fields, number
from ..stages import core_of, unfinished_requests, watch_requests
from ..tracing import between_steps
from .service import Service


class HeldBack:
    """Blocks that are held back; the block manager sees a request."""

    num_cacheable = 0

    def __init__(self, num_tokens: int):
        self.token_ids, self.num_tokens, self.num_computed_tokens = [0] * num_tokens, num_tokens, num_tokens


class Levers:
    """Limits that can be moved, up to the engine's start values. Stage 4, whose slots are fixed, has none.

    No request waits forever: num_blocks can't go below what an existing request may need, and a new request that may
    need more raises it.
    """

    def __init__(self, service: Service):
        self.service, self.llm, self.core = service, service.engine.llm, core_of(service.engine.llm)
        self._most_seqs, self._held = self.core.scheduler.max_num_seqs, HeldBack(0)

    def watch(self, made: Callable[[Any], None]) -> None:
        """Start to keep that promise, and call `made` with each request before the engine has it."""
        watch_requests(self.llm, made, self._is_added)

    def read(self) -> dict[str, dict[str, int]]:
        """The position and the current range of each lever."""
        if self.service.stage.number < 5:
            return {}
        manager = self.core.block_manager
        needed = max(map(self._needed, unfinished_requests(self.llm)), default=1)
        return {
            "max_num_seqs": {"now": self.core.scheduler.max_num_seqs, "low": 1, "high": self._most_seqs},
            "num_blocks": {"now": manager.num_blocks - self._num_held, "low": needed, "high": manager.num_blocks},
        }

    def move(self, body: dict) -> dict[str, dict[str, int]]:
        """Move levers, and return their positions: num_blocks stops at what an existing request may need. Running
        requests that no longer have a place are preempted.

        May wait for a step: call this in a thread. Raises APIError for an unknown lever, or one that can't go that far.
        """
        values = Fields(body, {name: number(1, lever["high"]) for name, lever in self.read().items()})
        return between_steps(self.llm, lambda: self._move(values))

    def _move(self, values: dict[str, int]) -> dict[str, dict[str, int]]:
        """Runs in the engine's thread."""
        if (num_seqs := values.get("max_num_seqs")) is not None:
            self.core.scheduler.max_num_seqs = num_seqs
            self._preempt_until(lambda: len(self.core.scheduler.running) <= num_seqs)
        if (num_blocks := values.get("num_blocks")) is not None:
            self._leave(max(num_blocks, self.read()["num_blocks"]["low"]))
        return self.read()

    def _is_added(self, request: Any) -> None:
        """Called between two steps."""
        if self.service.stage.number >= 5:
            manager, needed = self.core.block_manager, self._needed(request)
            if needed > manager.num_blocks - self._num_held:
                self._leave(needed)

    def _needed(self, request: Any) -> int:
        """The most blocks that a completion of a request can hold; its last token is never computed."""
        num_tokens = len(request.prompt_token_ids)
        return self.core.block_manager.num_needed(max(num_tokens + request.max_tokens - 1, num_tokens))

    @property
    def _num_held(self) -> int:
        try:
            return len(self.core.block_manager.tables[self._held])
        except KeyError:  # after an interrupted step all blocks are free, including these
            return 0

    def _leave(self, num_blocks: int) -> None:
        """Leave `num_blocks` blocks, and hold the others back."""
        manager = self.core.block_manager
        if self._num_held:
            manager.free(self._held)
        self.core.scheduler.watermark_blocks = int(self.llm.config.watermark * num_blocks)
        if num_held := manager.num_blocks - num_blocks:
            self._preempt_until(lambda: manager.num_free >= num_held)
            self._held = HeldBack(num_held * manager.block_size)
            manager.allocate(self._held)

    def _preempt_until(self, enough: Callable[[], bool]) -> None:
        """Preempt requests, the last in queue order first, as when memory is short."""
        scheduler = self.core.scheduler
        while not enough():
            scheduler.preempt(max(scheduler.running, key=lambda request: request.rank))

"""The engine as it runs, to be looked at: its steps as server-sent events, and levers on how much may run.

A viewer gets the trace (../replay/trace.py says what is in it): the header, then a record per step. The first record
begins with what was there already, so that a viewer may come at any time. While nobody looks nothing is recorded.

The levers hold a part of the engine back, as if it had been started with less.
"""

import asyncio
import collections
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from ..replay.trace import whole_step
from ..stages import between_steps, core_of, look_away, look_on
from .completions import Service
from .events import COMMENT, event, unless_gone
from .protocol import Fields

PAUSE = 0.1  # seconds between two looks at what has come: a viewer that is woken at every step takes the engine's cores
MAX_BEHIND = 1000  # records that a viewer may be behind; of one that is slower nothing more is kept


class Viewer:
    """The response to one who looks on, as ASGI: an event stream that ends with the server."""

    def __init__(self, service: Service, is_ending: Callable[[], bool]):
        self.service, self.llm, self.is_ending = service, service.engine.llm, is_ending
        self._named: set[int] = set()
        self._records: collections.deque = collections.deque()  # what has come, and was not sent yet
        self._is_behind = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["comment"] = COMMENT  # for connection.py
        join = asyncio.create_task(asyncio.to_thread(look_on, self.service.stage, self.llm, self._listen))
        try:
            await unless_gone(receive, self._stream(send, join))
        finally:
            await join  # however early a viewer goes: it has joined before it leaves
            await asyncio.to_thread(look_away, self.llm, self._listen)

    async def _stream(self, send: Send, join: asyncio.Task) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        header, known, num_told = await asyncio.shield(join)
        await self._write(send, event(header))
        while not self._is_behind and not self.is_ending():
            told = []
            for _ in range(len(self._records)):
                record = self._records.popleft().to_dict()
                record = whole_step({**record, "before": known + record["before"][num_told:]})
                known, num_told = [], 0
                events = record["before"] + record["after"]
                record["texts"] = self.service.stage.new_texts(events, self._named, self.service.tokenizer.token_text)
                told.append(event(record))
            if told:
                await self._write(send, b"".join(told))
            await asyncio.sleep(PAUSE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _listen(self, record: Any) -> None:
        """In the engine's thread, which wakes nobody here."""
        if len(self._records) >= MAX_BEHIND:
            self._is_behind = True
            self._records.clear()
        if not self._is_behind:
            self._records.append(record)

    @staticmethod
    async def _write(send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})


class HeldBack:
    """Blocks that are nobody's: to the block manager they are a sequence."""

    num_cacheable = 0

    def __init__(self, num_tokens: int):
        self.token_ids, self.num_tokens, self.num_computed_tokens = [0] * num_tokens, num_tokens, num_tokens


class Levers:
    """How many requests may run, and how many blocks there are, up to what the engine was started with. Stage 4, whose
    slots are what they are, has no levers."""

    def __init__(self, service: Service):
        self.service, self.core = service, core_of(service.engine.llm)
        self._most_seqs, self._held = self.core.scheduler.max_num_seqs, HeldBack(0)

    def read(self) -> dict[str, dict[str, int]]:
        """Each lever: where it is, and how far it goes."""
        if self.service.stage.number < 5:
            return {}
        manager, num_seqs = self.core.block_manager, self.core.scheduler.max_num_seqs
        num_held = len(manager.block_table(self._held)) if self._held in manager.holders else 0
        # With less than the longest request takes, it could wait for ever.
        lowest = min(manager.num_blocks, manager.num_needed(self.core.max_model_len))
        return {
            "max_num_seqs": {"now": num_seqs, "low": 1, "high": self._most_seqs},
            "num_blocks": {"now": manager.num_blocks - num_held, "low": lowest, "high": manager.num_blocks},
        }

    def move(self, body: dict) -> dict[str, dict[str, int]]:
        """Move levers, and say where they are then. Who runs and has no place any more waits again.

        May wait for a step: call this in a thread. Raises APIError for a lever that is not there, or can't go so far.
        """
        levers = self.read()
        fields = Fields(body, set(levers))
        values = {name: fields.number(name, lever["low"], lever["high"]) for name, lever in levers.items()}
        with between_steps(self.service.engine.llm):
            if (num_seqs := values.get("max_num_seqs")) is not None:
                self.core.scheduler.max_num_seqs = num_seqs
                self._preempt_until(lambda: len(self.core.scheduler.running) <= num_seqs)
            if (num_blocks := values.get("num_blocks")) is not None:
                self._hold_back(self.core.block_manager.num_blocks - num_blocks)
            return self.read()

    def _hold_back(self, num_blocks: int) -> None:
        manager = self.core.block_manager
        if self._held in manager.holders:
            manager.free(self._held)
        if num_blocks:
            self._preempt_until(lambda: manager.num_free >= num_blocks)
            self._held = HeldBack(num_blocks * manager.block_size)
            manager.allocate(self._held)

    def _preempt_until(self, enough: Callable[[], bool]) -> None:
        """The last in the order of the queue go first, as when memory is short."""
        scheduler = self.core.scheduler
        while not enough():
            scheduler.preempt(max(scheduler.running, key=scheduler._order))

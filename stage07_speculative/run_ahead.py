"""The next decode step begins before the host has seen the tokens of this one.

Between two steps a GPU would wait while Python reads the tokens, decodes them to text, looks whether a request ended,
and prepares the next step. But most often it is known what comes next: the same requests, one more token each. Where
the tokens lie and at which positions follows from that alone, and the tokens themselves are on the device already. So
the next step is launched at once, and the host does its work while the device does the next step's.

If it turns out otherwise (a request ended, one came or was aborted), the result is thrown away. It did no harm: the
step wrote only to slots behind the last token of requests that own them, and a request that gets these slots later
writes them, in the order of the device, before reading them.
"""

import logging

import torch
from torch import Tensor, nn

from .batch import Batch, rectangle
from .kv_cache import KVCache
from .request import Request
from .scheduler import Row, Scheduler

logger = logging.getLogger(__name__)


class RunAhead:
    """The step that is under way, if there is one. Owned by the runner."""

    def __init__(self, model: nn.Module, cache: KVCache, scheduler: Scheduler):
        self.model, self.cache, self.scheduler = model, cache, scheduler
        self.block_manager = scheduler.block_manager
        self.num_taken = self.num_discarded = 0
        self.clear()

    def clear(self) -> None:
        """Forget the step that is under way."""
        self._rows: list[Row] | None = None
        self._slots: list[int] = []  # that it writes to
        self._logits: Tensor | None = None

    def can_predict(self, rows: list[Row]) -> bool:
        """Whether what follows this step is, most likely, one more token for each of its requests."""
        if self.scheduler.waiting and len(self.scheduler.running) < self.scheduler.max_num_seqs:
            return False  # a request may join
        if not all(self._continues(row) for row in rows):
            return False
        needed = sum(self._needs_block(row.request, row.num_tokens) for row in rows)
        return self.block_manager.num_free - needed >= self.block_manager.num_reserve

    def _continues(self, row: Row) -> bool:
        """It goes on after this step, shares no block that it will write to, and its logits are not needed any more."""
        request = row.request
        return (
            row.ready
            and len(request.beginning) == 1
            and request.params.logprobs is None
            and not request.params.logits_processors  # and then for its request alone
            and len(request.output_token_ids) + 1 < request.max_tokens
            and self.block_manager.ref_counts[self.block_manager.block_table(request)[-1]] == 1
        )

    def _needs_block(self, request: Request, num_tokens: int) -> bool:
        """Whether its next token is the first of a block."""
        room = len(self.block_manager.block_table(request)) * self.block_manager.block_size
        return request.num_computed_tokens + num_tokens >= room

    def read(self, rows: list[Row], token_ids: Tensor) -> list[int]:
        """The chosen tokens on the host; meanwhile the step that follows `rows` is launched with them."""
        if token_ids.device.type == "cpu":
            self.try_launch(rows, token_ids)
            return token_ids.tolist()
        with torch.cuda.device_of(token_ids):  # which need not be the current one
            host = torch.empty(len(token_ids), dtype=token_ids.dtype, device="cpu", pin_memory=True)
            host.copy_(token_ids, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
            self.try_launch(rows, token_ids)
            copied.synchronize()  # waits for the tokens, not for what was launched behind them
        return host.tolist()

    def try_launch(self, rows: list[Row], token_ids: Tensor) -> None:
        """An error here is not one of the step whose tokens these are. If it stays, the next step will raise it."""
        try:
            self.launch(rows, token_ids)
        except Exception as error:
            self.clear()
            logger.warning("the next step was not begun ahead: %s", error)

    def launch(self, rows: list[Row], token_ids: Tensor) -> None:
        """Begin the step with these tokens, [n_rows], of the requests of `rows`; -1, where there is none, will end
        the step before this one's result is wanted."""
        size, positions, slots, tables = self.block_manager.block_size, [], [], []
        for request, num_tokens, _ in rows:
            if self._needs_block(request, num_tokens):
                self.block_manager.append_ahead(request)
            table, position = self.block_manager.block_table(request), request.num_computed_tokens + num_tokens
            positions.append(position)
            slots.append(table[position // size] * size + position % size)
            tables.append(table)
        n, device = len(rows), token_ids.device
        lists = (positions, slots, rectangle(tables), [*range(n + 1)], [p + 1 for p in positions], [*range(n)])
        pinned = (torch.tensor(x, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda") for x in lists)
        batch = Batch(token_ids.clamp(min=0), *(tensor.to(device, non_blocking=True) for tensor in pinned))  # pyright: ignore[reportArgumentType]
        self._logits = self.model(batch, self.cache)
        self._rows, self._slots = [Row(row.request, 1, ready=True) for row in rows], slots

    def slots(self, rows: list[Row]) -> list[int]:
        """Where this decode step writes to."""
        starts = [(row.request, row.request.num_computed_tokens) for row in rows]
        return [slot for request, at in starts for slot in self.block_manager.slot_mapping(request, at, at + 1)]

    def take(self, rows: list[Row]) -> Tensor | None:
        """The logits of this step if it is the one that is under way; either way none is under way any more.

        The same requests alone don't make it the same step: the last one may have been interrupted before its tokens
        were kept, and a request may have got other blocks since. It is the same if it also writes to the same slots.
        """
        logits = self._logits if rows == self._rows and self.slots(rows) == self._slots else None
        if self._rows is not None:
            self.num_taken += logits is not None
            self.num_discarded += logits is None
        self.clear()
        return logits

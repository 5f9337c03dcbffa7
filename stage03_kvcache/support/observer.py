"""Who looks on from outside: the counters of an engine, and the trace of its steps.

stagewise/replay/trace.py, which reads traces, explains their fields and events.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .around import around

VERSION = 3  # of the trace


@dataclass
class Stats:
    """Counters of an engine, always kept. Assign a new one to `llm.stats` to start from zero."""

    num_requests: int = 0  # finished
    num_truncated: int = 0  # outputs of these that reached their greatest length: "length"
    num_forwards: int = 0
    num_tokens_computed: int = 0  # positions that went through the model for a live request
    num_padding_tokens: int = 0  # places that went through the model without a token of a live request
    num_output_tokens: int = 0
    kv_tokens_reserved: int = 0  # room in the KV cache, summed over the forward passes
    kv_tokens_used: int = 0  # of it, what live requests had filled
    ttft_seconds: float = 0.0  # time to first token, summed over the finished requests
    seconds: float = 0.0  # in steps, from the forward pass to the commit


@dataclass  # not frozen: to make it would take several times as long, in every step
class RowRecord:
    """What one forward pass did for a request: `num_tokens` of it, the first at position `start`. `phase` is "prefill"
    until its first token, then "decode"; `slot` is its row of the KV cache."""

    request_id: str
    phase: str
    start: int
    num_tokens: int
    num_padding: int
    slot: int


@dataclass
class StepRecord:
    """One forward pass, and what happened before and after it; see stagewise/replay/trace.py."""

    step: int
    start: float
    seconds: float
    parts: dict[str, float]
    before: list[dict]
    rows: list[RowRecord]
    after: list[dict]
    texts: dict[int, str]
    kv_tokens_reserved: int
    kv_tokens_used: int

    def to_dict(self) -> dict:
        return {**vars(self), "rows": [vars(row) for row in self.rows]}


class Observer:
    """Counts what an engine does and, if there are listeners, writes down every step.

    The engine knows nothing of this: it is wrapped around the methods in which things happen.

    Args:
        engine: the one that is looked at.

    Attributes:
        stats: the counters.
        header: what a trace begins with.
        records: those so far, with the option `trace`; else None.
        listeners: functions that get each record.
    """

    def __init__(self, engine: Any):
        self.engine, self.stats = weakref.proxy(engine), Stats()
        options = {name: value for name, value in vars(engine.config).items() if name != "model"}
        self.header = {"trace": VERSION, "stage": __name__.split(".")[0], "model": engine.config.model}
        self.header |= {"options": options, "max_model_len": engine.max_model_len}
        self.header["bytes_per_token"] = engine.runner.bytes_per_token
        self.records: list[StepRecord] | None = [] if engine.config.trace else None
        self.listeners: list[Callable[[StepRecord], object]] = [] if self.records is None else [self.records.append]
        self._named: set[int] = set()  # tokens whose texts were told
        self._events: list[dict] = []
        self._parts: dict[str, float] = {}
        self._part, self._since, self._start = None, 0.0, 0.0
        self._rows, self._num_before, self._num_steps = [], 0, 0
        self._batch: Any = None
        around(engine, "run", self.run)
        around(engine, "step", self.step)
        around(engine.runner, "forward", self.forward)
        around(engine, "commit", self.commit)

    def look_on(self, listener: Callable[[StepRecord], object]) -> int:
        """Give a listener each record from now on. Returns how many events of the first one were before that. Call this
        and `look_away` between two steps."""
        self.listeners.append(listener)
        return len(self._events)

    def look_away(self, listener: Callable[[StepRecord], object]) -> None:
        self.listeners.remove(listener)
        if not self.listeners:
            self._events = []

    # --- What is wrapped around the engine --------------------------------------------------------------------------

    def run(self, run: Callable, requests: deque[Any]) -> Iterator[list[Any]]:
        unfinished = dict.fromkeys(requests)  # the others are their receiver's to keep: they may be large
        self.queued(unfinished)
        steps = run(requests)
        del requests
        try:
            for news in steps:
                for request in news:
                    if request.finished:
                        del unfinished[request]
                yield news
        finally:
            for request in unfinished:  # these are no longer asked for
                self.tell("finished", request, reason="abort")

    def step(self, step: Callable, *arguments: Any) -> list[Any]:
        self.mark("build")
        news = step(*arguments)
        self.end()
        return news

    def forward(self, forward: Callable, batch: Any) -> Any:
        if self.listeners:
            self.begin(batch)
        # In tokens: what the cache has room for, and what live requests will use of it.
        self._kv_use = batch.cache.num_tokens, sum([len(request.token_ids) for request in batch.live])
        self._batch, self._start = batch, time.perf_counter()
        logits = forward(batch)
        self.mark("sample")
        return logits

    def commit(self, commit: Callable, *arguments: Any) -> list[Any]:
        self.mark("commit")
        news = commit(*arguments)
        for request in news:
            self.got_token(request)
        return news

    # --- What happens -----------------------------------------------------------------------------------------------

    def tell(self, kind: str, request: Any = None, /, **details: Any) -> None:
        """Something has happened to a request."""
        if self.listeners:
            self._events.append({"kind": kind, "request_id": request.request_id, **details})

    def queued(self, requests: Iterable[Any]) -> None:
        """Requests came."""
        if self.listeners:
            for r in requests:
                tokens = {"prompt_token_ids": list(r.prompt_token_ids), "output_token_ids": []}
                self.tell("queued", r, **tokens, max_tokens=r.max_tokens)

    def got_token(self, request: Any) -> None:
        """A request got a token, and has ended if that was its last."""
        if request.finish_reason != "error":
            self.stats.num_output_tokens += 1
            self.tell("token", request, token_id=request.output_token_ids[-1])
        if request.finished:
            self.tell("finished", request, reason=request.finish_reason)
        if request.finished and request.finish_reason != "error":
            self.stats.num_requests += 1
            self.stats.num_truncated += request.finish_reason == "length"
            self.stats.ttft_seconds += request.token_times[0] - request.arrival_time

    def mark(self, part: str | None) -> None:
        """From here on the step is busy with this part. One that begins again, after an error, starts from 0."""
        if self.listeners:
            now = time.perf_counter()
            if self._part is not None:
                self._parts[self._part] = now - self._since
            self._part, self._since = part, now

    def begin(self, batch: Any) -> None:
        """The forward pass begins."""
        self._rows = rows_of(batch)
        for slot, request in enumerate(batch.requests):
            if not request.output_token_ids:
                self.tell("admitted", request, slot=slot)
        self._num_before = len(self._events)
        self.mark("forward")

    def end(self) -> None:
        """The step has happened. One that fails does not end; what was told is then part of the next one."""
        seconds = time.perf_counter() - self._start
        batch, self._batch = self._batch, None  # what it holds may be large
        self.stats.num_forwards += 1
        self.stats.num_tokens_computed += batch.num_tokens
        self.stats.num_padding_tokens += batch.num_padding_tokens
        self.stats.kv_tokens_reserved += self._kv_use[0]
        self.stats.kv_tokens_used += self._kv_use[1]
        self.stats.seconds += seconds
        step, self._num_steps = self._num_steps, self._num_steps + 1
        if self.listeners:
            self.mark(None)
            events, self._events = self._events, []
            before, after = events[: self._num_before], events[self._num_before :]
            parts, self._parts = self._parts, {}
            texts = self.new_texts(events)
            record = StepRecord(step, self._start, seconds, parts, before, self._rows, after, texts, *self._kv_use)
            for listener in list(self.listeners):
                listener(record)

    def new_texts(self, events: Iterable[dict]) -> dict[int, str]:
        """The texts of the tokens in these events that were not named before; they are then."""
        found = set()
        for one in events:
            found.update([one["token_id"]] if one["kind"] == "token" else one.get("prompt_token_ids", ()))
        new = sorted(found - self._named)
        self._named.update(new)
        return {i: self.engine.tokenizer.token_text(i) for i in new}


def phase_of(request: Any) -> str:
    return "decode" if request.output_token_ids else "prefill"


def rows_of(batch: Any) -> list[RowRecord]:
    """What each row does in a forward pass."""
    n_new, rows = batch.token_ids.shape[1], []
    for slot, (r, padding) in enumerate(zip(batch.requests, batch.num_padding.tolist(), strict=True)):
        if batch.is_prefill:
            rows.append(RowRecord(r.request_id, phase_of(r), 0, n_new - padding, padding, slot))
        else:
            live, start = not r.finished, len(r.token_ids) - 1
            rows.append(RowRecord(r.request_id, phase_of(r), start, int(live), int(not live), slot))
    return rows

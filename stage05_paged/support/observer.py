"""Who looks on from outside: the counters of an engine, and the trace of its steps.

stagewise/replay/trace.py, which reads traces, explains their fields and events.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .around import around
from .outputs import RequestMetrics

VERSION = 3  # of the trace


class Latencies:
    """What the latest requests had to wait for, in seconds: the last 100,000 values of each kind."""

    def __init__(self):
        self.ttft, self.itl, self.e2e, self.queue_time = (deque(maxlen=100_000) for _ in range(4))

    def add(self, metrics: RequestMetrics) -> None:
        self.itl.extend(metrics.inter_token_latencies)
        for kind in ("ttft", "e2e", "queue_time"):
            if (seconds := getattr(metrics, kind)) is not None:  # with max_tokens 0 there is no token
                getattr(self, kind).append(seconds)

    def percentiles(self) -> dict[str, dict[str, float]]:
        """For each kind that has values: its 50th, 95th and 99th percentile."""
        kinds = {kind: list(values) for kind, values in vars(self).items() if values}
        return {kind: {f"p{p}": float(np.percentile(v, p)) for p in (50, 95, 99)} for kind, v in kinds.items()}


@dataclass
class Stats:
    """Counters of an engine, always kept. Assign a new one to `llm.stats` to start from zero."""

    num_requests: int = 0  # finished
    num_prompt_tokens: int = 0  # of those requests
    num_cached_tokens: int = 0  # of them, those that the prefix cache had
    num_preemptions: int = 0
    num_truncated: int = 0  # outputs of these that reached their greatest length: "length"
    num_forwards: int = 0
    num_tokens_computed: int = 0  # positions that went through the model for a live request
    num_padding_tokens: int = 0  # places that went through the model without a token of a live request
    num_output_tokens: int = 0
    kv_tokens_reserved: int = 0  # room in the KV cache, summed over the forward passes
    kv_tokens_used: int = 0  # of it, what live requests had filled
    seconds: float = 0.0  # in steps, from the forward pass to the commit
    latencies: Latencies = field(default_factory=Latencies)


@dataclass  # not frozen: to make it would take several times as long, in every step
class RowRecord:
    """What one forward pass did for one completion of a request: `num_tokens` of it, the first at position `start`.
    `phase` is "prefill" until its first token, then "decode"; `blocks` say where its keys and values lie."""

    request_id: str
    index: int
    phase: str
    start: int
    num_tokens: int
    num_padding: int
    blocks: tuple[int, ...]


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
    num_blocks_shared: int
    num_blocks_saved: int

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
        self.header |= {"bytes_per_token": engine.runner.bytes_per_token, "num_blocks": engine.runner.num_blocks}
        self.records: list[StepRecord] | None = [] if engine.config.trace else None
        self.listeners: list[Callable[[StepRecord], object]] = [] if self.records is None else [self.records.append]
        self._named: set[int] = set()  # tokens whose texts were told
        self._events: list[dict] = []
        self._parts: dict[str, float] = {}
        self._part, self._since, self._start = None, 0.0, 0.0
        self._rows, self._num_before, self._num_steps = [], 0, 0
        self._batch: Any = None
        self._sharing = {}
        engine.scheduler.tell = engine.block_manager.tell = self.tell
        around(engine, "add", self.add)
        around(engine, "abort", self.abort)
        around(engine.runner, "forward", self.forward)
        self.look_at(engine, engine.scheduler)

    def look_at(self, engine: Any, scheduler: Any) -> None:
        """From now on look at the steps of this engine; there is another one, for beam search."""
        around(scheduler, "schedule", self.schedule)
        around(engine, "step", self.step)
        around(engine, "commit", self.commit)

    def look_on(self, listener: Callable[[StepRecord], object]) -> int:
        """Give a listener each record from now on. Returns how many events of the first one were before that. Call this
        and `look_away` between two steps."""
        self.listeners.append(listener)
        return len(self._events)

    def look_away(self, listener: Callable[[StepRecord], object]) -> None:
        self.listeners.remove(listener)
        if not self.listeners:
            self._events, self._rows = [], []

    # --- What is wrapped around the engine --------------------------------------------------------------------------

    def add(self, add: Callable, request: Any) -> None:
        add(request)
        self.queued([request])

    def abort(self, abort: Callable, request: Any) -> None:
        begun = [completion for completion in request.group if not completion.finished and has_begun(completion)]
        at = len(self._events)
        abort(request)
        released, self._events[at:] = self._events[at:], []
        for completion in begun:
            self.tell("finished", completion, reason="abort")
        self._events += released

    def step(self, step: Callable, *arguments: Any) -> list[Any]:
        self.mark("schedule")
        news = step(*arguments)
        self.end()
        return news

    def schedule(self, schedule: Callable) -> list[Any]:
        rows = schedule()
        self.mark("build")
        return rows

    def forward(self, forward: Callable, batch: Any) -> Any:
        if self.listeners:
            self.begin(batch)
        self._kv_use = self.kv_use(batch.rows)
        self._batch, self._start = batch, time.perf_counter()
        logits = forward(batch)
        self.mark("sample")
        return logits

    def commit(self, commit: Callable, *arguments: Any) -> list[Any]:
        self.mark("commit")
        at = len(self._events)
        news = commit(*arguments)
        then, self._events[at:] = self._events[at:], []  # what came of the tokens is told behind them
        for request in news:
            self.got_token(request)
        self._events += then
        return news

    # --- What happens -----------------------------------------------------------------------------------------------

    def tell(self, kind: str, request: Any = None, /, **details: Any) -> None:
        """Something has happened, to a request or to the engine."""
        self.stats.num_preemptions += kind == "preempted"
        if self.listeners:
            who = {} if request is None else {"request_id": request.request_id, "index": request.index}
            self._events.append({"kind": kind, **who, **details})

    def queued(self, requests: Iterable[Any]) -> None:
        """Requests came, or start over with the tokens that they have."""
        if self.listeners:
            self._events += describe(requests)

    def got_token(self, request: Any) -> None:
        """A request got a token, or with `max_tokens` 0 none, and has ended if that was its last."""
        if request.max_tokens and request.finish_reason not in ("abort", "error"):
            self.stats.num_output_tokens += 1
            self.tell("token", request, token_id=request.output_token_ids[-1])
        if request.finished and has_begun(request):
            self.tell("finished", request, reason=request.finish_reason)

    def left(self, request: Any) -> None:
        """A request has ended, and its caller has been notified."""
        reasons = [completion.finish_reason for completion in request.group]
        if not {"abort", "error"} & {*reasons}:
            self.stats.num_requests += 1
            self.stats.num_truncated += reasons.count("length") if request.max_tokens else 0
            self.stats.num_prompt_tokens += len(request.prompt_token_ids)
            self.stats.num_cached_tokens += request.num_cached_tokens
            self.stats.latencies.add(RequestMetrics.of(request))

    def restarted(self, requests: Iterable[Any]) -> None:
        """A step was cut short, and all start over with what they have."""
        self.tell("restarted")
        self.queued(requests)

    def idle(self) -> None:
        """No step comes soon: a record without rows, once after a step and whenever something has happened since. It
        shows that whoever is finished has left, and that its memory is free."""
        if self._events or self._rows:
            self._rows, self._num_before = [], len(self._events)
            self._sharing = self.engine.block_manager.sharing()
            self._part, self._parts = None, {}
            self._kv_use, self._start = self.kv_use([]), time.perf_counter()
            self._record(0.0)

    def kv_use(self, rows: list[Any]) -> tuple[int, int]:
        """In tokens, what of the KV cache is reserved, and what running requests will use of it after this step."""
        manager = self.engine.block_manager
        filled = sum([r.num_computed_tokens for r in manager.holders]) + sum([row.num_tokens for row in rows])
        # Room that is not filled is only behind a sequence's last token, in blocks that are not shared.
        unused = manager.num_held * manager.block_size - filled
        reserved = (manager.num_blocks - manager.num_free) * manager.block_size
        return reserved, reserved - unused

    def mark(self, part: str | None) -> None:
        """From here on the step is busy with this part. One that begins again, after an error, starts from 0."""
        if self.listeners:
            now = time.perf_counter()
            if self._part is not None:
                self._parts[self._part] = now - self._since
            self._part, self._since = part, now

    def begin(self, batch: Any) -> None:
        """The forward pass begins."""
        self._rows, self._sharing = rows_of(batch), self.engine.block_manager.sharing()
        self._num_before = len(self._events)
        self.mark("forward")

    def end(self) -> None:
        """The step has happened. One that fails does not end; what was told is then part of the next one."""
        seconds = time.perf_counter() - self._start
        batch, self._batch = self._batch, None  # what it holds may be large
        if batch is None:  # there was nothing to do
            return
        self.stats.num_forwards += 1
        self.stats.num_tokens_computed += batch.num_tokens
        self.stats.kv_tokens_reserved += self._kv_use[0]
        self.stats.kv_tokens_used += self._kv_use[1]
        self.stats.seconds += seconds
        self._record(seconds)

    def _record(self, seconds: float) -> None:
        step, self._num_steps = self._num_steps, self._num_steps + 1
        if self.listeners:
            self.mark(None)
            events, self._events = self._events, []
            before, after = events[: self._num_before], events[self._num_before :]
            parts, self._parts = self._parts, {}
            texts = new_texts(events, self._named, self.engine.tokenizer.token_text)
            memory = (*self._kv_use, *self._sharing.values())
            record = StepRecord(step, self._start, seconds, parts, before, self._rows, after, texts, *memory)
            for listener in list(self.listeners):
                listener(record)


def new_texts(events: Iterable[dict], named: set[int], token_text: Callable[[int], str]) -> dict[int, str]:
    """The texts of the tokens in these events that were not named before; they are then."""
    found = set()
    for one in events:
        if one["kind"] == "token":
            found.add(one["token_id"])
        elif one["kind"] == "queued":
            found.update(one["prompt_token_ids"], one["output_token_ids"])
        elif one["kind"] == "beams":
            found.update(one["token_ids"])
    new = sorted(found - named)
    named.update(new)
    return {i: token_text(i) for i in new}


def has_begun(completion: Any) -> bool:
    """Whether it is the first of its request, or has left the prompt that it shares with the first."""
    return not completion.index or bool(completion.output_token_ids) or completion.place is not None


def describe(requests: Iterable[Any]) -> list[dict]:
    """Requests as events: each of their completions that has begun is queued, with the tokens that it has."""
    events = []
    for c in (c for request in requests for c in request.group if has_begun(c)):
        who = {"request_id": c.request_id, "index": c.index}
        tokens = {"prompt_token_ids": list(c.prompt_token_ids), "output_token_ids": list(c.output_token_ids)}
        details = {**tokens, "max_tokens": c.max_tokens, "n": c.params.n, "place": c.place}
        events.append({"kind": "queued", **who, **details})
        if c.finished:
            events.append({"kind": "finished", **who, "reason": c.finish_reason})
    return events


def phase_of(request: Any) -> str:
    return "decode" if request.output_token_ids else "prefill"


def rows_of(batch: Any) -> list[RowRecord]:
    """What each row does in a forward pass."""
    return [
        RowRecord(r.request_id, r.index, phase_of(r), r.num_computed_tokens, num_tokens, 0, tuple(table))
        for (r, num_tokens, _), table in zip(batch.rows, batch.tables, strict=True)
    ]

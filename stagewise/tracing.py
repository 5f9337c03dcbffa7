"""Traces: a record of what an engine does, step by step, while it is watched.

    trace = stagewise.trace(llm)
    llm.generate(...)
    trace.records      # a StepRecord of every forward pass
    trace.close()      # the engine is as before

trace_file.py explains the fields and events, and reads and writes files.
"""

import functools
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .stages import llm_of, stage_of_llm
from .trace_file import VERSION
from .wrap import wrap


@dataclass  # not frozen: creating it would take several times as long, in every step
class RowRecord:
    """What one forward pass did for one completion of a request: `num_tokens` tokens, the first at position `start`.
    `phase` is "prefill" until its first token, then "decode". Its keys and values are in a `slot`, or in `blocks`.
    `drafts` follow its tokens; the first `num_accepted` of them were right.
    """

    request_id: str
    index: int
    phase: str
    start: int
    num_tokens: int
    num_padding: int = 0
    slot: int | None = None
    blocks: tuple[int, ...] | None = None
    drafts: tuple[int, ...] = ()
    num_accepted: int = 0


@dataclass
class StepRecord:
    """One forward pass, and what happened before and after it."""

    step: int
    start: float
    seconds: float
    parts: dict[str, float]
    before: list[dict]
    rows: list[RowRecord]
    after: list[dict]
    texts: dict[int, str]
    kv_tokens_reserved: int | None = None
    kv_tokens_used: int | None = None
    num_blocks_shared: int | None = None
    num_blocks_saved: int | None = None

    def to_dict(self) -> dict:
        return {**vars(self), "rows": [vars(row) for row in self.rows]}


Listener = Callable[[StepRecord], object]  # called in the thread that runs the engine


class Trace:
    """Records the steps of an engine until it is closed. May be used in a `with`.

    Attributes:
        header: describes the engine, for readers of the trace.
        records: one per step.
    """

    def __init__(self, llm: Any):
        llm = llm_of(llm)
        self.header, self.records = header_of(llm), []
        self._llm = weakref.ref(llm)
        attach(llm, self.records.append)
        self._listener = self.records.append

    def close(self) -> None:
        """Stop recording. Waits for the running step."""
        if (llm := self._llm()) is not None:
            detach(llm, self._listener)

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def trace(llm: Any) -> Trace:
    """Record every step of an LLM of any stage from now on."""
    return Trace(llm)


def header_of(llm: Any) -> dict[str, Any]:
    """The header of this engine's traces."""
    engine, stage = llm.engine, stage_of_llm(llm)
    options = {name: value for name, value in vars(engine.config).items() if name != "model"}
    header = {"trace": VERSION, "stage": stage.package, "model": engine.config.model, "options": options}
    header["max_model_len"] = engine.max_model_len
    runner = {name: getattr(engine.runner, name, None) for name in ("bytes_per_token", "num_slots", "num_blocks")}
    return header | {name: value for name, value in runner.items() if value is not None}


def between_steps(llm: Any, function: Callable[[], Any]) -> Any:
    """The result of a function that is called between two steps. May wait for a step."""
    loop = getattr(llm, "loop", None)  # from stage 4 on
    return function() if loop is None or not loop.thread.is_alive() else loop.call(function)


def attach(llm: Any, listener: Listener) -> None:
    """Give each record to a listener from now on."""
    between_steps(llm, lambda: recorder_of(llm).attach(listener, at_rest=False))


def detach(llm: Any, listener: Listener) -> None:
    """Give a listener no more records."""
    try:
        between_steps(llm, lambda: recorder_of(llm).detach(listener))
    except RuntimeError:
        if not llm.loop.closing:  # then the engine takes no calls, and there are no more records
            raise


def look_on(llm: Any, listener: Listener) -> tuple[dict, list[dict], int]:
    """Give each record to a listener that joins while the engine is running.

    Returns:
        the header, the present state as events, and how many events of the first record this state includes.
    """

    def begin() -> tuple[dict, list[dict], int]:
        engine, header = llm.engine, header_of(llm)
        paged = hasattr(engine, "block_manager")
        if paged:
            header |= free_blocks(engine.block_manager)
        known = describe(list(llm.loop.callbacks))
        for request in engine.scheduler.running:
            where = {"num_cached_tokens": request.num_cached_tokens} if paged else {"slot": request.slot}
            known.append({"kind": "admitted", **who_is(request), **where})
        return header, known, recorder_of(llm).attach(listener, at_rest=True)

    return between_steps(llm, begin)


recorders: weakref.WeakKeyDictionary[Any, "Recorder"] = weakref.WeakKeyDictionary()


def recorder_of(llm: Any) -> "Recorder":
    if llm.engine not in recorders:
        recorders[llm.engine] = Recorder(llm)
    return recorders[llm.engine]


class Recorder:
    """Makes the records of one engine, for all listeners.

    It wraps methods of the engine, and gets the events that the scheduler and the block manager emit. A wrapper has the
    name of the method that it wraps.
    """

    def __init__(self, llm: Any):
        self._engine, self.stage = weakref.ref(llm.engine), stage_of_llm(llm)
        self._beams = weakref.ref(llm.beams) if hasattr(llm, "beams") else lambda: None
        self.paged = hasattr(llm.engine, "block_manager")
        self._listeners: list[tuple[Listener, bool]] = []
        self._undo: list[Callable[[], None]] = []
        self._num_steps, self._rests, self._searches = 0, True, False
        self._clear()

    @property
    def engine(self) -> Any:
        """`recorders` keeps this object as long as its engine lives, so it holds a weak reference to it."""
        return self._engine()

    def _clear(self) -> None:
        self._named: set[int] = set()  # tokens whose texts were recorded
        self._events: list[dict] = []
        self._parts: dict[str, float] = {}
        self._part, self._since, self._start = None, 0.0, 0.0
        self._rows, self._num_before, self._batch = [], 0, None
        self._memory: tuple[int | None, ...] = (None,) * 4

    # --- Listeners --------------------------------------------------------------------------------------------------

    def attach(self, listener: Listener, at_rest: bool) -> int:
        """Returns how many events of the next record have already happened. at_rest: the listener also wants a record
        without rows when nothing is left to do."""
        if not self._listeners:
            self._clear()
            self._wrap()
        self._listeners.append((listener, at_rest))
        return len(self._events)

    def detach(self, listener: Listener) -> None:
        self._listeners = [pair for pair in self._listeners if pair[0] != listener]
        if not self._listeners:
            while self._undo:
                self._undo.pop()()

    def _wrap(self) -> None:
        engine = self.engine
        scheduled = hasattr(engine, "scheduler")
        around = [(engine, "step"), (engine, "commit"), (engine.runner, "forward")]
        around += [(engine, name) for name in (("add", "abort", "restart") if scheduled else ("run",))]
        if scheduled:
            around.append((engine.scheduler, "schedule"))
            self._emit_of(engine.scheduler)
        if self.paged:
            self._emit_of(engine.block_manager)
        if (beams := self._beams()) is not None:
            around += [(beams, name) for name in ("step", "schedule", "commit")]
            self._undo.append(wrap(beams, "run", self.search))
        if hasattr(engine, "speculator"):
            around += [(engine.speculator, "draft"), (engine.speculator, "update"), (engine, "verify")]
        for owner, name in around:
            self._undo.append(wrap(owner, name, getattr(self, name)))

    def _emit_of(self, owner: Any) -> None:
        before, owner.emit = owner.emit, self.emit
        self._undo.append(functools.partial(setattr, owner, "emit", before))

    # --- What is wrapped around the engine --------------------------------------------------------------------------

    def run(self, run: Callable, requests: deque[Any]) -> Iterator[list[Any]]:
        """Stages 1 to 3: all steps of these requests."""
        unfinished = dict.fromkeys(requests)  # keep no reference to finished ones: they may be large
        self.queued(unfinished)
        steps = run(requests)
        del requests
        try:
            for updated in steps:
                for request in updated:
                    if request.finished:
                        del unfinished[request]
                yield updated
        finally:
            for request in unfinished:  # the caller has stopped early
                self.emit("finished", request, reason="abort")

    def add(self, add: Callable, request: Any) -> None:
        add(request)
        self.queued([request])

    def abort(self, abort: Callable, request: Any) -> None:
        was_finished, at = request.finished, len(self._events)
        abort(request)
        released, self._events[at:] = self._events[at:], []
        if not was_finished:
            self.emit("finished", request, reason="abort")
        self._events += released
        self._rest()

    def search(self, run: Callable, searches: list[Any], *more: Any) -> None:
        """Whole beam searches. After a step that fails, all blocks are free, and all waiting requests start over."""
        self._searches = True
        self.queued([search.request for search in searches])
        try:
            run(searches, *more)
            for search in searches:
                for beam in search.beams:  # it was aborted
                    self.emit("finished", beam, reason="abort")
        except BaseException:
            self.emit("restarted")
            self.queued(self.engine.scheduler.waiting)
            raise
        finally:
            self._searches = False
            self._rest()

    def restart(self, restart: Callable, requests: list[Any]) -> None:
        restart(requests)
        self.emit("restarted")
        self.queued(requests)

    def step(self, step: Callable, *arguments: Any) -> list[Any]:
        self._part, self._parts = None, {}
        self.mark("schedule" if hasattr(self.engine, "scheduler") else "build")
        updated = step(*arguments)
        self._end()
        self._rest()
        return updated

    def schedule(self, schedule: Callable) -> list[Any]:
        at, scheduler = len(self._events), self.engine.scheduler
        rows = schedule()
        if scheduler.waiting and not self._searches:
            was_preempted = any(event["kind"] == "preempted" for event in self._events[at:])
            self.emit("refused", scheduler.waiting[0], **why_refused(scheduler, was_preempted))
        self.mark("build")
        return rows

    def draft(self, draft: Callable, rows: list[Any]) -> dict[Any, list[int]]:
        self.mark("draft")
        drafts = draft(rows)
        self.mark("build")
        return drafts

    def forward(self, forward: Callable, batch: Any) -> Any:
        self._rows = self._rows_of(batch)
        self._num_before, self._memory = len(self._events), self._memory_of(batch)
        self.mark("forward")
        self._batch, self._start = batch, time.perf_counter()
        logits = forward(batch)
        self.mark("sample")
        return logits

    def commit(self, commit: Callable, *arguments: Any) -> list[Any] | None:
        self.mark("commit")
        at = len(self._events)
        updated = commit(*arguments)
        consequences, self._events[at:] = self._events[at:], []  # they follow the tokens that caused them
        for request in updated or ():  # a beam search returns none
            self._got_token(request)
        self._events += consequences
        return updated

    def verify(self, verify: Callable, batch: Any) -> Any:
        batch = verify(batch)
        self.mark("sample" if batch.rows else "commit")
        return batch

    def update(self, update: Callable, drafts: dict[Any, list[int]], updated: list[Any]) -> dict[Any, int]:
        accepted = update(drafts, updated)
        for request, num_accepted in accepted.items():
            for row in self._rows:
                if (row.request_id, row.index) == (request.request_id, request.index):
                    row.num_accepted = num_accepted
        return accepted

    # --- What happens -----------------------------------------------------------------------------------------------

    def emit(self, kind: str, request: Any = None, /, **details: Any) -> None:
        """Record an event, of a request or of the engine."""
        who = {} if request is None else who_is(request)
        self._events.append({"kind": kind, **who, **details})
        self._rests = False

    def queued(self, requests: Iterable[Any]) -> None:
        """Record requests that came, or that start over with their tokens."""
        self._events += describe(requests)
        self._rests = False

    def _got_token(self, request: Any) -> None:
        """Record a request's token, and its end if that was the last; a failed request has no token."""
        if request.finish_reason not in ("abort", "error") and request.output_token_ids:
            self.emit("token", request, token_id=request.output_token_ids[-1])
        if request.finished:
            self.emit("finished", request, reason=request.finish_reason)

    def mark(self, part: str | None) -> None:
        """End the current part of the step, and begin this one."""
        now = time.perf_counter()
        if self._part is not None:
            self._parts[self._part] = self._parts.get(self._part, 0.0) + now - self._since
        self._part, self._since = part, now

    def _end(self) -> None:
        """Record the step. One that fails does not come here: its events become part of the next one."""
        seconds = time.perf_counter() - self._start
        batch, self._batch = self._batch, None  # it may be large
        if batch is not None:  # otherwise there was nothing to do
            self._rests = False
            self._record(seconds)

    def _rest(self) -> None:
        """If nothing is left to do, a record without rows, for listeners that want one: it shows that all requests have
        left and their memory is free."""
        scheduler = getattr(self.engine, "scheduler", None)
        if self._rests or self._searches or scheduler is None or scheduler.running or scheduler.waiting:
            return
        if any(at_rest for _, at_rest in self._listeners):
            self._rests = True
            self._rows, self._num_before, self._memory = [], len(self._events), self._memory_of(None)
            self._part, self._parts, self._start = None, {}, time.perf_counter()
            self._record(0.0, at_rest=True)

    def _record(self, seconds: float, at_rest: bool = False) -> None:
        step, self._num_steps = self._num_steps, self._num_steps + 1
        self.mark(None)
        events, self._events = self._events, []
        before, after = events[: self._num_before], events[self._num_before :]
        parts, self._parts = self._parts, {}
        texts = new_texts([*events, *guesses(self._rows)], self._named, self.engine.tokenizer.token_text)
        record = StepRecord(step, self._start, seconds, parts, before, self._rows, after, texts, *self._memory)
        for listener, wants_rest in list(self._listeners):
            if wants_rest or not at_rest:
                listener(record)

    # --- What a stage's batch and cache contain ---------------------------------------------------------------------

    def _memory_of(self, batch: Any) -> tuple[int | None, ...]:
        """Tokens of the KV cache that are reserved and used, blocks that are shared, and blocks that sharing saves."""
        engine = self.engine
        if self.stage.number < 3:
            return (None,) * 4
        if self.stage.number == 3:
            return batch.cache.num_tokens, sum(len(request.token_ids) for request in batch.live), None, None
        reserved, used = engine.kv_use()
        if batch is not None:
            used += sum(row.num_tokens for row in batch.rows)  # after this step
        return reserved, used, *(sharing(engine.block_manager) if self.paged else (None, None))

    def _rows_of(self, batch: Any) -> list[RowRecord]:
        """Each row's part in a forward pass."""
        if self.stage.number == 1:
            self._admitted([batch.request])
            return [row_of(batch.request, 0, batch.num_tokens)]
        if self.stage.number <= 3:
            return self._rows_of_rectangle(batch)
        rows = [row_of(r, r.num_computed_tokens, num_tokens) for r, num_tokens, _ in batch.rows]
        for row, record in zip(batch.rows, rows, strict=True):
            if self.paged:
                record.blocks = tuple(self.engine.block_manager.tables[row.request])
                record.drafts = tuple(getattr(batch, "drafts", {}).get(row.request, ()))
            else:
                record.slot = row.request.slot
        return rows

    def _rows_of_rectangle(self, batch: Any) -> list[RowRecord]:
        """Stages 2 and 3: rows of equal lengths, with padding."""
        self._admitted(batch.requests)
        n_new, rows, cached = batch.token_ids.shape[1], [], self.stage.number == 3
        for slot, (request, padding) in enumerate(zip(batch.requests, batch.num_padding.tolist(), strict=True)):
            if cached and not batch.is_prefill:
                live, start = not request.finished, len(request.token_ids) - 1
                rows.append(row_of(request, start, int(live), int(not live)))
            else:
                padding = n_new if request.finished else padding
                rows.append(row_of(request, 0, n_new - padding, padding))
            rows[-1].slot = slot if cached else None
        return rows

    def _admitted(self, requests: list[Any]) -> None:
        for slot, request in enumerate(requests):
            if not request.output_token_ids and not request.finished:
                self.emit("admitted", request, **({"slot": slot} if self.stage.number == 3 else {}))


def row_of(request: Any, start: int, num_tokens: int, num_padding: int = 0) -> RowRecord:
    phase = "decode" if request.output_token_ids else "prefill"
    return RowRecord(request.request_id, index_of(request), phase, start, num_tokens, num_padding)


def index_of(request: Any) -> int:
    """Which completion of its request this is."""
    return getattr(request, "index", 0)


def who_is(request: Any) -> dict[str, Any]:
    return {"request_id": request.request_id, "index": index_of(request)}


def free_blocks(manager: Any) -> dict[str, Any]:
    """The free blocks in the order in which they are taken, and how many of them, the last ones, can be found."""
    return {"free": list(manager._free), "num_findable": sum(block in manager._key_of for block in manager._free)}


def sharing(manager: Any) -> tuple[int, int]:
    """How many blocks are shared, and how many more there would be if each sequence had its own."""
    num_shared = sum(count > 1 for count in manager.ref_counts)
    return num_shared, manager.num_held - (manager.num_blocks - manager.num_free)


def why_refused(scheduler: Any, was_preempted: bool) -> dict:
    """Why the first in the queue was not admitted to the step that was just scheduled."""
    head = scheduler.waiting[0]
    if was_preempted:
        return {"reason": "preempted"}
    if len(scheduler.running) >= scheduler.max_num_seqs:
        return {"reason": "running", "most": scheduler.max_num_seqs}
    if scheduler.budget <= 0:
        return {"reason": "budget"}
    manager = scheduler.block_manager
    reserve = scheduler.watermark_blocks if scheduler.running else 0
    needed = manager.num_blocks_to_allocate(head)
    return {"reason": "blocks", "needed": needed, "free": manager.num_free, "reserve": reserve}


def describe(requests: Iterable[Any]) -> list[dict]:
    """Requests as events: each is queued, with the tokens that it has."""
    events = []
    for c in requests:
        tokens = {"prompt_token_ids": list(c.prompt_token_ids), "output_token_ids": list(c.output_token_ids)}
        details = {"max_tokens": c.max_tokens, "n": getattr(c.params, "n", 1), "place": getattr(c, "rank", None)}
        events.append({"kind": "queued", **who_is(c), **tokens, **details})
        if c.finished:
            events.append({"kind": "finished", **who_is(c), "reason": c.finish_reason})
    return events


def new_texts(events: Iterable[dict], named: set[int], token_text: Callable[[int], str]) -> dict[int, str]:
    """The texts of tokens in these events that are not in `named`, to which it adds them."""
    found = set()
    for event in events:
        if event["kind"] == "token":
            found.add(event["token_id"])
        elif event["kind"] == "queued":
            found.update(event["prompt_token_ids"], event["output_token_ids"])
        elif event["kind"] == "beams":
            found.update(event["token_ids"])
    new = sorted(found - named)
    named.update(new)
    return {i: token_text(i) for i in new}


def guesses(rows: list[RowRecord]) -> list[dict]:
    """The draft tokens of rows, as if they were tokens."""
    return [{"kind": "token", "token_id": token_id} for row in rows for token_id in row.drafts]

"""The trace: what happened in every step, for pictures, and for the page that replays a run.

What its fields and events say stands in replay/trace.py, which reads it.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .console import naming
from .request import Request
from .tokenizer import Tokenizer

VERSION = 3
BEGIN = f'{{"trace": {VERSION}, '.encode()  # of every file of --trace


@dataclass  # not frozen: to make it would take several times as long, in every step
class RowRecord:
    """What one forward pass did for one completion of a request: `num_tokens` of it, the first at position `start`.
    `phase` is "prefill" until its first token, then "decode"; `slot` or `blocks` say where its keys and values lie."""

    request_id: str
    index: int
    phase: str
    start: int
    num_tokens: int
    num_padding: int = 0
    slot: int | None = None
    blocks: tuple[int, ...] | None = None

    @classmethod
    def of(cls, request: Request, start: int, num_tokens: int, **more: Any) -> "RowRecord":
        phase = "decode" if request.output_token_ids else "prefill"
        return cls(request.request_id, index_of(request), phase, start, num_tokens, **more)


@dataclass
class StepRecord:
    """One forward pass, and what happened before and after it; see replay/trace.py."""

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


class Tracer:
    """Writes down what happens in an engine, if somebody listens; if nobody does, it does nothing.

    Args:
        options: of the engine, by name.
        tokenizer: of the engine.
        more: what else the header says of the engine.

    Attributes:
        header: what a trace begins with.
        records: those so far, with the option `trace`; else None.
        listeners: who is given each record, see `look_on`.
    """

    def __init__(self, options: dict, tokenizer: Tokenizer, **more: Any):
        engine = {"trace": VERSION, "stage": __package__, "model": options["model"]}
        self.header = {**engine, "options": {k: v for k, v in options.items() if k != "model"}, **more}
        self.records: list[StepRecord] | None = [] if options["trace"] else None
        self.listeners: list[Callable[[StepRecord], object]] = [] if self.records is None else [self.records.append]
        self._token_text, self._named = tokenizer.token_text, set()
        self._events: list[dict] = []
        self._parts: dict[str, float] = {}
        self._part, self._since = None, 0.0
        self._rows, self._num_before, self._memory, self._num_steps = [], 0, {}, 0

    def look_on(self, listener: Callable[[StepRecord], object]) -> int:
        """Give somebody each record from now on. Returns how many events of the first one were before that. Call this
        and `look_away` between two steps."""
        self.listeners.append(listener)
        return len(self._events)

    def look_away(self, listener: Callable[[StepRecord], object]) -> None:
        self.listeners.remove(listener)
        if not self.listeners:
            self._events = []

    def tell(self, kind: str, request: Request | None = None, /, **details: Any) -> None:
        """Something has happened, to a request or to the engine."""
        if self.listeners:
            self._events.append(event(kind, request, **details))

    def queued(self, request: Request) -> None:
        """A request came."""
        if self.listeners:
            self._events += describe([request])

    def got_token(self, request: Request) -> None:
        """A request got a token, or with `max_tokens` 0 none, and has ended if that was its last."""
        if self.listeners:
            if request.max_tokens:
                self.tell("token", request, token_id=request.output_token_ids[-1])
            if request.finished:
                self.finished(request)

    def finished(self, request: Request) -> None:
        """A request has ended, or was aborted. Of a further completion that never began nothing was told."""
        if has_begun(request):
            self.tell("finished", request, reason=request.progress.finish_reason)

    def abandoned(self, requests: Iterable[Request]) -> None:
        """Nobody asks for these any more: those that are not finished never will be."""
        for request in requests:
            if not request.finished:
                self.tell("finished", request, reason="abort")

    def restarted(self, requests: Iterable[Request]) -> None:
        """A step was cut short, and all begin anew with what they have."""
        if self.listeners:
            self._events += [{"kind": "restarted"}, *describe(requests)]

    def mark(self, part: str | None) -> None:
        """From here on the step is busy with this part. One that begins again, after an error, is timed anew."""
        if self.listeners:
            now = time.perf_counter()
            if self._part is not None:
                self._parts[self._part] = now - self._since
            self._part, self._since = part, now

    def begin(self, rows: list[RowRecord], kv_use: tuple[int, int] | None = None, **memory: Any) -> None:
        """The forward pass begins. kv_use: in tokens, what of the KV cache is reserved, and what of that is used;
        memory: further fields of StepRecord."""
        self.mark("forward")
        if kv_use is not None:
            memory["kv_tokens_reserved"], memory["kv_tokens_used"] = kv_use
        self._rows, self._memory, self._num_before = rows, memory, len(self._events)

    def end(self, start: float, seconds: float) -> None:
        """The step has happened. One that fails does not end; what was told is then part of the next one."""
        step, self._num_steps = self._num_steps, self._num_steps + 1
        if not self.listeners:
            return
        self.mark(None)
        events, self._events = self._events, []
        before, after = events[: self._num_before], events[self._num_before :]
        parts, self._parts = self._parts, {}
        texts = new_texts(events, self._named, self._token_text)
        record = StepRecord(step, start, seconds, parts, before, self._rows, after, texts, **self._memory)
        for listener in list(self.listeners):
            listener(record)

    @property
    def has_news(self) -> bool:
        """Whether something has happened since the last step."""
        return bool(self._events)

    def rest(self, kv_use: tuple[int, int], **memory: Any) -> None:
        """No step comes soon: a record without rows, of what has happened since the last one."""
        self.begin([], kv_use, **memory)
        self._part, self._parts = None, {}
        self.end(time.perf_counter(), 0.0)


def event(kind: str, request: Request | None, /, **details: Any) -> dict:
    who = {} if request is None else {"request_id": request.request_id, "index": index_of(request)}
    return {"kind": kind, **who, **details}


def has_begun(completion: Request) -> bool:
    """Whether it is the first of its request, or has left the prompt that it shares with the first."""
    place = getattr(completion, "place", None)
    return not index_of(completion) or bool(completion.output_token_ids) or place is not None


def describe(requests: Iterable[Request]) -> list[dict]:
    """Requests as events: each of their completions that has begun is queued, with the tokens that it has."""
    events = []
    for completion in (c for request in requests for c in getattr(request, "group", [request])):
        if not has_begun(completion):
            continue
        details = {
            "prompt_token_ids": list(completion.prompt_token_ids),
            "output_token_ids": list(completion.output_token_ids),
            "max_tokens": completion.max_tokens,
            "n": getattr(completion.params, "n", 1),
            "place": getattr(completion, "place", None),
        }
        events.append(event("queued", completion, **details))
        if completion.finished:
            events.append(event("finished", completion, reason=completion.progress.finish_reason))
    return events


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


def index_of(request: Request) -> int:
    """Which completion of its request it is; 0 where there is one only."""
    return getattr(request, "index", 0)


def write_trace(path: Path, tracer: Tracer) -> None:
    """A file of --trace: the header, and a line per step."""
    with naming(path), path.open("w", encoding="utf-8") as file:
        for line in (tracer.header, *(record.to_dict() for record in tracer.records)):
            file.write(json.dumps(line, allow_nan=False) + "\n")

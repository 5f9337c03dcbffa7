"""A live view of the engine: its steps as server-sent events.

One recorder listens to the engine from when the first viewer comes until KEPT_SECONDS after the last one has left. It
keeps the latest steps, ready to be sent, so that all viewers see the same steps under the engine's numbers, and a
reloaded page shows what was there before. Otherwise nothing is recorded.

A viewer gets these events:

    run     first, and whenever it can't continue where it was: `run` (a name for the recording), `server` (for this
            process), `header` (of the trace, see ../trace_file.py), `first` and `next`: the numbers of the first
            step that it will get and of the one after the latest, or null. A viewer that returns with
            `?run=NAME&after=NUMBER` continues after that step, and gets {"run", "resumed": true} instead.
    asked   for requests that a step below is the first to name: their ids -> [arrival time, x-request-id]
    step    a step of the trace. The first one after a header begins with what was there already
    now     the current state, if it has changed: the levers, the number of visitors, whether the engine failed
    bye     the server is ending
"""

import asyncio
import collections
import contextvars
import uuid
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from ..trace_file import whole_step
from ..tracing import detach, guesses, look_on, new_texts
from .responses import event, unless_gone
from .service import Service

PAUSE = 0.1  # seconds between two checks for new steps: waking viewers at every step would take the engine's cores
MAX_BEHIND = 1000  # records that may wait to be formatted; if there are more, the recording starts over
KEPT_STEPS, KEPT_BYTES = 20_000, 2**25  # roughly this much is kept for new viewers
CHUNKS = 8  # that this is kept in: the oldest is dropped as a whole
KEPT_SECONDS = 600.0  # that the recording goes on without a viewer
KEPT_NAMES = 10_000  # of requests
AT_ONCE = 2**18  # bytes that are sent in one piece

asked_as: contextvars.ContextVar[str] = contextvars.ContextVar("asked_as", default="")  # the x-request-id


class Chunk:
    """Consecutive steps, and what was there before them.

    Attributes:
        header: of the trace, when the chunk began.
        opening: its first step, for viewers who begin here.
        lines: its steps, for viewers who have the ones before.
        first: the number of its first step.
    """

    def __init__(self):
        self.header: dict = {}
        self.first, self.opening, self.num_bytes = 0, b"", 0
        self.lines: list[bytes] = []
        self._records: collections.deque = collections.deque()  # records that are not in `lines` yet
        self._known, self._num_told = [], 0  # what was there when it began, and how many events of the first step
        self._named: set[int] = set()  # tokens
        self.is_behind = False

    def listen(self, record: Any) -> None:
        """Called in the engine's thread."""
        if len(self._records) >= MAX_BEHIND:
            self.is_behind = True
        else:
            self._records.append(record)

    def begin(self, service: Service) -> None:
        """Start listening. May wait for a step."""
        self.header, self._known, self._num_told = look_on(service.engine.llm, self.listen)

    @property
    def next(self) -> int:
        return self.first + len(self.lines)

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= KEPT_STEPS / CHUNKS or self.num_bytes >= KEPT_BYTES / CHUNKS

    def write(self, service: Service, asked: dict[str, tuple]) -> None:
        """Format new records as lines."""
        for _ in range(len(self._records)):
            record = self._records.popleft()
            step = whole_step(record.to_dict())
            named = step["before"] + step["after"] + guesses(record.rows)
            if not self.lines:
                opening = whole_step({**step, "before": self._known + step["before"][self._num_told :]})
                named = opening["before"] + named
            texts = new_texts(named, self._named, service.tokenizer.token_text)
            if not self.lines:
                self.first, self.opening = step["step"], self._line({**opening, "texts": texts}, asked)
                self._known = []
            self.lines.append(self._line({**step, "texts": texts}, asked))
            self.num_bytes += len(self.lines[-1])

    @staticmethod
    def _line(step: dict, asked: dict[str, tuple]) -> bytes:
        named = (one["request_id"] for one in step["before"] if one["kind"] == "queued")
        who = {name: asked[name] for name in named if name in asked}
        return (event(who, "asked") if who else b"") + event(step, "step")


class Recorder:
    """The recording that viewers see.

    Args:
        is_ending: whether the server is ending.
        now: the current state.

    Attributes:
        server: a name for this process.
        run: a name for the recording; it changes when steps are missing.
        viewers: the current viewers.
    """

    def __init__(self, service: Service, is_ending: Callable[[], bool], now: Callable[[], dict]):
        self.service, self.llm, self.is_ending, self.now = service, service.engine.llm, is_ending, now
        self.server, self.run, self.chunks = uuid.uuid4().hex[:12], "", collections.deque[Chunk]()
        self.viewers: set[Viewer] = set()
        self._asked: dict[str, tuple[float, str]] = {}
        self._task: asyncio.Task | None = None

    def made(self, request: Any) -> None:
        """Note who sent a request. Called in the caller's thread."""
        self._asked[request.request_id] = request.arrival_time, asked_as.get()
        if len(self._asked) > KEPT_NAMES:
            self._asked.pop(next(iter(self._asked)), None)

    def look(self) -> None:
        """Start recording, unless it is running."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._record())

    @property
    def has_begun(self) -> bool:
        return bool(self.chunks)

    def line(self, number: int) -> bytes | None:
        """The step with this number; None if it has not happened yet. It must not be a dropped one."""
        chunk = next(chunk for chunk in reversed(self.chunks) if chunk.first <= number or chunk is self.chunks[0])
        return chunk.lines[number - chunk.first] if number < chunk.next else None

    async def _record(self) -> None:
        """Run until there has been no viewer for a long time."""
        try:
            await self._begin()
            alone = 0.0
            while not self.is_ending() and (self.viewers or alone < KEPT_SECONDS):
                await asyncio.sleep(PAUSE)
                alone = 0.0 if self.viewers else alone + PAUSE
                latest = self.chunks[-1]
                if latest.is_behind:
                    await asyncio.to_thread(detach, self.llm, latest.listen)
                    await self._begin()
                elif latest.is_full:
                    await self._start_chunk()
                else:
                    latest.write(self.service, self._asked)
        finally:
            listening, self.chunks = list(self.chunks)[-1:], collections.deque()
            for chunk in listening:
                await asyncio.to_thread(detach, self.llm, chunk.listen)

    async def _begin(self) -> None:
        chunk = Chunk()
        await asyncio.to_thread(chunk.begin, self.service)
        self.run, self.chunks = uuid.uuid4().hex[:12], collections.deque([chunk])

    async def _start_chunk(self) -> None:
        """For a moment both the old and the new chunk listen: viewers get the steps that both have once."""
        old, new = self.chunks[-1], Chunk()
        await asyncio.to_thread(new.begin, self.service)
        await asyncio.to_thread(detach, self.llm, old.listen)
        old.write(self.service, self._asked)
        new.first, new.is_behind = old.next, new.is_behind or old.is_behind
        self.chunks.append(new)
        while len(self.chunks) > 1 and self._is_too_much():
            self.chunks.popleft()

    def _is_too_much(self) -> bool:
        num_steps, num_bytes = self.chunks[-1].next - self.chunks[0].first, sum(c.num_bytes for c in self.chunks)
        return num_steps > KEPT_STEPS or num_bytes > KEPT_BYTES


class Viewer:
    """The response to a viewer, as ASGI: an event stream that ends with the server.

    Args:
        seen: the recording of which this viewer has everything up to the step `after`.
    """

    def __init__(self, recorder: Recorder, seen: str = "", after: int = -1):
        self.recorder, self._run, self._next = recorder, seen, after + 1
        self._now: dict = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.recorder.viewers.add(self)
        try:
            await unless_gone(receive, self._stream(send))
        finally:
            self.recorder.viewers.discard(self)

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        recorder, is_new = self.recorder, True
        while not recorder.is_ending():
            recorder.look()
            if recorder.has_begun:
                told = self._beginning() if is_new or not self._is_there() else b""
                told += self._news()
                is_new = False
                if told:
                    await self._write(send, told)
                if len(told) >= AT_ONCE:  # there is more
                    await asyncio.sleep(0)
                    continue
            await asyncio.sleep(PAUSE)
        await send({"type": "http.response.body", "body": event({}, "bye"), "more_body": False})

    def _is_there(self) -> bool:
        """Whether the viewer can continue where it is."""
        first = self.recorder.chunks[0]
        return self._run == self.recorder.run and (self._next < 0 or first.first <= self._next)

    def _beginning(self) -> bytes:
        recorder, first, last = self.recorder, self.recorder.chunks[0], self.recorder.chunks[-1]
        about = {"run": recorder.run, "server": recorder.server}
        if self._is_there() and self._next <= last.next:
            return event({**about, "resumed": True}, "run")
        self._run, self._next = recorder.run, -1
        span = {"first": first.first, "next": last.next} if first.lines else {"first": None, "next": None}
        return event({**about, **span, "kept_steps": KEPT_STEPS, "header": first.header}, "run")

    def _news(self) -> bytes:
        recorder, told, size = self.recorder, [], 0
        if self._next < 0 and recorder.chunks[0].lines:
            told.append(recorder.chunks[0].opening)
            self._next = recorder.chunks[0].first + 1
        while self._next >= 0 and size < AT_ONCE and (line := recorder.line(self._next)):
            told.append(line)
            size += len(line)
            self._next += 1
        if size < AT_ONCE and (now := recorder.now()) != self._now:
            self._now = now
            told.append(event(now, "now"))
        return b"".join(told)

    @staticmethod
    async def _write(send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})

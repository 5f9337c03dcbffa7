"""A live view of the engine: its steps as server-sent events.

Each viewer has its own listener while it is connected; without viewers, nothing is recorded. The events:

    run     first, and again if steps are missing because it did not read them in time: `server` (a name for this
            process) and `header` (of the trace, see ../trace_file.py)
    asked   who sent the requests that first appear in the next step: their ids -> [arrival time, x-request-id]
    step    a step of the trace. The first one after a header begins with what was there already
    now     the current state, if it has changed: the levers, the number of visitors, whether the engine failed
    bye     the server is ending
"""

import asyncio
import collections
import contextlib
import contextvars
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.types import Receive, Scope, Send

from ..trace_file import whole_step
from ..tracing import StepRecord, detach, guesses, look_on, new_texts
from .responses import event, unless_gone
from .service import Service

PAUSE = 0.1  # seconds between two checks for new steps: waking viewers at every step would take the engine's cores
MAX_BEHIND = 1000  # records that may wait for a viewer
AT_ONCE = 64  # records that become text before others have their turn
KEPT_NAMES = 10_000  # of requests

asked_as: contextvars.ContextVar[str] = contextvars.ContextVar("asked_as", default="")  # the x-request-id


class Audience:
    """What all viewers share.

    Args:
        is_ending: whether the server is ending.
        now: the current state.

    Attributes:
        server: a name for this process.
        viewers: the current viewers.
        asked: who sent the latest requests.
        thread: attaches and detaches viewers one at a time, since a viewer may leave before it is attached.
    """

    def __init__(self, service: Service, is_ending: Callable[[], bool], now: Callable[[], dict]):
        self.service, self.is_ending, self.now = service, is_ending, now
        self.server, self.thread = uuid.uuid4().hex, ThreadPoolExecutor(1, "live")
        self.viewers: set[Viewer] = set()
        self.asked: dict[str, tuple[float, str]] = {}

    def made(self, request: Any) -> None:
        """Note who sent a request. Called in the caller's thread."""
        self.asked[request.request_id] = request.arrival_time, asked_as.get()
        if len(self.asked) > KEPT_NAMES:
            self.asked.pop(next(iter(self.asked)), None)


class Steps:
    """The engine's steps as events. Once `is_behind` is set, the following steps are dropped.

    Args:
        asked: who sent the requests.
        token_text: the text of a token.

    Attributes:
        known: what was there before the first step, as events of the trace.
        num_told: how many of the first step's events this includes.
    """

    def __init__(self, asked: dict[str, tuple[float, str]], token_text: Callable[[int], str]):
        self.asked, self.token_text, self.is_behind = asked, token_text, False
        self.known, self.num_told = [], 0
        self._records: collections.deque[StepRecord] = collections.deque()
        self._named: set[int] = set()  # tokens whose texts were told

    def listen(self, record: StepRecord) -> None:
        """Called in the engine's thread, which goes on at once: a record becomes text elsewhere."""
        if len(self._records) < MAX_BEHIND:
            self._records.append(record)
        else:
            self.is_behind = True

    def news(self) -> bytes:
        """The next steps, if there are any."""
        return b"".join(self._told(self._records.popleft()) for _ in range(min(AT_ONCE, len(self._records))))

    @property
    def has_news(self) -> bool:
        return bool(self._records)

    def _told(self, record: StepRecord) -> bytes:
        step = whole_step(record.to_dict())
        step["before"] = self.known + step["before"][self.num_told :]
        self.known, self.num_told = [], 0
        named = step["before"] + step["after"] + guesses(record.rows)
        step["texts"] = new_texts(named, self._named, self.token_text)
        came = [one["request_id"] for one in step["before"] if one["kind"] == "queued"]
        who = {name: self.asked[name] for name in came if name in self.asked}
        return (event(who, "asked") if who else b"") + event(step, "step")


class Viewer:
    """The response to a viewer, as ASGI: an event stream that ends with the server."""

    def __init__(self, audience: Audience):
        self.audience = audience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.audience.viewers.add(self)
        try:
            await unless_gone(receive, self._stream(send))
        finally:
            self.audience.viewers.discard(self)

    async def _stream(self, send: Send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while not self.audience.is_ending():
            with contextlib.suppress(self.audience.service.stage.EngineClosedError):  # it ends before the viewer joined
                await self._look_on(write)
        await write(event({}, "bye"), more=False)

    async def _look_on(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Tell what the engine does from now on, until the server ends or steps are missing."""
        audience, llm, now = self.audience, self.audience.service.engine.llm, {}
        steps, loop = Steps(audience.asked, audience.service.tokenizer.token_text), asyncio.get_running_loop()
        try:
            beginning = await loop.run_in_executor(audience.thread, look_on, llm, steps.listen)
            header, steps.known, steps.num_told = beginning
            await write(event({"server": audience.server, "header": header}, "run"))
            while not (steps.is_behind or audience.is_ending()):
                told, before, now = steps.news(), now, audience.now()
                if now != before:
                    told += event(now, "now")
                if told:
                    await write(told)
                await asyncio.sleep(0 if steps.has_news else PAUSE)
        finally:
            audience.thread.submit(detach, llm, steps.listen)

"""A request's body: how it is read, how long that may take, and where its JSON is made sense of.

Nothing of size is parsed or checked on the event loop, but in lanes.py's threads. And no parser lets the engine's
thread go on before it has read everything, so how much JSON there may be is limited too.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from ..forms import may_have_form
from .errors import RETRY, APIError
from .lanes import Lanes
from .limits import Limits
from .protocol import parse_json

T = TypeVar("T")
CLIENT_GONE = 499  # in the log, where nothing was sent: the status that nginx has for this
LARGEST_AT_ONCE = 8  # so many bodies of the largest size, or more smaller ones, may be in memory
UNHURRIED, BYTES_PER_SECOND = 2**17, 16e6  # a body of so many bytes is read at once, more of it at this pace
DROPPED = 16  # a body of up to so many times the limit is read before it is refused
CLOSE = {"Connection": "close"}  # there may be more of the body on its way


class Bodies:
    """Reads the bodies of requests, within limits."""

    def __init__(self, limits: Limits, lanes: Lanes):
        self.limits, self._lanes = limits, lanes
        self._held: dict[asyncio.Task, int] = {}  # bytes of each body
        self._begun: dict[asyncio.Task, float] = {}  # when those began that are still on their way
        self._free_at = 0.0  # when the next part of a large body is read

    async def read(self, request: Request, make: Callable[[dict], T]) -> T:
        """What `make` makes of a body's JSON, in a thread. Raises APIError for a body that is refused."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # other kinds a page of another site may send without asking
            raise APIError(415, f"the Content-Type must be application/json, got {kind!r:.80}")
        task = asyncio.create_task(self._body(request))
        self._held[task], self._begun[task] = 0, time.monotonic()
        try:
            await asyncio.wait({task}, timeout=self.limits.body_seconds)
            self._begun.pop(task, None)
            if not task.done():
                seconds = self.limits.body_seconds
                raise APIError(408, f"the body did not come within {seconds:g} seconds", headers=CLOSE)
            if task.cancelled():
                message = "too much is on its way, and this body the most and the longest: try again later"
                raise APIError(429, message, code="too_many_bodies", headers=RETRY | CLOSE)
            body = task.result()
            has_form, result = await self._lanes.do(len(body), lambda: self._parse(body, make))
            return await self._lanes.do_form(len(body), lambda: make(result)) if has_form else result
        except ClientDisconnect:
            raise APIError(CLIENT_GONE, "the client has gone") from None
        finally:
            task.cancel()
            self._held.pop(task, None)
            self._begun.pop(task, None)

    def _parse(self, body: bytes, make: Callable[[dict], Any]) -> tuple[bool, Any]:
        """Whether a form may have to be compiled; then also the fields, else what `make` makes of them."""
        fields = parse_json(body, max_values=self.limits.max_json_values)
        return (True, fields) if may_have_form(fields) else (False, make(fields))

    def _hold(self, num_bytes: int) -> None:
        """Of too many bytes those leave that have taken the most memory for the longest time: who sends half a body,
        and waits, does not keep out others."""
        now = time.monotonic()
        if (task := asyncio.current_task()) is not None:
            self._held[task] = num_bytes
        while sum(self._held.values()) > LARGEST_AT_ONCE * self.limits.max_body_bytes and self._begun:
            victim = max(self._begun, key=lambda one: self._held[one] * (now - self._begun[one]))
            del self._held[victim], self._begun[victim]
            victim.cancel()
            if victim is task:
                break

    async def _wait_for_others(self, num_bytes: int) -> None:
        """Large bodies come at a pace that all of them share, for to read them takes the event loop's time."""
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + num_bytes / BYTES_PER_SECOND
        await asyncio.sleep(self._free_at - now)

    async def _body(self, request: Request) -> bytes:
        """Of a body that is too long the rest is read too, up to a point, and dropped: a simple client asks for the
        answer only when it has sent everything."""
        limit, body, num_bytes = self.limits.max_body_bytes, bytearray(), 0
        too_long = APIError(413, f"the body is longer than {limit:,} bytes", code="body_too_large", headers=CLOSE)
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told) > DROPPED * limit:
            raise too_long
        async for part in request.stream():
            num_bytes += len(part)
            if num_bytes <= limit:
                self._hold(num_bytes)
                body += part
            elif num_bytes > DROPPED * limit:
                break
            if num_bytes > UNHURRIED:
                await self._wait_for_others(len(part))
        if num_bytes > limit:
            raise too_long
        return bytes(body)

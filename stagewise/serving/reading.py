"""A request's body: how it is read, how long that may take, and where its JSON is made sense of.

Nothing of size is parsed or checked on the event loop, where everybody else would wait for it. Small bodies go to a
thread; large ones wait for one another, in a thread of their own, for Python parses one of them at a time anyway. And
no parser lets the engine's thread go on before it has read everything, so how much JSON there may be is limited too.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from .errors import APIError
from .limits import Limits
from .protocol import parse_json

T = TypeVar("T")
CLIENT_GONE = 499  # in the log, where nothing was sent: the status that nginx has for this
SMALL = 2**16  # bytes; what is longer is large
LARGE_AT_ONCE = 8  # that are in memory
DROPPED = 16  # a body of up to so many times the limit is read before it is refused
CLOSE = {"Connection": "close"}  # there may be more of the body on its way


class Bodies:
    """Reads the bodies of requests, within limits."""

    def __init__(self, limits: Limits):
        self.limits, self._places = limits, asyncio.Semaphore(LARGE_AT_ONCE)
        self._large = concurrent.futures.ThreadPoolExecutor(1, "large bodies")

    async def read(self, request: Request, make: Callable[[dict], T]) -> T:
        """What `make` makes of a body's JSON, in a thread. Raises APIError for a body that is refused."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # other kinds a page of another site may send without asking
            raise APIError(415, f"the Content-Type must be application/json, got {kind!r:.80}")
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told) <= SMALL:
            return await asyncio.to_thread(self._parse, await self._in_time(request), make)
        async with self._places:
            body = await self._in_time(request)
            return await asyncio.get_running_loop().run_in_executor(self._large, self._parse, body, make)

    def _parse(self, body: bytes, make: Callable[[dict], T]) -> T:
        return make(parse_json(body, max_values=self.limits.max_json_values))

    async def _in_time(self, request: Request) -> bytes:
        try:
            return await asyncio.wait_for(self._body(request), self.limits.body_seconds)
        except (asyncio.TimeoutError, TimeoutError):  # two of them until Python 3.11
            seconds = self.limits.body_seconds
            raise APIError(408, f"the body did not come within {seconds:g} seconds", headers=CLOSE) from None
        except ClientDisconnect:
            raise APIError(CLIENT_GONE, "the client has gone") from None

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
                body += part
            elif num_bytes > DROPPED * limit:
                break
        if num_bytes > limit:
            raise too_long
        return bytes(body)

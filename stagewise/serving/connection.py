"""What a connection may send, in size, number and time:

    URL, headers, trailers     HEAD_BYTES, by h11; of requests sent ahead, what one read brings, 256 KB
    a body                     --max-body-bytes, by `read_body`; uvicorn reads 64 KB ahead
    requests sent ahead        wait until the ones before are answered: uvicorn stops reading
    an answer                  waits while 64 KB of it are not read: uvicorn stops writing; after a time, `check_time`
    connections                with more than --max-connections, uvicorn answers requests by 503
    new connections            BACKLOG, by the system, until they are accepted
    time                       --idle-seconds: of silence, and for sending a request, by `check_time`

A client that misuses its connection, say with a chunk for each byte, still slows others: a server for strangers needs a
proxy in front of it (docs/examples/nginx.conf), which collects what clients send.
What one request may ask for is in ../openai/limits.py.
"""

import asyncio
import json
from typing import Any

import h11
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..openai.errors import APIError, bad_request
from ..openai.limits import Limits
from ..strict_json import no_duplicates

HEAD_BYTES = 2**14
PIECE = 2**12  # bytes that h11 gets at once: it looks at its limit only between two pieces
UNREAD = 6  # how many times --idle-seconds a client has to read on
BACKLOG = 128
CLIENT_GONE = 499  # in the log, if nothing was sent; nginx's status for this


def settings(limits: Limits) -> dict[str, Any]:
    """uvicorn's settings. Its other parser, httptools, keeps headers and requests sent ahead without a limit."""
    return {
        "http": Connection,
        "h11_max_incomplete_event_size": HEAD_BYTES,
        "limit_concurrency": limits.max_connections + 1,  # uvicorn refuses from this number on
        "timeout_keep_alive": limits.idle_seconds,
        "backlog": BACKLOG,
    }


class Connection(H11Protocol):
    """uvicorn's connection, whose client must send a request and read its answer in time.

    Attributes:
        since: when it began to wait for its client.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.since = self.loop.time()

    @property
    def is_asked(self) -> bool:
        """Whether a complete request is being answered."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.since = self.loop.time()  # a request begins
        for start in range(0, len(data), PIECE):
            if not self.transport.is_closing():
                super().data_received(data[start : start + PIECE])

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self.since = self.loop.time()
        super().pause_writing()

    def check_time(self) -> None:
        """Give up a request that takes too long to arrive, or a client that does not read its answer. uvicorn's own
        timer stops at a request's first byte."""
        silent, limit = self.loop.time() - self.since, self.timeout_keep_alive
        if self.transport.is_closing():
            return
        if self.is_asked:
            if self.flow.write_paused and silent > UNREAD * limit:
                self.transport.abort()
        elif silent >= limit:
            if self.conn.our_state is h11.SEND_RESPONSE or self.conn.trailing_data[0]:
                self.send_400_response(f"The request was not complete after {limit:g} seconds.")
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if len(self.conn.trailing_data[0]) > HEAD_BYTES:
            msg = f"The URL, headers or trailers have over {HEAD_BYTES:,} bytes."
        if self.cycle is not None:
            self.cycle.disconnected = True  # the app must not answer, too
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.transport.close()  # what follows an answer is no request


async def read_body(request: Request, limit: int) -> bytes:
    """A body of at most `limit` bytes; uvicorn drops the rest of a longer one. Raises APIError for what is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # another site's page may send other types without permission
        raise APIError(415, f"the Content-Type must be application/json, got {kind!r:.80}")
    too_long = APIError(413, f"the body is longer than {limit:,} bytes (--max-body-bytes)", code="body_too_large")
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > limit:
        raise too_long
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise too_long
    except ClientDisconnect:
        raise APIError(CLIENT_GONE, "the client has left") from None
    return bytes(body)


def parse_json(raw: bytes, most: int) -> dict:
    """The fields of a body. Raises APIError unless it is one object of strict JSON, with each key once, and about
    `most` values: commas inside texts count too, because a parser can't be interrupted."""
    if (num_values := sum(map(raw.count, (b",", b"[", b"{")))) > most:
        what = f"the body has about {num_values:,} JSON values"
        raise APIError(413, f"{what}; the limit is {most:,} (--max-json-values)")
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=no_constant, object_pairs_hook=no_duplicates)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
        raise bad_request(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {body!r:.80}")
    return body


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

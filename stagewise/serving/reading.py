"""A request's body: read up to a limit, and parsed in a thread if it is large."""

import functools

from starlette.requests import ClientDisconnect, Request

from .errors import APIError
from .lanes import SMALL, Lanes
from .limits import Limits
from .protocol import parse_json

CLIENT_GONE = 499  # in the log, where nothing was sent: the status that nginx has for this
DROPPED = 8  # a body of up to this many times the limit is read before it is refused
CLOSE = {"Connection": "close"}  # there may be more of the body on its way


async def read_json(request: Request, limits: Limits, lanes: Lanes) -> tuple[int, dict]:
    """How many bytes the body of a request has, and its fields. Raises APIError for a body that is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # other kinds a page of another site may send without asking
        raise APIError(415, f"the Content-Type must be application/json, got {kind!r:.80}")
    try:
        body = await read_body(request, limits.max_body_bytes)
    except ClientDisconnect:
        raise APIError(CLIENT_GONE, "the client has gone") from None
    parse = functools.partial(parse_json, body, max_values=limits.max_json_values)
    return len(body), parse() if len(body) <= SMALL else await lanes.do(len(body), parse)


async def read_body(request: Request, limit: int) -> bytes:
    """A body of at most this many bytes. The rest of a longer one is read too, up to a point, and dropped: a simple
    client looks for the answer only when it has sent everything."""
    body, num_bytes = bytearray(), 0
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

"""A request's body: read up to a limit, and parsed in a thread if it is large."""

import functools
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from ..openai.errors import APIError, bad_request
from ..openai.limits import Limits
from ..strict_json import no_duplicates
from .lanes import SMALL, Lanes

MAX_DEPTH = 64  # nesting depth of lists and objects
CLIENT_GONE = 499  # in the log, if nothing was sent; nginx's status for this


async def read_json(request: Request, limits: Limits, lanes: Lanes) -> tuple[int, dict]:
    """The number of bytes of a request's body, and its fields. Raises APIError for a body that is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # another site's page may send other types without permission
        raise APIError(415, f"the Content-Type must be application/json, got {kind!r:.80}")
    try:
        body = await read_body(request, limits.max_body_bytes)
    except ClientDisconnect:
        raise APIError(CLIENT_GONE, "the client has left") from None
    parse = functools.partial(parse_json, body, max_values=limits.max_json_values)
    return len(body), parse() if len(body) <= SMALL else await lanes.do(len(body), parse)


async def read_body(request: Request, limit: int) -> bytes:
    """A body of at most `limit` bytes. uvicorn drops the rest of a longer one."""
    too_long = APIError(413, f"the body is longer than {limit:,} bytes", code="body_too_large")
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > limit:
        raise too_long
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise too_long
    return bytes(body)


def parse_json(raw: bytes, max_values: int) -> dict:
    """The fields of a body. Raises APIError unless it is one object of strict JSON, with each key once."""
    if (num_values := sum(map(raw.count, (b",", b"[", b"{")))) > max_values:
        # Commas inside texts count too: this is an estimate without a parser, which can't be interrupted.
        raise APIError(413, f"the body has about {num_values:,} JSON values; the limit is {max_values:,}")
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=no_constant, object_pairs_hook=no_duplicates)
        check_depth(body)
    except RecursionError:
        raise bad_request(f"the body is not valid JSON: it is nested too deeply, over {MAX_DEPTH} levels") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
        raise bad_request(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {body!r:.80}")
    return body


def check_depth(body: Any) -> None:
    """Raise RecursionError if lists and objects are nested too deeply."""
    level = [[body]]
    for _ in range(MAX_DEPTH + 1):
        inner = (value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer))
        level = [value for value in inner if isinstance(value, list | dict)]
        if not level:
            return
    raise RecursionError


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

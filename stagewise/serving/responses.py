"""Responses: JSON, streams of server-sent events, and what ends when their reader is gone."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .. import strict_json
from ..openai.errors import APIError
from ..openai.job import Job
from .service import SMALL, Run, Service

AT_ONCE = 16  # items of a list that become JSON in one piece
DONE = b"data: [DONE]\n\n"


def to_json(content: Any) -> bytes:
    """In ASCII, because some readers also end a line at U+2028 or U+0085."""
    return strict_json.to_json(content, ascii=True).encode()


def in_pieces(content: Any, depth: int = 2) -> bytes:
    """The same, but its lists a few items at a time: nothing else in Python runs while json makes a piece."""
    if isinstance(content, dict) and depth:
        return b"{" + b", ".join(to_json(k) + b": " + in_pieces(v, depth - 1) for k, v in content.items()) + b"}"
    if isinstance(content, list):
        pieces = (to_json(content[i : i + AT_ONCE])[1:-1] for i in range(0, len(content), AT_ONCE))
        return b"[" + b", ".join(pieces) + b"]"
    return to_json(content)


def choice_json(choice: dict) -> bytes:
    """A choice in the list of choices."""
    return (b", " if choice["index"] else b"") + in_pieces(choice)


def with_choices(answer: dict) -> list[bytes]:
    """The JSON of an answer whose choices are JSON already, in parts."""
    before, between, after = to_json({**answer, "choices": []}).partition(b'"choices": []')
    return [before + between[:-1], *answer["choices"], between[-1:] + after]


def event(content: dict, kind: str = "") -> bytes:
    """A server-sent event. Its data is one line, because JSON contains no line breaks; an empty line ends it."""
    name = f"event: {kind}\n".encode() if kind else b""
    return name + b"data: " + to_json(content) + b"\n\n"


class JSON(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def error_response(error: APIError) -> JSON:
    return JSON(error.to_dict(), error.status, error.headers)


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed its connection. Its request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine) -> None:
    """Do this work, and cancel it if the client leaves before it is done."""
    task, gone = asyncio.create_task(work), asyncio.create_task(until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
    if not task.cancelled():
        task.result()


class Answer:
    """The response to a job, as ASGI: whole, or as a stream. If the client leaves, the request is aborted.

    A slow reader delays nobody else: while `send` waits for the connection, its tokens wait in the `Run`, which holds
    no more than it has requested.
    """

    def __init__(self, service: Service, job: Job):
        self.service, self.job = service, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with Run(self.service, self.job) as run:
            scope["run"] = run  # for the log
            if self.job.fields["stream"]:
                await self._stream(run, send)
            else:
                await self._whole(run, send)

    async def _whole(self, run: Run, send: Send) -> None:
        answer = await self.service.whole(run, choice_json)
        parts = await self.service.aside(run.prompt_size(0), lambda: with_choices(answer))
        size = sum(map(len, parts))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in [b"".join(parts)] if size <= SMALL else parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, run: Run, send: Send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with contextlib.aclosing(self.service.chunks(run, event)) as chunks:
                async for chunk in chunks:
                    await write(chunk)
        except APIError as error:  # too late for a status
            await write(event(error.to_dict()))
        await write(DONE, more=False)

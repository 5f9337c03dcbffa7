"""The routes of the server, and the gate before them: who may enter, and a line in the log for each who did."""

import asyncio
import contextlib
import hmac
import json
import re
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any
from urllib.parse import quote

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from .completions import Run, Service, full_text
from .errors import APIError, bad_request
from .events import JSON, Answer, error_response
from .live import Levers, Viewer
from .page import make_page
from .protocol import Fields, Job, check_model, parse_json

CLIENT_GONE = 499  # in the log, where nothing was sent: the status that nginx has for this
MAX_BODY_BYTES = 8 * 2**20
MAX_VISITORS = 64  # of the page, at once
DROPPED = 16  # a body of up to so many times the limit is read before it is refused
HERE = ("localhost", "127.0.0.1", "[::1]")  # what a browser on this machine calls it
ALWAYS_OPEN = ("/health", "/ready", "/version", "/metrics")  # also while the server ends


class App:
    """The ASGI application.

    Args:
        service: what answers.
        api_key: what clients of /v1/ have to show; None: nothing.
        max_body_bytes: the longest body of a request.
        log: takes a line for each request; None: no log.
        log_prompts: put prompts into those lines.
        page: show what runs, its texts too, to everybody who asks, and let them move the levers.
        only_here: but only if they ask for this machine by its own names.

    Attributes:
        draining: take no new requests. Set it to end the server.
        num_active: the requests that are being answered, without those who look on.
    """

    def __init__(
        self,
        service: Service,
        *,
        api_key: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        log: Callable[[str], None] | None = None,
        log_prompts: bool = False,
        page: bool = False,
        only_here: bool = False,
    ):
        self.service, self.api_key, self.max_body_bytes = service, api_key, max_body_bytes
        self.log, self.log_prompts = log, log_prompts
        self.draining, self.num_active = False, 0
        self.html, self.levers = make_page() if page else None, Levers(service)
        self.only_here, self._visits = only_here, set()
        errors = {HTTPException: no_route, APIError: api_error, Exception: unexpected}
        self.routes = Starlette(routes=self._routes(), exception_handlers=errors)
        self.routes.router.redirect_slashes = False

    def _routes(self) -> list[Route]:
        live = [
            Route("/", self.index),
            Route("/live", self.live),
            Route("/live/levers", self.move_levers, methods=["GET", "POST"]),
            Route("/live/visitors", self.visit, methods=["POST"]),
        ]
        return (live if self.html else []) + [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
        ]

    # --- The gate ---------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started, status = time.perf_counter(), CLIENT_GONE

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        counts = scope["path"] != "/live"  # one who looks on does not hold up the end of the server
        self.num_active += counts
        try:
            error = self._refusal(scope)
            await (error_response(error) if error else self.routes)(scope, receive, watched)
        finally:
            self.num_active -= counts
            if self.log:
                self.log(self._line(scope, status, time.perf_counter() - started))

    def _refusal(self, scope: Scope) -> APIError | None:
        """Why a request may not enter."""
        if self.only_here and (scope["path"] == "/" or scope["path"].startswith("/live")):
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if re.sub(r":\d*$", "", host) not in HERE:  # another site's name for this address, or a proxy's
                return APIError(403, "the page is for this machine's browsers; start with --page to show it to others")
        if self.draining and scope["path"] not in ALWAYS_OPEN:
            return APIError(503, "the server is shutting down", code="shutting_down", headers={"Connection": "close"})
        if self.api_key is not None and scope["path"].startswith("/v1/"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {self.api_key}".encode()):  # in constant time
                headers = {"WWW-Authenticate": "Bearer"}
                message = "the header 'Authorization: Bearer KEY' is missing or has another key"
                return APIError(401, message, code="invalid_api_key", headers=headers)
        return None

    def _line(self, scope: Scope, status: int, seconds: float) -> str:
        line = f"{scope['method']} {quote(scope['path'])} {status} {1e3 * seconds:.0f} ms"
        if run := scope.get("run"):
            reasons = ", ".join(dict.fromkeys(run.finish_reasons)) or "abort"
            line += f", {run.usage.num_prompt_tokens} + {run.usage.num_output_tokens} tokens, {reasons}"
            if self.log_prompts:
                line += f", {json.dumps(run.job.prompts)}"
        return line

    # --- The routes -------------------------------------------------------------------------------------------------

    async def completions(self, request: Request) -> Answer:
        return Answer(self.service, await self.service.job(await self._body(request)))

    async def chat_completions(self, request: Request) -> Answer:
        return Answer(self.service, await self.service.job(await self._body(request), chat=True))

    async def models(self, request: Request) -> Response:
        return JSON({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        check_model(Fields(request.path_params, {"model"}), self.service.model_name)
        return JSON(self._model())

    def _model(self) -> dict:
        service = self.service
        more = {"root": service.engine.llm.engine.config.model, "max_model_len": service.max_model_len}
        origin = {"created": service.created, "owned_by": "stagewise"}
        return {"id": service.model_name, "object": "model", **origin, **more}

    async def tokenize(self, request: Request) -> Response:
        prompt = await self._field(request, "prompt", str, "a text")
        tokens = await self.service.encode(prompt)
        return JSON({"count": len(tokens), "max_model_len": self.service.max_model_len, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        tokens = await self._field(request, "tokens", list, "a list of token ids")
        vocab_size = self.service.engine.llm.engine.model_config.vocab_size
        if wrong := [token for token in tokens if type(token) is not int or not 0 <= token < vocab_size]:
            message = f"tokens must be whole numbers from 0 to {vocab_size - 1}, got {wrong[0]!r:.80}"
            raise bad_request(message, param="tokens")
        return JSON({"prompt": full_text(self.service.tokenizer, tokens)})

    async def health(self, request: Request) -> Response:
        return Response(status_code=503 if self.service.failed else 200)

    async def ready(self, request: Request) -> Response:
        return Response(status_code=503 if self.service.failed or self.draining else 200)

    async def version(self, request: Request) -> Response:
        return JSON({"version": version(), "stage": self.service.stage.number})

    async def metrics(self, request: Request) -> Response:
        return Response(self.service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def index(self, request: Request) -> Response:
        return HTMLResponse(self.html)

    async def live(self, request: Request) -> Viewer:
        return Viewer(self.service)

    async def move_levers(self, request: Request) -> Response:
        if request.method == "GET":
            return JSON(self.levers.read())
        body = await self._body_of_page(request)
        return JSON(await asyncio.to_thread(self.levers.move, body))

    async def visit(self, request: Request) -> Response:
        """A made-up visitor, who asks and goes; how many are there now. The browser has six connections, too few."""
        job = await self.service.job(await self._body_of_page(request))
        if len(self._visits) >= MAX_VISITORS:
            raise APIError(429, f"{MAX_VISITORS} visitors are there already", code="queue_full")
        visit = asyncio.create_task(self._visit(job))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)
        return JSON({"here": len(self._visits)}, 202)

    async def _visit(self, job: Job) -> None:
        with contextlib.suppress(APIError):  # the queue is full, or the server ends
            async with Run(self.service, job) as run:
                await self.service.whole(run)

    async def _body_of_page(self, request: Request) -> dict:
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            # What another site's page may send without asking, through the browser of somebody who has this one open.
            raise APIError(415, "send application/json")
        return await self._body(request)

    async def _field(self, request: Request, name: str, kind: type, what: str) -> Any:
        """The only field of a body, beside a model."""
        fields = Fields(await self._body(request), {"model", name})
        if "model" in fields.values:
            check_model(fields, self.service.model_name)
        value = fields.get(name, kind, what)
        if value is None:
            raise bad_request(f"{name} is missing", param=name)
        return value

    async def _body(self, request: Request) -> dict:
        """The JSON of a request's body. Of one that is too long the rest is read too, up to a point, and dropped: a
        simple client asks for the answer only when it has sent everything."""
        limit, body, num_bytes = self.max_body_bytes, bytearray(), 0
        headers = {"Connection": "close"}  # there may be more of it on its way
        too_long = APIError(413, f"the body is longer than {limit:,} bytes", code="body_too_large", headers=headers)
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told) > DROPPED * limit:
            raise too_long
        try:
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes <= limit:
                    body += part
                elif num_bytes > DROPPED * limit:
                    break
        except ClientDisconnect:
            raise APIError(CLIENT_GONE, "the client has gone") from None
        if num_bytes > limit:
            raise too_long
        return parse_json(bytes(body))


def version() -> str:
    try:
        return metadata.version("stagewise")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"


async def no_route(request: Request, error: HTTPException) -> Response:
    """Starlette's own errors: a path or a method that is not there."""
    message = f"there is no {request.url.path:.80}"
    if error.status_code == 405:
        message = f"{request.url.path} takes {(error.headers or {}).get('Allow')}, not {request.method}"
    return error_response(APIError(error.status_code, message, headers=error.headers))


async def api_error(request: Request, error: APIError) -> Response:
    return error_response(error)


async def unexpected(request: Request, error: Exception) -> Response:
    """A mistake of this program; what it was goes to stderr."""
    return error_response(APIError(500, "the server has failed at this request; its log says how"))

"""The server's routes, and the gate in front of them: who may enter, and a log line for each request."""

import asyncio
import contextlib
import hmac
import json
import re
import time
import uuid
from collections.abc import Callable, Collection
from typing import Any, TypeVar
from urllib.parse import quote

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from .. import __version__
from ..openai.answers import full_text
from ..openai.chat import chat_prompt
from ..openai.errors import APIError, bad_request
from ..openai.fields import IDLE, TEXT, TURNS, Field, Fields, flag
from ..openai.forms import may_have_form
from ..openai.job import Job, check_length, check_model
from ..tracing import header_of
from .connection import CLIENT_GONE, parse_json, read_body
from .levers import Levers
from .live import Audience, Viewer, asked_as
from .page import make_page, policy
from .responses import JSON, Answer, error_response
from .service import Run, Service

T = TypeVar("T")
MAX_VISITORS = 64  # of the page, at once
REQUEST_ID = re.compile(rb"[!-~]{1,200}")  # of a client's id, which is returned in a header
HERE = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d*)?")  # names that a browser on this machine uses for it
CHATS = "/v1/chat/completions"
HINTS = {
    "/v1/responses": f": use {CHATS} instead; for this, openai-agents has set_default_openai_api('chat_completions') "
    "(setOpenAIAPI in JavaScript), @ai-sdk/openai has openai.chat(MODEL), inspect has -M responses_api=false",
    "/v1/messages": f": use {CHATS} instead, in OpenAI's format",
    "/v1/embeddings": ": this model can't make embeddings",
    **{path: f": it is /v1{path}" for path in ("/completions", "/chat/completions", "/models")},
}
ALWAYS_OPEN = ("/health", "/ready", "/version", "/metrics")  # also during shutdown


class App:
    """The ASGI application.

    Args:
        service: answers the requests.
        api_key: what clients of /v1/, visitors and levers have to send; None: nothing.
        log: takes a line for each request; None: no log.
        log_prompts: include prompts in those lines.
        page: show what runs, including its texts, and let viewers move the levers.
        only_here: answer only requests that address this machine by its own name, and none from pages of other sites.
            Otherwise any page in a browser on this machine could use the server, and read its answers. Requests with
            the key are exempt.
        allow_origins: other sites whose pages may send requests anyway ("https://example.org"), and their names; "*":
            all.

    Attributes:
        draining: take no new requests. Set it to end the server.
        num_active: the requests that are being answered, not counting viewers.
    """

    def __init__(
        self,
        service: Service,
        *,
        api_key: str | None = None,
        log: Callable[[str], None] | None = None,
        log_prompts: bool = False,
        page: bool = False,
        only_here: bool = False,
        allow_origins: Collection[str] = (),
    ):
        self.service, self.api_key, self.limits = service, api_key, service.limits
        self.log, self.log_prompts = log, log_prompts
        self.draining, self.num_active = False, 0
        self.html = make_page(header_of(service.engine.llm)) if page else None
        self.audience = Audience(service, lambda: self.draining, self._now)
        self.levers = Levers(service)
        if page:
            self.levers.watch(self.audience.made)
        self.only_here, self.allow_origins, self._visits = only_here, frozenset(allow_origins), set()
        errors = {HTTPException: no_route, APIError: api_error, Exception: unexpected}
        self.routes = Starlette(routes=self._routes(), exception_handlers=errors)
        self.routes.router.redirect_slashes = False
        self._paths = {route.path for route in self._routes()}
        self._entrance = self._enter
        if allow_origins:
            may: dict[str, Any] = dict(allow_methods=["GET", "POST"], allow_headers=["*"])
            may["expose_headers"] = ["x-request-id"]
            self._entrance = CORSMiddleware(self._enter, allow_origins=list(allow_origins), **may)

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
        path = scope["path"].rstrip("/")
        if path in self._paths or path == f"/v1/models/{self.service.model_name}":  # clients may add a slash
            scope["path"] = path
        request_id = dict(scope["headers"]).get(b"x-request-id", b"")
        if not REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex.encode()
        asked_as.set(request_id.decode("ascii"))

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id)]
            await send(message)

        counts = scope["path"] != "/live"  # a viewer does not delay the server's end
        self.num_active += counts
        try:
            await self._entrance(scope, receive, watched)
        finally:
            self.num_active -= counts
            if self.log:
                self.log(self._line(scope, status, time.perf_counter() - started, request_id.decode("ascii")))

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope)
        await (error_response(error) if error else self.routes)(scope, receive, send)

    def _refusal(self, scope: Scope) -> APIError | None:
        """Why a request may not enter; None if it may."""
        if self.only_here and "*" not in self.allow_origins and (error := self._foreign(scope)):
            return error
        if self.draining and scope["path"] not in ALWAYS_OPEN:
            return APIError(503, "the server is shutting down", code="shutting_down", headers={"Connection": "close"})
        if self._needs_key(scope):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {self.api_key}".encode()):  # in constant time
                headers = {"WWW-Authenticate": "Bearer"}
                message = "the header 'Authorization: Bearer KEY' is missing or has the wrong key"
                return APIError(401, message, code="invalid_api_key", headers=headers)
        return None

    def _needs_key(self, scope: Scope) -> bool:
        """Whether a request needs the key: all that generate, or move the levers."""
        is_live = scope["path"].startswith("/live/") and scope["method"] == "POST"
        return self.api_key is not None and (scope["path"].startswith("/v1/") or is_live)

    def _foreign(self, scope: Scope) -> APIError | None:
        """The error for a request that another site's page may have made, through a browser on this machine. Such a
        page is recognized by its Origin, or, if it has its own name for this address, by the Host."""
        if self._needs_key(scope):
            return None  # it can't know the key
        headers = dict(scope["headers"])
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        has_name = b"host" in headers  # HTTP/1.0 need not send it, but every browser does
        allowed = {one.partition("://")[2] for one in self.allow_origins}
        if has_name and not HERE.fullmatch(host) and host not in allowed:
            name, value = "Host", host
        elif origin and origin.partition("://")[2] != host and origin not in self.allow_origins:
            name, value = "Origin", origin
        else:
            return None
        message = f"the {name} {value!r:.80} is not this machine's; --allow-origin lets others in"
        return APIError(403, message, code="foreign_origin")

    def _line(self, scope: Scope, status: int, seconds: float, request_id: str) -> str:
        line = f"{scope['method']} {quote(scope['path'])} {status} {1e3 * seconds:.0f} ms, id {request_id}"
        if run := scope.get("run"):
            reasons = ", ".join(dict.fromkeys(run.finish_reasons)) or "abort"
            line += f", {run.job.num_prompt_tokens} + {run.num_output_tokens} tokens, {reasons}"
            if self.log_prompts:
                line += f", {json.dumps(run.job.prompts)}"
        return line

    # --- The routes -------------------------------------------------------------------------------------------------

    async def completions(self, request: Request) -> Answer:
        return Answer(self.service, await self._job(request))

    async def chat_completions(self, request: Request) -> Answer:
        return Answer(self.service, await self._job(request, chat=True))

    async def models(self, request: Request) -> Response:
        return JSON({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        check_model(Fields(request.path_params, {"model": TEXT}), self.service.model_name)
        return JSON(self._model())

    def _model(self) -> dict:
        service = self.service
        more = {"root": service.engine.llm.config.model, "max_model_len": service.max_model_len}
        origin = {"created": service.created, "owned_by": "stagewise"}
        return {"id": service.model_name, "object": "model", **origin, **more}

    async def tokenize(self, request: Request) -> Response:
        return await self._read(request, self._encode)

    def _encode(self, body: dict) -> Response:
        service = self.service
        fields = service.fields(body, {"model": TEXT, "prompt": TEXT, "return_token_strs": flag(), **TURNS})
        if "model" in fields:
            check_model(fields, service.model_name)
        if ("messages" in fields) == ("prompt" in fields):
            what = "give either prompt or messages" if "prompt" in fields else "prompt is missing"
            raise bad_request(what, param="prompt")
        prompt = chat_prompt(fields, service.chat) if "messages" in fields else fields["prompt"]
        check_length(prompt, service.max_model_len, "prompt")
        tokens = service.encode(prompt)
        names = service.token_names(tokens) if fields["return_token_strs"] else None
        counts = {"count": len(tokens), "max_model_len": service.max_model_len}
        return JSON({**counts, "tokens": tokens, "token_strs": names})

    async def detokenize(self, request: Request) -> Response:
        return await self._read(request, self._decode)

    def _decode(self, body: dict) -> Response:
        fields = Fields(body, {"model": TEXT, "tokens": Field(list, "a list of token ids")}, others=IDLE)
        if "model" in fields:
            check_model(fields, self.service.model_name)
        if "tokens" not in fields:
            raise bad_request("tokens is missing", param="tokens")
        tokens, num = fields["tokens"], self.service.vocab_size
        check_length(tokens, self.service.max_model_len, "tokens")
        if wrong := [token for token in tokens if type(token) is not int or not 0 <= token < num]:
            message = f"tokens must be whole numbers from 0 to {num - 1}, got {wrong[0]!r:.80}"
            raise bad_request(message, param="tokens")
        return JSON({"prompt": full_text(self.service.tokenizer, tokens)})

    async def health(self, request: Request) -> Response:
        return Response(status_code=503 if self.service.failed else 200)

    async def ready(self, request: Request) -> Response:
        return Response(status_code=503 if self.service.failed or self.draining else 200)

    async def version(self, request: Request) -> Response:
        return JSON({"version": __version__, "stage": self.service.stage.number})

    async def metrics(self, request: Request) -> Response:
        return Response(self.service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def index(self, request: Request) -> Response:
        return HTMLResponse(self.html, headers={"content-security-policy": policy(self.html)})

    async def live(self, request: Request) -> Viewer:
        return Viewer(self.audience)

    def _now(self) -> dict:
        return {"levers": self.levers.read(), "visitors": len(self._visits), "failed": self.service.failed}

    async def move_levers(self, request: Request) -> Response:
        if request.method == "GET":
            return JSON(self.levers.read())
        moved = await asyncio.to_thread(self.levers.move, await self._read(request, dict))
        self.service.feed.hand_out()  # there may be more seats
        return JSON(moved)

    async def visit(self, request: Request) -> Response:
        """A simulated visitor: runs a request without keeping the page's connection, of which a browser has only six.
        Answers how many visitors there are now. They wait in the engine's queue, where the page shows them."""
        job = await self._job(request)
        if len(self._visits) >= MAX_VISITORS:
            raise APIError(429, f"there are already {MAX_VISITORS} visitors", code="queue_full")
        visit = asyncio.create_task(self._visit(job))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)
        return JSON({"here": len(self._visits)}, 202)

    async def _visit(self, job: Job) -> None:
        with contextlib.suppress(APIError):  # the queue is full, or the server is ending
            async with Run(self.service, job, in_turn=False) as run:
                await self.service.whole(run)

    async def _job(self, request: Request, *, chat: bool = False) -> Job:
        return await self._read(request, lambda body: self.service.job(body, chat=chat))

    async def _read(self, request: Request, make: Callable[[dict], T]) -> T:
        """The result of `make` for a body's fields."""
        service, body = self.service, await read_body(request, self.limits.max_body_bytes)
        try:
            fields = await service.aside(len(body), lambda: parse_json(body, self.limits.max_json_values))
            return await service.aside(len(body), lambda: make(fields), has_form=may_have_form(fields))
        except RecursionError:
            raise bad_request("the body is not valid JSON: it is nested too deeply") from None


async def no_route(request: Request, error: HTTPException) -> Response:
    """Starlette's own errors: an unknown path or method."""
    path = request.url.path
    message = f"there is no {path:.80}{HINTS.get(path.rstrip('/'), '')}"
    if error.status_code == 405:
        message = f"{path} takes {(error.headers or {}).get('Allow')}, not {request.method}"
    return error_response(APIError(error.status_code, message, headers=error.headers))


async def api_error(request: Request, error: APIError) -> Response:
    return error_response(error)


async def unexpected(request: Request, error: Exception) -> Response:
    """A bug in this program; the traceback goes to stderr."""
    return error_response(APIError(500, "the server failed on this request; its log says why"))

"""Run a server as the flags say."""

import argparse
import contextlib
import ipaddress
import os
import re
import sys

from .. import garbage
from ..exits import tell
from ..flags import options_of
from ..openai.chat import load_template
from ..openai.limits import Limits, limits_of
from ..resolve import readable
from ..stages import Stage, end_tokens, limit_threads
from ..structured_outputs import vocabulary
from .app import App
from .server import Server, listen, url
from .service import Service

FILES = 4096  # that the process may open: macOS allows 256 unless it is asked
SWITCH_SECONDS = 0.0005  # after which Python switches to a waiting thread, which is often the engine's


def serve(stage: Stage, args: argparse.Namespace) -> None:
    """Serve until a signal. Raises ValueError or OSError for flags that are wrong."""
    check(stage, args)
    allow_files()
    with listen(args.host, args.port) as listener:  # before the model is loaded, which takes longer
        service = make_service(stage, args, args.limits)
        app = App(
            service,
            api_key=args.api_key,
            log=None if args.quiet else tell,
            log_prompts=args.log_prompts,
            page=args.page,
            only_here=args.only_here,
            allow_origins=args.allow_origin,
        )
        page = " (open it in a browser; the API is under /v1)" if args.page else ""
        tell(f"Serving {service.model_name} (stage {stage.number}) on {url(listener)}{page}")
        with service.engine:
            sys.setswitchinterval(SWITCH_SECONDS)
            Server(app, args.grace).run(sockets=[listener])


def allow_files() -> None:
    """Let this process open at least FILES files, as far as the system allows."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < FILES:
            most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check(stage: Stage, args: argparse.Namespace) -> None:
    """Raise ValueError for a flag of the server that is wrong."""
    if args.name is not None:
        if args.model not in (stage.EngineConfig().model, args.name):
            raise ValueError(f"give one model, not both {args.name} and --model {args.model}")
        args.model = args.name
    stage.check_whole_number("--port", args.port, 0, 65535)
    stage.check_number("--grace", args.grace, 0, 86400)
    args.api_key = args.api_key if args.api_key is not None else os.environ.get("STAGEWISE_API_KEY")
    if args.api_key == "":
        raise ValueError("--api-key is empty: give a key, or leave it out")
    for origin in args.allow_origin:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise ValueError(
                f"--allow-origin {origin!r} is not an origin: write it as https://example.org, without a path"
            )
    if args.log_prompts and args.quiet:
        raise ValueError("--log-prompts can't be combined with --quiet, which logs nothing")
    args.limits = limits_of(args, stage)
    args.only_here = is_loopback(args.host)
    if args.page is None:
        args.page = args.only_here and args.api_key is None


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def make_service(stage: Stage, args: argparse.Namespace, limits: Limits) -> Service:
    """The service with the engine that the flags ask for."""
    template = load_template(args.chat_template, stage.tokenizer_files(args.model, args.load_format, args.tokenizer))
    options = readable(options_of(stage, args))
    engine = stage.AsyncLLM(**options)
    limit_threads(stage, engine.llm)
    if template is not None:
        template.check_tokens(engine.llm.get_tokenizer())
    if ends := end_tokens(engine.llm):
        with contextlib.suppress(ModuleNotFoundError):  # structured output is optional
            vocabulary(engine.llm.get_tokenizer(), ends)  # now: it would hold up others when the first form comes
    garbage.begin()
    name = args.served_model_name or args.model
    return Service(stage, engine, name, limits, template)

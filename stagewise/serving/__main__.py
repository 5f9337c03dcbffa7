"""The command line: `python -m stagewise serve --stage 7 --model tinytales --port 8000`.

Exit status: 0 after a signal, with the work done; 2 bad input; 130 or 143 after a second signal, at once.
"""

import argparse
import contextlib
import ipaddress
import os
import re
import sys
from pathlib import Path

from ..console import Outcome, flush_streams, prepare_streams, tell
from ..flags import add_options, options_of, pick_stage
from ..parser import Parser
from ..resolve import generation_defaults, readable
from ..stages import EXACT, SERVING, Stage, end_tokens, limit_threads
from ..structured_outputs import vocabulary
from . import __doc__ as description

try:
    from ..openai.chat import load_template
    from ..openai.limits import Limits, add_flags, limits_of
    from .app import App
    from .lanes import SWITCH_SECONDS
    from .server import Server, listen, raise_file_limit, url
    from .service import Service
except ModuleNotFoundError as error:
    command = "stagewise" if Path(sys.argv[0]).name == "stagewise" else "python -m stagewise"
    sys.exit(f'{command} serve: error: {error}; install the requirements: pip install -e ".[serve]"')


def server_parser(stage: Stage, prog: str) -> Parser:
    parser = Parser(prog=prog, description=description, allow_abbrev=False)
    add = parser.add_argument_group("serving").add_argument
    add("--stage", type=int, choices=list(SERVING), default=EXACT, help="whose engine (default: %(default)s)")
    add("--served-model-name", metavar="NAME", help="the model's name in requests (default: as --model)")
    add(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="a Jinja template that turns messages into a prompt, for /v1/chat/completions (default: the model's own)",
    )
    help = "defaults for what a request leaves out come from the model's generation_config.json, if it has one"
    add("--generation-config", action="store_true", help=help)
    help = "accept requests with unknown or unsupported fields, and name these in the log"
    add("--ignore-unknown-fields", action="store_true", help=help)
    add_options(stage, parser.add_argument_group("engine").add_argument)
    add = parser.add_argument_group("server").add_argument
    parser.add_argument("name", nargs="?", metavar="MODEL", help="the same as --model")
    add("--host", default="127.0.0.1", help="where to listen (default: %(default)s, only this machine)")
    add("--port", type=int, default=8000, metavar="N", help="0: any free port (default: %(default)s)")
    add(
        "--api-key",
        metavar="KEY",
        help="the key that clients of /v1/ must send; or set STAGEWISE_API_KEY in the environment",
    )
    add(
        "--grace",
        type=float,
        default=30,
        metavar="SECONDS",
        help="how long running requests may go on after SIGTERM or Ctrl-C (default: %(default)s)",
    )
    add(
        "--page",
        action=argparse.BooleanOptionalAction,
        help="show everything that runs, including its texts, to anyone who opens the address in a browser, and let "
        "them move its levers "
        "(default: if only this machine is served, without a key)",
    )
    add("--log-prompts", action="store_true", help="include prompts in the request log, on stderr")
    add("--quiet", action="store_true", help="no request log")
    add(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this site send requests too, as in https://example.org, and under its name; repeatable; "
        "'*': all (default: none, if only this machine is served)",
    )
    add_flags(parser.add_argument_group("limits").add_argument)
    return parser


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
    raise_file_limit(args.limits.max_connections)
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
    defaults = generation_defaults(stage, args.model, args.load_format) if args.generation_config else {}
    options = readable(options_of(stage, args))
    engine = stage.AsyncLLM(**options)
    limit_threads(stage, engine.llm)
    if template is not None:
        template.check_tokens(engine.llm.get_tokenizer())
    if ends := end_tokens(engine.llm):
        with contextlib.suppress(ModuleNotFoundError):  # structured output is optional
            vocabulary(engine.llm.get_tokenizer(), ends)  # now: it would hold up others when the first form comes
    name = args.served_model_name or args.model
    return Service(stage, engine, name, limits, template, defaults, args.ignore_unknown_fields)


def main(argv: list[str] | None = None, prog: str = "python -m stagewise serve") -> int:
    """Run the server; returns the exit status."""
    stage = pick_stage(argv, SERVING)
    prepare_streams()
    parser = server_parser(stage, prog)
    args, outcome = parser.parse_args(argv), Outcome(parser.prog)
    with outcome:
        check(stage, args)
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
    flush_streams()
    return outcome.status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # while torch is being loaded, which takes a second
        sys.exit(130)

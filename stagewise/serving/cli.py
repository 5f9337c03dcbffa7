"""Serve a model with OpenAI's HTTP interface, and show in a browser what its engine does.

    stagewise serve tinytales                             # then open http://127.0.0.1:8000
    stagewise serve gpt2 --stage 8                        # with weights in int8
    stagewise serve DIRECTORY --port 8080 --api-key KEY   # a model of your own

Read next: stagewise/serving/README.md. The engine's flags depend on --stage.

Exit status: 0 after a signal, with the work done; 2 bad input; 130 or 143 after a second signal, at once.
"""

import argparse
from pathlib import Path

from ..exits import Outcome, flush_streams, prepare_streams
from ..flags import add_options, pick_stage
from ..openai.limits import add_flags
from ..parser import Parser
from ..stages import EXACT, SERVING, Stage


def server_parser(stage: Stage, prog: str) -> Parser:
    usage = f"{prog} [MODEL] [--flag ...]"
    parser = Parser(prog=prog, usage=usage, description=__doc__, allow_abbrev=False)
    add = parser.add_argument_group("serving").add_argument
    add("--stage", type=int, choices=list(SERVING), default=EXACT, help="whose engine (default: %(default)s)")
    add("--served-model-name", metavar="NAME", help="the model's name in requests (default: as --model)")
    add(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="a Jinja template that turns messages into a prompt, for /v1/chat/completions (default: the model's own)",
    )
    add_options(stage, parser.add_argument_group("engine").add_argument)
    add = parser.add_argument_group("server").add_argument
    parser.add_argument("name", nargs="?", metavar="MODEL", help="the same as --model")
    add("--host", default="127.0.0.1", help="where to listen (default: %(default)s, only this machine)")
    add("--port", type=int, default=8000, metavar="N", help="0: any free port (default: %(default)s)")
    add(
        "--api-key",
        metavar="KEY",
        help="the key that /v1/, visitors and levers need; or set STAGEWISE_API_KEY in the environment",
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


def main(argv: list[str] | None = None, prog: str = "python -m stagewise serve") -> int:
    """Run the server; returns the exit status."""
    stage = pick_stage(argv, SERVING)
    prepare_streams()
    parser = server_parser(stage, prog)
    args, outcome = parser.parse_args(argv), Outcome(parser.prog)
    try:
        from .run import serve
    except ModuleNotFoundError as error:
        parser.error(f'the server needs more packages: pip install "stagewise[serve]" ({error})')
    with outcome:
        serve(stage, args)
    flush_streams()
    return outcome.status

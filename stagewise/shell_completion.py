"""Completion of commands and flags by the shell, written by shtab (`pip install shtab`, or the extra `completion`).

eval "$(stagewise completion bash)"          # in ~/.bashrc; of zsh: stagewise completion zsh
"""

import argparse

from .console import Outcome
from .parser import Parser


def whole_parser() -> argparse.ArgumentParser:
    """A parser of the command with those of all its subcommands."""
    from . import convert, flags, push, score
    from .__main__ import COMMANDS
    from .replay.__main__ import build_parser as of_replay
    from .stages import EXACT, STAGES

    whole = argparse.ArgumentParser("stagewise")
    subparsers = whole.add_subparsers()
    stage = STAGES[EXACT]
    made = {
        "run": flags.build_parser(stage, "", picks_stage=True),
        "batch": flags.build_parser(stage, "", picks_stage=True),
        "replay": of_replay(""),
        "convert": convert.build_parser(""),
        "score": score.build_parser(""),
        "push": push.build_parser(""),
        "completion": build_parser(""),
    }
    try:
        from .serving.__main__ import server_parser
    except SystemExit:  # what the server needs is not installed
        pass
    else:
        made["serve"] = server_parser(stage, "")
    for name, help in COMMANDS.items():
        parents = [made[name]] if name in made else []
        subparsers.add_parser(name, help=help, parents=parents, conflict_handler="resolve")
    return whole


def build_parser(prog: str) -> Parser:
    parser = Parser(prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"])
    return parser


def main(argv: list[str] | None = None, prog: str = "stagewise completion") -> int:
    args, outcome = build_parser(prog).parse_args(argv), Outcome(prog)
    with outcome:
        try:
            import shtab
        except ModuleNotFoundError:
            raise ValueError("it needs shtab, which `pip install shtab` brings") from None
        print(shtab.complete(whole_parser(), shell=args.shell))
    return outcome.status

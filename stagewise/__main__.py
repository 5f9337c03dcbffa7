"""The command `stagewise`, and `python -m stagewise`. A command's modules are imported when it runs."""

import difflib
import sys
from pathlib import Path
from typing import NoReturn

from . import __version__
from .garbage import put_off

COMMANDS = {
    "run": "complete prompts, or the lines of a file (--input, --output): stagewise run 'Once upon a time'",
    "serve": "serve an engine with OpenAI's HTTP interface: stagewise serve tinytales",
    "replay": "turn traces into a page that shows a run step by step",
    "convert": "convert a training checkpoint, or a directory in another layout, into one that a stage reads",
    "score": "score the results of a batch run against reference answers",
    "push": "upload the results of a batch run to the Hub",
}


def run(command: str, argv: list[str], prog: str) -> int:
    """Run a command; returns the exit status."""
    if command == "serve":
        from .serving.cli import main

        with put_off():
            return main(argv, prog)
    elif command == "replay":
        from .replay.cli import main
    elif command == "convert":
        from .convert import main
    elif command == "score":
        from .score import main
    elif command == "push":
        from .push import main
    else:
        from .cli import main as of_stage
        from .flags import pick_stage

        with put_off():
            return of_stage(pick_stage(argv), argv, prog, picks_stage=True)
    return main(argv, prog)


def run_stage(number: int) -> NoReturn:
    """`python -m stage03`: the command line of stage 3."""
    try:
        from .cli import main
        from .stages import STAGES

        with put_off():
            status = main(STAGES[number], sys.argv[1:], f"python -m stage{number:02}")
    except KeyboardInterrupt:  # while torch is being loaded, which takes a second
        status = 130
    sys.exit(status)


def main() -> NoReturn:
    prog = "python -m stagewise" if Path(sys.argv[0]).name == "__main__.py" else "stagewise"
    command, *argv = sys.argv[1:] or ["--help"]
    if command in ("-h", "--help"):
        print(f"usage: {prog} COMMAND ...\n")
        for name, help in COMMANDS.items():
            print(f"  {name:11}{help}")
        print(f"\n{prog} COMMAND --help shows a command's arguments; {prog} --version shows the version.")
        sys.exit(0)
    if command == "--version":
        print(f"stagewise {__version__}")
        sys.exit(0)
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"is {close[0]} meant?" if close else f"there are {', '.join(COMMANDS)}"
        print(f"{prog}: error: there is no command {command!r}; {hint}", file=sys.stderr)
        sys.exit(2)
    try:
        status = run(command, argv, f"{prog} {command}")
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()

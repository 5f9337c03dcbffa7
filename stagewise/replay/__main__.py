"""Replay a run: make a page from the traces that the stages write with --trace.

python -m stage05 --prompts "Once upon a time" "There was once a shy bear" --trace trace.jsonl
python -m stagewise replay trace.jsonl -o run.html
"""

import argparse
import sys
from pathlib import Path

from ..console import Outcome, naming, tell
from ..parser import Parser
from ..trace_file import read_trace
from . import page

MOST_TRACES = 2


def build_parser(prog: str) -> Parser:
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("traces", type=Path, nargs="+", metavar="TRACE", help="one trace, or two to show side by side")
    help = "the page; replaces an earlier page, but no other file"
    add("-o", "--output", type=Path, required=True, metavar="FILE.html", help=help)
    return parser


def check_output(path: Path, traces: list[Path]) -> None:
    """Raise ValueError or OSError if the page can't be written, or would replace some other file."""
    if path.exists() and not path.is_file():
        raise ValueError(f"-o {path} is not a regular file")
    for trace in traces:
        if path.resolve() == trace.resolve() or (path.exists() and trace.exists() and path.samefile(trace)):
            raise ValueError(f"-o {path} is already used in this command")
    if path.exists():
        with path.open("rb") as file:
            there = file.read(len(page.BEGIN))
        if there and there != page.BEGIN:
            raise ValueError(f"-o {path} exists and was not made by replay: remove it, or choose another name")


def run(args: argparse.Namespace) -> None:
    if len(args.traces) > MOST_TRACES:
        raise ValueError(f"at most {MOST_TRACES} traces, got {len(args.traces)}")
    check_output(args.output, args.traces)
    traces = [read_trace(path) for path in args.traces]
    for path, trace in zip(args.traces, traces, strict=True):
        if trace.torn:
            tell(f"{path}: the last line is incomplete and left out; {len(trace.steps)} steps remain")
    with naming(args.output):
        args.output.write_text(page.make_page(traces), encoding="utf-8")


def main(argv: list[str] | None = None, prog: str = "python -m stagewise replay") -> int:
    args, outcome = build_parser(prog).parse_args(argv), Outcome(prog)
    with outcome:
        run(args)
    return outcome.status


if __name__ == "__main__":
    sys.exit(main())

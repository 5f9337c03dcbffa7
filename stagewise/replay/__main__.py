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
from . import chrome, page

MOST_TRACES = 2


def build_parser(prog: str) -> Parser:
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("traces", type=Path, nargs="+", metavar="TRACE", help="one trace, or two to show side by side")
    add("-o", "--output", type=Path, metavar="FILE.html", help="the page; replaces an earlier page, but no other file")
    add("--chrome", type=Path, metavar="FILE.json", help="also write Chrome trace events, for ui.perfetto.dev")
    return parser


def check_output(option: str, path: Path, begin: bytes, others: list[Path]) -> None:
    """Raise ValueError or OSError if a file can't be written, or would replace some other file."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{option} {path} is not a regular file")
    for other in others:
        if path.resolve() == other.resolve() or (path.exists() and other.exists() and path.samefile(other)):
            raise ValueError(f"{option} {path} is already used in this command")
    if path.exists():
        with path.open("rb") as file:
            there = file.read(len(begin))
        if there and there != begin:
            raise ValueError(f"{option} {path} exists and was not made by replay: remove it, or choose another name")


def run(args: argparse.Namespace) -> None:
    if len(args.traces) > MOST_TRACES:
        raise ValueError(f"at most {MOST_TRACES} traces, got {len(args.traces)}")
    if args.output is None and args.chrome is None:
        raise ValueError("say where the page goes: -o FILE.html")
    made = []
    if args.output:
        check_output("-o", args.output, page.BEGIN, args.traces)
        made.append((args.output, page.make_page))
    if args.chrome:
        check_output("--chrome", args.chrome, chrome.BEGIN, args.traces + [path for path, _ in made])
        made.append((args.chrome, chrome.make_chrome))
    traces = [read_trace(path) for path in args.traces]
    for path, trace in zip(args.traces, traces, strict=True):
        if trace.torn:
            tell(f"{path}: the last line is incomplete and left out; {len(trace.steps)} steps remain")
    for path, make in made:
        with naming(path):
            path.write_text(make(traces), encoding="utf-8")


def main(argv: list[str] | None = None, prog: str = "python -m stagewise replay") -> int:
    args, outcome = build_parser(prog).parse_args(argv), Outcome(prog)
    with outcome:
        run(args)
    return outcome.status


if __name__ == "__main__":
    sys.exit(main())

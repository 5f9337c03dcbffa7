"""Make a page that shows a run step by step, from the traces that runs write with --trace.

    stagewise run "Once upon a time" "There was once a shy bear" --trace trace.jsonl
    stagewise replay trace.jsonl -o run.html
    stagewise replay docs/examples/traces/preemption.jsonl --open

Read next: stagewise/replay/README.md, whose examples each show one idea.
"""

import argparse
import tempfile
import webbrowser
from pathlib import Path

from ..exits import Outcome, naming, tell
from ..parser import Parser
from ..trace_file import read_traces
from . import page
from .story import story_of

MOST_TRACES = 2


def build_parser(prog: str) -> Parser:
    parser = Parser(prog=prog, description=__doc__)
    add = parser.add_argument
    add("traces", type=Path, nargs="+", metavar="TRACE", help="a run, or two to show side by side, in one file or two")
    add("-o", "--output", type=Path, metavar="FILE.html", help="the page; replaces an earlier page, but no other file")
    add("--open", action="store_true", help="show the page in a browser; without -o it is a temporary file")
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
    traces = [trace for path in args.traces for trace in read_traces(path)]
    if args.output is None and not args.open:
        raise ValueError("say where the page goes: -o FILE.html, or --open")
    if len(traces) > MOST_TRACES:
        raise ValueError(f"at most {MOST_TRACES} runs, got {len(traces)}")
    story = story_of(args.traces[0], traces) if len(args.traces) == 1 else None
    if args.output:
        check_output(args.output, args.traces)
    output = args.output or Path(tempfile.mkdtemp(prefix="stagewise-"), f"{args.traces[0].stem}.html")
    for trace in traces:
        if trace.torn:
            tell(f"{trace.name}: the last line is incomplete and left out; {len(trace.steps)} steps remain")
    with naming(output):
        output.write_text(page.make_page(traces, story), encoding="utf-8")
    if args.open:
        tell(f"the page is {output}")
        webbrowser.open(output.resolve().as_uri())


def main(argv: list[str] | None = None, prog: str = "python -m stagewise replay") -> int:
    args, outcome = build_parser(prog).parse_args(argv), Outcome(prog)
    with outcome:
        run(args)
    return outcome.status

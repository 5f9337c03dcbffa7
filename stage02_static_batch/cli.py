"""The command line: `--prompts "Once upon a time"` and the like.

Results go to stdout; progress, the closing line and errors to stderr. Exit status: 0 done, 2 bad input,
130 interrupted; 1 some lines of a batch file are errors.
"""

import argparse
import contextlib
import os
import sys
import time
from io import FileIO
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from .batch_file import open_output, run_batch_file
from .config import add_flags, engine_options
from .console import Outcome, flush_streams, naming, one_interrupt, prepare_streams, tell
from .dataset import HUB
from .llm import LLM
from .manifest import manifest_path
from .outputs import RequestOutput, to_json
from .sampling_params import SamplingParams
from .stats import closing_line
from .trace import BEGIN, write_trace


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """As for any other error: one line, without the usage, which --help shows."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=f"python -m {__package__}", description=sys.modules[__package__].__doc__, allow_abbrev=False)
    add = parser.add_argument_group("prompts").add_argument
    add("--prompts", nargs="+", metavar="TEXT", help="complete these texts")
    add("--prompts-file", type=Path, metavar="FILE", help="complete the lines of this file; blank lines are skipped")
    add("--input", nargs="+", metavar="FILE", help="complete the lines of these files (see batch_file.py, dataset.py)")
    add = parser.add_argument_group("output").add_argument
    add("--output", nargs="+", type=Path, metavar="FILE.jsonl", help="where the results of each --input go")
    add("--resume", action="store_true", help="continue the --output of a run that was killed")
    add("--json", action="store_true", help="print a line of JSON per result")
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a line of JSON per forward pass to this file; an earlier trace is replaced, any other file refused",
    )
    add("--quiet", action="store_true", help="no progress and no closing line")
    add_flags(parser.add_argument_group("engine").add_argument)
    defaults = SamplingParams()
    add = parser.add_argument_group("sampling").add_argument
    add("--max-tokens", type=int, default=256, metavar="N", help="longest output (default: %(default)s)")
    add("--min-tokens", type=int, default=defaults.min_tokens, metavar="N", help="shortest output")
    add("--temperature", type=float, default=0.8, help="0 is greedy (default: %(default)s)")
    add("--top-k", type=int, default=defaults.top_k, metavar="K", help="draw from the K best tokens; 0: from all")
    add("--top-p", type=float, default=defaults.top_p, metavar="P", help="draw from the best tokens that sum to P")
    add(
        "--min-p",
        type=float,
        default=defaults.min_p,
        metavar="P",
        help="draw from tokens P times as likely as the best",
    )
    add("--repetition-penalty", type=float, default=defaults.repetition_penalty, metavar="X")
    add("--presence-penalty", type=float, default=defaults.presence_penalty, metavar="X")
    add("--frequency-penalty", type=float, default=defaults.frequency_penalty, metavar="X")
    add("--stop", nargs="+", action="extend", default=[], metavar="TEXT", help="end before any of these texts")
    add("--stop-token-ids", nargs="+", type=int, action="extend", default=[], metavar="ID")
    add("--ignore-eos", action="store_true", help="go on past the end token")
    add("--logprobs", type=int, metavar="K", help="with --json: log-probabilities of each token and the K best")
    return parser


SAMPLING_ARGUMENTS = [name for name in SamplingParams.__dataclass_fields__ if name != "seed"]


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts that were asked for. Raises ValueError if there are none."""
    prompts = list(args.prompts or [])
    if args.prompts_file:
        try:
            with naming(args.prompts_file):
                lines = args.prompts_file.read_text(encoding="utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{args.prompts_file} is not UTF-8: {error.reason} at byte {error.start}") from None
        prompts += [line for line in lines if line.strip()]
    if not prompts:
        raise ValueError("no prompts: give --prompts or a --prompts-file that is not empty")
    return prompts


def check_trace(path: Path, used: list[tuple[str, str | Path | int | None]]) -> None:
    """Raise ValueError if the trace would replace what is no trace, or a file that this run uses otherwise.

    Makes the file if it is not there: a path that can't be written is an error now, not after the work.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"--trace {path} is not a regular file")
    with path.open("a+b") as file:
        streams = [("stdout", sys.__stdout__ and 1), ("stderr", sys.__stderr__ and 2)]
        for name, other in used + streams:
            if other is None or (not isinstance(other, int) and not os.path.exists(other)):
                continue
            if os.path.samestat(os.fstat(file.fileno()), os.stat(other)):
                raise ValueError(f"--trace {path} is {name} too")
        file.seek(0)
        begin = file.read(len(BEGIN))
        if not BEGIN.startswith(begin):
            raise ValueError(f"--trace {path} exists and is not a trace: remove it, or take another name")


def format_result(index: int, output: RequestOutput, total: int, as_json: bool) -> str:
    if as_json:
        return to_json({"index": index, **output.to_dict()})
    completion = output.outputs[0]
    text = output.prompt + completion.text
    if total == 1:
        return text
    return f"--- {index + 1} of {total}: {completion.finish_reason}, {len(completion.token_ids)} tokens\n{text}\n"


def complete(llm: LLM, prompts: list[str], params: SamplingParams, as_json: bool, quiet: bool) -> None:
    """Print the results in the order of the prompts, each as soon as it and those before it are done.

    Whatever ends the run early, a Ctrl-C say, what is finished by then is printed.
    """
    waiting, printed = {}, 0
    results = llm.as_completed(prompts, params)  # or an error, without a bar
    with tqdm(total=len(prompts), unit="request", disable=quiet or len(prompts) == 1) as bar:

        def show(index: int) -> None:
            with naming("stdout"):
                bar.write(format_result(index, waiting.pop(index), len(prompts), as_json), file=sys.stdout)
                sys.stdout.flush()

        try:
            for index, output in results:
                waiting[index] = output
                bar.update()
                while printed in waiting:
                    show(printed)
                    printed += 1
        finally:
            for index in sorted(waiting):
                show(index)


def stream(llm: LLM, prompt: str, params: SamplingParams) -> None:
    """Print a single completion as it is made."""
    print(prompt, end="", flush=True)
    try:
        for event in llm.stream([prompt], params):
            print(event.text, end="", flush=True)
    finally:
        print(flush=True)


def pairs_of(args: argparse.Namespace) -> list[tuple[str, Path]]:
    """Each input with its output. Raises ValueError if that is not clear."""
    sources, outputs = args.input or [], args.output or []
    if len(sources) > 1 and len(outputs) == 1 and outputs[0].is_dir():
        outputs = [outputs[0] / f"{Path(source).stem}.jsonl" for source in sources]
    if len(sources) != len(outputs):
        raise ValueError(
            f"got {len(sources)} --input and {len(outputs)} --output: give one for each, or a directory for all"
        )
    if twice := [output for i, output in enumerate(outputs) if output in outputs[:i]]:
        raise ValueError(f"--output {twice[0]} would be the output of two inputs")
    return list(zip(sources, outputs, strict=True))


def check(
    args: argparse.Namespace, files: contextlib.ExitStack
) -> tuple[list[str], SamplingParams, list[tuple[str, FileIO]]]:
    """What is to be completed, and how, and the outputs of batch files, which `files` closes. Raises ValueError or
    OSError, before the model is loaded, if it can't be."""
    if sys.stdout is None and not args.input:
        raise ValueError("stdout is closed: there is no place for the results")
    batch = args.input or args.output or args.resume
    if batch and (not (args.input and args.output) or args.prompts or args.prompts_file):
        raise ValueError("a batch file needs both --input and --output, and no --prompts")
    prompts = [] if args.input else read_prompts(args)
    params = SamplingParams(**{name: getattr(args, name) for name in SAMPLING_ARGUMENTS})
    outputs = [
        (source, files.enter_context(open_output(source, output, args.resume))) for source, output in pairs_of(args)
    ]
    if args.trace:
        used = [("--input", source) for source in args.input or [] if not source.startswith(HUB)]
        used += [("--output", file.name) for _, file in outputs] + [("--prompts-file", args.prompts_file)]
        used += [("the manifest of --output", manifest_path(file.name)) for _, file in outputs]
        check_trace(args.trace, used)
    return prompts, params, outputs


def complete_files(
    llm: LLM, files: list[tuple[str, FileIO]], params: SamplingParams, outcome: Outcome, quiet: bool
) -> None:
    """Complete the lines of each --input."""
    for source, output in files:
        total, errors = run_batch_file(llm, source, output, params, quiet=quiet)
        if errors:
            tell(f"{outcome.prog}: {errors} of {total} lines are errors, see {output.name}")
            outcome.status = 1


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    prepare_streams()
    parser = build_parser()
    args = parser.parse_args(argv)
    llm, outcome, started = None, Outcome(parser.prog), time.perf_counter()
    with one_interrupt(), contextlib.ExitStack() as files:
        try:
            with outcome:
                prompts, params, outputs = check(args, files)
                llm = LLM(**engine_options(args), trace=args.trace is not None)
                if not args.quiet:
                    tell(f"{args.model} on {llm.engine.runner.describe()}")
                started = time.perf_counter()
                if outputs:
                    complete_files(llm, outputs, params, outcome, args.quiet)
                elif len(prompts) == 1 and sys.stdout.isatty() and not args.json:
                    stream(llm, prompts[0], params)
                else:
                    complete(llm, prompts, params, args.json, args.quiet)
        finally:
            if llm is not None and args.trace:
                with outcome:
                    write_trace(args.trace, llm.engine.tracer)
    if llm is not None and not args.quiet and outcome.status != 2:
        tell(closing_line(llm.stats, time.perf_counter() - started))
    flush_streams()
    return outcome.status

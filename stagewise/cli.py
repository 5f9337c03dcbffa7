"""The command line of every stage: `--prompts "Once upon a time"` and the like. It offers what the stage can do.

Results go to stdout; progress, the closing line and errors to stderr. Exit status: 0 done, 2 bad input,
130 interrupted; 1 some lines of a batch file are errors.
"""

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import FileIO
from typing import Any

from . import garbage
from .batch_file import How, LineReader, check_some, failure, open_output, run_batch_file
from .console import Wrapper, closing_line, is_terminal, progress_bar, wrapped
from .dataset import STDIN, Dataset, check_columns, check_dataset, read_bytes, read_dataset
from .exits import Outcome, flush_streams, naming, one_interrupt, prepare_streams, tell
from .flags import build_parser, check_flags, given_flags, how_of, options_of, pairs_of
from .resolve import readable
from .results import as_dict
from .sampling import cut_hint
from .stages import Stage, limit_threads
from .strict_json import to_json
from .trace_file import check_trace, write_trace
from .tracing import Trace


def read_prompts(stage: Stage, args: argparse.Namespace) -> list[str]:
    """The prompts from the flags and their file. Raises ValueError if there are none."""
    prompts = [*args.texts, *(args.prompts or [])]
    if args.prompts_file:
        name = str(args.prompts_file)
        try:
            lines = read_bytes(name).decode("utf-8-sig").replace("\r\n", "\n").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
        prompts += [line for line in lines if line.strip()]
    if not prompts and args.prompts_file:
        raise ValueError(f"no prompts: {args.prompts_file} has only blank lines")
    if not prompts:
        more = ", or --interactive to type them as you go" if stage.can_serve else ""
        raise ValueError(f"no prompts: add one in quotes, such as 'Once upon a time'{more}; --help shows the rest")
    return prompts


def format_result(index: int, output: Any, total: int, as_json: bool) -> str:
    if as_json:
        return to_json({"index": index, **as_dict(output)})
    if total == len(output.outputs) == 1:
        return output.prompt + output.outputs[0].text
    results = []
    for completion in output.outputs:
        which = f"{index + 1} of {total}" + (f", completion {completion.index + 1}" if len(output.outputs) > 1 else "")
        results.append(f"--- {which}: {completion.finish_reason}, {len(completion.token_ids)} tokens\n")
        results.append(f"{output.prompt}{completion.text}\n")
    return "".join(results)


@contextlib.contextmanager
def counted_from_one() -> Iterator[None]:
    """Errors name a prompt as a person counts."""
    try:
        yield
    except ValueError as error:
        raise ValueError(re.sub(r"^prompt (\d+)", lambda of: f"prompt {int(of[1]) + 1}", str(error))) from None


@cut_hint()
def complete(
    llm: Any, prompts: list[Any], params: Any, as_json: bool, quiet: bool, beam_width: int | None, texts: list[str]
) -> list[str]:
    """Print the results in the order of the prompts, each as soon as it and all before it are done; returns the errors
    of the failed ones. texts: the prompts as given, which may have been truncated since.

    If something ends the run early, such as Ctrl-C, the finished results are printed. Beam searches end together.
    """
    waiting, printed, errors = {}, 0, []
    if beam_width is None:
        results = llm.as_completed(prompts, params)  # bad input raises here, before the bar is drawn
    else:
        results = enumerate(llm.beam_search(prompts, beam_width, params.max_tokens))
    with progress_bar(len(prompts), "request", quiet=quiet or len(prompts) == 1) as progress:

        def show(index: int) -> None:
            output = replace(waiting.pop(index), prompt=texts[index])
            errors.extend(f"prompt {index + 1}: {message}" for message in [failure(output)] if message)
            text = format_result(index, output, len(prompts), as_json)
            with naming("stdout"):
                progress.write(wrapped(text) if sys.stdout.isatty() and not as_json else text, file=sys.stdout)
                sys.stdout.flush()

        try:
            for index, output in results:
                waiting[index] = output
                progress.update()
                while printed in waiting:
                    show(printed)
                    printed += 1
        finally:
            for index in sorted(waiting):
                show(index)
    return errors


@cut_hint()
def stream(llm: Any, prompt: Any, params: Any, given: str) -> list[str]:
    """Print a single completion as it is generated; returns its error, if it failed."""
    text, errors = Wrapper(lambda piece: print(piece, end="", flush=True)), []
    text.feed(given)
    try:
        for event in llm.stream([prompt], params):
            text.feed(event.text)
            errors += [event.stop_reason] if event.finish_reason == "error" else []
        return errors
    finally:
        text.end()
        print(flush=True)


def check(
    stage: Stage, args: argparse.Namespace, files: contextlib.ExitStack
) -> tuple[list[str], How, list[tuple[Dataset, FileIO]]]:
    """The prompts, how to complete them, and each batch input with its output file, which `files` closes. Raises
    ValueError or OSError for bad input, before the model is loaded."""
    if args.interactive and not is_terminal():
        raise ValueError("--interactive needs a terminal; --prompts-file - completes the lines of a pipe")
    prompts = [] if args.input or args.interactive else read_prompts(stage, args)
    how, datasets = how_of(stage, args), []
    for source, _ in pairs_of(args):
        check_dataset(source)
        datasets.append(dataset := read_dataset(source))
        check_columns(dataset, how.columns)
        reader = LineReader(stage, stage.EngineConfig(**options_of(stage, args)), how)
        check_some((reader.read_line(raw, number) for number, raw in dataset.rows), source)
    paths = [(dataset, output) for dataset, (_, output) in zip(datasets, pairs_of(args), strict=True)]
    outputs = [(one, files.enter_context(open_output(one.name, output, args.resume))) for one, output in paths]
    if args.trace:
        check_trace(args.trace)  # after the outputs are made, which it must not replace
    return prompts, how, outputs


def complete_files(
    stage: Stage, llm: Any, files: list[tuple[Dataset, FileIO]], how: How, outcome: Outcome, **more: Any
) -> None:
    """Complete the lines of each --input. more: further arguments of `run_batch_file`."""
    for dataset, output in files:
        total, errors = run_batch_file(stage, llm, dataset, output, how, **more)
        if errors:
            tell(f"{outcome.prog}: {errors} of {total} lines are errors, see {output.name}")
            outcome.status = 1


def main(stage: Stage, argv: list[str], prog: str, *, picks_stage: bool = False) -> int:
    """Run the command line of a stage; returns the exit status. prog: how the user calls it."""
    prepare_streams()
    parser = build_parser(stage, prog, picks_stage=picks_stage)
    args, outcome, started = parser.parse_args(argv), Outcome(prog), time.perf_counter()
    with outcome:
        check_flags(stage, args, given_flags(parser, argv))
    if outcome.status:
        return outcome.status
    llm = trace = None
    worked = None  # the seconds with work to do, if that is not the whole run
    if args.ray:
        from .scaleout.cli import run

        garbage.begin()  # the engines are in other processes
        return run(stage, args, prog)
    with one_interrupt(), contextlib.ExitStack() as files:
        try:
            with outcome, counted_from_one():
                prompts, how, outputs = check(stage, args, files)
                sampling, beam_width = how.sampling, args.beam_width
                options = readable(options_of(stage, args), (lambda _: None) if args.quiet else tell)
                engine = stage.AsyncLLM(**options) if args.interactive else None
                llm = engine.llm if engine else stage.LLM(**options)
                garbage.begin()
                limit_threads(stage, llm)
                trace = Trace(llm) if args.trace else None
                if not args.quiet:
                    tell(f"{args.model} on {llm.describe()}")
                params, started = sampling.params_for(llm), time.perf_counter()
                texts, prompts = prompts, [sampling.prompt(llm, prompt) for prompt in prompts]
                if engine:
                    from .interactive import converse

                    with engine:
                        worked = converse(lambda prompt: engine.generate(sampling.prompt(llm, prompt), params))
                elif outputs:
                    if STDIN not in args.input:  # which can't be read again
                        outcome.goes_on = "run the same command with --resume to continue"
                    complete_files(stage, llm, outputs, how, outcome, quiet=args.quiet)
                elif len(prompts) == args.n == 1 and beam_width is None and sys.stdout.isatty() and not args.json:
                    outcome.failed(stream(llm, prompts[0], params, texts[0]))
                else:
                    outcome.failed(complete(llm, prompts, params, args.json, args.quiet, beam_width, texts))
        finally:
            if trace is not None:
                with outcome:
                    write_trace(args.trace, trace)
    if llm is not None and not args.quiet and outcome.status != 2:
        seconds = time.perf_counter() - started if worked is None else worked
        at_once = llm.config.max_num_seqs if args.input else None
        tell(closing_line(stage, llm.stats, seconds, args.json, args.stats, at_once))
    flush_streams()
    return outcome.status

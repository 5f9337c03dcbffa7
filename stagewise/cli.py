"""The command line of every stage: `--prompts "Once upon a time"` and the like. It offers what the stage can do.

Results go to stdout; progress, the closing line and errors to stderr. Exit status: 0 done, 2 bad input,
130 interrupted; 1 some lines of a batch file are errors.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .batch_file import open_output, run_batch_file
from .beams import Beams, completed_by_beams, drawing
from .closing_line import closing_line
from .console import Outcome, Parser, flush_streams, naming, one_interrupt, prepare_streams, tell
from .dataset import HUB, Columns, check_columns, check_dataset
from .interactive import converse
from .manifest import manifest_path
from .scaleout.flags import add_flags as add_cluster_flags
from .stages import NEWEST, PACKAGES, STAGES, Stage
from .strict_json import to_json
from .trace_file import check_trace, write_trace


def pair(text: str) -> tuple[int, float]:
    """The value of --logit-bias: 50256=-100."""
    token_id, _, bias = text.partition("=")
    return int(token_id), float(bias)


class Pairs(argparse.Action):
    """Pairs as a dictionary."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), **dict(values)})


# The flags of SamplingParams' fields, of those that a stage has; the seed is an option of the engine.
SAMPLING = {
    "max_tokens": dict(type=int, default=256, metavar="N", help="longest output (default: %(default)s)"),
    "min_tokens": dict(type=int, metavar="N", help="shortest output"),
    "temperature": dict(type=float, default=0.8, help="0 is greedy (default: %(default)s)"),
    "top_k": dict(type=int, metavar="K", help="draw from the K best tokens; 0: from all"),
    "top_p": dict(type=float, metavar="P", help="draw from the best tokens that sum to P"),
    "min_p": dict(type=float, metavar="P", help="draw from tokens P times as likely as the best"),
    "repetition_penalty": dict(type=float, metavar="X"),
    "presence_penalty": dict(type=float, metavar="X"),
    "frequency_penalty": dict(type=float, metavar="X"),
    "stop": dict(nargs="+", action="extend", default=[], metavar="TEXT", help="end before any of these texts"),
    "stop_token_ids": dict(nargs="+", type=int, action="extend", default=[], metavar="ID"),
    "ignore_eos": dict(action="store_true", help="go on past the end token"),
    "n": dict(type=int, metavar="N", help="completions of each prompt (default: %(default)s)"),
    "logprobs": dict(type=int, metavar="K", help="with --json: log-probabilities of each token and the K best"),
    "logit_bias": dict(
        nargs="+", type=pair, action=Pairs, default={}, metavar="ID=X", help="add X to the logit of token ID"
    ),
    "bad_words": dict(nargs="+", action="extend", default=[], metavar="TEXT", help="texts that no output may contain"),
    "allowed_token_ids": dict(
        nargs="+", type=int, action="extend", metavar="ID", help="choose from these tokens alone"
    ),
    "include_stop_str_in_output": dict(action="store_true", help="end behind the stop text"),
    "skip_special_tokens": dict(action=argparse.BooleanOptionalAction, default=True, help="no text for the end token"),
    "truncate_prompt_tokens": dict(type=int, metavar="N", help="of longer prompts take the last N tokens"),
    "prompt_logprobs": dict(type=int, metavar="K", help="the same of the prompt's tokens; --max-tokens may be 0 then"),
}


def pick_stage(argv: list[str] | None, numbers: Iterable[int] = PACKAGES) -> Stage:
    """The stage that --stage names: the other flags depend on it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--stage", nargs="?")
    number = str(parser.parse_known_args(argv)[0].stage)
    return STAGES[int(number) if number.isdecimal() and int(number) in numbers else NEWEST]


def build_parser(stage: Stage, prog: str, *, picks_stage: bool = False) -> Parser:
    """The flags that the stage has use for. picks_stage: --stage is one, see `pick_stage`."""
    parser = Parser(prog=prog, description=stage.description, allow_abbrev=False)
    parser.set_defaults(input=None, output=None, resume=False, interactive=False, ray=None, policy=None, n=1)
    parser.set_defaults(beam_width=None, prompt_column="prompt", id_column="id")
    if picks_stage:
        parser.add_argument(
            "--stage", type=int, choices=list(PACKAGES), default=NEWEST, help="whose engine (default: %(default)s)"
        )
    add = parser.add_argument_group("prompts").add_argument
    add("--prompts", nargs="+", metavar="TEXT", help="complete these texts")
    add("--prompts-file", type=Path, metavar="FILE", help="complete the lines of this file; blank lines are skipped")
    if stage.can_serve:
        add("--interactive", action="store_true", help="type prompts and watch them stream (see interactive.py)")
    if stage.is_batched:
        help = "complete the lines of these files (see batch_file.py, dataset.py)"
        add("--input", nargs="+", metavar="FILE", help=help)
        add("--prompt-column", default="prompt", metavar="NAME", help="the field of --input that has the prompt")
        add("--id-column", default="id", metavar="NAME", help="the field of --input that has the id")
    add = parser.add_argument_group("output").add_argument
    if stage.is_batched:
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
    stage.EngineConfig.add_flags(parser.add_argument_group("engine").add_argument)
    add, defaults = parser.add_argument_group("sampling").add_argument, stage.SamplingParams()
    for name, flag in SAMPLING.items():
        if hasattr(defaults, name):
            default = {} if "action" in flag else {"default": getattr(defaults, name)}
            add("--" + name.replace("_", "-"), **(default | flag))
    if stage.has_beams:
        add(
            "--beam-width",
            type=int,
            metavar="N",
            help="search for the N best completions of each prompt; draws nothing",
        )
        add("--length-penalty", type=float, default=1.0, metavar="X", help="of beams: over 0 prefers longer ones")
        help = (
            "when a search ends: false (the best beam is no better), true (N have ended), never (none can get better)"
        )
        add("--early-stopping", choices=["false", "true", "never"], default="false", help=help)
    add("--generation-config", action="store_true", help="defaults are those of the model's generation_config.json")
    if stage.can_serve:
        add_cluster_flags(parser)
    return parser


def sampling_params(stage: Stage, args: argparse.Namespace) -> Any:
    """What the flags ask of the sampler. Raises ValueError if it can't be."""
    names = stage.SamplingParams.__dataclass_fields__.keys() & SAMPLING.keys()
    return stage.SamplingParams(**{name: getattr(args, name) for name in names})


def beams_of(stage: Stage, args: argparse.Namespace, params: Any) -> Beams | None:
    """The beam search that the flags ask for. Raises ValueError beside what a search has no use for."""
    if args.beam_width is None:
        return None
    if args.interactive:
        raise ValueError("--beam-width is for prompts and files: a search has no tokens to stream")
    if idle := [*drawing(stage, params), *(["n"] if args.n > 1 else [])]:
        raise ValueError(f"--{idle[0].replace('_', '-')} can't go with --beam-width, which draws nothing")
    stage.check_whole_number("--beam-width", args.beam_width, 1)
    stopping = {"false": False, "true": True, "never": "never"}[args.early_stopping]
    return Beams(args.beam_width, args.length_penalty, stopping)


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


def format_result(index: int, output: Any, total: int, as_json: bool) -> str:
    if as_json:
        return to_json({"index": index, **output.to_dict()})
    if total == len(output.outputs) == 1:
        return output.prompt + output.outputs[0].text
    results = []
    for completion in output.outputs:
        which = f"{index + 1} of {total}" + (f", completion {completion.index + 1}" if len(output.outputs) > 1 else "")
        limit = f" ({completion.length_limit})" if completion.length_limit == "max_model_len" else ""
        results.append(f"--- {which}: {completion.finish_reason}{limit}, {len(completion.token_ids)} tokens\n")
        results.append(f"{output.prompt}{completion.text}\n")
    return "".join(results)


def complete(llm: Any, prompts: list[str], params: Any, as_json: bool, quiet: bool, beams: Beams | None = None) -> None:
    """Print the results in the order of the prompts, each as soon as it and those before it are done.

    Whatever ends the run early, a Ctrl-C say, what is finished by then is printed.
    """
    waiting, printed = {}, 0
    if beams is None:
        results = llm.as_completed(prompts, params)  # or an error, without a bar
    else:
        results = completed_by_beams(llm, beams)(prompts, [params] * len(prompts))
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


def stream(llm: Any, prompt: str, params: Any) -> None:
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
    stage: Stage, args: argparse.Namespace, files: contextlib.ExitStack
) -> tuple[list[str], Any, list[tuple[str, FileIO]]]:
    """What is to be completed, and how, and the outputs of batch files, which `files` closes. Raises ValueError or
    OSError, before the model is loaded, if it can't be."""
    if sys.stdout is None and not args.input:
        raise ValueError("stdout is closed: there is no place for the results")
    batch = args.input or args.output or args.resume
    if batch and (not (args.input and args.output) or args.prompts or args.prompts_file):
        raise ValueError("a batch file needs both --input and --output, and no --prompts")
    if args.interactive and args.n > 1:
        raise ValueError("--interactive shows one completion of a prompt, not --n of them")
    if args.interactive and (args.input or args.prompts or args.prompts_file or args.json):
        raise ValueError("--interactive reads its prompts from the terminal, and prints text")
    if args.interactive and sys.stdin is None:
        raise ValueError("--interactive reads its prompts from stdin, which is closed")
    if args.policy == "priority" and not args.input:
        raise ValueError("--policy priority needs --input, whose lines may have a priority")
    prompts = [] if args.input or args.interactive else read_prompts(args)
    params = sampling_params(stage, args)
    columns = Columns(args.prompt_column, args.id_column)
    if columns != Columns() and not args.input:
        raise ValueError("--prompt-column and --id-column are for --input")
    for source, _ in pairs_of(args):
        check_dataset(source)
        check_columns(source, columns)
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
    stage: Stage, llm: Any, files: list[tuple[str, FileIO]], params: Any, outcome: Outcome, quiet: bool, **more: Any
) -> None:
    """Complete the lines of each --input. more: as of `run_batch_file`."""
    for source, output in files:
        total, errors = run_batch_file(stage, llm, source, output, params, quiet=quiet, **more)
        if errors:
            tell(f"{outcome.prog}: {errors} of {total} lines are errors, see {output.name}")
            outcome.status = 1


def main(stage: Stage, argv: list[str], prog: str, *, picks_stage: bool = False) -> int:
    """Run the command line of a stage; returns the exit status. prog: how the user calls it."""
    prepare_streams()
    parser = build_parser(stage, prog, picks_stage=picks_stage)
    args, llm, outcome, started = parser.parse_args(argv), None, Outcome(prog), time.perf_counter()
    if args.generation_config:
        with outcome:
            parser.set_defaults(**stage.generation_defaults(args.model, args.load_format))
            args = parser.parse_args(argv)
        if outcome.status:
            return outcome.status
    if args.ray:
        from .scaleout.cli import run

        return run(stage, args, prog)
    with one_interrupt(), contextlib.ExitStack() as files:
        try:
            with outcome:
                prompts, params, outputs = check(stage, args, files)
                beams = beams_of(stage, args, params)
                options = {**stage.EngineConfig.of_flags(args), "trace": args.trace is not None}
                engine = stage.AsyncLLM(**options) if args.interactive else None
                llm = engine.llm if engine else stage.LLM(**options)
                if not args.quiet:
                    tell(f"{args.model} on {llm.describe()}")
                started = time.perf_counter()
                if engine:
                    with engine:
                        asyncio.run(converse(engine, params))
                elif outputs:
                    more = {"beams": beams, "columns": Columns(args.prompt_column, args.id_column)}
                    complete_files(stage, llm, outputs, params, outcome, args.quiet, **more)
                elif len(prompts) == args.n == 1 and beams is None and sys.stdout.isatty() and not args.json:
                    stream(llm, prompts[0], params)
                else:
                    complete(llm, prompts, params, args.json, args.quiet, *([] if beams is None else [beams]))
        finally:
            if llm is not None and args.trace:
                with outcome:
                    write_trace(args.trace, llm)
    if llm is not None and not args.quiet and outcome.status != 2:
        tell(closing_line(stage, llm.stats, time.perf_counter() - started, args.json))
    flush_streams()
    return outcome.status

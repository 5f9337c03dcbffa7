"""The flags of the command line: which ones a stage has, and what they mean."""

import argparse
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

from .batch_file import How
from .dataset import Columns
from .exits import naming
from .parser import Parser, num_bytes
from .sampling import MORE_FIELDS, Sampling
from .stages import EXACT, PACKAGES, STAGES, Stage


def pair(text: str) -> tuple[int, float]:
    """The value of --logit-bias: 50256=-100."""
    token_id, _, bias = text.partition("=")
    return int(token_id), float(bias)


def form(text: str) -> dict:
    """The value of --structured-outputs, as JSON."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def positive(text: str) -> int:
    """The value of --actors, and of --cpus-per-actor."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


class Pairs(argparse.Action):
    """Pairs as a dictionary."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), **dict(values)})


# The flags of the sampling fields that a stage has; the seed is an option of the engine.
SAMPLING = {
    "max_tokens": dict(type=int, default=256, metavar="N", help="longest output (default: %(default)s)"),
    "min_tokens": dict(type=int, metavar="N", help="shortest output"),
    "temperature": dict(type=float, default=0.8, metavar="T", help="0 is greedy (default: %(default)s)"),
    "top_k": dict(type=int, metavar="K", help="draw from the K best tokens; 0: from all"),
    "top_p": dict(type=float, metavar="P", help="draw from the best tokens that sum to P"),
    "min_p": dict(type=float, metavar="P", help="draw from tokens P times as likely as the best"),
    "repetition_penalty": dict(
        type=float, metavar="X", help="over 1: tokens of the prompt and the output become less likely"
    ),
    "presence_penalty": dict(type=float, metavar="X", help="subtract X from the logit of each token of the output"),
    "frequency_penalty": dict(type=float, metavar="X", help="the same, as often as the output has the token"),
    "stop": dict(nargs="+", action="extend", default=[], metavar="TEXT", help="end before any of these texts"),
    "stop_token_ids": dict(
        nargs="+", type=int, action="extend", default=[], metavar="ID", help="end at any of these tokens"
    ),
    "ignore_eos": dict(action="store_true", help="go on past the end token"),
    "n": dict(type=int, metavar="N", help="completions of each prompt (default: %(default)s)"),
    "logprobs": dict(type=int, metavar="K", help="with --json: log-probabilities of each token and the K best"),
    "prompt_logprobs": dict(type=int, metavar="K", help="the same for the prompt's tokens; then --max-tokens may be 0"),
    "logit_bias": dict(
        nargs="+", type=pair, action=Pairs, default={}, metavar="ID=X", help="add X to the logit of token ID"
    ),
    "bad_words": dict(nargs="+", action="extend", default=[], metavar="TEXT", help="texts that no output may contain"),
    "allowed_token_ids": dict(nargs="+", type=int, action="extend", metavar="ID", help="choose only from these tokens"),
    "structured_outputs": dict(
        type=form,
        metavar="JSON",
        help='form of the output: {"json": SCHEMA}, or regex, choice, grammar, json_object',
    ),
    "include_stop_str_in_output": dict(action="store_true", help="end after the stop string"),
    "skip_special_tokens": dict(
        action=argparse.BooleanOptionalAction,
        default=True,
        help="leave special tokens, such as the end token, out of the text (the default)",
    ),
    "truncate_prompt_tokens": dict(type=int, metavar="N", help="keep only the last N tokens of longer prompts"),
}

PROMPTS = ("texts", "prompts", "prompts_file")
DRAWING = [name for name in SAMPLING if name not in ("max_tokens", "temperature")] + ["seed", "speculate", "num_drafts"]
SCORES = (*DRAWING, "max_tokens", "temperature", "beam_width"), "which generates nothing"
# A flag, the flags that can't be combined with it, and why.
EXCLUDES = {
    **dict.fromkeys(("score", "choices", "choices_column"), SCORES),
    "beam_width": ((*DRAWING, "temperature"), "which draws nothing"),
    "interactive": ((*PROMPTS, "json", "n", "beam_width"), "which reads prompts from the terminal and streams texts"),
    "structured_outputs": (("stop", "stop_token_ids", "include_stop_str_in_output"), "which says where an output ends"),
    "input": ((*PROMPTS, "interactive"), "which has the prompts"),
    "ray": (("trace", "json", "stats"), "whose engines are in other processes"),
    "quiet": (("stats",), "which prints none"),
}
# A flag, and the flags of which it needs one.
NEEDS = {
    **dict.fromkeys(("prompt_column", "prompt_template", "id_column", "chat_template"), ("input",)),
    **dict.fromkeys(("choices_column", "choices", "score", "ray", "output", "resume"), ("input",)),
    **dict.fromkeys(("actors", "cpus_per_actor", "gpus_per_actor"), ("ray",)),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), ("json", "input")),
    "include_stop_str_in_output": ("stop", "input"),
    "input": ("output",),
}


def add_options(stage: Stage, add: Callable[..., Any]) -> None:
    """A flag for each option of the stage's engine. add: `ArgumentParser.add_argument`"""
    for option in sorted(stage.options, key=lambda option: option.kw_only is True):  # keyword-only last
        settings = {"name": "--" + option.name.replace("_", "-"), "help": option.metadata["help"]}
        settings |= option.metadata["flag"]
        name, help, kind = settings.pop("name"), settings.pop("help"), (*get_args(option.type), option.type)[0]
        if name is None:
            continue
        if kind is bool:
            settings["action"] = "store_false" if option.default else "store_true"
        else:
            settings["default"] = list(option.default) if isinstance(option.default, tuple) else option.default
            help += "" if option.default in (None, ()) or "default" in help else " (default: %(default)s)"
        help = re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda name: f"--{name[0].replace('_', '-')}", help)  # other options
        if kind is str and (names := inspect.getclosurevars(option.metadata["check"]).nonlocals.get("names")):
            settings["metavar"] = f"{{{','.join(names)}}}"  # the option may be one of them
        if option.name.endswith("_bytes"):
            settings, help = {"type": num_bytes, "metavar": "SIZE", **settings}, f"{help}, such as 8GB or 512MiB"
        elif kind in (int, float):
            settings = {"type": kind, "metavar": "N", **settings}
        add(name, dest=option.name, help=help, **settings)


def options_of(stage: Stage, args: argparse.Namespace) -> dict[str, Any]:
    """The options of the stage's engine by name, as the flags gave them. Raises ValueError."""
    if getattr(args, "speculate", None) == "off" and args.num_drafts != "auto":
        raise ValueError("--num-drafts can't be combined with --speculate off, which drafts nothing")
    return {
        option.name: getattr(args, option.name) for option in stage.options if option.metadata["flag"].get("name", True)
    }


def pick_stage(argv: list[str] | None, numbers: Iterable[int] = PACKAGES) -> Stage:
    """The stage that --stage names: the other flags depend on it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--stage", nargs="?")
    argv = sys.argv[1:] if argv is None else argv
    number = str(parser.parse_known_args(argv)[0].stage)
    return STAGES[int(number) if number.isdecimal() and int(number) in numbers else EXACT]


def stages_that_have(flag: str) -> list[int]:
    """The numbers of the stages whose command line has a flag."""
    return [number for number, stage in STAGES.items() if flag in build_parser(stage, "")._option_string_actions]


def described(stage: Stage, prog: str, picks_stage: bool) -> str:
    """What --help begins with: what the command does, three ways to use it, and what to read next."""
    what = "Complete prompts, or the lines of files." if picks_stage else stage.description
    files = "--input questions.jsonl --output answers.jsonl" if stage.is_batched else "--prompts-file FILE --json"
    ways = ['"Once upon a time"', '"The capital of France is" --model gpt2 --temperature 0', files]
    ways += ["--interactive"] if stage.can_serve else []
    pages = f"Read next: docs/USING.md, and the chapter, {stage.package}/README.md."
    more = f" The flags are those of stage {stage.number}; --stage N shows another's." if picks_stage else ""
    return "\n".join([what, "", *(f"    {prog} {way}" for way in ways), "", pages + more])


def build_parser(stage: Stage, prog: str, *, picks_stage: bool = False) -> Parser:
    """The flags that the stage uses. picks_stage: --stage is one of them, see `pick_stage`."""
    usage = f"{prog} [TEXT ...] [--flag ...]"
    parser = Parser(prog=prog, usage=usage, description=described(stage, prog, picks_stage), allow_abbrev=False)
    parser.others_that_have = stages_that_have
    parser.set_defaults(input=None, output=None, resume=False, interactive=False, ray=None, policy=None, n=1)
    parser.set_defaults(beam_width=None)
    parser.set_defaults(prompt_column="prompt", prompt_template=None, id_column="id")
    parser.set_defaults(choices_column=None, choices=None, score=None, chat_template=None)
    if picks_stage:
        parser.add_argument(
            "--stage", type=int, choices=list(PACKAGES), default=EXACT, help="whose engine (default: %(default)s)"
        )
    add = parser.add_argument_group("prompts").add_argument
    add("texts", nargs="*", metavar="TEXT", help="complete these texts")
    add("--prompts", nargs="+", metavar="TEXT", help="the same")
    help = "complete the lines of this file, or of stdin (-); blank lines are skipped"
    add("--prompts-file", type=Path, metavar="FILE", help=help)
    if stage.can_serve:
        add("--interactive", action="store_true", help="type prompts and watch them stream")
    if stage.is_batched:
        help = "complete the lines of these files: JSON lines, JSON, CSV, TSV or parquet; - is stdin"
        add("--input", nargs="+", metavar="FILE", help=help)
        help = "the field of --input with the prompt; a nested field is OUTER.INNER"
        add("--prompt-column", default="prompt", metavar="NAME", help=help)
        help = r"makes the prompt from several fields, as in 'Question: {question}\nAnswer:'"
        add("--prompt-template", type=lambda text: text.replace(r"\n", "\n"), metavar="TEXT", help=help)
        add("--id-column", default="id", metavar="NAME", help="the field of --input with the id")
        help = "a Jinja template that turns the chats in --input into prompts (default: the model's own)"
        add("--chat-template", type=Path, metavar="FILE", help=help)
    if stage.can_score:
        help = "score instead of completing: which of the texts in this field of --input is the likeliest?"
        add("--choices-column", metavar="NAME", help=help)
        add("--choices", nargs="+", metavar="TEXT", help="the same, with these texts after each prompt")
        help = "how likely is each prompt of --input as a text, or its last word after the others?"
        add("--score", choices=["text", "last-word"], help=help)
    add = parser.add_argument_group("output").add_argument
    if stage.is_batched:
        add("--output", nargs="+", type=Path, metavar="FILE.jsonl", help="where the results of each --input go")
        add("--resume", action="store_true", help="continue the --output of an interrupted run")
    add("--json", action="store_true", help="print a line of JSON per result")
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="at the end, write a line of JSON per forward pass (until then all are in memory); may replace an earlier "
        "trace, but no other file",
    )
    add("--stats", action="store_true", help="after the closing line, show what the run waited for and wasted")
    add("--quiet", action="store_true", help="no progress and no closing line")
    add_options(stage, parser.add_argument_group("engine").add_argument)
    add, defaults = parser.add_argument_group("sampling").add_argument, stage.sampling
    for name, flag in SAMPLING.items():
        if hasattr(defaults, name) or name in MORE_FIELDS:
            default = {} if "action" in flag else {"default": getattr(defaults, name, None)}
            add("--" + name.replace("_", "-"), **(default | flag))
    if stage.has_beams:
        add(
            "--beam-width",
            type=int,
            metavar="N",
            help="search for the N best completions of each prompt; draws nothing",
        )
    if stage.can_serve:
        add = parser.add_argument_group("cluster").add_argument
        help = "run --input on a cluster; auto: this machine's, or a new one on this machine alone"
        add("--ray", metavar="ADDRESS", help=help)
        add("--actors", type=positive, metavar="N", help="how many engines, with --ray (default: 1)")
        add("--cpus-per-actor", type=positive, metavar="N", help="cores for each engine, with --ray (default: 1)")
        add("--gpus-per-actor", type=float, metavar="N", help="GPUs for each engine, with --ray (default: 0)")
    return parser


def given_flags(parser: Parser, argv: list[str]) -> set[str]:
    """The flags given on the command line, as attribute names."""
    words = itertools.takewhile(lambda word: word != "--", argv)
    known = {flag: action.dest for flag, action in parser._option_string_actions.items()}
    return {known[flag] for word in words if (flag := word.partition("=")[0]) in known}


def check_flags(stage: Stage, args: argparse.Namespace, given: set[str]) -> None:
    """Raise ValueError for a flag that would have no effect in this run."""
    given = (given | ({"texts"} if args.texts else set())) - ({"n"} if args.n == 1 else set())
    if args.beam_width is not None:
        stage.check_whole_number("--beam-width", args.beam_width, 1)
        given -= {"temperature"} if args.temperature == 0 else set()
        if "input" in given:
            raise ValueError("--beam-width can't be combined with --input: it searches for prompts of the command line")

    def flag(name: str) -> str:
        return "TEXT" if name == "texts" else f"--{name.replace('_', '-')}"

    for name, (others, why) in EXCLUDES.items():
        if name in given and (idle := [other for other in others if other in given]):
            raise ValueError(f"{flag(idle[0])} can't be combined with {flag(name)}, {why}")
    for name, others in NEEDS.items():
        if name in given and given.isdisjoint(others):
            there = [other for other in others if other != "input" or stage.is_batched]
            raise ValueError(f"{flag(name)} needs {' or '.join(map(flag, there))}")
    if args.policy == "priority" and "input" not in given:
        raise ValueError("--policy priority needs --input, whose lines may have a priority")
    if {"input", "json"} <= given and not stage.can_serve:  # from stage 4 on it makes the closing line JSON
        raise ValueError("--json can't be combined with --input, whose results are JSON anyway")


def sampling_of(stage: Stage, args: argparse.Namespace) -> Sampling:
    """The sampling fields that the flags give. Raises ValueError if they are wrong."""
    names = [name for name in SAMPLING if hasattr(stage.sampling, name) or name in MORE_FIELDS]
    return Sampling(stage, **{name: getattr(args, name) for name in names})


def how_of(stage: Stage, args: argparse.Namespace) -> How:
    """How to complete what the flags name. Raises ValueError or OSError."""
    return How(sampling_of(stage, args), columns_of(args), template_of(args), args.model, args.tokenizer)


def columns_of(args: argparse.Namespace) -> Columns:
    """Which fields of --input are used for what. Raises ValueError if that is unclear."""
    if args.choices and args.choices_column:
        raise ValueError("give either --choices-column or --choices")
    choices = tuple(args.choices) if args.choices else args.choices_column
    return Columns(args.prompt_column, args.id_column, args.prompt_template, choices, args.score)


def template_of(args: argparse.Namespace) -> str | None:
    """The text of --chat-template. Raises ValueError or OSError."""
    if args.chat_template is None:
        return None
    from .strict_json import read_text

    with naming(args.chat_template):
        return read_text(args.chat_template)


def pairs_of(args: argparse.Namespace) -> list[tuple[str, Path]]:
    """Each input with its output. Raises ValueError if that is unclear."""
    sources, outputs = args.input or [], args.output or []
    if sources and len(outputs) == 1 and outputs[0].is_dir():
        outputs = [outputs[0] / f"{Path(source).stem}.jsonl" for source in sources]
    if len(sources) != len(outputs):
        raise ValueError(
            f"got {len(sources)} --input and {len(outputs)} --output: give one for each, or a directory for all"
        )
    if twice := [output for i, output in enumerate(outputs) if output in outputs[:i]]:
        raise ValueError(f"--output {twice[0]} would be the output of two inputs")
    return list(zip(sources, outputs, strict=True))

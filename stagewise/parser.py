"""The command line's arguments: errors in one line with a hint, and flags from a file (--config)."""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .exits import naming, reason

# Our name, and the names in other programs (Hugging Face's `generate` and its scripts, vLLM, rosellm).
OTHER_NAMES = {
    "--max-tokens": "--max-new-tokens --max-output-tokens",
    "--max-tokens (of the output alone)": "--max-length",
    "--min-tokens": "--min-new-tokens",
    "--temperature (0 is greedy, more draws)": "--do-sample",
    "--temperature 0": "--greedy",
    "--beam-width": "--num-beams",
    "--n": "--num-return-sequences",
    "--stop-token-ids": "--eos-token-id",
    "--stop": "--stop-strings",
    "--ignore-eos": "--no-stop-on-eos",
    "--top-p or --min-p": "--typical-p",
    "--prompts": "--prompt --text",
    "--prompts-file": "--prompt-file",
    "--input": "--input-file",
    "--output": "--output-file",
    "--model": "--model-name --model-path --model-id --model-name-or-path --hf-model-id "
    "--checkpoint --checkpoint-path --ckpt",
    "--tokenizer": "--tokenizer-name --tokenizer-path",
    "--dtype": "--torch-dtype --precision",
    "--dtype float32": "--no-amp",
    "--dtype float16": "--fp16",
    "--dtype bfloat16": "--bf16",
    "--max-num-seqs": "--batch-size --max-batch-size",
    "--max-model-len": "--context-length",
    "--block-size": "--block-len",
}
NAME_OF = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
# What argparse calls an invalid int value, and so on: the type's name, and what is asked for.
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "positive": "a whole number",
    "as_number": "a whole number",
    "pair": "ID=X, such as 50256=-100",
    "form": "a JSON object",
}
DEFAULTS = {"--stop-on-eos": "an output ends at the end token, unless --ignore-eos is given"}


class Parser(argparse.ArgumentParser):
    """Errors are one line, with a hint where there is one. A description keeps its lines in --help.

    others_that_have: for an unknown flag, the numbers of the stages that have it.
    """

    others_that_have: Callable[[str], list[int]] = staticmethod(lambda flag: [])

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, formatter_class=argparse.RawDescriptionHelpFormatter, **more)
        if more.get("add_help", True):
            help = "a TOML file of flags, as in max-tokens = 20; the command line overrides it"
            self.add_argument("--config", metavar="FILE", help=help)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """With the flags of a --config after those of the command line: a list would take the words that follow it."""
        args = sys.argv[1:] if args is None else list(args)
        try:
            path, config = read_config(args)
        except (ValueError, OSError) as error:
            self.error(reason(error))
        given = {arg.split("=")[0] for arg in args if arg.startswith("--")}
        flags: list[str] = []
        for name, value in config.items():
            flag = f"--{name.replace('_', '-')}"
            if flag not in self._option_string_actions:
                hint = self._hint(flag)
                self.error(f"{path}: there is no flag {flag}{f'; {hint}' if hint else ''}")
            if given.isdisjoint((flag, f"--no-{flag[2:]}", *self._option_string_actions[flag].option_strings)):
                flags += self._as_arguments(flag, value)
        end = args.index("--") if "--" in args else len(args)  # what follows it are no flags
        return super().parse_known_args([*args[:end], *flags, *args[end:]], namespace)

    def _as_arguments(self, flag: str, value: Any) -> list[str]:
        """A --config value as on the command line."""
        if isinstance(value, bool) and self._option_string_actions[flag].nargs == 0:
            off = f"--no-{flag[2:]}"
            return [flag] if value else [off] if off in self._option_string_actions else []
        if isinstance(value, list):
            return [flag, *map(as_text, value)] if value else []
        return [f"{flag}={as_text(value)}"]

    def error(self, message: str) -> NoReturn:
        """One line, like any other error; --help shows the usage."""
        message = re.sub(r": invalid (\w+) value: ", lambda found: f": must be {KINDS[found[1]]}, got ", message)
        words = message.partition("unrecognized arguments: ")[2].split()
        hints = [self._hint_of_place(words[0]) if words else None, *map(self._hint, words)]
        hints = dict.fromkeys(filter(None, hints))
        self.exit(2, f"{self.prog}: error: {message}{''.join(f'; {hint}' for hint in hints)}\n")

    def _hint_of_place(self, word: str) -> str | None:
        """The flag for an argument that was given without one."""
        if word.startswith("-"):
            return None
        flags = {"--prompts": "a text to complete", "--model": "a model"}
        known = [f"{flag} for {what}" for flag, what in flags.items() if flag in self._option_string_actions]
        return f"use {', '.join(known)}" if known else None

    def _hint(self, word: str) -> str | None:
        """The name here of a flag that another program or stage has."""
        flag = word.partition("=")[0].replace("_", "-")
        if not flag.startswith("--"):
            return None
        known = self._option_string_actions
        if flag in known:
            return f"{word} is written {flag}"
        if (name := NAME_OF.get(flag)) and name.split()[0] in known:
            return f"instead of {flag} use {name}"
        if flag in DEFAULTS:
            return f"{flag} is not needed: {DEFAULTS[flag]}"
        if has_it := self.others_that_have(flag):
            return f"{flag} exists in stage{'s' if len(has_it) > 1 else ''} {', '.join(map(str, has_it))}"
        close = difflib.get_close_matches(flag, known, n=1, cutoff=0.8)
        return f"is {close[0]} meant?" if close else None


def num_bytes(text: str) -> int:
    """The value of a flag such as --kv-cache-bytes: 8GB or 8G (of 1000), 512MiB (of 1024), or a number."""
    found = re.fullmatch(r"([0-9.]+) ?([KMGT])(i?)B?", text, re.IGNORECASE)
    try:
        if found is None:
            return int(text)
        number, unit, binary = found.groups()
        return int(float(number) * (1024 if binary else 1000) ** (1 + "KMGT".index(unit.upper())))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a size, such as 8GB or 512MiB, got {text!r:.80}") from None


def read_config(args: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The --config file, and its flags; none without --config. Raises ValueError or OSError."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", nargs="?")
    path = parser.parse_known_args(args)[0].config
    if path is None:
        return None, {}
    if sys.version_info >= (3, 11):
        import tomllib  # pyright: ignore[reportMissingImports]
    else:
        import tomli as tomllib  # pyright: ignore[reportMissingImports]
    if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
        raise ValueError(f"--config {path} is not a regular file, and it is read more than once")
    try:
        with naming(path), open(path, "rb") as file:
            config = tomllib.loads(file.read().decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} is not TOML: {error}") from None
    if "config" in config:
        raise ValueError(f"--config {path} contains another --config: put all flags into one file")
    return path, config


def as_text(value: Any) -> str:
    """A value of TOML as on the command line."""
    return value if isinstance(value, str) else json.dumps(value, default=str)

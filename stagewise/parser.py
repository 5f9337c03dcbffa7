"""The command line's arguments: errors in one line, with a hint."""

import argparse
import difflib
import re
from collections.abc import Callable
from typing import Any, NoReturn

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


class Parser(argparse.ArgumentParser):
    """Errors are one line, with a hint where there is one. A description keeps its lines in --help.

    others_that_have: for an unknown flag, the numbers of the stages that have it.
    """

    others_that_have: Callable[[str], list[int]] = staticmethod(lambda flag: [])

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message: str) -> NoReturn:
        """One line, like any other error; --help shows the usage."""
        kind = re.match(r"argument \S+: invalid (\w+) value: ", message)
        if kind and kind[1] in KINDS:
            message = message.replace(f": invalid {kind[1]} value: ", f": must be {KINDS[kind[1]]}, got ", 1)
        words = message.partition("unrecognized arguments: ")[2].split()
        hints = dict.fromkeys(filter(None, map(self._hint, words)))
        self.exit(2, f"{self.prog}: error: {message}{''.join(f'; {hint}' for hint in hints)}\n")

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

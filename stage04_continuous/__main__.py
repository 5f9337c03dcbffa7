"""Complete prompts with this directory alone: `python -m` with its name, `--prompts "Once upon a time"`."""

import argparse
import sys
from dataclasses import fields
from typing import Any, NoReturn, get_args

from . import LLM, EngineConfig, SamplingParams, __doc__

NO_FLAGS = ("seed", "logits_processors")  # --seed: engine's
PARAMS = [one for one in fields(SamplingParams) if one.name not in NO_FLAGS]


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line; --help shows the usage."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(argv: list[str] | None = None) -> int:
    """Print the completed prompts; returns the exit status: 0, 1 if one failed, 2 for bad input, 130 after Ctrl-C."""
    parser = Parser(prog=f"python -m {__package__}", description=__doc__, allow_abbrev=False)
    parser.add_argument("--prompts", nargs="+", required=True, metavar="TEXT", help="complete these texts")
    EngineConfig.add_flags(parser.add_argument_group("engine").add_argument)
    add = parser.add_argument_group("sampling, see support/sampling_params.py").add_argument
    for one in PARAMS:
        kind = (*get_args(one.type), one.type)[0]
        flag: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
        flag["default"] = one.default
        flag |= {"nargs": "+"} if one.default == () else {}
        add("--" + one.name.replace("_", "-"), **flag)
    args, status = parser.parse_args(argv), 0
    try:
        params = SamplingParams(**{one.name: getattr(args, one.name) for one in PARAMS})
        for output in LLM(**EngineConfig.of_flags(args)).generate(args.prompts, params, use_tqdm=len(args.prompts) > 1):
            print(*(f"{output.prompt}{completion.text}" for completion in output.outputs), sep="\n")
            for completion in output.outputs:
                if completion.finish_reason == "error":
                    print(f"{parser.prog}: error: {completion.stop_reason}", file=sys.stderr)
                    status = 1
    except (ValueError, OSError, MemoryError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Complete prompts with this directory alone: `python -m DIRECTORY --prompts "Once upon a time"`."""

import argparse
import sys

from . import LLM, SamplingParams, __doc__


def main(argv: list[str] | None = None) -> int:
    """Print the completed prompts; returns the exit status: 0, 1 if one failed, 2 for bad input, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__, allow_abbrev=False)
    parser.add_argument("--prompts", nargs="+", required=True, metavar="TEXT", help="complete these texts")
    parser.add_argument("--model", default="tinytales", help="a directory, or a name (default: %(default)s)")
    parser.add_argument(
        "--max-tokens", type=int, default=256, metavar="N", help="longest output (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (default: %(default)s)")
    args, status = parser.parse_args(argv), 0
    try:
        params = SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens)
        for output in LLM(args.model).generate(args.prompts, params):
            completion = output.outputs[0]
            print(f"{output.prompt}{completion.text}")
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

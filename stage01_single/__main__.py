"""The command line: `python -m stage01 --prompts "Once upon a time"`.

Results go to stdout; progress, the closing line and errors to stderr. Exit status: 0 done, 2 bad input,
130 interrupted.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tqdm import tqdm

from .llm import LLM
from .outputs import RequestOutput
from .sampling_params import SamplingParams


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}", description=sys.modules[__package__].__doc__, allow_abbrev=False
    )
    add = parser.add_argument_group("prompts").add_argument
    add("--prompts", nargs="+", metavar="TEXT", help="complete these texts")
    add("--prompts-file", type=Path, metavar="FILE", help="complete the lines of this file; blank lines are skipped")
    add = parser.add_argument_group("output").add_argument
    add("--json", action="store_true", help="print a line of JSON per result")
    add("--trace", type=Path, metavar="FILE", help="write a line of JSON per forward pass to this file")
    add("--quiet", action="store_true", help="no progress and no closing line")
    add = parser.add_argument_group("engine").add_argument
    add("--model", default="tinytales", help="tinytales, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a directory")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N")
    add("--load-format", default="auto", help="auto; or dummy: random weights, nothing is downloaded")
    add("--max-model-len", type=int, metavar="N", help="longest prompt and output together, in tokens")
    add("--seed", type=int, default=0, help="another seed, other draws")
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


ENGINE_ARGUMENTS = [
    "model",
    "dtype",
    "device",
    "load_format",
    "max_model_len",
    "seed",
]
SAMPLING_ARGUMENTS = [name for name in SamplingParams.__dataclass_fields__ if name != "seed"]


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts that were asked for. Raises ValueError if there are none."""
    prompts = list(args.prompts or [])
    if args.prompts_file:
        try:
            lines = args.prompts_file.read_text(encoding="utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{args.prompts_file} is not UTF-8: {error.reason} at byte {error.start}") from None
        prompts += [line for line in lines if line.strip()]
    if not prompts:
        raise ValueError("no prompts: give --prompts or a --prompts-file that is not empty")
    return prompts


def format_result(index: int, output: RequestOutput, total: int, as_json: bool) -> str:
    if as_json:
        return json.dumps({"index": index, **output.to_dict()}, ensure_ascii=False)
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
    with tqdm(total=len(prompts), unit="request", disable=quiet or len(prompts) == 1) as bar:

        def show(index: int) -> None:
            bar.write(format_result(index, waiting.pop(index), len(prompts), as_json), file=sys.stdout)
            sys.stdout.flush()

        try:
            for index, output in llm.as_completed(prompts, params):
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
        print()


def closing_line(llm: LLM, seconds: float) -> str:
    stats = llm.stats
    requests = "1 request" if stats.num_requests == 1 else f"{stats.num_requests} requests"
    return (
        f"{requests}, {stats.num_output_tokens} tokens in {seconds:.2f} s: "
        f"{stats.num_output_tokens / seconds:.1f} tok/s; "
        f"mean TTFT {1e3 * stats.ttft_seconds / max(1, stats.num_requests):.0f} ms; "
        f"{stats.num_forwards} forward passes"
    )


def main(argv: list[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):  # a text may hold any character, whatever the terminal or file takes
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    llm, status = None, 0
    started = time.perf_counter()
    try:
        prompts = read_prompts(args)
        params = SamplingParams(**{name: getattr(args, name) for name in SAMPLING_ARGUMENTS})
        if args.trace:
            args.trace.touch()  # a path that can't be written is an error now, not after the work
        llm = LLM(**{name: getattr(args, name) for name in ENGINE_ARGUMENTS}, trace=args.trace is not None)
        started = time.perf_counter()
        if len(prompts) == 1 and sys.stdout.isatty() and not args.json:
            stream(llm, prompts[0], params)
        else:
            complete(llm, prompts, params, args.json, args.quiet)
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of stdout has gone: `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    finally:
        if llm is not None and args.trace:
            args.trace.write_text("".join(json.dumps(record.to_dict()) + "\n" for record in llm.trace))
    if llm is not None and not args.quiet:
        print(closing_line(llm, time.perf_counter() - started), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

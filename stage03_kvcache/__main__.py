"""The command line: `python -m stage03 --prompts "Once upon a time"`.

Results go to stdout; progress, the closing line and errors to stderr. Exit status: 0 done, 2 bad input,
130 interrupted; 1 some lines of a batch file are errors.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn, TextIO

from tqdm import tqdm

from .batch_file import open_output, run_batch_file
from .llm import LLM
from .outputs import RequestOutput, StepRecord
from .sampling_params import SamplingParams

TRACE_BEGIN = b'{"step": 0, "start": '  # of every file of --trace


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """As for any other error: one line, without the usage, which --help shows."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=f"python -m {__package__}", description=sys.modules[__package__].__doc__, allow_abbrev=False)
    add = parser.add_argument_group("prompts").add_argument
    add("--prompts", nargs="+", metavar="TEXT", help="complete these texts")
    add("--prompts-file", type=Path, metavar="FILE", help="complete the lines of this file; blank lines are skipped")
    add("--input", type=Path, metavar="FILE.jsonl", help="complete the lines of this batch file (see batch_file.py)")
    add = parser.add_argument_group("output").add_argument
    add("--output", type=Path, metavar="FILE.jsonl", help="where the results of --input go")
    add("--resume", action="store_true", help="continue the --output of a run that was killed")
    add("--json", action="store_true", help="print a line of JSON per result")
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a line of JSON per forward pass to this file; an earlier trace is replaced, any other file refused",
    )
    add("--quiet", action="store_true", help="no progress and no closing line")
    add = parser.add_argument_group("engine").add_argument
    add("--model", default="tinytales", help="tinytales, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a directory")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N")
    add("--load-format", default="auto", help="auto; or dummy: random weights, nothing is downloaded")
    add("--max-model-len", type=int, metavar="N", help="longest prompt and output together, in tokens")
    add("--max-num-seqs", type=int, default=8, metavar="N", help="requests in a batch (default: %(default)s)")
    add("--no-sort", dest="sort_by_length", action="store_false", help="batch prompts in the order given: more padding")
    add(
        "--kv-cache-bytes", type=int, metavar="N", help="memory for the KV cache of a batch (default: half of the free)"
    )
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
    "max_num_seqs",
    "sort_by_length",
    "kv_cache_bytes",
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


def check_trace(path: Path, used: dict[str, Path | int | None]) -> None:
    """Raise ValueError if the trace would replace what is no trace, or a file that this run uses otherwise.

    Makes the file if it is not there: a path that can't be written is an error now, not after the work.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"--trace {path} is not a regular file")
    with path.open("a+b") as file:
        for name, other in used.items():
            if other is not None and os.path.samestat(os.fstat(file.fileno()), os.stat(other)):
                raise ValueError(f"--trace {path} is {name} too")
        file.seek(0)
        begin = file.read(len(TRACE_BEGIN))
        if not TRACE_BEGIN.startswith(begin):
            raise ValueError(f"--trace {path} exists and is not a trace: remove it, or take another name")


def write_trace(path: Path, trace: list[StepRecord]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record.to_dict()) + "\n" for record in trace)


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
    results = llm.as_completed(prompts, params)  # or an error, without a bar
    with tqdm(total=len(prompts), unit="request", disable=quiet or len(prompts) == 1) as bar:

        def show(index: int) -> None:
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


def closing_line(llm: LLM, seconds: float) -> str:
    stats = llm.stats
    requests = "1 request" if stats.num_requests == 1 else f"{stats.num_requests} requests"
    padding = stats.num_padding_tokens / max(1, stats.num_padding_tokens + stats.num_tokens_computed)
    kv_use = stats.kv_tokens_used / max(1, stats.kv_tokens_reserved)
    return (
        f"{requests}, {stats.num_output_tokens} tokens in {seconds:.2f} s: "
        f"{stats.num_output_tokens / seconds:.1f} tok/s; "
        f"mean TTFT {1e3 * stats.ttft_seconds / max(1, stats.num_requests):.0f} ms; "
        f"{stats.num_forwards} forward passes"
        f", {padding:.0%} padding"
        f", {kv_use:.0%} of the KV cache used"
    )


def interrupt_once(*_) -> NoReturn:
    """Ctrl-C: end the run. A second one must not cut short what the first one has set off: printing what is finished,
    writing the trace."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def tell(message: str) -> None:
    """A line on stderr. If nobody takes it, the exit status has to do."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr)


def fail(prog: str, error: Exception) -> int:
    """Tell an error in one line; returns the exit status."""
    tell(f"{prog}: error: {' '.join(str(error).splitlines()) or type(error).__name__}")
    return 2


def drop_unwritten(stream: TextIO | None) -> None:
    """Forget what a stream could not take, or the interpreter would try again at its end, and complain."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main(argv: list[str] | None = None) -> int:
    if sys.stderr is None:  # closed; what is written there, by libraries too, goes nowhere
        sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    parser = build_parser()
    args = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):  # a text may hold any character, whatever the terminal or file takes
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    llm, output, status = None, None, 0
    started = time.perf_counter()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt_once)
    try:
        if sys.stdout is None and not args.input:
            raise ValueError("stdout is closed: there is no place for the results")
        batch = args.input or args.output or args.resume
        if batch and (not (args.input and args.output) or args.prompts or args.prompts_file):
            raise ValueError("a batch file needs both --input and --output, and no --prompts")
        prompts = None if args.input else read_prompts(args)
        params = SamplingParams(**{name: getattr(args, name) for name in SAMPLING_ARGUMENTS})
        if args.input:
            output = open_output(args.input, args.output, args.resume)
        if args.trace:
            used = {"--input": args.input, "--output": args.output, "--prompts-file": args.prompts_file}
            check_trace(args.trace, used | {"stdout": sys.__stdout__ and 1, "stderr": sys.__stderr__ and 2})
        llm = LLM(**{name: getattr(args, name) for name in ENGINE_ARGUMENTS}, trace=args.trace is not None)
        started = time.perf_counter()
        if args.input:
            total, errors = run_batch_file(llm, args.input, output, params, quiet=args.quiet)
            if errors:
                tell(f"{parser.prog}: {errors} of {total} lines are errors, see {args.output}")
                status = 1
        elif len(prompts) == 1 and sys.stdout.isatty() and not args.json:
            stream(llm, prompts[0], params)
        else:
            complete(llm, prompts, params, args.json, args.quiet)
    except BrokenPipeError:  # the reader of stdout has gone: `| head`
        status = 1
    except (ValueError, OSError, MemoryError) as error:
        status = fail(parser.prog, error)
    except KeyboardInterrupt:
        tell("interrupted")
        status = 130
    finally:
        if output is not None:
            output.close()
        if llm is not None and args.trace:
            try:
                write_trace(args.trace, llm.trace)
            except OSError as error:
                status = fail(parser.prog, error)
            except KeyboardInterrupt:
                tell("interrupted")
                status = 130
        if signal.getsignal(signal.SIGINT) is interrupt_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if llm is not None and not args.quiet and status != 2:
        tell(closing_line(llm, time.perf_counter() - started))
    drop_unwritten(sys.stdout)
    drop_unwritten(sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

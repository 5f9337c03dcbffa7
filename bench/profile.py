"""Where the time of stage 6 goes: the benchmark's workloads with a clock at every kernel.

    python -m bench.profile --json bench/results/profile.json
    python -m bench.profile --workloads decode --dtypes bfloat16

A step is one call of C otherwise; for this it is called kernel by kernel, from Python, so it takes somewhat longer, and
what Python costs between two kernels counts as the rest: scheduler, block tables, what the sampler does beside the
kernel for the best token.
"""

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from bench import workloads
from bench.ablation import DTYPES, FAST, WORKLOADS
from bench.machine import describe
from bench.report import command

# The kernels' names -> what a reader calls them, in the order of the table.
KERNELS = {
    "linear": "linear layers",
    "head": "logits",
    "paged_attention": "attention",
    "write_kv": "writing keys and values",
    "layer_norm": "layer norms",
    "embed": "embedding",
    "argmax": "best token",
}
REST = "the rest, Python"


class Clock:
    """The kernels' library, counting the seconds of each of its functions."""

    def __init__(self, library, vocab_size: int):
        self.library, self.vocab_size, self.seconds = library, vocab_size, Counter()

    def __getattr__(self, name: str) -> Callable:
        return self.timed(name, getattr(self.library, name))

    def timed(self, name: str, function: Callable) -> Callable:
        def run(*arguments):
            label = "head" if name == "linear" and arguments[0].out == self.vocab_size else name
            started = time.perf_counter()
            result = function(*arguments)
            self.seconds[label] += time.perf_counter() - started  # pyright: ignore[reportArgumentType]
            return result

        return run


def measure(workload: str, dtype: str, model: str) -> dict[str, float]:
    """Seconds of each kind of kernel, and of the rest, while the engine serves the workload."""
    llm = FAST.LLM(
        model=model,
        load_format="dummy",
        device="cpu",
        dtype=dtype,
        max_num_seqs=workloads.SIZES[workload][1],
        attention_backend="c",  # and no other, if it does not run here
        disable=["one_call"],
    )
    requests = workloads.make_workload(workload, vocab_size=llm.engine.model_config.vocab_size)
    prompts = [prompt for prompt, _ in requests]
    params = [FAST.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in requests]
    llm.generate([prompt[::-1] for prompt in prompts[:2]], params[:2])  # a process's first steps are slow
    clock = llm.engine.runner.model.library = Clock(llm.engine.runner.model.library, llm.engine.model_config.vocab_size)
    llm.engine.runner.argmax = clock.timed("argmax", llm.engine.runner.argmax)
    started = time.perf_counter()
    llm.generate(prompts, params)
    seconds = {title: clock.seconds[name] for name, title in KERNELS.items()}
    return {**seconds, REST: time.perf_counter() - started - sum(seconds.values())}


def table(result: dict) -> str:
    """Shares in Markdown, a row for each kernel, a column for each workload and type."""
    columns = {(run["workload"], run["dtype"]): run["seconds"] for run in result["runs"]}
    lines = [
        "| share of the time | " + " | ".join(map(", ".join, columns)) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for title in (*KERNELS.values(), REST):
        shares = [seconds[title] / sum(seconds.values()) for seconds in columns.values()]
        lines.append(f"| {title} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    lines.append("| seconds | " + " | ".join(f"{sum(seconds.values()):.2f}" for seconds in columns.values()) + " |")
    machine = result["machine"]
    return "\n".join(lines) + (
        f"\n\n{result['model']} with random weights; {machine['device']}, {machine['threads']} threads, "
        f"torch {machine['torch']}; one run each, kernel by kernel. `{command(result)}`"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workloads", nargs="+", default=list(WORKLOADS), choices=list(workloads.SIZES), metavar="NAME"
    )
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES, metavar="TYPE")
    parser.add_argument("--model", default="gpt2", help="sizes of the model; its weights are random")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    args = parser.parse_args(argv)
    if args.json:
        args.json.touch()  # a path that can't be written is an error now, not after the work
    result = {
        "command": f"python -m bench.profile {shlex.join(sys.argv[1:] if argv is None else argv)}".strip(),
        "model": args.model,
        "machine": describe(torch.device("cpu")),
        "runs": [
            {"workload": workload, "dtype": dtype, "seconds": measure(workload, dtype, args.model)}
            for workload in args.workloads
            for dtype in args.dtypes
        ],
    }
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How does stage 6 scale with threads? Decode, prefill and a single request, with 1, 2, 4, … threads.

    python -m bench.threads --json bench/results/threads.json

One engine for each dtype; every number of threads takes its turn, round after round. A figure is the median. Beside it
stands the limit: how long the machine would take at best with that number of threads, see `needed_work` in
bench/workloads.py and `kernel_limits` in bench/machine.py.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

from bench import workloads
from bench.ablation import DTYPES, FAST
from bench.machine import cpu_name, describe, kernel_limits

WORKLOADS = ("single", "decode", "prefill")


def counts(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return sorted({2**i for i in range(most.bit_length()) if 2**i <= most} | {most})


def measure(dtype: str, names: tuple[str, ...], threads: list[int], rounds: int) -> list[dict]:
    """For each workload and number of threads: the seconds of each round, tokens, and the seconds of the limit."""
    options = {"max_num_seqs": 32, "enable_prefix_caching": False, "attention_backend": "c"}
    llm = FAST.LLM("gpt2", load_format="dummy", device="cpu", dtype=dtype, **options)
    config, cells = llm.engine.model_config, []
    for name in names:
        requests = workloads.make_workload(name, vocab_size=config.vocab_size)
        prompts = [prompt for prompt, _ in requests]
        params = [FAST.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in requests]
        tokens = sum(n for _, n in requests)
        own = [{"dtype": dtype, "workload": name, "threads": n, "tokens": tokens, "seconds": []} for n in threads]
        for number in range(-1, rounds):  # the first one warms up
            for cell in own:
                torch.set_num_threads(cell["threads"])
                started = time.perf_counter()
                llm.generate(prompts, params)
                if number >= 0:
                    cell["seconds"].append(time.perf_counter() - started)
        cells += own
    return cells


def limits(dtype: str, threads: list[int]) -> list[dict]:
    """What the kernels reach at best, by the number of threads: bytes read and operations a second."""
    found = []
    for number in threads:
        torch.set_num_threads(number)
        read, rate = kernel_limits(getattr(torch, dtype))
        found.append({"dtype": dtype, "threads": number, "bytes_per_second": read, "flops": rate})
    return found


def table(result: dict) -> str:
    lines, fewest = [], {}
    for limit in result["limits"]:
        read, rate = limit["bytes_per_second"] / 1e9, limit["flops"] / 1e12
        lines.append(f"{limit['dtype']:9} {limit['threads']:2} threads: {read:6.1f} GB/s, {rate:6.2f} TFLOP/s")
    for cell in result["cells"]:
        speed = cell["tokens"] / statistics.median(cell["seconds"])
        first = fewest.setdefault((cell["dtype"], cell["workload"]), speed)
        spread = max(cell["seconds"]) / min(cell["seconds"]) - 1
        lines.append(
            f"{cell['dtype']:9} {cell['workload']:8} {cell['threads']:2} threads: {speed:8,.0f} tok/s, "
            f"{speed / first:5.2f} x (rounds within {spread:.0%})"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    most = torch.get_num_threads()
    parser = argparse.ArgumentParser(prog="python -m bench.threads", description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=counts(most), help="default: 1, 2, 4, … all cores")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to this file")
    args = parser.parse_args(argv)
    result = {
        "command": " ".join(["python -m bench.threads", *(sys.argv[1:] if argv is None else argv)]),
        "machine": describe(torch.device("cpu")),
        "limits": [limit for dtype in args.dtypes for limit in limits(dtype, args.threads)],
        "cells": [
            cell for dtype in args.dtypes for cell in measure(dtype, tuple(args.workloads), args.threads, args.rounds)
        ],
    }
    print(cpu_name())
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

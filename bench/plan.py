"""How many forward passes the order costs in which known requests are submitted: python -m bench.plan [--json FILE]

The requests are the workload `tail`, eight at once, on stage 4 with random weights of the bundled model's sizes. Passes
are counted, so the figures are the same on every machine. No order can take fewer than `least`: a pass makes eight
tokens, and the longest output takes as many passes as it has tokens.
"""

import argparse
import sys
from pathlib import Path

from bench.report import write_result
from bench.workloads import Workload, make_workload
from stage04_continuous import LLM, SamplingParams

AT_ONCE = 8


def passes(workload: Workload, policy: str = "fcfs", *, planned: bool = False) -> int:
    """The forward passes of a run: with the requests in this order, or as `generate` plans them."""
    llm = LLM(load_format="dummy", device="cpu", max_num_seqs=AT_ONCE, policy=policy)
    prompts = [prompt for prompt, _ in workload]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in workload]
    if planned:
        llm.generate(prompts, params)
    else:
        for _ in llm.stream(prompts, params):
            pass
    return llm.stats.num_forwards


def measure() -> dict[str, int]:
    workload = make_workload("tail")
    outputs = [n for _, n in workload]
    return {
        "fcfs": passes(workload),
        "shortest": passes(workload, "shortest"),
        "longest output first": passes(workload, planned=True),
        "least": max(max(outputs), -(-sum(outputs) // AT_ONCE)),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    result = measure()
    for name, number in result.items():
        print(f"{name}: {number} forward passes")
    if args.json:
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

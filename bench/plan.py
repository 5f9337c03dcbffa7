"""How many forward passes a set of requests takes, by the order in which they are submitted.

    python -m bench.plan --json bench/results/plan.json

The requests are the workload `tail`, eight at once, on stage 4 with random weights in the bundled model's sizes. Passes
are counted, so the figures are the same on every machine. No order can take fewer than `least`: a pass makes at most
eight tokens, and the longest output takes as many passes as it has tokens.
"""

import argparse
import sys

from bench.run import command, grid, script
from bench.workloads import Workload, make_workload
from stage04_continuous import LLM, SamplingParams

AT_ONCE = 8


def passes(workload: Workload, policy: str = "fcfs", *, planned: bool = False) -> int:
    """The forward passes of a run, with the requests in this order, or in the order that `generate` plans."""
    llm = LLM(load_format="dummy", device="cpu", max_num_seqs=AT_ONCE, policy=policy)
    prompts = [prompt for prompt, _ in workload]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in workload]
    if planned:
        llm.generate(prompts, params)
    else:
        for _ in llm.stream(prompts, params):
            pass
    return llm.stats.num_forwards


def measure(args: argparse.Namespace) -> dict:
    workload = make_workload("tail")
    outputs = [n for _, n in workload]
    by_order = {
        "as they came (`fcfs`)": passes(workload),
        "shortest prompt first (`shortest`)": passes(workload, "shortest"),
        "largest `max_tokens` first (`generate`)": passes(workload, planned=True),
    }
    return {"least": max(max(outputs), -(-sum(outputs) // AT_ONCE)), "passes": by_order}


def table(result: dict) -> str:
    rows = [[order, str(number)] for order, number in result["passes"].items()]
    return f"{grid(['order', 'forward passes'], rows)}\n\nAt least {result['least']}. `{command(result)}`"


main = script(measure, table)


if __name__ == "__main__":
    sys.exit(main())

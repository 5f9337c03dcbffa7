"""What each optimization of stage 6 gains: the benchmark's workloads with all of them, and with all but one.

    python -m bench.ablation --json bench/results/ablation.json
    python -m bench.ablation --workloads decode --dtypes bfloat16 --repeat 3

A gain is the seconds without an optimization divided by the seconds with all of them: 1.20 means that it takes 20% more
time without it, and less than 1 that the optimization costs time. The last row is stage 5.

On a shared machine, whole runs differ by more than most of these gains. So all variants serve a workload together: each
step is computed by every one of them, one after another, in a random order for each step. With `--repeat`, a step's
time is the median of several. An optimization whose instructions this CPU doesn't have is left out.
"""

import argparse
import functools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch

from bench import workloads
from bench.run import command, grid, script, source
from tools.engines import STAGES

FAST = next(stage for stage in STAGES if stage.number == 6)
BEFORE = STAGES[STAGES.index(FAST) - 1]
OPTIMIZATIONS = list(FAST.part("config").OPTIMIZATIONS)


class Contest(torch.nn.Module):
    """Takes the place of an engine's model: computes each step in several ways, and records the seconds of each.

    Args:
        ways: name -> a function of a step and the cache that returns the logits. The engine gets those of the first.
    """

    def __init__(self, config, ways: dict[str, Callable]):
        super().__init__()
        self.config, self.ways, self.random = config, ways, random.Random(0)
        self.clear()

    def clear(self) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in self.ways}  # of each step

    def forward(self, step, cache) -> torch.Tensor:
        order, first = list(self.ways), next(iter(self.ways))
        self.random.shuffle(order)
        for name in order:
            started = time.perf_counter()
            logits = self.ways[name](step, cache)
            self.seconds[name].append(time.perf_counter() - started)
            if name == first:
                taken = logits.clone()  # the next way may overwrite them
        return taken


def make_way(llm, cache=None) -> Callable:
    """A function that computes a step with this engine's model. cache: for keys and values; None: the shared one."""
    model, attention = llm.engine.runner.model, llm.engine.runner.cache.paged_attention

    def run(step, shared) -> torch.Tensor:
        before, shared.paged_attention = shared.paged_attention, attention
        try:
            return model(step, cache or shared)
        finally:
            shared.paged_attention = before

    return run


def make_contest(llm, make: Callable) -> Contest:
    """All variants of an engine that has all optimizations. `make` makes engines like it, of this stage or another."""
    ways, kernels = {"": make_way(llm)}, FAST.part("kernels.c_kernel")
    for name in OPTIMIZATIONS:
        if name != "tiles" or kernels.has_kind("tiles_bfloat16"):  # it has separate weights, but shares keys and values
            ways[name] = make_way(make(disable=[name], num_blocks=1))
    other = make(stage=BEFORE, num_blocks=llm.engine.runner.num_blocks)
    ways["stage 5"] = make_way(other, cache=other.engine.runner.cache)
    return Contest(llm.engine.model_config, ways)


def make_engine(workload: str, dtype: str, model: str, stage=FAST, **arguments):
    """An engine that runs as many requests at once as the workload has."""
    return stage.LLM(
        model=model,
        load_format="dummy",
        device="cpu",
        dtype=dtype,
        max_num_seqs=workloads.SIZES[workload][1],
        attention_backend="c",  # fails if it can't run here, instead of taking another
        **arguments,
    )


def warm_up(llm, workload: str) -> tuple[list, list]:
    """Complete two requests, since a process's first steps are slow. Returns the workload's prompts and parameters."""
    requests = workloads.make_workload(workload, vocab_size=llm.engine.model_config.vocab_size)
    prompts = [prompt for prompt, _ in requests]
    params = [FAST.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in requests]
    llm.generate([prompt[::-1] for prompt in prompts[:2]], params[:2])
    return prompts, params


def measure_steps(workload: str, dtype: str, repeat: int, model: str) -> dict[str, list[float]]:
    """variant -> the seconds of all steps together, in a list."""
    print(f"{workload} {dtype}", file=sys.stderr)
    make = functools.partial(make_engine, workload, dtype, model)
    llm = make()
    llm.engine.runner.model = contest = make_contest(llm, make)
    prompts, params = warm_up(llm, workload)
    rounds = []
    for _ in range(repeat):
        contest.clear()
        llm.engine.block_manager.clear()  # or later rounds would find prompts in the prefix cache
        llm.generate(prompts, params)
        rounds.append(contest.seconds)
    return {
        name: [sum(statistics.median(times) for times in zip(*(seconds[name] for seconds in rounds), strict=True))]
        for name in contest.ways
    }


def measure(args: argparse.Namespace) -> Iterator[dict]:
    runs = []
    for workload in args.workloads:
        for dtype in args.dtypes:
            run = {"workload": workload, "dtype": dtype}
            runs.append({**run, "seconds": measure_steps(workload, dtype, args.repeat, args.model)})
            yield {"model": args.model, "repeat": args.repeat, "runs": runs}


def gains(run: dict) -> dict[str, float]:
    """variant -> its seconds, divided by those with all optimizations."""
    medians = {name: statistics.median(times) for name, times in run["seconds"].items()}
    return {name: median / medians[""] for name, median in medians.items() if name}


def table(*results: dict) -> str:
    """Gains in Markdown, a row for each optimization, a column for each workload and type."""
    columns = {f"{run['workload']}, {run['dtype']}": gains(run) for result in results for run in result["runs"]}
    rows = []
    for name in (*OPTIMIZATIONS, "stage 5"):
        cells = [f"{ratios[name]:.2f}" if name in ratios else "" for ratios in columns.values()]
        if any(cells):  # a CPU may not have what it needs
            rows.append([f"`{name}`", *cells])
    first, repeat = results[0], results[0]["repeat"]
    how = f"steps computed by all in turn, {'once' if repeat == 1 else f'medians of {repeat}'}"
    return grid(["without", *columns], rows) + (
        f"\n\nSeconds without it, divided by those with all: {how}; {first['model']} with random weights; "
        + ", ".join([source(first), *(f"`{command(result)}`" for result in results[1:])])
    )


OPTIONS = {
    "--workloads": dict(
        nargs="+",
        default=["single", "decode", "prefill", "mixed", "prefix"],
        choices=list(workloads.SIZES),
        metavar="NAME",
    ),
    "--dtypes": dict(nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"], metavar="TYPE"),
    "--model": dict(default="gpt2", help="sizes of the model; its weights are random"),
}
main = script(measure, table, rounds=1, options=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())

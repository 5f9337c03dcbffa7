"""What each optimization of stage 6 gains: the benchmark's workloads with all of them, and without each.

    python -m bench.ablation --json bench/results/ablation.json
    python -m bench.ablation --workloads decode --dtypes bfloat16 --repeat 3

A gain is the seconds without an optimization divided by the seconds with all of them: 1.20 means that 20% more time
passes without it, less than 1 that it loses. The last row runs stage 5.

On a machine that others use too, whole runs differ by more than most of these gains. So all variants serve a workload
together: each step is computed by every one of them, one after the other, in an order that is drawn for each step. With
`--repeat` a step's time is the median of that many. What needs an instruction that this CPU does not have is left out.
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
OPTIMIZATIONS = list(FAST.part("fast_model").OPTIMIZATIONS)


class Contest(torch.nn.Module):
    """In the place of an engine's model: has each step computed in several ways, and keeps their seconds.

    Args:
        ways: name -> a function of a step and the cache that gives the logits; the logits of the first are taken.
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
    """A step by an engine's model. cache: where its keys and values are; None is where everybody's are."""
    model, attention = llm.engine.runner.model, llm.engine.runner.cache.paged_attention

    def run(step, everybodys) -> torch.Tensor:
        before, everybodys.paged_attention = everybodys.paged_attention, attention
        try:
            return model(step, cache or everybodys)
        finally:
            everybodys.paged_attention = before

    return run


def make_contest(llm, make: Callable) -> Contest:
    """All variants of an engine that has everything on; `make` makes engines like it, of this stage or another."""
    ways, kernels = {"": make_way(llm)}, FAST.part("kernels.c_kernel")
    for name in OPTIMIZATIONS:
        if name != "tiles" or kernels.has_kind("tiles_bfloat16"):  # its own weights; keys and values are shared
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
        attention_backend="c",  # and no other, if it does not run here
        **arguments,
    )


def warm_up(llm, workload: str) -> tuple[list, list]:
    """Two requests, since a process's first steps are slow. Returns the workload's prompts and parameters."""
    requests = workloads.make_workload(workload, vocab_size=llm.engine.model_config.vocab_size)
    prompts = [prompt for prompt, _ in requests]
    params = [FAST.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in requests]
    llm.generate([prompt[::-1] for prompt in prompts[:2]], params[:2])
    return prompts, params


def measure_steps(workload: str, dtype: str, repeat: int, model: str) -> dict[str, list[float]]:
    """The seconds of all steps, by every variant."""
    print(f"{workload} {dtype}", file=sys.stderr)
    make = functools.partial(make_engine, workload, dtype, model)
    llm = make()
    llm.engine.runner.model = contest = make_contest(llm, make)
    prompts, params = warm_up(llm, workload)
    rounds = []
    for _ in range(repeat):
        contest.clear()
        llm.engine.block_manager.clear()  # or a later round would find the prompts of the one before
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
    """What each variant takes of what everything takes."""
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

"""What each optimization of stage 6 gains: the benchmark's workloads with all of them, and without each.

    python -m bench.ablation --json bench/results/ablation.json
    python -m bench.ablation --workloads decode --dtypes bfloat16 --repeat 3

A gain is the seconds without an optimization (and without those that need it) divided by the seconds with all of them:
1.20 means that 20% more time passes without it, less than 1 that it loses. The last two rows turn off everything, and
run stage 5.

On a machine that others use too, whole runs differ by more than most of these gains. So all variants serve a workload
together: each step is computed by every one of them, one after the other, in an order that is drawn anew for each step
(whoever comes behind a variant with the same weights finds some of them in the CPU's cache). With `--repeat` a step's
time is the median of so many. Two optimizations don't show in steps, memory that is there from the start and a garbage
collector with less to do; they are compared by whole runs in fresh processes, `--runs` of each, in alternating order.
What needs an instruction that this CPU does not have is left out.
"""

import argparse
import json
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from bench import workloads
from bench.machine import describe
from bench.report import command
from bench.throughput import run_in_fresh_process
from tools.engines import STAGES

WORKLOADS = ("single", "decode", "prefill", "mixed", "prefix")
DTYPES = ("float32", "bfloat16")
FAST = next(stage for stage in STAGES if stage.number == 6)
BEFORE = STAGES[STAGES.index(FAST) - 1]
OPTIMIZATIONS = list(FAST.part("fast_model").OPTIMIZATIONS)
IN_RUNS = ("prefault", "freeze")  # what shows in whole runs only
TOGETHER = ("fusion", "prefill", "last_layer", "one_call")  # what the same packed weights can be used with and without


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


def make_way(llm, on: frozenset[str] | None = None, cache=None) -> Callable:
    """A step by an engine's model, with its choice of the best tokens.

    Args:
        on: the optimizations that the model is to use, for one that can change; None is those it has.
        cache: where its keys and values are; None is where everybody's are.
    """
    model, attention = llm.engine.runner.model, llm.engine.runner.cache.paged_attention
    argmax = getattr(llm, "argmax", None) if on is None or "argmax" in on else None

    def run(step, everybodys) -> torch.Tensor:
        if on is not None:
            model.on = on
            kernels, dtype = FAST.part("kernels.c_kernel"), model.wte.weight.dtype
            model.attention_kind = kernels.attention_kind(dtype, "tiles" in on)
        before, everybodys.paged_attention = everybodys.paged_attention, attention
        try:
            logits = model(step, cache or everybodys)
        finally:
            everybodys.paged_attention = before
        argmax(logits) if argmax else logits.argmax(dim=-1)
        return logits

    return run


def make_contest(llm, make: Callable) -> Contest:
    """All variants of an engine that has everything on; `make` makes engines like it, of stage 6 or 5."""
    on, kernels, room = (
        llm.engine.runner.model.on,
        FAST.part("kernels.c_kernel"),
        {"num_blocks": llm.engine.runner.num_blocks},
    )
    ways = {"": make_way(llm, on)}
    for name in OPTIMIZATIONS:
        if name in IN_RUNS or (name in ("tiles", "split") and not kernels.has_kind("tiles_bfloat16")):
            continue
        if name in TOGETHER or name == "argmax":
            ways[name] = make_way(llm, on - {name})
        else:  # weights of its own; keys and values are everybody's
            ways[name] = make_way(make(FAST, disable=[name], num_blocks=1))
    for name, other in (
        ("all of them", make(FAST, disable=OPTIMIZATIONS, **room)),
        ("stage 5", make(BEFORE, **room)),
    ):
        ways[name] = make_way(other, cache=other.engine.runner.cache)
    return Contest(llm.engine.model_config, ways)


def measure_steps(workload: str, dtype: str, repeat: int, model: str, bar: tqdm) -> dict[str, list[float]]:
    """The seconds of all steps, by every variant."""

    def make(stage, **arguments):
        return stage.LLM(
            model=model,
            load_format="dummy",
            device="cpu",
            dtype=dtype,
            max_num_seqs=workloads.SIZES[workload][1],
            attention_backend="c",  # and no other, if it does not run here
            **arguments,
        )

    bar.set_description(f"{workload} {dtype}")
    llm = make(FAST)
    requests = workloads.make_workload(workload, vocab_size=llm.engine.model_config.vocab_size)
    prompts = [prompt for prompt, _ in requests]
    params = [FAST.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in requests]
    llm.engine.runner.model = contest = make_contest(llm, make)
    llm.generate([prompt[::-1] for prompt in prompts[:2]], params[:2])  # a process's first steps are slow
    rounds = []
    for _ in range(repeat):
        contest.clear()
        llm.engine.block_manager.clear()  # or a later round would find the prompts of the one before
        llm.generate(prompts, params)
        rounds.append(contest.seconds)
        bar.update()
    return {
        name: [sum(statistics.median(times) for times in zip(*(seconds[name] for seconds in rounds), strict=True))]
        for name in contest.ways
    }


def measure_runs(workload: str, dtype: str, repeat: int, model: str, folder: Path, bar: tqdm) -> dict[str, list[float]]:
    """The seconds of whole runs, with everything and without what shows in them only."""
    requests = workloads.make_workload(workload, vocab_size=vocab_size(model))
    job = {
        "model": model,
        "load_format": "dummy",
        "dtype": dtype,
        "device": "cpu",
        "requests": requests,
        "warm_up": [prompt[::-1] for prompt, _ in requests[:2]],
        "arrivals": None,
    }
    seconds = {name: [] for name in ("", *IN_RUNS)}
    for number in range(repeat):
        for name in list(seconds)[:: -1 if number % 2 else 1]:
            bar.set_description(f"{workload} {dtype} {name and 'without ' + name}")
            options = {"max_num_seqs": workloads.SIZES[workload][1], "disable": [name] if name else []}
            run = run_in_fresh_process({**job, "engine": str(FAST), "options": options}, folder)
            seconds[name].append(run["seconds"])
            bar.update()
    return seconds


def vocab_size(model: str) -> int:
    weights = FAST.part("weights")
    sizes = weights.read_config(model, weights.find_model(model, "dummy"), "dummy")
    return FAST.part("model").ModelConfig(**sizes).vocab_size


def gains(run: dict) -> dict[str, float]:
    """What each variant takes of what everything takes."""
    ratios = {}
    for seconds in (run["seconds"], run.get("run_seconds", {})):
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        ratios |= {name: median / medians[""] for name, median in medians.items() if name}
    return ratios


def table(*results: dict) -> str:
    """Gains in Markdown, a row for each optimization, a column for each workload and type."""
    columns = {(run["workload"], run["dtype"]): gains(run) for result in results for run in result["runs"]}
    lines = [
        "| without | " + " | ".join(map(", ".join, columns)) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for name in (*OPTIMIZATIONS, "all of them", "stage 5"):
        cells = [f"{ratios[name]:.2f}" if name in ratios else "" for ratios in columns.values()]
        if any(cells):  # a result may be older than an optimization, a CPU may not have what it needs
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    first = results[0]
    machine, repeat = first["machine"], first["repeat"]
    if "runs_of_each" in first:
        how = f"steps computed by all in turn, {'once' if repeat == 1 else f'medians of {repeat}'}; "
        how += f"`prefault` and `freeze`: medians of {first['runs_of_each']} whole runs"
    else:  # all by whole runs, as it was first
        how = "whole runs, " + ("one each" if repeat == 1 else f"medians of {repeat}")
    return "\n".join(lines) + (
        f"\n\nSeconds without it, divided by those with all: {how}; {first['model']} with random weights; "
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}. "
        + ", ".join(f"`{command(result)}`" for result in results)
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workloads", nargs="+", default=list(WORKLOADS), choices=list(workloads.SIZES), metavar="NAME"
    )
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES, metavar="TYPE")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="times that a step is taken; default: 1")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="whole runs, where needed; default: 3")
    parser.add_argument("--model", default="gpt2", help="sizes of the model; its weights are random")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    args = parser.parse_args(argv)
    for name in ("repeat", "runs"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    result = {
        "command": f"python -m bench.ablation {shlex.join(sys.argv[1:] if argv is None else argv)}".strip(),
        "model": args.model,
        "repeat": args.repeat,
        "runs_of_each": args.runs,
        "machine": describe(torch.device("cpu")),
        "runs": [],
    }
    if args.json:
        args.json.touch()  # a path that can't be written is an error now, not after the work
    pairs = [(workload, dtype) for workload in args.workloads for dtype in args.dtypes]
    status, total = 0, len(pairs) * (args.repeat + args.runs * (1 + len(IN_RUNS)))
    with tempfile.TemporaryDirectory() as folder, tqdm(total=total, unit="run") as bar:
        try:
            for workload, dtype in pairs:
                run = {"workload": workload, "dtype": dtype}
                run["seconds"] = measure_steps(workload, dtype, args.repeat, args.model, bar)
                run["run_seconds"] = measure_runs(workload, dtype, args.runs, args.model, Path(folder), bar)
                result["runs"].append(run)
                if args.json:  # nothing measured is lost, whatever happens next
                    args.json.write_text(json.dumps(result, indent=1) + "\n")
        except (RuntimeError, ValueError, KeyboardInterrupt) as error:
            print(f"ablation: {error or 'interrupted'}", file=sys.stderr)
            status = 1
    if result["runs"]:
        print(table(result))
    return status


if __name__ == "__main__":
    sys.exit(main())

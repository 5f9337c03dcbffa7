"""What each optimisation of stage 6 gains: the benchmark's workloads with all of them, and with each turned off.

    python -m tests.ablation --json results/ablation.json
    python -m tests.ablation --workloads decode --dtypes bfloat16 --repeat 3

Every run is in a fresh process, in alternating order, and runs of the same workload stand next to each other in time,
so that a ratio compares equals on a machine that others use too. A gain is the seconds without an optimisation (and
without those that need it) divided by the seconds with all of them: 1.20 means that 20% more time passes without it,
less than 1 that it loses. The last two rows turn off everything, and run stage 5.
"""

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from tqdm import tqdm

from tests import workloads
from tests.adapter import STAGES
from tests.report import command
from tests.throughput import run_in_fresh_process
from tools.machine import describe

WORKLOADS = ("single", "decode", "prefill", "mixed", "prefix")
DTYPES = ("float32", "bfloat16")
FAST = next(stage for stage in STAGES if stage.number == 6)
BEFORE = STAGES[STAGES.index(FAST) - 1]
FOR_CUDA = {"graphs", "overlap"}  # which do nothing on a CPU
OPTIMIZATIONS = [name for name in FAST.part("fast_model").OPTIMIZATIONS if name not in FOR_CUDA]


def variants() -> dict[str, tuple[str, list[str]]]:
    """Name -> (the engine, what is turned off); the first one is with everything."""
    single = {name: (str(FAST), [name]) for name in OPTIMIZATIONS}
    return {"": (str(FAST), []), **single, "all of them": (str(FAST), OPTIMIZATIONS), "stage 5": (str(BEFORE), [])}


def measure(workload: str, dtype: str, repeat: int, model: str, folder: Path, bar: tqdm) -> dict[str, list[float]]:
    """The seconds of every variant's runs."""
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
    seconds = {name: [] for name in variants()}
    for number in range(repeat):
        for name, (engine, off) in list(variants().items())[:: -1 if number % 2 else 1]:
            bar.set_description(f"{workload} {dtype} {name and 'without ' + name}")
            options = {"max_num_seqs": workloads.SIZES[workload][1], "disable": off}
            run = run_in_fresh_process({**job, "engine": engine, "options": options}, folder)
            seconds[name].append(run["seconds"])
            bar.update()
    return seconds


def vocab_size(model: str) -> int:
    weights = FAST.part("weights")
    return weights.read_config(model, weights.find_model(model, "dummy"), "dummy").vocab_size


def table(*results: dict) -> str:
    """Gains in Markdown, a row for each optimisation, a column for each workload and type."""
    columns = {(run["workload"], run["dtype"]): run["seconds"] for result in results for run in result["runs"]}
    lines = [
        "| without | " + " | ".join(map(", ".join, columns)) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for name in list(variants())[1:]:
        medians = {key: {n: statistics.median(s) for n, s in seconds.items()} for key, seconds in columns.items()}
        gains = [f"{m[name] / m['']:.2f}" if name in m else "" for m in medians.values()]
        if any(gains):  # a result may be older than an optimisation
            lines.append(f"| `{name}` | " + " | ".join(gains) + " |")
    machine, repeat = results[0]["machine"], results[0]["repeat"]
    runs = "one run each" if repeat == 1 else f"medians of {repeat} runs"
    return "\n".join(lines) + (
        f"\n\nSeconds without it, divided by those with all; {results[0]['model']} with random weights; "
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}; {runs}. "
        + ", ".join(f"`{command(result)}`" for result in results)
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workloads", nargs="+", default=list(WORKLOADS), choices=list(workloads.SIZES), metavar="NAME"
    )
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES, metavar="TYPE")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each; default: 1")
    parser.add_argument("--model", default="gpt2", help="sizes of the model; its weights are random")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    args = parser.parse_args(argv)
    if args.repeat < 1:
        parser.error(f"--repeat must be at least 1, got {args.repeat}")
    result = {
        "command": f"python -m tests.ablation {shlex.join(sys.argv[1:] if argv is None else argv)}".strip(),
        "model": args.model,
        "repeat": args.repeat,
        "machine": describe(torch.device("cpu")),
        "runs": [],
    }
    pairs = [(workload, dtype) for workload in args.workloads for dtype in args.dtypes]
    total = len(pairs) * len(variants()) * args.repeat
    with tempfile.TemporaryDirectory() as folder, tqdm(total=total, unit="run") as bar:
        try:
            for workload, dtype in pairs:
                seconds = measure(workload, dtype, args.repeat, args.model, Path(folder), bar)
                result["runs"].append({"workload": workload, "dtype": dtype, "seconds": seconds})
                if args.json:  # nothing measured is lost, whatever happens next
                    args.json.write_text(json.dumps(result, indent=1) + "\n")
        except (RuntimeError, ValueError) as error:
            print(f"ablation: {error}", file=sys.stderr)
            return 1
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

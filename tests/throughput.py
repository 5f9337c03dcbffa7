"""The stages side by side: the same requests through each engine, in one run.

    python -m tests.throughput --stages 2 3 4 --json results/stages.json --plot results/stages.png
    python -m tests.throughput --stages 2 3 4 --workload equal
    python -m tests.throughput --stages 4 5 --workload mixed --max-num-seqs 64 --kv-cache-bytes 603979776

Every engine runs in a fresh process, in alternating order, `--repeat` times, after a warm-up; the table shows medians.
Before a speed is printed, two things are checked: every engine made exactly the number of tokens that was asked for,
and their greedy tokens are the same (one request in twenty may differ, where two logits are as good as equal).

Workloads (seeded; greedy, all requests there at the start):
    tail   prompts of 8 to 32 tokens; output lengths log-normal with a long tail, 4 to 96: most are short, a few long
    equal  prompts of 8 to 32 tokens; every output has 16 tokens: nothing to gain from scheduling
    prefix 512 tokens that all prompts begin with and 16 of their own; every output has 32 tokens
    mixed  prompts (8 to 512 tokens) and outputs (8 to 448) both log-normal, around 128 tokens, as in a set of chats
"""

import argparse
import hashlib
import json
import math
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

from tests.adapter import ROOT, STAGES
from tools.machine import describe

WORKLOADS = ("tail", "equal", "prefix", "mixed")


def make_workload(name: str, count: int, vocab_size: int, seed: int = 0) -> list[tuple[list[int], int]]:
    """(prompt token ids, output tokens) of each request."""
    rng = random.Random(seed)
    log_normal = lambda middle, sigma, low, high: round(  # noqa: E731
        min(high, max(low, math.exp(rng.gauss(math.log(middle), sigma))))
    )
    if name == "mixed":
        lengths = [(log_normal(128, 0.8, 8, 512), log_normal(128, 0.8, 8, 448)) for _ in range(count)]
        return [([rng.randrange(vocab_size) for _ in range(prompt)], output) for prompt, output in lengths]
    if name == "prefix":
        head = [rng.randrange(vocab_size) for _ in range(512)]
        return [(head + [rng.randrange(vocab_size) for _ in range(16)], 32) for _ in range(count)]
    requests = []
    for _ in range(count):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randrange(8, 33))]
        tail = log_normal(12, 1.0, 4, 96)
        requests.append((prompt, tail if name == "tail" else 16))
    return requests


def run_engine(args: argparse.Namespace) -> dict:
    """One engine, once, in this process: what it did and how fast."""
    import numpy as np

    stage = STAGES[args.worker - 1]
    limits = {"max_num_seqs": args.max_num_seqs, "kv_cache_bytes": args.kv_cache_bytes}
    arguments = {name: value for name, value in limits.items() if stage.has_argument(name)} | {"trace": True}
    llm = stage.LLM(args.model, load_format=args.load_format, dtype=args.dtype, device=args.device, **arguments)
    workload = make_workload(args.workload, args.requests, llm.model.config.vocab_size)
    params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in workload]
    warm_up = [prompt[::-1] for prompt, _ in workload[:2]]  # other tokens, so that nothing is found in a prefix cache
    llm.generate(warm_up, stage.SamplingParams(max_tokens=2))
    llm.stats = type(llm.stats)()
    llm.trace.clear()
    started = time.perf_counter()
    outputs = llm.generate([prompt for prompt, _ in workload], params)
    seconds = time.perf_counter() - started
    stats, ttft = llm.stats, [output.metrics.ttft for output in outputs]
    tokens = [output.outputs[0].token_ids for output in outputs]
    if [len(t) for t in tokens] != [n for _, n in workload]:
        sys.exit(f"{stage} did not make the tokens that were asked for")
    return {
        "stage": stage.directory,
        "machine": describe(llm.device),
        "seconds": seconds,
        "output_tokens": stats.num_output_tokens,
        "tokens_per_second": stats.num_output_tokens / seconds,
        "forwards": stats.num_forwards,
        "tokens_computed": stats.num_tokens_computed,
        "padding_share": stats.num_padding_tokens / (stats.num_padding_tokens + stats.num_tokens_computed),
        "rows_mean": statistics.mean(len(step.rows) for step in llm.trace),
        "rows_max": max(len(step.rows) for step in llm.trace),
        "kv_unused_share": 1 - stats.kv_tokens_used / stats.kv_tokens_reserved if stage.number >= 3 else None,
        "preemptions": getattr(stats, "num_preemptions", 0),
        "ttft_mean": statistics.mean(ttft),
        "ttft_p95": float(np.percentile(ttft, 95)),
        "token_ids": tokens,
    }


def run_in_fresh_process(arguments: list[str], stage: int) -> dict:
    command = [sys.executable, "-m", "tests.throughput", *arguments, "--worker", str(stage)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"stage {stage} failed: {result.stderr.strip()}")
    return json.loads(result.stdout)


def check_same_tokens(runs: list[dict]) -> None:
    """Greedy tokens of all runs agree; one request in twenty may differ, where two logits are as good as equal."""
    first = runs[0]["token_ids"]
    for run in runs[1:]:
        differing = sum(a != b for a, b in zip(first, run["token_ids"], strict=True))
        if differing > len(first) / 20:
            sys.exit(
                f"{run['stage']} and {runs[0]['stage']} made other tokens for {differing} of {len(first)} requests"
            )


def summarize(runs: list[dict]) -> list[dict]:
    """The median of each stage's runs, with the ratio to the stage before."""
    rows = []
    for stage in dict.fromkeys(run["stage"] for run in runs):
        own = [run for run in runs if run["stage"] == stage]
        row = {"stage": stage}
        for name in own[0]:
            if name not in ("stage", "machine", "token_ids"):
                row[name] = None if own[0][name] is None else statistics.median(run[name] for run in own)
        row["ratio"] = row["tokens_per_second"] / rows[-1]["tokens_per_second"] if rows else None
        rows.append(row)
    return rows


def table(rows: list[dict]) -> str:
    """The summary in Markdown."""
    columns = {
        "stage": lambda row: f"`{row['stage']}`",
        "tok/s": lambda row: f"{row['tokens_per_second']:.1f}",
        "against the stage before": lambda row: f"{row['ratio']:.2f} ×" if row["ratio"] else "",
        "forward passes": lambda row: f"{row['forwards']:.0f}",
        "tokens computed": lambda row: f"{row['tokens_computed']:,.0f}",
        "padding": lambda row: f"{row['padding_share']:.0%}",
        "requests at once, mean (most)": lambda row: f"{row['rows_mean']:.1f} ({row['rows_max']:.0f})",
        "KV reserved, unused": lambda row: "" if row["kv_unused_share"] is None else f"{row['kv_unused_share']:.1%}",
        "TTFT mean": lambda row: f"{row['ttft_mean']:.2f} s",
        "TTFT p95": lambda row: f"{row['ttft_p95']:.2f} s",
    }
    lines = [" | ".join(columns), " | ".join(["---"] + ["---:"] * (len(columns) - 1))]
    lines += [" | ".join(column(row) for column in columns.values()) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def plot(result: dict, path: Path) -> None:
    """Throughput of each stage and its waits, side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = result["summary"]
    names = [f"stage {int(row['stage'][5:7])}" for row in rows]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6), constrained_layout=True)
    if any(row["padding_share"] for row in rows):
        waste = "positions computed for padding, %", [100 * row["padding_share"] for row in rows], "{:.0f}"
    else:
        waste = "KV cache reserved and not used, %", [100 * row["kv_unused_share"] for row in rows], "{:.1f}"
    panels = [
        (left, "output tokens per second", [row["tokens_per_second"] for row in rows], "{:.0f}"),
        (middle, *waste),
        (right, "mean time to first token, seconds", [row["ttft_mean"] for row in rows], "{:.2f}"),
    ]
    for axes, title, values, form in panels:
        bars = axes.bar(names, values, color="#0072B2", edgecolor="black", width=0.6)
        axes.bar_label(bars, [form.format(v) for v in values], padding=2)
        axes.set_title(title, fontsize=10)
        axes.margins(y=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    kind = {
        "tail": "a long tail of output lengths",
        "equal": "equal output lengths",
        "prefix": "a common beginning",
        "mixed": "mixed lengths",
    }[result["workload"]]
    figure.suptitle(f"{result['requests']} requests with {kind}, {result['model']} ({result['load_format']} weights), "
                    f"{result['machine']['device']}, {result['machine']['threads']} threads", fontsize=10)  # fmt: skip
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, nargs="+", default=[stage.number for stage in STAGES], metavar="N")
    parser.add_argument("--workload", choices=WORKLOADS, default="tail")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument(
        "--kv-cache-bytes", type=int, help="the same memory for the KV cache of every stage that has one"
    )
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--load-format", default="dummy")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the comparison")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(run_engine(args)))
        return
    if unknown := set(args.stages) - {stage.number for stage in STAGES}:
        parser.error(f"there is no stage {min(unknown)}")
    passed = ("workload", "requests", "max_num_seqs", "kv_cache_bytes", "model", "load_format", "dtype", "device")
    given = [(name, getattr(args, name)) for name in passed if getattr(args, name) is not None]
    arguments = [x for name, value in given for x in (f"--{name.replace('_', '-')}", str(value))]
    runs = []
    with tqdm(total=args.repeat * len(args.stages), unit="run") as bar:
        for round_number in range(args.repeat):
            order = args.stages if round_number % 2 == 0 else args.stages[::-1]
            for stage in order:
                runs.append(run_in_fresh_process(arguments, stage))
                bar.update()
    runs.sort(key=lambda run: run["stage"])
    check_same_tokens(runs)
    workload = json.dumps(make_workload(args.workload, args.requests, 50257)).encode()
    result = {
        **{name: getattr(args, name) for name in passed},
        "workload_sha256": hashlib.sha256(workload).hexdigest(),
        "machine": runs[0]["machine"],
        "summary": summarize(runs),
        "runs": [{k: v for k, v in run.items() if k not in ("machine", "token_ids")} for run in runs],
    }
    print(table(result["summary"]))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plot:
        plot(result, args.plot)


if __name__ == "__main__":
    main()

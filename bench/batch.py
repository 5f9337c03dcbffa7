"""When is a batch worth it, without a cache? Stage 2's forward pass for one row and for eight, by their length.

    python -m bench.batch --json bench/results/batch.json

Rows of equal length, so there is no padding. And one whole run in stages 1 and 2: eight prompts of 4 tokens each, 40
tokens out, greedy. GPT-2 small's sizes have random weights. One thread computes, and times are the thread's own: what a
core can do, not what other programs leave of it. A forward pass takes the shorter of two.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

import stage01_single
import stage02_static_batch
from bench.machine import describe
from bench.report import write_result

CPU = torch.device("cpu")
LENGTHS = (1, 4, 16, 64)  # tokens of a row
ROWS = 8
PROMPT, OUTPUT = 4, 40  # of the whole run
MODELS = {"gpt2": "dummy", "tinytales": "auto"}  # and where its weights come from


def forward_seconds(llm: stage02_static_batch.LLM, rows: int, length: int) -> float:
    """The shorter of two forward passes over `rows` rows of `length` tokens, behind one that warms up."""
    model, seconds = llm.engine.runner.model, []
    token_ids = torch.full((rows, length), 262, dtype=torch.int64)
    num_padding = torch.zeros(rows, dtype=torch.int64)
    with torch.inference_mode():
        for _ in range(3):
            started = time.thread_time()
            model(token_ids, num_padding)
            seconds.append(time.thread_time() - started)
    return min(seconds[1:])


def run_seconds(stage, llm) -> float:
    """All requests, from their arrival to the end of the last one."""
    prompts = [[262 + i] * PROMPT for i in range(ROWS)]
    params = stage.SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)
    llm.generate(prompts[:1], stage.SamplingParams(max_tokens=2))  # warms up
    started = time.thread_time()
    llm.generate(prompts, params)
    return time.thread_time() - started


def measure(model: str, load_format: str) -> dict:
    """Seconds of a forward pass by the length of its rows, of one row and of ROWS, and of a run in both stages."""
    options = dict(dtype="float32", device="cpu", load_format=load_format)
    one, many = stage01_single.LLM(model, **options), stage02_static_batch.LLM(model, **options, max_num_seqs=ROWS)
    passes = [{"length": n, "one": forward_seconds(many, 1, n), "all": forward_seconds(many, ROWS, n)} for n in LENGTHS]
    return {
        "passes": passes,
        "stage 1": run_seconds(stage01_single, one),
        "stage 2": run_seconds(stage02_static_batch, many),
    }


def table(result: dict) -> str:
    """A line for each length: milliseconds of one row and of all, and how many times faster all are together."""
    models = result["models"]
    titles = [f"{model}: one row, ms | {ROWS} rows, ms | speed-up of {ROWS} together" for model in models]
    lines = ["| tokens of a row | " + " | ".join(titles) + " |", "| ---: |" + " ---: |" * 3 * len(models)]
    for i, length in enumerate(LENGTHS):
        passes = [own["passes"][i] for own in models.values()]
        cells = [f"{p['one'] * 1e3:.1f} | {p['all'] * 1e3:.1f} | {ROWS * p['one'] / p['all']:.2f} ×" for p in passes]
        lines.append(f"| {length} | " + " | ".join(cells) + " |")
    runs = []
    for model, own in models.items():
        one, many = ROWS * OUTPUT / own["stage 1"], ROWS * OUTPUT / own["stage 2"]
        runs.append(f"{model} {one:.0f} tok/s in stage 1 and {many:.0f} in stage 2 ({many / one:.2f} ×)")
    machine = result["machine"]
    return "\n".join(lines) + (
        f"\n\nA whole run, {ROWS} prompts of {PROMPT} tokens and {OUTPUT} tokens out: {'; '.join(runs)}. "
        f"gpt2 with random weights, float32; {machine['device']}, one thread, CPU time, torch "
        f"{machine['torch']}. `python -m bench.batch`"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "command": f"python -m bench.batch {' '.join(sys.argv[1:])}".strip(),
        "machine": describe(CPU),
        "models": {model: measure(model, load_format) for model, load_format in MODELS.items()},
    }
    print(table(result))
    if args.json:
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

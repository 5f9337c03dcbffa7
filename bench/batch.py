"""When is a batch worth it without a KV cache? Stage 2's forward pass for one row and for eight, by their length.

    python -m bench.batch --json bench/results/batch.json

The rows are equally long, so there is no padding. The prediction is the roofline's: a pass takes as long as reading the
weights or, if it has more tokens than the bend, as the arithmetic. There is also a whole run in stages 1 and 2: eight
prompts of 4 tokens, each with 40 greedy tokens out. GPT-2 small's sizes have random weights. Only one thread computes,
and times are its CPU time, to measure what a core can do even if other programs use it too.
"""

import argparse
import sys
import time
from functools import partial
from statistics import median

import torch

import stage01_single
import stage02_static_batch
from bench.machine import matmul_rate, read_bandwidth
from bench.run import grid, in_turn, script, source

LENGTHS = (1, 4, 16, 64)  # tokens of a row
ROWS = 8
TOGETHER = f"speed-up of {ROWS} together"
PROMPT, OUTPUT = 4, 40  # of the whole run
MODELS = {"gpt2": "dummy", "tinytales": "auto"}  # model -> load format


def forward_seconds(llm: stage02_static_batch.LLM, rows: int, length: int) -> float:
    """The time of a forward pass over `rows` rows of `length` tokens."""
    token_ids = torch.full((rows, length), 262, dtype=torch.int64)
    num_padding = torch.zeros(rows, dtype=torch.int64)
    with torch.inference_mode():
        started = time.thread_time()
        llm.engine.runner.model(token_ids, num_padding)
        return time.thread_time() - started


def run_seconds(stage, llm) -> float:
    """The time from the arrival of all requests to the end of the last one."""
    prompts = [[262 + i] * PROMPT for i in range(ROWS)]
    params = stage.SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)
    started = time.thread_time()
    llm.generate(prompts, params)
    return time.thread_time() - started


def rounds_of(model: str, load_format: str, repeat: int) -> dict:
    options = dict(dtype="float32", device="cpu", load_format=load_format)
    one, many = stage01_single.LLM(model, **options), stage02_static_batch.LLM(model, **options, max_num_seqs=ROWS)
    runs = {
        "stage 1": lambda: run_seconds(stage01_single, one),
        "stage 2": lambda: run_seconds(stage02_static_batch, many),
    }
    rounds: dict = in_turn(runs, repeat, warm_up=False)
    for rows in (1, ROWS):
        rounds[f"{rows} rows"] = in_turn({n: partial(forward_seconds, many, rows, n) for n in LENGTHS}, repeat)
    return rounds


def measure(args: argparse.Namespace) -> dict:
    """Seconds of a forward pass with one row and with ROWS, by their length, and of a run in both stages."""
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    limits = {"bandwidth": read_bandwidth(cpu), "matmul_rate": matmul_rate(torch.float32, cpu)}
    return limits | {
        "rounds": {model: rounds_of(model, load_format, args.repeat) for model, load_format in MODELS.items()}
    }


def bend_of(result: dict) -> float:
    """The tokens for which the arithmetic takes as long as reading the weights: 4 bytes and 2 operations for each."""
    return result["matmul_rate"] / 2 / (result["bandwidth"] / 4)


def predicted(length: int, bend: float) -> float:
    """How many times faster ROWS rows are together."""
    return ROWS * max(length, bend) / max(ROWS * length, bend)


def table(result: dict) -> str:
    """A row for each length: how many times faster ROWS rows are together, as predicted and as measured, and the
    milliseconds of a pass."""
    models, bend = result["rounds"], bend_of(result)
    titles = [title for model in models for title in (f"{model}: one row, ms", f"{ROWS} rows, ms", TOGETHER)]
    rows = []
    for n in LENGTHS:
        cells = [str(n), f"{predicted(n, bend):.1f} ×"]
        for own in models.values():
            one, many = (median(own[f"{rows} rows"][str(n)]) for rows in (1, ROWS))
            cells += [f"{one * 1e3:.1f}", f"{many * 1e3:.1f}", f"{ROWS * one / many:.1f} ×"]
        rows.append(cells)
    runs = []
    for model, own in models.items():
        one, many = (ROWS * OUTPUT / median(own[stage]) for stage in ("stage 1", "stage 2"))
        runs.append(f"{model} {one:.0f} tok/s in stage 1 and {many:.0f} in stage 2 ({many / one:.2f} ×)")
    memory, products = result["bandwidth"] / 1e9, result["matmul_rate"] / 1e9
    return grid(["tokens of a row", f"predicted {TOGETHER}", *titles], rows, left=()) + (
        f"\n\nThe core reads {memory:.1f} GB/s and does {products:.0f} GFLOP/s, so the bend is at {bend:.0f} tokens. "
        f"A whole run, {ROWS} prompts of {PROMPT} tokens and {OUTPUT} tokens out: {'; '.join(runs)}. "
        f"gpt2 with random weights, float32, CPU time; {source(result)}"
    )


main = script(measure, table, rounds=3)


if __name__ == "__main__":
    sys.exit(main())

"""Where the time of stage 6 goes: the benchmark's workloads with a clock at every kernel.

    python -m bench.profile --json bench/results/profile.json
    python -m bench.profile --workloads decode --dtypes bfloat16

Normally a step is a single call into C (kernels/forward.c). Here the same kernels are called one by one from Python, so
it takes somewhat longer. Python's own time between two kernels counts as the rest, with the scheduler and the block
tables.
"""

import argparse
import ctypes
import sys
import time
from collections import Counter
from collections.abc import Callable

import torch

from bench.ablation import FAST, OPTIONS, make_engine, warm_up
from bench.run import grid, script, source

# The kernels' names -> their titles in the table, in its order.
KERNELS = {
    "linear": "linear layers",
    "head": "logits",
    "paged_attention": "attention",
    "write_kv": "writing keys and values",
    "layer_norm": "layer norms",
    "embed": "embedding",
    "sampler": "best token",
}
REST = "the rest, Python"


c = FAST.part("kernels.c_kernel")


class Clock:
    """Takes the place of the kernels' library: a step calls the kernels one by one, and their seconds are summed."""

    def __init__(self, library):
        self.library, self.seconds = library, Counter()

    def timed(self, name: str, function: Callable) -> Callable:
        def run(*arguments):
            started = time.perf_counter()
            result = function(*arguments)
            self.seconds[name] += time.perf_counter() - started  # pyright: ignore[reportArgumentType]
            return result

        return run

    def forward(self, model, w, caches, step, logits: int, kind: int, prefill: bool, threads: int) -> None:
        """kernels/forward.c in Python."""
        names = ("embed", "layer_norm", "linear", "write_kv", "paged_attention")
        embed, layer_norm, linear, write_kv, attention = (
            self.timed(name, getattr(self.library, name)) for name in names
        )
        n, width = step.num_tokens, model.n_embd

        def norm(which: int | None, count: int, weight: int, bias: int) -> None:
            layer_norm(w.normed, w.x, which, count, width, weight, bias, model.epsilon, threads)

        embed(w.x, model.wte, model.wpe, model.format, step.token_ids, step.positions, n, width, threads)
        for i in range(model.n_layer):
            layer = model.layers[i]
            norm(None, n, layer.ln_1_weight, layer.ln_1_bias)
            linear(layer.c_attn, w.normed, n, c.TO_ROWS, None, w.qkv, None, threads)
            write_kv(caches[i], w.qkv, step, threads)
            if i + 1 == model.n_layer and step.num_logits < n:
                step, _starts = keep_last(w, width, step)
                n = step.num_tokens
            attention(w.attended, w.qkv, caches[i], step, kind, prefill, threads)
            linear(layer.attn_c_proj, w.attended, n, c.ADD, w.x, None, None, threads)
            norm(None, n, layer.ln_2_weight, layer.ln_2_bias)
            linear(layer.c_fc, w.normed, n, c.GELU, None, w.inner, None, threads)
            linear(layer.mlp_c_proj, w.inner, n, c.ADD, w.x, None, None, threads)
        norm(step.logits_indices, step.num_logits, model.ln_f_weight, model.ln_f_bias)
        head = self.timed("head", self.library.linear)
        head(model.head, w.normed, step.num_logits, c.STORE, logits, None, None, threads)


def keep_last(w, width: int, step) -> tuple:
    """(the step as the last layer computes it, only for tokens with logits; what has to stay alive for it). The same as
    `step_of_last` and `keep_last` in forward.c."""
    last = ()  # where a step has only a part of a prompt
    if step.num_logits:
        last = (ctypes.c_int64 * step.num_logits).from_address(step.logits_indices)
    ends = (ctypes.c_int64 * (step.num_seqs + 1)).from_address(step.query_start_loc)
    starts = (ctypes.c_int64 * (step.num_seqs + 1))(*(sum(token < end for token in last) for end in ends))
    query = width * (4 if w.qkv.format == c.DTYPES[torch.float32] else 2)
    for row, token in enumerate(last):
        ctypes.memmove(w.x + row * 4 * width, w.x + token * 4 * width, 4 * width)
        ctypes.memmove(w.qkv.data + row * w.qkv.stride, w.qkv.data + token * w.qkv.stride, query)
    kept = c.Step.from_buffer_copy(step)
    kept.num_tokens, kept.query_start_loc, kept.logits_indices = len(last), ctypes.addressof(starts), None
    return kept, starts


def seconds_of(workload: str, dtype: str, model: str) -> dict[str, float]:
    """Seconds in each kernel, and in the rest, while the engine serves the workload."""
    llm = make_engine(workload, dtype, model)
    prompts, params = warm_up(llm, workload)
    clock = llm.engine.runner.model.library = Clock(llm.engine.runner.model.library)
    llm.engine.runner.sampler = clock.timed("sampler", llm.engine.runner.sampler)
    started = time.perf_counter()
    llm.generate(prompts, params)
    seconds = {title: clock.seconds[name] for name, title in KERNELS.items()}
    return {**seconds, REST: time.perf_counter() - started - sum(seconds.values())}


def measure(args: argparse.Namespace) -> dict:
    runs = [
        {"workload": workload, "dtype": dtype, "seconds": seconds_of(workload, dtype, args.model)}
        for workload in args.workloads
        for dtype in args.dtypes
    ]
    return {"model": args.model, "runs": runs}


def table(result: dict) -> str:
    """Shares in Markdown, a row for each kernel that has 1% anywhere, a column for each workload and type."""
    columns = [run["seconds"] for run in result["runs"]]
    titles = ["share of the time", *(f"{run['workload']}, {run['dtype']}" for run in result["runs"])]
    rows = [
        [title, *(f"{seconds[title] / sum(seconds.values()):.1%}" for seconds in columns)]
        for title in (*KERNELS.values(), REST)
        if any(seconds[title] / sum(seconds.values()) >= 0.01 for seconds in columns)
    ]
    rows.append(["seconds", *(f"{sum(seconds.values()):.2f}" for seconds in columns)])
    return grid(titles, rows) + (
        f"\n\n{result['model']} with random weights; one run each, kernel by kernel; {source(result)}"
    )


main = script(measure, table, options=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())

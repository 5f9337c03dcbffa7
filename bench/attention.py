"""The attention kernels of stage 5 against gather-plus-SDPA, and against the bandwidth of the machine.

    python -m bench.attention --json bench/results/attention.json

Gather-plus-SDPA is what one does without a kernel for blocks: copy each request's keys and values together, then call
torch's fused attention on the copies. Each method runs the attention of a decode step (one query per request) over the
12 layers of GPT-2 small, so that, as in the engine, a layer's keys and values have left the CPU's cache before they are
needed again. A round takes the shortest of five runs. The bandwidth counts what has to be read, every key and value
once, however much a method actually moves. The caption says how fast a plain copy of 1 GiB reads and writes here.
"""

import argparse
import sys
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.machine import CPU, best_seconds, copy_bandwidth
from bench.run import grid, in_turn, script, source
from stage05_paged.attention import pick_backend

N_LAYER, N_HEAD, HEAD_DIM = 12, 12, 64  # GPT-2 small


def gather_and_sdpa(query: Tensor, keys: Tensor, values: Tensor, block_tables: Tensor) -> Tensor:
    """The requests must be equally long. keys, values: [num_blocks, n_head, block_size, head_dim], for SDPA."""
    k, v = (t[block_tables].transpose(1, 2).flatten(2, 3) for t in (keys, values))  # [batch, n_head, n_seq, head_dim]
    return F.scaled_dot_product_attention(query[:, :, None], k, v)[:, :, 0]


def ways(batch: int, context: int, block_size: int, dtype: torch.dtype) -> dict[str, Callable[[], float]]:
    """For each method, a function that returns the seconds of a layer with this batch size and context."""
    per_request = -(-context // block_size)
    shape = (N_LAYER, batch * per_request, N_HEAD)
    keys = torch.randn(*shape, HEAD_DIM, block_size).to(dtype)
    values = torch.randn(*shape, block_size, HEAD_DIM).to(dtype)
    straight = keys.transpose(-1, -2).contiguous()
    query = torch.randn(batch, N_HEAD, HEAD_DIM).to(dtype)
    tables = torch.randperm(batch * per_request).view(batch, per_request)
    starts, lengths = torch.arange(batch + 1), torch.full((batch,), context)
    attend = {"gather + SDPA": lambda i: gather_and_sdpa(query, straight[i], values[i], tables)}
    expected = attend["gather + SDPA"](0).float()
    for name in ("torch", "c"):
        attention = pick_backend(name, CPU, HEAD_DIM)[1]
        attend[name] = lambda i, attention=attention: attention(query, keys[i], values[i], tables, starts, lengths)
        error = (attend[name](0).float() - expected).abs().max()
        assert error < (1e-5 if dtype == torch.float32 else 2e-2), f"{name} is wrong by {error}"

    def seconds(one: Callable[[int], Tensor]) -> float:
        return best_seconds(lambda: [one(layer) for layer in range(N_LAYER)], CPU, repeat=5) / N_LAYER

    return {name: lambda one=one: seconds(one) for name, one in attend.items()}


def measure(args: argparse.Namespace) -> dict:
    """Seconds by context, batch size and method."""
    dtype = getattr(torch, args.dtype)
    rounds = {
        context: {
            batch: in_turn(ways(batch, context, args.block_size, dtype), args.repeat, warm_up=False)
            for batch in args.batches
        }
        for context in args.contexts
    }
    told = {"dtype": args.dtype, "block_size": args.block_size, "copy_bandwidth": copy_bandwidth(CPU)}
    return {**told, "rounds": rounds}


def table(result: dict) -> str:
    """The times of a layer, the kernel next to the faster of the others in each round, and its bandwidth."""
    rows, itemsize = [], getattr(torch, result["dtype"]).itemsize
    for context, batches in result["rounds"].items():
        for batch, by in batches.items():
            cells = [f"{1e6 * median(own):,.0f}" for own in by.values()]
            ratios = [min(others) / kernel for *others, kernel in zip(*by.values(), strict=True)]
            read = 2 * int(batch) * int(context) * N_HEAD * HEAD_DIM * itemsize  # all keys and values
            speed_up = f"{median(ratios):.1f} × ({min(ratios):.1f} to {max(ratios):.1f})"
            rows.append([batch, context, *cells, speed_up, f"{read / median(by['c']) / 1e9:.1f}"])
    titles = ["batch", "context", *(f"{name}, µs" for name in by), "c, next to the faster of the others", "c, GB/s"]
    return grid(titles, rows, left=()) + (
        f"\n\nMicroseconds for one layer, of {N_LAYER}; in parentheses the lowest and highest in any one round. "
        f"{result['dtype']}, blocks of {result['block_size']}; a plain copy of memory reaches "
        f"{result['copy_bandwidth'] / 1e9:.1f} GB/s. {source(result, spread=False)}"
    )


OPTIONS = {
    "--batches": dict(type=int, nargs="+", default=[1, 4, 16, 32, 64], metavar="N"),
    "--contexts": dict(type=int, nargs="+", default=[128, 256, 512, 1024], metavar="N"),
    "--block-size": dict(type=int, default=16, metavar="N", help="default: %(default)s"),
    "--dtype": dict(default="float32", choices=["float32", "bfloat16", "float16"]),
}
main = script(measure, table, rounds=3, options=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())

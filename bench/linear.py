"""The linear kernels of stages 6 and 8 against torch: how fast each way to multiply is, for each number of rows.

    python -m bench.linear --json bench/results/avx512/linear.json

Each of them runs the 48 linear layers of GPT-2 small one after another, so that, as in the engine, weights have left
the CPU's cache before they are needed again. A round takes the shortest of five runs. Bandwidth counts each weight
once; operations are two per weight and row. With int8 weights, only the products are timed, not the rounding of
activations to integers.
"""

import argparse
import sys
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F

from bench.machine import CPU, best_seconds
from bench.run import grid, in_turn, script, source
from stage08_int8.kernels import c_kernel as c  # it has stage 6's loops too
from stage08_int8.quantize import quantize
from stage08_int8.support.memory import Arena

SHAPES = [(768, 2304), (768, 768), (768, 3072), (3072, 768)] * 12  # (in, out) of GPT-2 small's linear layers
NUMBERS = sum(in_ * out for in_, out in SHAPES)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
SHOWN = (1, 2, 8, 32, 512)  # in the tables; the files have all
KINDS = {
    torch.float32: ("fma_float32", "tiles_split"),
    torch.bfloat16: ("fma_bfloat16", "dot_bfloat16", "tiles_bfloat16"),
    torch.int8: ("pairs_int8", "dot_int8", "tiles_int8"),
}


def matrix(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(rows, columns)
    return quantize(x)[0] if dtype == torch.int8 else x.to(dtype)


def by_torch(dtype: torch.dtype) -> Callable[[int], None]:
    """All layers, for a number of rows."""
    weights = [matrix(out, in_, dtype) for in_, out in SHAPES]
    biases = [torch.zeros(out, dtype=dtype) for _, out in SHAPES]
    inputs = {in_: matrix(max(ROWS), in_, dtype) for in_ in (768, 3072)}

    def run(num_rows: int) -> None:
        for weight, bias in zip(weights, biases, strict=True):
            x = inputs[weight.shape[1]][:num_rows]
            if dtype == torch.int8:
                torch._int_mm(x, weight.t())  # pyright: ignore[reportPrivateImportUsage]
            else:
                F.linear(x, weight, bias)

    return run


def by_kernel(kind: str) -> Callable[[int], None]:
    number, rows_format = c.KINDS[kind]
    arena = Arena()  # as in the engine
    dtype = torch.int8 if kind.endswith("int8") else torch.float32
    panels = [c.pack(matrix(out, in_, dtype), kind, arena.alloc).data_ptr() for in_, out in SHAPES]
    bias, scales, out = torch.zeros(3072), torch.ones(3072), torch.empty(max(ROWS), 3072)
    last = (scales.data_ptr(),) if dtype == torch.int8 else ()
    layers = [c.Linear(p, bias.data_ptr(), *shape, number, *last) for p, shape in zip(panels, SHAPES, strict=True)]
    memory = torch.zeros(2, max(ROWS), 4 * 3072 + 64, dtype=torch.uint8)
    if dtype != torch.int8:  # random, as torch's: zeros take less power, so a CPU may run faster
        memory.view(torch.float32 if rows_format == c.DTYPES[torch.float32] else torch.bfloat16).normal_()
    stride = {in_: in_ * c.SIZES[rows_format] + 64 for in_ in (768, 3072)}
    rows = {in_: c.Rows(memory.data_ptr(), s, max(ROWS) * s, rows_format) for in_, s in stride.items()}
    library, threads = c.load_kernel(), torch.get_num_threads()

    def run(num_rows: int, kept: tuple = (arena, bias, scales, memory)) -> None:  # kept: the kernel has only addresses
        for layer, then in zip(layers, [*layers[1:], None], strict=True):
            library.linear(layer, rows[layer.in_], num_rows, c.STORE, out.data_ptr(), None, then, threads)

    return run


def measure(args: argparse.Namespace) -> dict:
    """Seconds of all layers, by type, method and number of rows."""
    rounds = {}
    with torch.inference_mode():
        for dtype, kinds in KINDS.items():
            ways = {"torch": by_torch(dtype), **{kind: by_kernel(kind) for kind in kinds if c.has_kind(kind)}}
            cases = {
                (way, n): lambda run=run, n=n: best_seconds(lambda: run(n), CPU, repeat=5)
                for way, run in ways.items()
                for n in ROWS
            }
            found = in_turn(cases, args.repeat, warm_up=False)
            own = rounds[str(dtype).removeprefix("torch.")] = {way: {} for way in ways}
            for (way, n), seconds in found.items():
                own[way][n] = seconds
    return {"rounds": rounds}


def table(result: dict) -> str:
    """A table for each type: every method's GB/s of weights and GFLOP/s, by the number of rows (some of them)."""
    tables = []
    for name, ways in result["rounds"].items():
        size = getattr(torch, name).itemsize
        rows = []
        for n in SHOWN:
            seconds = [median(way[str(n)] or [0]) for way in ways.values()]
            cells = [f"{NUMBERS * size / s / 1e9:.1f}, {2 * NUMBERS * n / s / 1e9:,.0f}" if s else "" for s in seconds]
            rows.append([str(n), *cells])
        tables.append(grid([f"{name}: rows", *ways], rows, left=()))
    read = f"GB/s of weights read, and GFLOP/s, of {NUMBERS / 1e6:.0f} million weights"
    return "\n\n".join([*tables, f"{read}; {source(result)}"])


main = script(measure, table, rounds=3)

if __name__ == "__main__":
    sys.exit(main())

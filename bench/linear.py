"""The linear kernels of stages 6 and 8 against torch: what each way to multiply reaches, for each number of rows.

    python -m bench.linear --json bench/results/linear.json

Each way runs the 48 linear layers of GPT-2 small one after the other, so that, as in the engine, weights have left the
CPU's cache before they are needed again. The time is the shortest of several runs. Bandwidth counts each weight once;
operations are two per weight and row. With int8 weights the time is that of the products; turning activations into
integers is not in it.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from bench.machine import best_seconds, describe
from bench.report import write_result
from stage08_int8.kernels import c_kernel as c  # it has stage 6's loops too
from stage08_int8.quantize import quantize
from stage08_int8.support.memory import Arena

SHAPES = [(768, 2304), (768, 768), (768, 3072), (3072, 768)] * 12  # (in, out) of GPT-2 small's linear layers
NUMBERS = sum(in_ * out for in_, out in SHAPES)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
KINDS = {
    torch.float32: ("fma_float32", "tiles_split"),
    torch.bfloat16: ("fma_bfloat16", "dot_bfloat16", "tiles_bfloat16"),
    torch.int8: ("pairs_int8", "dot_int8", "tiles_int8"),
}
CPU = torch.device("cpu")


def matrix(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(rows, columns)
    return quantize(x)[0] if dtype == torch.int8 else x.to(dtype)


def by_torch(dtype: torch.dtype) -> dict[int, float]:
    """Seconds of all layers, by the number of rows."""
    weights = [matrix(out, in_, dtype) for in_, out in SHAPES]
    biases = [torch.zeros(out, dtype=dtype) for _, out in SHAPES]
    seconds = {}
    for num_rows in ROWS:
        inputs = {in_: matrix(num_rows, in_, dtype) for in_ in (768, 3072)}

        def run(inputs=inputs):
            for weight, bias in zip(weights, biases, strict=True):
                if dtype == torch.int8:
                    torch._int_mm(inputs[weight.shape[1]], weight.t())  # pyright: ignore[reportPrivateImportUsage]
                else:
                    F.linear(inputs[weight.shape[1]], weight, bias)

        seconds[num_rows] = best_seconds(run, CPU, repeat=5)
    return seconds


def by_kernel(kind: str) -> dict[int, float]:
    number, rows_format = c.KINDS[kind]
    arena = Arena()  # as in the engine
    dtype = torch.int8 if kind.endswith("int8") else torch.float32
    panels = [c.pack(matrix(out, in_, dtype), kind, arena.alloc).data_ptr() for in_, out in SHAPES]
    bias, scales, out = torch.zeros(3072), torch.ones(3072), torch.empty(max(ROWS), 3072)
    last = (scales.data_ptr(),) if dtype == torch.int8 else ()
    layers = [c.Linear(p, bias.data_ptr(), *shape, number, *last) for p, shape in zip(panels, SHAPES, strict=True)]
    memory = torch.zeros(2, max(ROWS), 4 * 3072 + 64, dtype=torch.uint8)
    stride = {in_: in_ * c.SIZES[rows_format] + 64 for in_ in (768, 3072)}
    rows = {in_: c.Rows(memory.data_ptr(), s, max(ROWS) * s, rows_format) for in_, s in stride.items()}
    library, threads, seconds = c.load_kernel(), torch.get_num_threads(), {}
    for num_rows in ROWS:

        def run(num_rows=num_rows):
            for layer, then in zip(layers, [*layers[1:], None], strict=True):
                library.linear(layer, rows[layer.in_], num_rows, c.STORE, out.data_ptr(), None, then, threads)

        seconds[num_rows] = best_seconds(run, CPU, repeat=5)
    return seconds


def table(result: dict) -> str:
    """A table for each type: GB/s of weights and GFLOP/s of every way, by the number of rows."""
    lines = []
    for dtype in KINDS:
        name = str(dtype).removeprefix("torch.")
        if name not in result:  # older results have no int8
            continue
        ways = result[name]
        lines += [f"| {name}: rows | " + " | ".join(ways) + " |", "| ---: |" + " ---: |" * len(ways)]
        for num_rows in ROWS:
            seconds = [way[str(num_rows)] for way in ways.values()]
            cells = [
                f"{NUMBERS * dtype.itemsize / s / 1e9:.1f}, {2 * NUMBERS * num_rows / s / 1e9:,.0f}" for s in seconds
            ]
            lines.append(f"| {num_rows} | " + " | ".join(cells) + " |")
        lines.append("")
    machine = result["machine"]
    return "\n".join(lines) + (
        f"\nGB/s of weights read, and GFLOP/s, of {NUMBERS / 1e6:.0f} million weights; {machine['device']}, "
        f"{machine['threads']} threads, torch {machine['torch']}. `python -m bench.linear`"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    args = parser.parse_args()
    result = {"command": f"python -m bench.linear {' '.join(sys.argv[1:])}".strip(), "machine": describe(CPU)}
    with torch.inference_mode():
        for dtype, kinds in KINDS.items():
            ways = {"torch": by_torch(dtype), **{kind: by_kernel(kind) for kind in kinds if c.has_kind(kind)}}
            result[str(dtype).removeprefix("torch.")] = {
                way: {str(num_rows): seconds for num_rows, seconds in times.items()} for way, times in ways.items()
            }
    print(table(result))
    if args.json:
        write_result(args.json, result)


if __name__ == "__main__":
    main()

"""A linear layer, from a plain loop to what stage 6's kernel does, idea by idea, beside torch and that kernel.

    python -m bench.layer --json bench/results/layer.json

Chapter 6 explains the five functions, which are in layer.c. Each way runs 12 layers of GPT-2 small's size (768 inputs
and 3,072 outputs; 113 MB in float32) one after the other, so that a layer's weights have left the CPU's cache before
they are needed again. The time is the shortest of several runs. Of the five only the last has more than one thread.
"""

import argparse
import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.machine import best_seconds, describe
from bench.report import write_result
from stage06_fast.kernels import c_kernel as c
from stage06_fast.support.compiler import openmp_runtime
from stage06_fast.support.memory import Arena

STEPS = ("plain", "packed", "grouped", "fused", "shared")  # the functions of layer.c
IN, OUT, LAYERS = 768, 3072, 12
TOKENS = (1, 8, 64)
PANEL = 32
CPU = torch.device("cpu")
FLAGS = ("-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fPIC")


def load_steps() -> ctypes.CDLL:
    """layer.c, compiled for this CPU, with torch's threads.

    Raises:
        OSError, CalledProcessError: there is no compiler, or it fails.
    """
    source, runtime = Path(__file__).with_suffix(".c"), openmp_runtime()
    with tempfile.TemporaryDirectory() as folder:
        compiled, library = Path(folder) / "layer.o", Path(folder) / "layer.so"
        subprocess.run(["cc", *FLAGS, *(["-fopenmp"] if runtime else []), "-c", source, "-o", compiled], check=True)
        subprocess.run(["cc", "-shared", compiled, *([runtime] if runtime else []), "-o", library], check=True)
        steps = ctypes.CDLL(str(library))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    steps.pack.argtypes = [pointer, pointer, size, size]
    for name in STEPS:
        getattr(steps, name).argtypes = [pointer, pointer, pointer, pointer, size, size, size]
    return steps


def packed(steps: ctypes.CDLL, weight: Tensor) -> Tensor:
    """[out, in] -> [out / PANEL, in, PANEL]. Raises ValueError if out is no multiple of PANEL."""
    out, in_ = weight.shape
    if out % PANEL:
        raise ValueError(f"the outputs are a multiple of {PANEL}, got {out}")
    panels = torch.empty(out // PANEL, in_, PANEL, dtype=torch.float32)
    steps.pack(weight.data_ptr(), panels.data_ptr(), in_, out)
    return panels


def run_step(steps: ctypes.CDLL, name: str, x: Tensor, weight: Tensor, panels: Tensor, bias: Tensor, y: Tensor) -> None:
    """y += x @ weight.T + bias by one of STEPS: [tokens, in], [out, in], its panels, [out], [tokens, out]."""
    weights = weight if name == "plain" else panels
    pointers = (tensor.data_ptr() for tensor in (x, weights, bias, y))
    getattr(steps, name)(*pointers, len(x), *reversed(weight.shape))


def by_steps(steps: ctypes.CDLL, weights: list[Tensor], bias: Tensor) -> dict[str, dict[int, float]]:
    """Seconds of all layers, of each step, by the number of tokens."""
    panels, seconds = [packed(steps, weight) for weight in weights], {}
    for name in STEPS:
        for tokens in TOKENS:
            x, y = torch.randn(tokens, IN), torch.zeros(tokens, OUT)

            def run(name=name, x=x, y=y):
                for weight, own in zip(weights, panels, strict=True):
                    run_step(steps, name, x, weight, own, bias, y)

            seconds.setdefault(name, {})[tokens] = best_seconds(run, CPU, repeat=2 if name == "plain" else 25)
    return seconds


def by_torch(weights: list[Tensor], bias: Tensor) -> dict[int, float]:
    seconds = {}
    for tokens in TOKENS:
        x, y = torch.randn(tokens, IN), torch.zeros(tokens, OUT)

        def run(x=x, y=y):
            for weight in weights:
                y.add_(F.linear(x, weight, bias))

        seconds[tokens] = best_seconds(run, CPU, repeat=25)
    return seconds


def by_kernel(weights: list[Tensor], bias: Tensor) -> dict[int, float]:
    """Stage 6's kernel, with the instructions that every CPU has."""
    number, _ = c.KINDS["fma_float32"]
    arena = Arena()
    panels = [c.pack(weight, "fma_float32", arena.alloc).data_ptr() for weight in weights]
    layers = [c.Linear(p, bias.data_ptr(), IN, OUT, number) for p in panels]
    library, seconds, stride = c.load_kernel(), {}, 4 * IN + 64
    for tokens in TOKENS:
        x, y = torch.zeros(tokens, stride, dtype=torch.uint8), torch.zeros(tokens, OUT)
        x.view(torch.float32)[:, :IN] = torch.randn(tokens, IN)
        own = c.Rows(x.data_ptr(), stride, tokens * stride, 0)

        def run(own=own, tokens=tokens, y=y):
            for layer, then in zip(layers, [*layers[1:], None], strict=True):
                library.linear(layer, own, tokens, c.ADD, y.data_ptr(), None, then, torch.get_num_threads())

        seconds[tokens] = best_seconds(run, CPU, repeat=25)
    return seconds


def table(result: dict) -> str:
    """GB/s of weights and GFLOP/s of each way, by the number of tokens."""
    titles = [f"{n} token{'s' if n > 1 else ''}" for n in TOKENS]
    lines = ["| | " + " | ".join(titles) + " |", "| --- |" + " ---: |" * len(TOKENS)]
    numbers = IN * OUT * LAYERS
    for name, seconds in result["seconds"].items():
        own = [seconds[str(tokens)] for tokens in TOKENS]
        cells = [
            f"{4 * numbers / s / 1e9:.1f}, {2 * numbers * tokens / s / 1e9:.0f}"
            for s, tokens in zip(own, TOKENS, strict=True)
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    machine = result["machine"]
    return "\n".join(lines) + (
        f"\n\nGB/s of weights, and GFLOP/s, of {LAYERS} layers of {IN} inputs and {OUT:,} outputs in float32; "
        f"{machine['device']}, torch {machine['torch']}. Threads: {machine['threads']}, but one for the first four. "
        "`python -m bench.layer`"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to this file")
    args = parser.parse_args()
    torch.manual_seed(0)
    try:
        steps = load_steps()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"layer: there are no steps without a C compiler: {error}", file=sys.stderr)
        return 2
    with torch.inference_mode():
        weights, bias = [torch.randn(OUT, IN) for _ in range(LAYERS)], torch.randn(OUT)
        seconds = by_steps(steps, weights, bias)
        seconds |= {"torch": by_torch(weights, bias), "stage 6": by_kernel(weights, bias)}
    result = {
        "command": f"python -m bench.layer {' '.join(sys.argv[1:])}".strip(),
        "machine": describe(CPU),
        "seconds": {name: {str(tokens): s for tokens, s in own.items()} for name, own in seconds.items()},
    }
    print(table(result))
    if args.json:
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

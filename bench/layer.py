"""A linear layer from a plain loop to what stage 6's kernel does, one idea at a time, and by torch and that kernel.

    python -m bench.layer --json bench/results/layer.json

Chapter 6 explains the five functions, which are in layer.c. Each method runs 12 layers of GPT-2 small's size (768
inputs and 3,072 outputs; 113 MB in float32) one after another, so that a layer's weights have left the CPU's cache
before they are needed again. A round takes the shortest of several runs. Only the last of the five has several threads.
"""

import argparse
import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.machine import CPU, best_seconds
from bench.run import grid, in_turn, script, source
from stage06_fast.kernels import c_kernel as c
from stage06_fast.support.compiler import openmp_runtime
from stage06_fast.support.memory import Arena

STEPS = ("plain", "packed", "grouped", "fused", "shared")  # the functions of layer.c
IN, OUT, LAYERS = 768, 3072, 12
TOKENS = (1, 8, 64)
PANEL = 32
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
    """[out, in] -> [out / PANEL, in, PANEL]. Raises ValueError if out is not a multiple of PANEL."""
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


def by_kernel(weights: list[Tensor], bias: Tensor) -> Callable[[Tensor, Tensor], None]:
    """All layers by stage 6's kernel, with the instructions that every CPU has; y as in `run_step`."""
    number, _ = c.KINDS["fma_float32"]
    arena = Arena()
    panels = [c.pack(weight, "fma_float32", arena.alloc).data_ptr() for weight in weights]
    layers = [c.Linear(p, bias.data_ptr(), IN, OUT, number) for p in panels]
    library, stride = c.load_kernel(), 4 * IN + 64
    memory = torch.zeros(max(TOKENS), stride, dtype=torch.uint8)

    def run(x: Tensor, y: Tensor, kept: tuple = (arena, bias)) -> None:  # kept: the kernel has only addresses
        memory.view(torch.float32)[: len(x), :IN] = x
        rows = c.Rows(memory.data_ptr(), stride, len(x) * stride, 0)
        for layer, then in zip(layers, [*layers[1:], None], strict=True):
            library.linear(layer, rows, len(x), c.ADD, y.data_ptr(), None, then, torch.get_num_threads())

    return run


def measure(args: argparse.Namespace) -> dict:
    """Seconds of all layers, by method and number of tokens."""
    torch.manual_seed(0)
    try:
        steps = load_steps()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"there are no steps without a C compiler: {error}") from None
    weights, bias = [torch.randn(OUT, IN) for _ in range(LAYERS)], torch.randn(OUT)
    panels = [packed(steps, weight) for weight in weights]

    def by_step(name: str) -> Callable[[Tensor, Tensor], None]:
        def run(x: Tensor, y: Tensor) -> None:
            for weight, own in zip(weights, panels, strict=True):
                run_step(steps, name, x, weight, own, bias, y)

        return run

    def by_torch(x: Tensor, y: Tensor) -> None:
        for weight in weights:
            y.add_(F.linear(x, weight, bias))

    ways = {**{name: by_step(name) for name in STEPS}, "torch": by_torch, "stage 6": by_kernel(weights, bias)}

    def seconds(name: str, tokens: int) -> float:
        x, y = torch.randn(tokens, IN), torch.zeros(tokens, OUT)
        return best_seconds(lambda: ways[name](x, y), CPU, repeat=2 if name == "plain" else 25)

    with torch.inference_mode():
        cases = {(name, n): lambda name=name, n=n: seconds(name, n) for name in ways for n in TOKENS}
        found = in_turn(cases, args.repeat, warm_up=False)
    return {"rounds": {name: {n: found[name, n] for n in TOKENS} for name in ways}}


def table(result: dict) -> str:
    """How fast each method is, by the number of tokens: GB/s of weights for one token, which waits for memory, and
    GFLOP/s for more."""
    numbers, rows = IN * OUT * LAYERS, []
    for name, rounds in result["rounds"].items():
        one, *more = ((tokens, median(rounds[str(tokens)])) for tokens in TOKENS)
        rows.append([name, f"{4 * numbers / one[1] / 1e9:.1f}", *(f"{2 * numbers * n / s / 1e9:.1f}" for n, s in more)])
    titles = ["way", f"{TOKENS[0]} token, GB/s", *(f"{n} tokens, GFLOP/s" for n in TOKENS[1:])]
    return grid(titles, rows) + (
        f"\n\nGB/s of weights read, or GFLOP/s, of {LAYERS} layers of {IN} inputs and {OUT:,} outputs in float32 (the "
        f"first four ways by one thread); {source(result)}"
    )


main = script(measure, table, rounds=3)

if __name__ == "__main__":
    sys.exit(main())

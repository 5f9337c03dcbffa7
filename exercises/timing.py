"""How fast an answer in C is, compared with chapter 6's plain loop and torch.

    python -m exercises time 6.3

Twelve layers of GPT-2's size (768 inputs, 3,072 outputs; 113 MB), one after another, so that each layer's weights have
left the CPU's cache before they are needed again. All versions compute the same, in turn, several times; the medians
are shown. An answer is timed only if it passes its check. Nothing is recorded, and no particular speed is required.
"""

import argparse
import ctypes
import functools
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import layer

from . import report
from .catalogue import exercises
from .in_c import FOLDER, run_compiler

ROUNDS = 5
GELU = 2  # as in linear.h
load_steps = functools.cache(layer.load_steps)


def library_of(answer: Path, folder: Path) -> ctypes.CDLL:
    """The answer as a library; for 6.5 with threads, and with the `one_panel` that they call."""
    more = [FOLDER / "timed.c"] if answer.name.startswith("6_5") else []
    run_compiler(["-O3", "-shared", "-fPIC", answer, *more], answer, folder / "answer.so")
    return ctypes.CDLL(str(folder / "answer.so"))


def compute(name: str, number: str, library: ctypes.CDLL, threads: int, *tensors: Tensor) -> None:
    """y = x W^T + bias by "plain", "yours" or "torch"; for 6.4, GELU of it. tensors: x, weight, its panels, bias, y."""
    x, weight, panels, bias, y = tensors
    out, in_ = weight.shape

    def call(function: str, *arguments: Tensor | int) -> None:
        getattr(library, function)(
            *(ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int64(a) for a in arguments)
        )

    if name == "torch":
        torch.addmm(bias, x, weight.T, out=y)
    elif name == "plain":
        layer.run_step(load_steps(), "plain", x, weight, panels, bias, y.zero_())
    elif number == "6.2":
        for row, result in zip(x, y, strict=True):
            call("multiply", row, panels, result, in_, out)
    elif number == "6.3":
        call("grouped", x, panels, y, len(x), in_, out)
    elif number == "6.4":
        call("fused", x, panels, bias, y, len(x), in_, out, GELU)
    else:
        call("shared", x, panels, bias, y.zero_(), len(x), in_, out, threads)
    if number == "6.4" and name != "yours":
        y.copy_(F.gelu(y, approximate="tanh"))


def measure(number: str, library: ctypes.CDLL, threads: int, num_layers: int = layer.LAYERS) -> dict[str, list[float]]:
    """Seconds for all layers, per version, for each of `layer.TOKENS`. Raises AssertionError if one is wrong."""
    weights = [torch.randn(layer.OUT, layer.IN) for _ in range(num_layers)]
    panels = [weight.view(-1, layer.PANEL, layer.IN).transpose(1, 2).contiguous() for weight in weights]
    bias = torch.zeros(layer.OUT) if number in ("6.2", "6.3") else torch.randn(layer.OUT)
    found: dict[str, list[float]] = {"plain": [], "yours": [], "torch": []}
    for tokens in layer.TOKENS:
        x, results = torch.randn(tokens, layer.IN) / 100, {name: torch.zeros(tokens, layer.OUT) for name in found}
        taken: dict[str, list[float]] = {name: [] for name in found}
        for i in range(ROUNDS + 1):  # the first round warms up memory
            for name in found if i < 2 else ("yours", "torch"):
                started = time.perf_counter()
                for weight, packed in zip(weights, panels, strict=True):
                    compute(name, number, library, threads, x, weight, packed, bias, results[name])
                taken[name].append(time.perf_counter() - started)
        for name, own in found.items():
            said = f"{name} computes something else"
            torch.testing.assert_close(results[name], results["torch"], rtol=1e-3, atol=1e-3, msg=said)
            own.append(median(taken[name][1:]))
    return found


def table(found: dict[str, list[float]]) -> str:
    """A line for each version."""
    lines = ["           " + "".join(f"{tokens:>12} token{'s' if tokens > 1 else ' '}" for tokens in layer.TOKENS)]
    for name, own in found.items():
        cells = [f"{1e3 * s:9.1f} ms {theirs / s:5.2f}×" for s, theirs in zip(own, found["torch"], strict=True)]
        lines.append(f"{name:8}  {''.join(cells)}")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """The command `time`."""
    in_c = {number: exercise for number, exercise in exercises().items() if exercise.work.suffix == ".c"}
    parser = argparse.ArgumentParser(
        prog="python -m exercises time", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", choices=list(in_c), metavar="N.M", help=f"one of {', '.join(in_c)}")
    exercise = in_c[parser.parse_args(argv).number]
    result = report.run([exercise.test], exercise.work, first=True, show=False)
    if result.state != "passed":
        print(f"{exercise.number} is {result.state}; first: python -m exercises check {exercise.number}")
        return 1
    threads = torch.get_num_threads() if exercise.number == "6.5" else 1
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        print(table(measure(exercise.number, library_of(exercise.work, Path(folder)), threads)))
    print(f"{layer.LAYERS} layers of {layer.IN} inputs and {layer.OUT:,} outputs; threads: {threads} (plain: 1)")
    print(f"The median of {ROUNDS} (plain: 1), measured in turn; × is the speed relative to torch.")
    return 0

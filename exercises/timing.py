"""How fast a C answer is, compared with chapter 6's plain loop and torch.

    python -m exercises time 6.3

Twelve layers of GPT-2's size (768 inputs, 3,072 outputs; 113 MB), one after another, so that each layer's weights have
left the CPU's cache before they are needed again. All versions compute the same, in turn, several times; the medians
are shown. An answer is timed only if it passes its check. Nothing is recorded, and no particular speed is required.
"""

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import layer
from stage06_fast.support.compiler import openmp_runtime

from .catalogue import Exercise, exercises, grade
from .in_c import FOLDER, compile_answer, run_compiler

ROUNDS = 5
GELU = 2  # as in linear.h
Way = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], object]  # x, weight, its panels, bias, y


def library_of(answer: Path, folder: Path) -> ctypes.CDLL:
    """The answer as a library; for 6.5 with threads, and with the `one_panel` that they call."""
    made, runtime = [folder / "answer.o"], openmp_runtime()
    compile_answer(answer, made[0])
    if answer.name.startswith("6_5"):
        threads, header = (["-fopenmp"] if runtime else []), f"-I{FOLDER / 'stage6'}"
        run_compiler(["-fPIC", *threads, header, "-c", FOLDER / "timed.c", "-o", folder / "timed.o"], answer)
        made += [folder / "timed.o", *([runtime] if runtime else [])]
    run_compiler(["-shared", *made, "-lm", "-o", folder / "answer.so"], answer)
    return ctypes.CDLL(str(folder / "answer.so"))


def ways(number: str, library: ctypes.CDLL, threads: int) -> dict[str, Way]:
    """What is timed: the plain loop, the answer, torch."""
    steps = layer.load_steps()

    def call(name: str, *arguments: Tensor | int) -> None:
        kinds = [ctypes.c_void_p if isinstance(a, Tensor) else ctypes.c_int64 for a in arguments]
        values = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        getattr(library, name)(*[kind(value) for kind, value in zip(kinds, values, strict=True)])

    def yours(x: Tensor, weight: Tensor, panels: Tensor, bias: Tensor, y: Tensor) -> None:
        out, in_ = weight.shape
        if number == "6.2":
            for row, result in zip(x, y, strict=True):
                call("multiply", row, panels, result, in_, out)
        elif number == "6.3":
            call("grouped", x, panels, y, len(x), in_, out)
        elif number == "6.4":
            call("fused", x, panels, bias, y, len(x), in_, out, GELU)
        else:
            call("shared", x, panels, bias, y, len(x), in_, out, threads)

    def plain(x: Tensor, weight: Tensor, panels: Tensor, bias: Tensor, y: Tensor) -> None:
        if number != "6.5":
            y.zero_()
        layer.run_step(
            steps, "plain", x, weight, panels, bias if number in ("6.4", "6.5") else torch.zeros(len(bias)), y
        )
        if number == "6.4":
            y.copy_(F.gelu(y, approximate="tanh"))

    def by_torch(x: Tensor, weight: Tensor, panels: Tensor, bias: Tensor, y: Tensor) -> None:
        if number == "6.5":
            y.add_(F.linear(x, weight, bias))
        elif number == "6.4":
            y.copy_(F.gelu(F.linear(x, weight, bias), approximate="tanh"))
        else:
            torch.mm(x, weight.T, out=y)

    return {"plain": plain, "yours": yours, "torch": by_torch}


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measure(number: str, library: ctypes.CDLL, threads: int, num_layers: int = layer.LAYERS) -> dict[str, list[float]]:
    """Seconds for all layers, per version, for each of `layer.TOKENS`. Raises AssertionError if one is wrong."""
    weights, bias = [torch.randn(layer.OUT, layer.IN) for _ in range(num_layers)], torch.randn(layer.OUT)
    panels = [weight.view(-1, layer.PANEL, layer.IN).transpose(1, 2).contiguous() for weight in weights]
    found: dict[str, list[float]] = {}
    for tokens in layer.TOKENS:
        x, own = torch.randn(tokens, layer.IN) / 100, ways(number, library, threads)
        results = {name: torch.zeros(tokens, layer.OUT) for name in own}

        def run(name: str, own=own, x=x, results=results) -> None:
            for weight, packed in zip(weights, panels, strict=True):
                own[name](x, weight, packed, bias, results[name])

        taken: dict[str, list[float]] = {name: [] for name in own}
        for i in range(ROUNDS + 1):  # the first run warms up memory
            for name in own:
                if name != "plain" or i < 2:
                    taken[name].append(seconds(lambda name=name: run(name)))
        for name, result in results.items():
            torch.testing.assert_close(
                result, results["torch"], rtol=1e-3, atol=1e-3, msg=f"{name} computes something else"
            )
            found.setdefault(name, []).append(statistics.median(taken[name][1:]))
    return found


def table(found: dict[str, list[float]], threads: int, num_layers: int = layer.LAYERS) -> str:
    """A line for each version."""
    lines = ["           " + "".join(f"{tokens:>12} token{'s' if tokens > 1 else ' '}" for tokens in layer.TOKENS)]
    for name, own in found.items():
        ratios = [theirs / mine for mine, theirs in zip(own, found["torch"], strict=True)]
        cells = [f"{1e3 * s:9.1f} ms {ratio:5.2f}×" for s, ratio in zip(own, ratios, strict=True)]
        lines.append(f"{name:8}  {''.join(cells)}")
    return "\n".join([
        *lines,
        f"{num_layers} layers of {layer.IN} inputs and {layer.OUT:,} outputs; threads: {threads} (plain: 1)",
        f"The median of {ROUNDS} (plain: 1), measured in turn; × is the speed relative to torch.",
    ])  # fmt: skip


def time_answer(exercise: Exercise) -> int:
    result = grade(exercise)
    if result.state != "passed":
        print(f"{exercise.number} is {result.state}; first: python -m exercises check {exercise.number}")
        return 1
    before = torch.get_num_threads()
    threads = before if exercise.number == "6.5" else 1
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            print(table(measure(exercise.number, library_of(exercise.work, Path(folder)), threads), threads))
    finally:
        torch.set_num_threads(before)
    return 0


def main(argv: list[str]) -> int:
    """The command `time`."""
    in_c = {number: exercise for number, exercise in exercises().items() if exercise.work.suffix == ".c"}
    parser = argparse.ArgumentParser(
        prog="python -m exercises time", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", choices=list(in_c), metavar="N.M", help=f"one of {', '.join(in_c)}")
    return time_answer(in_c[parser.parse_args(argv).number])

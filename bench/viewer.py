"""What it costs to look on: the steps of an engine while somebody views it and while nobody does.

    python -m bench.viewer --stage 6 --model tinytales --pairs 20
    python -m bench.viewer --stage 6 --json FILE       # GPT-2's sizes, random weights

The load is the same all the time: so many requests at once. The viewer comes and goes every second, and neighbouring
seconds make a pair, in an order that changes, so that a machine that gets faster or slower favours neither. It takes
what it is sent and looks at none of it; a browser that draws needs a core of its own.

A machine that others use has steps that take far longer than the rest. So there are two ratios: of the mean steps,
and of the means of the middle half of the steps, which single slow ones don't move.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from tqdm import tqdm

from bench.machine import describe
from bench.report import write_result
from bench.throughput import write_model
from stagewise.openai.limits import Limits
from stagewise.serving import live
from stagewise.serving.__main__ import build_parser, make_service
from stagewise.serving.service import Service
from stagewise.stages import Stage
from tools.engines import STAGES

SECONDS = 1  # of a window
WARM_UP = 10  # seconds


@contextlib.contextmanager
def load(service: Service, requests: int, max_tokens: int) -> Iterator[None]:
    """So many requests at once, as long as this lasts."""
    done = threading.Event()
    params = service.stage.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)

    def keep_asking(number: int) -> None:
        while not done.is_set():
            service.engine.llm.generate([[1000 + (7 * number + i) % 500 for i in range(32)]], params)
            number += requests

    with concurrent.futures.ThreadPoolExecutor(requests) as pool:
        askers = [pool.submit(keep_asking, number) for number in range(requests)]
        try:
            yield
        finally:
            done.set()
    for asker in askers:
        asker.result()


def watch_steps(service: Service) -> list[tuple[float, float]]:
    """From now on, when each step ended and how long it took, in seconds."""
    engine, steps = service.engine.llm.engine, []
    original = engine.step

    def step() -> list:
        start = time.perf_counter()
        result = original()
        steps.append((time.perf_counter(), time.perf_counter() - start))
        return result

    engine.step = step
    return steps


async def look_on(service: Service, seconds: float, sink: subprocess.Popen) -> None:
    """A viewer of so many seconds, whose events go to another process."""
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        assert sink.stdin is not None
        sink.stdin.write(message.get("body", b""))

    recorder = live.Recorder(service, is_ending=gone.is_set, now=dict)  # which ends with its viewer
    task = asyncio.create_task(live.Viewer(recorder)({}, receive, send))
    await asyncio.sleep(seconds)
    gone.set()
    await task


async def alternate(service: Service, pairs: int) -> list[tuple[str, float, float]]:
    """Windows with and without a viewer: (name, when it began, when it ended)."""
    windows = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as sink:
        await asyncio.sleep(WARM_UP)
        for number in tqdm(range(pairs), unit="pair"):
            for name in ("alone", "viewed")[:: -1 if number % 2 else 1]:
                start = time.perf_counter()
                await (look_on(service, SECONDS, sink) if name == "viewed" else asyncio.sleep(SECONDS))
                windows.append((name, start, time.perf_counter()))
    return windows


def middle(values: list[float]) -> float:
    """The mean of the middle half."""
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


def compare(pairs: list[dict[str, list[float]]], mean) -> dict:
    """How the steps of one kind compare with those of the other, and in which interval that is with 95%."""

    def ratio(some: list[dict]) -> float:
        alone, viewed = ([step for pair in some for step in pair[name]] for name in ("alone", "viewed"))
        return mean(alone) / mean(viewed)

    random = Random(0)
    ratios = sorted(ratio(random.choices(pairs, k=len(pairs))) for _ in range(400))
    return {"speed": ratio(pairs), "interval": [ratios[10], ratios[-11]]}


def measure(args: argparse.Namespace, model: str | Path) -> dict:
    stage = Stage(args.stage)
    flags = ["--model", str(model), "--max-num-seqs", str(args.requests), "--stage", str(args.stage)]
    service = make_service(stage, build_parser(stage, "bench.viewer", "").parse_args(flags), Limits())
    steps = watch_steps(service)
    with contextlib.closing(service.engine), load(service, args.requests, args.max_tokens):
        windows = asyncio.run(alternate(service, args.pairs))
    pairs: list[dict[str, list[float]]] = []
    for number, (name, start, end) in enumerate(windows):
        if number % 2 == 0:
            pairs.append({})
        # Whole steps only: one that the window's edge cuts belongs to neither.
        pairs[-1][name] = [seconds for at, seconds in steps if start + seconds < at < end]
    alone, viewed = ([step for pair in pairs for step in pair[name]] for name in ("alone", "viewed"))
    return {
        "steps": {"alone": len(alone), "viewed": len(viewed)},
        "milliseconds": {"alone": 1e3 * middle(alone), "viewed": 1e3 * middle(viewed)},
        "middle_half": compare(pairs, middle),
        "all": compare(pairs, statistics.fmean),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, default=6)
    parser.add_argument("--model", help="default: GPT-2's sizes with random weights")
    parser.add_argument("--requests", type=int, default=8, help="at once (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=150, help="of seconds (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        model = args.model or Path(name)
        if args.model is None:
            write_model(model, STAGES[-1].part("model").ModelConfig())
        result = measure(args, model)
    result |= {"machine": describe(torch.device("cpu")), "stage": args.stage, "model": args.model or "GPT-2's sizes"}
    print(f"a step: {result['milliseconds']['alone']:.2f} ms, viewed {result['milliseconds']['viewed']:.2f} ms")
    for name in ("middle_half", "all"):
        low, high = result[name]["interval"]
        print(f"speed when viewed, {name}: {result[name]['speed']:.3f} (95% interval {low:.3f} to {high:.3f})")
    if args.json:
        write_result(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

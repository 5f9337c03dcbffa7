"""A load test on loopback: many clients for a while, some of which vanish in the middle of a stream or read slowly.

    python -m tests.clients.load                       # 200 clients for two minutes
    python -m tests.clients.load --clients 50 --seconds 20

Every text that a client gets has to be the one that `LLM.generate` makes offline (or its beginning, of those that
vanish); afterwards no request runs or waits, no block is held, and the server's memory has not grown. Exit 1 if not.
"""

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field

import httpx
import psutil

from stagewise.stages import SERVING, STAGES
from tools.server import server

PROMPTS = ["Once upon a time", "There was once a shy bear", "In the days when the winters were long,", "Far away,"]
SEEDS = range(25)  # 100 different requests, again and again
VANISH, SLOW = 0.1, 0.05
GROWTH = 64 << 20  # bytes; what Python's and the system's allocators keep


def request(i: int) -> dict:
    """The i-th request, as arguments for an engine."""
    lengths = random.Random(i)
    seed = SEEDS[i // len(PROMPTS) % len(SEEDS)]
    return {
        "prompt": PROMPTS[i % len(PROMPTS)],
        "seed": seed,
        "max_tokens": lengths.randrange(4, 120),
        "temperature": 0.8,
    }


def offline(stage: int) -> list[str]:
    """The text of each request, without a server."""
    engine = STAGES[stage]
    requests = [request(i) for i in range(len(PROMPTS) * len(SEEDS))]
    prompts = [r.pop("prompt") for r in requests]
    outputs = engine.LLM("tinytales").generate(prompts, [engine.SamplingParams(**r) for r in requests])
    return [output.outputs[0].text for output in outputs]


@dataclass
class Report:
    """What happened."""

    ends: Counter = field(default_factory=Counter)  # by kind of client
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # bytes, once a second


async def one_stream(http: httpx.AsyncClient, i: int, draw: random.Random, expected: str, report: Report) -> None:
    """One request, by a client of one of the kinds."""
    kind = draw.choices(["vanished", "slow", "patient"], [VANISH, SLOW, 1 - VANISH - SLOW])[0]
    leaves_after, text, complete = draw.randrange(1, 10), "", False
    body = {"model": "tinytales", "stream": True, **request(i)}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            report.ends[str(response.status_code)] += 1
            return
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                complete = True
            elif line.startswith("data: "):
                text += json.loads(line[6:])["choices"][0]["text"]
                leaves_after -= 1
                if kind == "vanished" and leaves_after == 0:
                    break
                if kind == "slow":
                    await asyncio.sleep(0.05)
    if text != expected if complete else not expected.startswith(text) or kind != "vanished":
        report.wrong.append(f"request {i}, a {kind} client: got {text!r}, offline it is {expected!r}")
    report.ends[kind] += 1


async def client(http: httpx.AsyncClient, number: int, until: float, texts: list[str], report: Report) -> None:
    """One request after another."""
    draw = random.Random(number)
    while time.monotonic() < until:
        i = draw.randrange(len(texts))
        try:
            await one_stream(http, i, draw, texts[i], report)
        except httpx.HTTPError as error:
            report.wrong.append(f"request {i}: {error!r}")
        await asyncio.sleep(draw.random())


async def watch(process: psutil.Process, until: float, report: Report) -> None:
    while time.monotonic() < until:
        report.memory.append(process.memory_info().rss)
        await asyncio.sleep(1)


async def load(url: str, pid: int, clients: int, seconds: float, texts: list[str]) -> Report:
    report, until = Report(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        await asyncio.gather(
            watch(psutil.Process(pid), until, report), *(client(http, i, until, texts, report) for i in range(clients))
        )
    return report


def left_behind(url: str) -> dict[str, float]:
    """What the server still holds a second later, according to itself."""
    time.sleep(1)
    with urllib.request.urlopen(f"{url}/metrics") as response:
        lines = [line for line in response.read().decode().splitlines() if not line.startswith("#")]
    values = {line.split("{")[0]: float(line.split()[-1]) for line in lines if line}
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return {name: values[f"vllm:{name}"] for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--stage", type=int, default=6, choices=SERVING)
    args = parser.parse_args()
    texts = offline(args.stage)
    with server("--stage", args.stage, "--model", "tinytales") as (url, process):
        report = asyncio.run(load(url, process.pid, args.clients, args.seconds, texts))
        left = left_behind(url)
    warm = report.memory[len(report.memory) // 3]  # by then every client has been served
    growth = report.memory[-1] - warm
    print(f"{args.clients} clients, {args.seconds:.0f} s, stage {args.stage}: requests {dict(report.ends)}")
    print(f"memory {warm >> 20} MB after a third of the time, {report.memory[-1] >> 20} MB at the end; left: {left}")
    for line in report.wrong[:10]:
        print(f"wrong: {line}", file=sys.stderr)
    return int(bool(report.wrong) or any(left.values()) or growth > GROWTH or not report.ends["patient"])


if __name__ == "__main__":
    sys.exit(main())

"""What it costs to look on: tokens per second of a server with and without a viewer of its engine, in turn.

    python -m bench.viewer --stage 6 --model tinytales
    python -m bench.viewer --stage 6 --rounds 8 --json FILE       # GPT-2's sizes, random weights

The viewer takes what the server sends and looks at none of it; a browser that draws needs a core of its own.
"""

import argparse
import concurrent.futures
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.machine import describe
from bench.throughput import write_model
from serving.clients.server import server

NAME = "served"


def ask(url: str, number: int, max_tokens: int) -> int:
    """A request that fills its length: how many tokens came."""
    prompt = [1000 + (7 * number + i) % 500 for i in range(32)]
    body = {"model": NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        return json.load(response)["usage"]["completion_tokens"]


def speed(url: str, requests: int, max_tokens: int) -> float:
    """Tokens per second of so many requests at once."""
    with concurrent.futures.ThreadPoolExecutor(requests) as pool:
        start = time.perf_counter()
        num_tokens = sum(pool.map(lambda number: ask(url, number, max_tokens), range(requests)))
        return num_tokens / (time.perf_counter() - start)


@contextlib.contextmanager
def viewer(url: str) -> Iterator[list[int]]:
    """Somebody looks on; counts the bytes that come."""
    place = urllib.parse.urlsplit(url)
    counts, gone = [], threading.Event()
    with socket.create_connection((place.hostname, place.port)) as connection:
        connection.sendall(f"GET /live HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        connection.settimeout(0.05)

        def read() -> None:
            while not gone.is_set():
                with contextlib.suppress(TimeoutError):
                    if not (part := connection.recv(65536)):
                        break  # it was cut off
                    counts.append(len(part))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield counts
        finally:
            gone.set()
            reader.join()


def measure(args: argparse.Namespace, model: str | Path) -> dict:
    options = ["--stage", args.stage, "--model", model, "--served-model-name", NAME, "--quiet"]
    rounds: dict[str, list[float]] = {"alone": [], "with a viewer": []}
    num_bytes = 0
    with server(*options, "--max-num-seqs", args.requests) as (url, _):
        speed(url, args.requests, args.max_tokens)  # to warm up
        for number in range(args.rounds):
            names = list(rounds)
            for name in names[:: -1 if number % 2 else 1]:  # a machine that gets faster or slower favours neither
                with viewer(url) if name == "with a viewer" else contextlib.nullcontext([]) as counts:
                    rounds[name].append(speed(url, args.requests, args.max_tokens))
                num_bytes += sum(counts)
    ratio = statistics.median(b / a for a, b in zip(*rounds.values(), strict=True))
    return {"tokens_per_second": rounds, "ratio": ratio, "bytes_per_round": num_bytes // args.rounds}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, default=6)
    parser.add_argument("--model", help="default: GPT-2's sizes with random weights")
    parser.add_argument("--requests", type=int, default=8, help="at once (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        model = args.model or Path(name)
        if args.model is None:
            from tests.adapter import STAGES

            write_model(model, STAGES[-1].part("model").ModelConfig())
        result = measure(args, model)
    result |= {"machine": describe(torch.device("cpu")), "stage": args.stage, "model": args.model or "GPT-2's sizes"}
    for name, speeds in result["tokens_per_second"].items():
        print(f"{name}: {', '.join(f'{s:.0f}' for s in speeds)} tok/s; median {statistics.median(speeds):.1f}")
    print(f"ratio (median of the rounds): {result['ratio']:.3f}; {result['bytes_per_round']:,} bytes a round")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

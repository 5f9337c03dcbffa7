"""How much longer a good client waits for its tokens because of a rude one.

    python -m bench.rude --json bench/results/rude.json       # some seven minutes
    python -m bench.rude --seconds 4 --rounds 1 --kinds completions,bodies

A good client repeatedly asks for 8 tokens, next to a rude client, and next to a polite one that causes as much work.
The polite client keeps as many single streams open as the rude one gets rows in the batch, or does nothing if the rude
one gets no tokens. Where the rude one gives requests up, the polite one sends as many prompts and asks for one token
each. Both take turns, on one server of stage 6 with GPT-2's sizes and random weights. The table
shows the median and the p99 of the good client's waits for a first token (TTFT) and between two tokens (ITL), next to
either client, and the ratios of the p99.
"""

import argparse
import contextlib
import http.client
import json
import multiprocessing
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.run import Failure, command, grid, script
from tools.server import server

NAME, PLACES = "served", 8
TOKENS, LONGEST = 8, 1000  # max_tokens of the good client's requests, and of the others'
MOST = 128  # completions in a request
HEADERS = {"Content-Type": "application/json"}
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


def packed(**fields) -> bytes:
    """A complete HTTP request."""
    body = json.dumps({"model": NAME, "ignore_eos": True, **fields}).encode()
    return HEAD % len(body) + body


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=120)


def read_until_closed(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while one.recv(2**16):
            pass


def again_and_again(port: int, number: int, request: bytes) -> None:
    """Send this request over and over from `number` clients at once; they read each answer to its end."""

    def run() -> None:
        while True:
            with contextlib.suppress(OSError), connect(port) as one:
                one.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                read_until_closed(one)
            time.sleep(0.01)

    together(*[run] * number)


def together(*functions: Callable) -> None:
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def streams(port: int, number: int = PLACES - 1) -> None:
    again_and_again(port, number, packed(prompt=[1, 2, 3], max_tokens=LONGEST, stream=True))


def prompts_alone(port: int) -> None:
    """Prompts of 64 tokens with one token out: about what the server computes of abandoned requests."""
    again_and_again(port, PLACES - 1, packed(prompt=list(range(64)), max_tokens=1, stream=True))


def nothing(port: int) -> None:
    time.sleep(10**6)


def completions(port: int) -> None:
    again_and_again(port, 2, packed(prompt=[1, 2, 3], n=MOST, max_tokens=LONGEST, stream=True))


def prompts(port: int) -> None:
    again_and_again(port, 2, packed(prompt=[[i, i + 1, i + 2] for i in range(MOST)], max_tokens=LONGEST, stream=True))


def stop_texts(port: int) -> None:
    stop = [f"{i:04}" * 256 for i in range(64)]
    again_and_again(port, PLACES - 1, packed(prompt=[1, 2, 3], max_tokens=LONGEST, stream=True, stop=stop))


def token_ids(port: int) -> None:
    more = {"stop_token_ids": list(range(1024)), "min_tokens": LONGEST - 1}
    more |= {"logit_bias": dict.fromkeys(range(1024), 1)}
    again_and_again(port, PLACES - 1, packed(prompt=[1, 2, 3], max_tokens=LONGEST, stream=True, **more))


def large_bodies(port: int) -> None:
    """Bodies of 8 MB, and of 1 MB of lists or of text, all of which are refused in the end."""
    large = [b" " * 2**23, b'{"prompt": [' + b"[1]," * 250_000 + b"[1]]}", b'{"prompt": "' + b"a " * 500_000 + b'"}']
    together(*(lambda body=body: again_and_again(port, 1, HEAD % len(body) + body) for body in (large * 3)[:8]))


def chunks(port: int) -> None:
    body = json.dumps({"model": NAME, "prompt": [1], "max_tokens": 1}).encode().ljust(2**20)
    parts = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    again_and_again(port, 2, HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + parts)


def forms(port: int) -> None:
    """JSON Schemas, each a new one, that take too long to compile."""

    def run(first: int) -> None:
        for i in range(first, first + 10**6):
            form = {"type": "integer", "multipleOf": 16_000_001 + i}
            with contextlib.suppress(OSError), connect(port) as one:
                one.sendall(packed(prompt=[1], ignore_eos=False, guided_json=form))
                one.recv(1000)

    together(*(lambda i=i: run(i * 10**6) for i in range(PLACES - 1)))


def words(port: int) -> None:
    """Thirty texts of 60 kB to tokenize at a time."""
    text = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz     ", k=60_000))
    body = json.dumps({"prompt": text}).encode()
    again_and_again(port, 30, HEAD.replace(b"/v1/completions", b"/tokenize") % len(body) + body)


def aborts(port: int) -> None:
    """Requests that are given up as soon as their answers begin."""
    request = packed(prompt=list(range(64)), n=PLACES - 1, max_tokens=LONGEST, stream=True)
    while True:
        with connect(port) as one:
            one.sendall(request)
            one.recv(1000)


# name -> (what the rude client does, the rude client, the polite client that it is compared with)
KINDS: dict[str, tuple[str, Callable, Callable]] = {
    "completions": ("2 requests for 128 completions of 1,000 tokens", completions, streams),
    "prompts": ("2 requests of 128 prompts, 1,000 tokens each", prompts, streams),
    "stops": ("7 streams with 64 stop texts of 1,024 characters", stop_texts, streams),
    "ids": ("7 streams with 1,024 stop_token_ids and logit biases", token_ids, streams),
    "forms": ("7 forms that take too long to compile", forms, nothing),
    "bodies": ("8 bodies of 1 and of 8 MB at a time", large_bodies, nothing),
    "chunks": ("2 bodies of 1 MB in chunks of a byte", chunks, nothing),
    "words": ("30 connections that ask for the tokens of 60 kB", words, nothing),
    "aborts": ("7 completions given up as soon as the answer begins, again and again", aborts, prompts_alone),
}


def waits(port: int, seconds: float, seed: int) -> dict[str, list[float]]:
    """The good client's waits, in milliseconds: for first tokens, and between tokens."""
    rng, until = random.Random(seed), time.monotonic() + seconds
    found: dict[str, list[float]] = {"ttft": [], "itl": []}
    while time.monotonic() < until:
        body = {"model": NAME, "prompt": rng.choices(range(50000), k=32), "max_tokens": TOKENS, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        last = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), HEADERS)
        response = connection.getresponse()
        if response.status != 200:
            raise Failure(f"the good client got {response.status}: {response.read()[:200]!r}")
        times = []
        for line in response:
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                times.append(1e3 * (now - last))
                last = now
        if len(times) != TOKENS:
            raise Failure(f"the good client got {len(times)} of its {TOKENS} tokens")
        found["ttft"].append(times[0])
        found["itl"] += times[1:]
        connection.close()
        time.sleep(0.05)
    return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def begin(client: Callable, port: int, begun: Any) -> None:
    begun.set()
    client(port)


def waits_next_to(client: Callable, port: int, seconds: float, seed: int) -> dict[str, list[float]]:
    """The good client's waits next to another client, which is a separate process that started two seconds earlier."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=begin, args=(client, port, begun), daemon=True)
    process.start()
    try:
        if not begun.wait(60):
            raise Failure(f"{client.__name__} has not begun within a minute")
        time.sleep(2)
        found = waits(port, seconds, seed)
        if not process.is_alive():
            raise Failure(f"{client.__name__} ended before the good client")
        return found
    finally:
        process.kill()
        process.join()
        time.sleep(1)  # so that its requests are aborted


def measure(args: argparse.Namespace) -> Iterator[dict]:
    if wrong := sorted(set(args.kinds) - set(KINDS)):
        raise ValueError(f"--kinds are some of {','.join(KINDS)}, got {wrong[0]!r}")
    runs: list[dict] = []
    options = ["--model", "gpt2", "--load-format", "dummy", "--served-model-name", NAME, "--max-num-seqs", PLACES]
    with server("--stage", "6", *options, "--quiet") as (url, _):
        port = int(url.rpartition(":")[2])
        waits(port, 2, 0)  # to warm up
        for name in args.kinds:
            what, rude, polite = KINDS[name]
            found = {who: {"ttft": [], "itl": []} for who in ("polite", "rude")}
            for i in range(args.rounds):
                for who, client in (("polite", polite), ("rude", rude)):
                    for key, values in waits_next_to(client, port, args.seconds, i).items():
                        found[who][key] += values
            run = {"kind": name, "what": what, "requests": {who: len(found[who]["ttft"]) for who in found}}
            for key in ("ttft", "itl"):
                run[key] = {who: {p: percentile(found[who][key], p / 100) for p in (50, 99)} for who in found}
                run[key]["ratio"] = run[key]["rude"][99] / run[key]["polite"][99]
            runs.append(run)
            print(name, json.dumps(run), file=sys.stderr)
            yield {"runs": runs}


def cells(run: dict) -> list[str]:
    row = [run["what"]]
    for key in ("ttft", "itl"):
        for who in ("polite", "rude"):
            median, most = run[key][who].values()
            row.append(f"{median:,.0f}, {most:,.0f} ms")
        row.append(f"{run[key]['ratio']:.2f}")
    return row


def table(result: dict) -> str:
    titles = ["rude client"]
    for key in ("TTFT", "ITL"):
        titles += [f"{key} p50, p99 next to the polite", "next to the rude", "ratio of p99"]
    at, runs = result["machine"], result["runs"]
    requests = [number for run in runs for number in run["requests"].values()]
    return grid(titles, map(cells, runs)) + (
        f"\n\nFrom {min(requests)} to {max(requests)} requests of {TOKENS} tokens next to each; GPT-2's sizes with "
        f"random weights, stage 6, at most {PLACES} at once; {at['device']}, {at['cores']} cores, which the clients "
        f"and other programs share. `{command(result)}`"
    )


OPTIONS = {
    "--kinds": dict(type=lambda text: text.split(","), default=list(KINDS), help=", ".join(KINDS)),
    "--seconds": dict(type=float, default=6, help="of each client, a round (default: %(default)s)"),
    "--rounds": dict(type=int, default=2, help="of taking turns (default: %(default)s)"),
}
main = script(measure, table, options=OPTIONS)

if __name__ == "__main__":
    sys.exit(main())

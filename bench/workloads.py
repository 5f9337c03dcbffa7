"""The requests that a benchmark sends: prompts as token ids, and how many tokens to make for each.

    single   1 request: a prompt of 64 tokens, 128 out
    decode   32 requests: 32 in, 128 out
    prefill  16 requests: 512 in, 8 out
    mixed    64 requests: prompts (8 to 512 tokens) and outputs (8 to 448) log-normal around 128, as in a set of chats
    prefix   32 requests: 512 tokens that all prompts begin with and 16 of their own, 32 out
    tail     64 requests: prompts of 8 to 32 tokens; outputs (4 to 96) log-normal around 12: most are short, a few long
    equal    64 requests: prompts of 8 to 32 tokens, 16 out each: nothing to gain from scheduling
    answers  96 requests, as in a quiz ("The capital of France is"): 3 to 6 tokens in, 1 to 12 out, log-normal around 5

All are seeded.
"""

import functools
import hashlib
import itertools
import json
import math
import random

from bench.machine import pass_work

Workload = list[tuple[list[int], int]]  # (prompt, number of output tokens) of each request

# How many requests a workload usually has, and how many of them run at once: all, or only some, so that others wait.
SIZES = {
    "single": (1, 1),
    "decode": (32, 32),
    "prefill": (16, 16),
    "mixed": (64, 64),
    "prefix": (32, 32),
    "tail": (64, 8),
    "equal": (64, 8),
    "answers": (96, 16),
}


# How tokens are chosen, by name: the stages' sampling parameters.
SAMPLING: dict[str, dict[str, float | int]] = {
    "greedy": dict(temperature=0.0),
    "temperature": dict(temperature=1.0),
    "top-k": dict(temperature=0.8, top_k=50),
    "top-p": dict(temperature=0.8, top_p=0.95),
    "chat": dict(temperature=0.8, top_k=50, top_p=0.95, repetition_penalty=1.1),
}


def log_normal(rng: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    """A whole number from a log-normal distribution, clamped to low … high."""
    return round(min(high, max(low, math.exp(rng.gauss(math.log(median), sigma)))))


def make_workload(name: str, count: int | None = None, vocab_size: int = 50257, seed: int = 0) -> Workload:
    """A workload by its name; `count` requests, or as many as it usually has."""
    rng, count = random.Random(seed), count or SIZES[name][0]
    tokens = lambda n: [rng.randrange(vocab_size) for _ in range(n)]  # noqa: E731
    if name in ("single", "decode", "prefill"):
        prompt, output = {"single": (64, 128), "decode": (32, 128), "prefill": (512, 8)}[name]
        return [(tokens(prompt), output) for _ in range(count)]
    if name == "prefix":
        head = tokens(512)
        return [(head + tokens(16), 32) for _ in range(count)]
    if name == "mixed":
        lengths = [(log_normal(rng, 128, 0.8, 8, 512), log_normal(rng, 128, 0.8, 8, 448)) for _ in range(count)]
        return [(tokens(prompt), output) for prompt, output in lengths]
    requests = []
    if name == "answers":
        return [(tokens(rng.randrange(3, 7)), log_normal(rng, 5, 0.6, 1, 12)) for _ in range(count)]
    for _ in range(count):
        prompt, output = tokens(rng.randrange(8, 33)), log_normal(rng, 12, 1.0, 4, 96)
        requests.append((prompt, output if name == "tail" else 16))
    return requests


def poisson_arrivals(count: int, rate: float, seed: int = 0) -> list[float]:
    """When requests arrive, in seconds from the start: a Poisson process of `rate` requests per second."""
    rng, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        arrivals.append(now)
    return arrivals


def fingerprint(workload: Workload) -> str:
    """SHA-256 of a workload: two results with the same one measured the same requests."""
    return hashlib.sha256(json.dumps(workload).encode()).hexdigest()


def needed_work(workload: Workload, config, itemsize: int, weight_bytes: int | None = None) -> list[tuple[int, int]]:
    """(operations, bytes) of each forward pass of an engine that wastes nothing.

    The first pass computes every prompt token once (and a prefix that prompts share, once for all of them); then all
    requests are decoded in one batch. See `pass_work` for the bytes.
    """
    work = functools.partial(pass_work, config, itemsize, weight_bytes=weight_bytes)
    prompts = sorted(prompt for prompt, _ in workload)
    tokens = attended = 0
    for before, prompt in zip([[], *prompts], prompts, strict=False):
        shared = sum(itertools.takewhile(bool, (a == b for a, b in zip(before, prompt, strict=False))))
        tokens += len(prompt) - shared
        attended += sum(range(shared + 1, len(prompt) + 1))
    passes = [work(tokens=tokens, logits=len(workload), attended=attended, cached=0)]
    for step in range(1, max(n for _, n in workload)):
        lengths = [len(prompt) + step for prompt, n in workload if n > step]
        passes.append(work(tokens=len(lengths), logits=len(lengths), attended=sum(lengths), cached=sum(lengths)))
    return passes

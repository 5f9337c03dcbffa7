"""What the engine did: counters that it always keeps."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .batch import Batch
from .request import Request
from .trace import Tracer


@dataclass
class Stats:
    """Counters of an engine, always kept. Assign a new one to `llm.stats` to start from zero."""

    num_requests: int = 0  # finished
    num_truncated: int = 0  # outputs of these that reached their greatest length: "length"
    num_forwards: int = 0
    num_tokens_computed: int = 0  # positions that went through the model for a live request
    num_padding_tokens: int = 0  # positions that went through the model for nothing
    num_output_tokens: int = 0
    ttft_seconds: float = 0.0  # time to first token, summed over the finished requests
    seconds: float = 0.0  # in steps, from the forward pass to the commit


class Recorder:
    """Counts what the engine does, step by step, and has the tracer write it down. Owned by the engine."""

    def __init__(self, tracer: Tracer):
        self.stats, self.tracer = Stats(), tracer

    @contextlib.contextmanager
    def step(self, batch: Batch) -> Iterator[None]:
        """Record the step that happens in this block, unless it fails."""
        if self.tracer.listeners:
            self.tracer.begin(batch.records())
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.tracer.end(start, seconds)
        self.stats.num_forwards += 1
        self.stats.num_tokens_computed += batch.num_tokens
        self.stats.num_padding_tokens += batch.num_padding_tokens
        self.stats.seconds += seconds

    def add_token(self, request: Request) -> None:
        """Count the token that a request got just now, and the request if that was its last."""
        self.tracer.got_token(request)
        self.stats.num_output_tokens += 1
        if request.finished:
            self.stats.num_requests += 1
            self.stats.num_truncated += request.progress.finish_reason == "length"
            self.stats.ttft_seconds += request.progress.token_times[0] - request.arrival_time


def closing_line(stats: Stats, seconds: float) -> str:
    """What a run did in how many seconds, for people."""
    padding = stats.num_padding_tokens / max(1, stats.num_padding_tokens + stats.num_tokens_computed)
    requests = "1 request" if stats.num_requests == 1 else f"{stats.num_requests} requests"
    truncated = f"{stats.num_truncated} ended by length; " if stats.num_truncated else ""
    return (
        f"{requests}, {stats.num_output_tokens} tokens in {seconds:.2f} s: "
        f"{stats.num_output_tokens / seconds:.1f} tok/s; {truncated}"
        f"mean TTFT {1e3 * stats.ttft_seconds / max(1, stats.num_requests):.0f} ms; "
        f"{stats.num_forwards} forward passes"
        f", {padding:.0%} padding"
    )

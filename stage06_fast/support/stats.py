"""Counters of an engine, always kept: what its steps computed, what came out, and how long requests waited."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .outputs import RequestMetrics


class Latencies:
    """How long the latest requests waited, in seconds: the last 100,000 values of each kind."""

    def __init__(self):
        self.ttft, self.itl, self.e2e, self.queue_time = (deque(maxlen=100_000) for _ in range(4))

    def add(self, metrics: RequestMetrics) -> None:
        self.itl.extend(metrics.inter_token_latencies)
        for kind in ("ttft", "e2e", "queue_time"):
            if (seconds := getattr(metrics, kind)) is not None:  # with max_tokens 0 there is no token
                getattr(self, kind).append(seconds)

    def percentiles(self) -> dict[str, dict[str, float]]:
        """For each kind that has values: its 50th, 95th and 99th percentile."""
        kinds = {kind: list(values) for kind, values in vars(self).items() if values}
        return {kind: {f"p{p}": float(np.percentile(v, p)) for p in (50, 95, 99)} for kind, v in kinds.items()}


@dataclass
class Stats:
    """Assign a new one to `llm.stats` to start from zero."""

    num_requests: int = 0  # finished
    num_prompt_tokens: int = 0  # of those requests
    num_cached_tokens: int = 0  # those of them that the prefix cache had
    num_preemptions: int = 0
    num_truncated: int = 0  # their outputs that reached the maximum length: "length"
    num_forwards: int = 0
    num_tokens_computed: int = 0  # token positions that went through the model for a live request
    num_padding_tokens: int = 0  # token positions that went through the model without a token of a live request
    num_output_tokens: int = 0
    kv_tokens_reserved: int = 0  # room in the KV cache, summed over the forward passes
    kv_tokens_used: int = 0  # the part of it that live requests had filled
    seconds: float = 0.0  # spent in steps
    latencies: Latencies = field(default_factory=Latencies)

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Add the time of this block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def count(self, batch: Any, kv_use: tuple[int, int]) -> None:
        """Count a step: its batch, whose ready requests have got a token or failed, and how many tokens of the KV cache
        are reserved and used."""
        self.num_output_tokens += sum(r.max_tokens > 0 and r.finish_reason != "error" for r in batch.ready)
        self.num_forwards += 1
        self.num_tokens_computed += batch.num_tokens
        self.kv_tokens_reserved += kv_use[0]
        self.kv_tokens_used += kv_use[1]

    def count_ended(self, request: Any) -> None:
        """Count a request that has ended; of one that was aborted or failed, only the preemptions."""
        self.num_preemptions += request.num_preemptions
        if request.finish_reason not in ("abort", "error"):
            self.num_requests += 1
            self.num_truncated += request.max_tokens > 0 and request.finish_reason == "length"
            self.num_prompt_tokens += len(request.prompt_token_ids)
            self.num_cached_tokens += request.num_cached_tokens
            self.latencies.add(RequestMetrics.of([request]))

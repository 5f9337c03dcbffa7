"""Counters of an engine, always kept: what its steps computed, and what came out."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Stats:
    """Assign a new one to `llm.stats` to start from zero."""

    num_requests: int = 0  # finished
    num_truncated: int = 0  # those of them that reached their maximum length: "length"
    num_forwards: int = 0
    num_tokens_computed: int = 0  # token positions that went through the model for a live request
    num_padding_tokens: int = 0  # token positions that went through the model without a token of a live request
    num_output_tokens: int = 0
    ttft_seconds: float = 0.0  # time to first token, summed over the finished requests
    seconds: float = 0.0  # spent in steps

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Add the time of this block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def count(self, batch: Any, requests: list[Any]) -> None:
        """Count a step: its batch, and the requests that got a token or failed."""
        self.num_forwards += 1
        self.num_tokens_computed += batch.num_tokens
        self.num_padding_tokens += batch.num_padding_tokens
        for request in requests:
            if request.finish_reason == "error":
                continue
            self.num_output_tokens += request.max_tokens > 0
            if request.finished:
                self.num_requests += 1
                self.num_truncated += request.max_tokens > 0 and request.finish_reason == "length"
                self.ttft_seconds += request.token_times[0] - request.arrival_time if request.token_times else 0

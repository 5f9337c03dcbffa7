"""What the engine did: counters that it always keeps."""

import contextlib
import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .batch import Batch
from .block_manager import BlockManager
from .outputs import RequestMetrics
from .request import Request
from .trace import Tracer


class Latencies:
    """What the latest requests had to wait for, in seconds: the last 100,000 values of each kind."""

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
    """Counters of an engine, always kept. Assign a new one to `llm.stats` to start from zero."""

    num_requests: int = 0  # finished
    num_truncated: int = 0  # outputs of these that reached their greatest length: "length"
    num_forwards: int = 0
    num_tokens_computed: int = 0  # positions that went through the model for a live request
    num_padding_tokens: int = 0  # positions that went through the model for nothing
    num_output_tokens: int = 0
    kv_tokens_reserved: int = 0  # room in the KV cache, summed over the forward passes
    kv_tokens_used: int = 0  # of it, what live requests had filled
    num_prompt_tokens: int = 0  # of those requests
    num_cached_tokens: int = 0  # of them, those that the prefix cache had
    num_preemptions: int = 0
    seconds: float = 0.0  # in steps, from the forward pass to the commit
    latencies: Latencies = field(default_factory=Latencies)


class Recorder:
    """Counts what the engine does, step by step, and has the tracer write it down. Owned by the engine."""

    def __init__(self, tracer: Tracer):
        self.stats, self.tracer = Stats(), tracer

    @contextlib.contextmanager
    def step(self, batch: Batch, manager: BlockManager, kv_use: tuple[int, int]) -> Iterator[None]:
        """Record the step that happens in this block, unless it fails.

        kv_use: in tokens, what of the KV cache is reserved, and what live requests use of it.
        """
        if self.tracer.listeners:
            self.tracer.begin(batch.records(), kv_use, **manager.sharing())
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.tracer.end(start, seconds)
        self.stats.num_forwards += 1
        self.stats.num_tokens_computed += batch.num_tokens
        self.stats.kv_tokens_reserved += kv_use[0]
        self.stats.kv_tokens_used += kv_use[1]
        self.stats.seconds += seconds

    def rest(self, manager: BlockManager, kv_use: tuple[int, int]) -> None:
        """There is nothing to do: record what happened since the last step, if anything did."""
        if self.tracer.has_news:
            self.tracer.rest(kv_use, **manager.sharing())

    def finished(self, request: Request) -> None:
        """Count a request that has ended by itself."""
        self.stats.num_requests += 1
        reasons = [completion.progress.finish_reason for completion in request.group if request.max_tokens > 0]
        self.stats.num_truncated += reasons.count("length")
        self.stats.num_prompt_tokens += len(request.prompt_token_ids)
        self.stats.num_cached_tokens += request.num_cached_tokens
        self.stats.latencies.add(request.output().metrics)


def closing_line(stats: Stats, seconds: float, as_json: bool) -> str:
    """What a run did in how many seconds, for people or as JSON."""
    requests = "1 request" if stats.num_requests == 1 else f"{stats.num_requests} requests"
    truncated = f"{stats.num_truncated} ended by length; " if stats.num_truncated else ""
    padding = stats.num_padding_tokens / max(1, stats.num_padding_tokens + stats.num_tokens_computed)
    kv_use = stats.kv_tokens_used / max(1, stats.kv_tokens_reserved)
    cached = stats.num_cached_tokens / max(1, stats.num_prompt_tokens)
    latencies = stats.latencies.percentiles()
    if as_json:
        counts = {"requests": stats.num_requests, "truncated": stats.num_truncated}
        counts |= {"output_tokens": stats.num_output_tokens, "seconds": seconds}
        counts |= {"prefix_cache_hit_rate": cached, "preemptions": stats.num_preemptions}
        return json.dumps({**counts, "tokens_per_second": stats.num_output_tokens / seconds, **latencies})
    names = {"ttft": "TTFT", "itl": "ITL", "e2e": "end to end", "queue_time": "queue"}
    waits = [f"{names[k]} {'/'.join(f'{1e3 * s:.0f}' for s in v.values())} ms" for k, v in latencies.items()]
    return (
        f"{requests}, {stats.num_output_tokens} tokens in {seconds:.2f} s: "
        f"{stats.num_output_tokens / seconds:.1f} tok/s; {truncated}"
        f"{stats.num_forwards} forward passes"
        f", {padding:.0%} padding"
        f", {kv_use:.0%} of the reserved KV cache used"
        f", {cached:.0%} of the prompts found in it"
        f"{f', preempted {stats.num_preemptions} ×' if stats.num_preemptions else ''}"
        f"; p50/p95/p99: {', '.join(waits) or 'nothing finished'}"
    )

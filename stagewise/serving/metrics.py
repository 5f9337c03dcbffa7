"""The server's metrics, for Prometheus, under vLLM's names where they mean the same.

The event loop counts events as they pass through it. What only the engine knows is read from it at a scrape: lengths
and counters, which take no lock and delay no step.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily as Counts
from prometheus_client.core import GaugeMetricFamily as Gauge

from ..openai.job import Job
from ..stages import Stage, core_of, unfinished_requests

STEP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)  # buckets, in seconds
REQUEST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
COUNTED = {  # name -> what it is, and a histogram's buckets
    "prompt_tokens": ("Tokens of prompts.", None),
    "generation_tokens": ("Generated tokens.", None),
    "prefix_cache_queries": ("Tokens looked up in the prefix cache.", None),
    "prefix_cache_hits": ("Tokens found in it.", None),
    "time_to_first_token_seconds": ("From a request to its first token.", REQUEST),
    "inter_token_latency_seconds": ("Between two tokens of a completion.", STEP),
    "e2e_request_latency_seconds": ("From a request to its last token.", REQUEST),
    "request_queue_time_seconds": ("From a request to its first step.", REQUEST),
}
DRAFTS = {  # the engine counts these
    "num_drafts": "Times that tokens were drafted for a completion.",
    "num_draft_tokens": "Draft tokens.",
    "num_accepted_tokens": "Draft tokens that were accepted.",
}


class Metrics:
    """The counters of a server.

    Attributes:
        num_unfinished: waiting and running completions.
        num_tokens: their maximum number of tokens, including prompts.
    """

    def __init__(self, stage: Stage, engine: Any, model_name: str):
        self.stage, self.engine, self.model_name = stage, engine, model_name
        self.num_unfinished = self.num_tokens = 0
        self.registry = registry = CollectorRegistry()
        registry.register(self)
        labels = ("model_name", "finished_reason")
        self._ended = Counter("vllm:request_success", "Completions that ended.", labels, registry=registry)
        self._add: dict[str, Callable[[float], None]] = {}
        for name, (text, buckets) in COUNTED.items():
            about: dict[str, Any] = dict(name=f"vllm:{name}", documentation=text, labelnames=labels[:1])
            if buckets is None:
                self._add[name] = Counter(**about, registry=registry).labels(model_name).inc
            else:
                made = Histogram(**about, registry=registry, buckets=buckets)
                self._add[name] = made.labels(model_name).observe

    def add(self, **values: float) -> None:
        """Add to counters, and observe values in histograms."""
        for name, value in values.items():
            self._add[name](value)

    def ended(self, reason: str) -> None:
        """A completion has ended, or its client has left."""
        self._ended.labels(self.model_name, reason).inc()
        self.num_unfinished -= 1

    def text(self) -> bytes:
        """All metrics, in Prometheus' format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Gauge | Counts]:
        """The engine's values; the registry asks for them at a scrape."""
        llm, core = self.engine.llm, core_of(self.engine.llm)
        running, stats = len(core.scheduler.running), llm.stats
        yield self._value(Gauge, "num_requests_running", "Completions in the batch.", running)
        waiting = max(0, self.num_unfinished - running)
        yield self._value(Gauge, "num_requests_waiting", "Completions in the queue.", waiting)
        used = running / core.scheduler.max_num_seqs  # in stage 4, whose cache is slots
        if self.stage.number >= 5:
            manager = core.block_manager
            used = 1 - manager.num_free / manager.num_blocks
            # The engine counts those of requests that have ended.
            ongoing = sum(request.num_preemptions for request in unfinished_requests(llm))
            yield self._value(Counts, "num_preemptions", "Preemptions.", stats.num_preemptions + ongoing)
            config = {"block_size": manager.block_size, "num_gpu_blocks": manager.num_blocks}  # vLLM's name
            config["enable_prefix_caching"] = llm.config.enable_prefix_caching
            yield self._value(Gauge, "cache_config_info", "How the KV cache is made.", 1, **config)
        yield self._value(Gauge, "kv_cache_usage_perc", "The share of the KV cache in use; 1 is all.", used)
        if self.stage.has_option("speculate"):
            for name, text in DRAFTS.items():
                yield self._value(Counts, f"spec_decode_{name}", text, getattr(stats, name))
            name, text = "vllm:spec_decode_num_accepted_tokens_per_pos", "By their position after the last token."
            family = Counts(name, text, labels=["model_name", "position"])
            for position, value in enumerate(list(stats.num_accepted_tokens_per_pos)):
                family.add_metric([self.model_name, str(position)], value)
            yield family

    def _value(self, kind: Any, name: str, text: str, value: float, **labels: Any) -> Any:
        family = kind(f"vllm:{name}", text, labels=["model_name", *labels])
        family.add_metric([self.model_name, *map(str, labels.values())], value)
        return family


class Choice:
    """A completion of a request: how long it waited for a seat in the engine, and when its latest token came."""

    waited, last = 0.0, 0.0


class Meter:
    """Counts one request's events."""

    def __init__(self, metrics: Metrics, job: Job):
        self.metrics, self.job, self.arrival = metrics, job, time.perf_counter()
        self.choices = [Choice() for _ in range(job.num_choices)]
        self._begun: set[int] = set()  # prompts
        self._unfinished, self._num_tokens = job.num_choices, job.num_tokens
        metrics.num_unfinished += self._unfinished
        metrics.num_tokens += self._num_tokens

    def seated(self, index: int) -> None:
        self.choices[index].waited = time.perf_counter() - self.arrival

    def count(self, prompt: int, index: int, event: Any) -> None:
        now, add, choice = time.perf_counter(), self.metrics.add, self.choices[index]
        if prompt not in self._begun:
            self._begun.add(prompt)
            num = len(self.job.token_ids[prompt])
            add(prompt_tokens=num)
            if self.metrics.stage.number >= 5:
                add(prefix_cache_queries=num, prefix_cache_hits=event.num_cached_tokens)
        if event.token_ids:
            add(generation_tokens=len(event.token_ids))
            if choice.last:
                add(inter_token_latency_seconds=now - choice.last)
            else:
                add(time_to_first_token_seconds=now - self.arrival)
            choice.last = now
        if event.finish_reason is not None:
            self.metrics.ended(event.finish_reason)
            self._unfinished -= 1
            add(e2e_request_latency_seconds=now - self.arrival)
            if event.queue_time is not None:
                add(request_queue_time_seconds=choice.waited + event.queue_time)

    def close(self) -> None:
        """Completions that have not ended by now count as aborted."""
        self.metrics.num_tokens -= self._num_tokens
        while self._unfinished:
            self._unfinished -= 1
            self.metrics.ended("abort")

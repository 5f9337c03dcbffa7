"""The server's metrics, for Prometheus, under vLLM's names where they mean the same.

Counters and histograms are updated by the event loop as events pass through it. Values that only the engine knows are
read from it at a scrape: lengths and counters, which take no lock and delay no step.
"""

import collections
import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ..openai.job import Job
from ..stages import Stage, core_of, count_tokens, unfinished_requests

TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKENS = tuple(2**power for power in range(15))
CHOICES = (1, 2, 5, 10, 20, 50, 100)


class Metrics:
    """The counters of a server.

    Attributes:
        num_unfinished: waiting and running completions.
        num_tokens: their maximum number of tokens, including prompts.
    """

    def __init__(self, stage: Stage, engine: Any, model_name: str):
        self.stage, self.engine, self.model_name = stage, engine, model_name
        self.num_unfinished = self.num_tokens = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.prompt_tokens = self._make(Counter, "prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._make(Counter, "generation_tokens", "Generated tokens.")
        self.success = self._make(Counter, "request_success", "Completions that ended.", labels=("finished_reason",))
        self.ttft = self._seconds("time_to_first_token", "From a request to its first token.")
        self.itl = self._seconds("inter_token_latency", "Between two tokens of a completion.", TOKEN_SECONDS)
        self.tpot = self._seconds("request_time_per_output_token", "The mean of these, of a completion.", TOKEN_SECONDS)
        self.e2e = self._seconds("e2e_request_latency", "From a request to its last token.")
        self.queue = self._seconds("request_queue_time", "From a request to its first step.")
        self.prefill = self._seconds("request_prefill_time", "From its first step to its first token.")
        self.decode = self._seconds("request_decode_time", "From its first token to its last one.")
        self.inference = self._seconds("request_inference_time", "From its first step to its last token.")
        self.iteration = self._tokens("iteration_tokens_total", "Tokens in a step: of prompts, and new ones.")
        self.prompt_lengths = self._tokens("request_prompt_tokens", "Tokens of a prompt.")
        self.lengths = self._tokens("request_generation_tokens", "Tokens of a completion.")
        self.max_tokens = self._tokens("request_params_max_tokens", "max_tokens of a completion.")
        self.n = self._tokens("request_params_n", "n of a prompt.", CHOICES)
        count_tokens(engine.llm, self.iteration.observe)
        if stage.number >= 5:
            self.cache_queries = self._make(Counter, "prefix_cache_queries", "Tokens looked up in the prefix cache.")
            self.cache_hits = self._make(Counter, "prefix_cache_hits", "Tokens found in it.")
            self.computed = self._tokens(
                "request_prefill_kv_computed_tokens", "Tokens of a prompt that were not in it."
            )

    def _make(self, kind: type, name: str, text: str, labels: tuple[str, ...] = (), **more: Any) -> Any:
        metric = kind(f"vllm:{name}", text, ("model_name", *labels), registry=self.registry, **more)
        return metric if labels else metric.labels(self.model_name)

    def _seconds(self, name: str, text: str, buckets: tuple[float, ...] = REQUEST_SECONDS) -> Any:
        return self._make(Histogram, f"{name}_seconds", text, buckets=buckets)

    def _tokens(self, name: str, text: str, buckets: tuple[float, ...] = TOKENS) -> Any:
        return self._make(Histogram, name, text, buckets=buckets)

    def ended(self, reason: str) -> None:
        """A completion has ended, or its client has left."""
        self.success.labels(self.model_name, reason).inc()
        self.num_unfinished -= 1

    def text(self) -> bytes:
        """All metrics, in Prometheus' format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The engine's values; the registry asks for them at a scrape."""
        core = core_of(self.engine.llm)
        running = len(core.scheduler.running)
        yield self._gauge("num_requests_running", "Completions in the batch.", running)
        waiting = max(0, self.num_unfinished - running)
        yield self._gauge("num_requests_waiting", "Completions in the queue.", waiting)
        if self.stage.number == 4:  # whose cache is slots
            used = running / core.scheduler.max_num_seqs
        else:
            used = 1 - core.block_manager.num_free / core.block_manager.num_blocks
            preemptions = CounterMetricFamily("vllm:num_preemptions", "Preemptions.", labels=["model_name"])
            # The engine counts those of requests that have ended.
            ongoing = sum(request.num_preemptions for request in unfinished_requests(self.engine.llm))
            preemptions.add_metric([self.model_name], self.engine.llm.stats.num_preemptions + ongoing)
            yield preemptions
            yield self._cache_config(core)
        if self.stage.has_option("speculate"):
            yield from self._speculation(self.engine.llm.stats)
        yield self._gauge("kv_cache_usage_perc", "The share of the KV cache in use; 1 is all.", used)

    def _cache_config(self, core: Any) -> GaugeMetricFamily:
        config, manager = self.engine.llm.config, core.block_manager
        labels = {"block_size": manager.block_size, "enable_prefix_caching": config.enable_prefix_caching}
        labels |= {"num_gpu_blocks": manager.num_blocks, "model_name": self.model_name}  # vLLM's name, on any device
        family = GaugeMetricFamily("vllm:cache_config_info", "How the KV cache is made.", labels=list(labels))
        family.add_metric([str(value) for value in labels.values()], 1)
        return family

    def _speculation(self, stats: Any) -> Iterator[CounterMetricFamily]:
        """With vLLM's names and meanings."""
        model = [self.model_name]
        counts = {"num_drafts": (stats.num_drafts, "Times that tokens were drafted for a completion.")}
        counts |= {"num_draft_tokens": (stats.num_draft_tokens, "Draft tokens.")}
        counts |= {"num_accepted_tokens": (stats.num_accepted_tokens, "Draft tokens that were accepted.")}
        for name, (value, text) in counts.items():
            family = CounterMetricFamily(f"vllm:spec_decode_{name}", text, labels=["model_name"])
            family.add_metric(model, value)
            yield family
        text = "Accepted draft tokens, by their position after the last token."
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        family = CounterMetricFamily(name, text, labels=["model_name", "position"])
        for position, value in enumerate(list(stats.num_accepted_tokens_per_pos)):
            family.add_metric([*model, str(position)], value)
        yield family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        family.add_metric([self.model_name], value)
        return family


class Meter:
    """Counts one request's events."""

    def __init__(self, metrics: Metrics, job: Job):
        self.metrics, self.job, self.arrival = metrics, job, time.perf_counter()
        self._waited: dict[int, float] = {}  # seconds until each choice got a seat in the engine
        self._first: dict[int, float] = {}  # when each choice got its first token
        self._last: dict[int, float] = {}  # and its latest
        self._lengths: collections.Counter[int] = collections.Counter()  # tokens of each choice
        self._seen: set[int] = set()  # prompts that have begun
        self._unfinished, self._num_tokens = job.num_choices, job.num_tokens
        metrics.num_unfinished += self._unfinished
        metrics.num_tokens += self._num_tokens

    def seated(self, choice: int) -> None:
        self._waited[choice] = time.perf_counter() - self.arrival

    def count(self, prompt: int, choice: int, event: Any) -> None:
        now, metrics = time.perf_counter(), self.metrics
        if prompt not in self._seen:
            self._seen.add(prompt)
            num_tokens = len(self.job.token_ids[prompt])
            metrics.prompt_tokens.inc(num_tokens)
            metrics.prompt_lengths.observe(num_tokens)
            metrics.n.observe(self.job.n)
            if metrics.stage.number >= 5:
                metrics.cache_queries.inc(num_tokens)
                metrics.cache_hits.inc(event.num_cached_tokens)
                metrics.computed.observe(num_tokens - event.num_cached_tokens)
        if event.token_ids:
            metrics.generation_tokens.inc(len(event.token_ids))
            (metrics.itl if choice in self._last else metrics.ttft).observe(now - self._last.get(choice, self.arrival))
            self._last[choice] = now
            self._lengths[choice] += len(event.token_ids)
            self._first.setdefault(choice, now)
        if event.finish_reason is not None:
            self._ended(choice, event, now)

    def _ended(self, choice: int, event: Any, now: float) -> None:
        metrics, first = self.metrics, self._first.get(choice)
        metrics.e2e.observe(now - self.arrival)
        metrics.lengths.observe(self._lengths[choice])
        metrics.max_tokens.observe(self.job.params.max_tokens)
        if event.queue_time is not None:
            queue_time = self._waited[choice] + event.queue_time
            begun = min(now, self.arrival + queue_time)
            metrics.queue.observe(queue_time)
            metrics.inference.observe(now - begun)
            metrics.prefill.observe((now if first is None else max(first, begun)) - begun)
            metrics.decode.observe(0 if first is None else now - first)
        if first is not None and self._lengths[choice] > 1:
            metrics.tpot.observe((now - first) / (self._lengths[choice] - 1))
        metrics.ended(event.finish_reason)
        self._unfinished -= 1

    def close(self) -> None:
        """Completions that have not ended by now count as aborted."""
        self.metrics.num_tokens -= self._num_tokens
        while self._unfinished:
            self._unfinished -= 1
            self.metrics.ended("abort")

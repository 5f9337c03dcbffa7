"""What the engine gives back: results, stream events, and the record of what it did (counters and the trace)."""

from collections import deque
from dataclasses import asdict, dataclass, field

import numpy as np


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability under the model's raw logits, and its place among all tokens (1 is the most likely)."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True)
class RequestMetrics:
    """Moments in the life of a request, by `time.perf_counter`, and the times between its tokens; all in seconds."""

    arrival_time: float
    first_token_time: float | None  # None: it never came so far
    finished_time: float | None
    first_scheduled_time: float | None
    inter_token_latencies: tuple[float, ...]

    @property
    def ttft(self) -> float | None:
        """Time to first token, in seconds, from the arrival."""
        return self._since_arrival(self.first_token_time)

    @property
    def queue_time(self) -> float | None:
        """Seconds from the arrival to the first step that it was part of."""
        return self._since_arrival(self.first_scheduled_time)

    @property
    def e2e(self) -> float | None:
        """End to end: seconds from the arrival to the last token."""
        return self._since_arrival(self.finished_time)

    def _since_arrival(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self.arrival_time


@dataclass(frozen=True)
class CompletionOutput:
    """A completion.

    Attributes:
        index: which completion of its request.
        text: the generated text, without the end token and without the stop text that ended it.
        token_ids: the generated tokens, with the one that ended it.
        cumulative_logprob: the sum of the chosen tokens' log-probabilities; None unless logprobs were asked for.
        logprobs: for each generated token, token id -> Logprob of the chosen and of the most likely tokens; or None.
        finish_reason: "stop" (the end token, a stop text, a stop token), "length" or "abort".
        stop_reason: the stop text or the stop token id that ended it; None for the end token and for other reasons.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(frozen=True)
class RequestOutput:
    """The result of one request. `prompt` is None if the prompt was given as token ids; `num_cached_tokens` of its
    tokens were found in the prefix cache and not computed."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0

    def to_dict(self) -> dict:
        """The result as plain values, ready for JSON."""
        metrics = {"ttft": self.metrics.ttft, "e2e": self.metrics.e2e, "queue_time": self.metrics.queue_time}
        metrics["inter_token_latencies"] = list(self.metrics.inter_token_latencies)
        return {**asdict(self), "metrics": metrics}


@dataclass(frozen=True)
class StreamEvent:
    """News of a stream: what one step added to a completion (`completion_index`, with n > 1) of prompt `index`.

    `text` may be empty (half a character, or a possible beginning of a stop text, is held back). `finish_reason` is
    None until the last event of the completion.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    completion_index: int = 0


class Latencies:
    """What the latest requests had to wait for, in seconds: the last 100,000 values of each kind."""

    def __init__(self):
        self.ttft, self.itl, self.e2e, self.queue_time = (deque(maxlen=100_000) for _ in range(4))

    def add(self, metrics: RequestMetrics) -> None:
        self.ttft.append(metrics.ttft)
        self.itl.extend(metrics.inter_token_latencies)
        self.e2e.append(metrics.e2e)
        self.queue_time.append(metrics.queue_time)

    def percentiles(self) -> dict[str, dict[str, float]]:
        """For each kind that has values: its 50th, 95th and 99th percentile."""
        kinds = {kind: list(values) for kind, values in vars(self).items() if values}
        return {kind: {f"p{p}": float(np.percentile(v, p)) for p in (50, 95, 99)} for kind, v in kinds.items()}


@dataclass
class Stats:
    """Counters of an engine, always kept. Assign a new one to `llm.stats` to start from zero."""

    num_requests: int = 0  # finished
    num_forwards: int = 0
    num_tokens_computed: int = 0  # positions that went through the model for a live request
    num_padding_tokens: int = 0  # positions that went through the model for nothing
    num_output_tokens: int = 0
    kv_tokens_reserved: int = 0  # room in the KV cache, summed over the forward passes
    kv_tokens_used: int = 0  # of it, what live requests had filled
    num_prompt_tokens: int = 0  # of those requests
    num_cached_tokens: int = 0  # of them, those that the prefix cache had
    num_preemptions: int = 0
    seconds: float = 0.0  # in steps: forward pass, sampling, bookkeeping
    latencies: Latencies = field(default_factory=Latencies)


@dataclass(frozen=True)
class RowRecord:
    """What one forward pass did for one completion of a request. `phase` is "prefill" until its first token, then
    "decode"; `blocks` is its block table."""

    request_id: str
    phase: str
    num_tokens: int
    num_padding: int
    index: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepRecord:
    """One forward pass in the trace: its number, when it began and how long it took in seconds, its rows, and the KV
    cache after it, in tokens: what is reserved, and what live requests use of it; how many of its blocks more than one
    completion holds, and how many more blocks there would be if each had its own."""

    step: int
    start: float
    seconds: float
    rows: list[RowRecord]
    kv_tokens_reserved: int
    kv_tokens_used: int
    num_blocks_shared: int = 0
    num_blocks_saved: int = 0

    def to_dict(self) -> dict:
        return asdict(self)

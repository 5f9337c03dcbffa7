"""What the engine gives back: results and stream events, and how they are written as JSON."""

import json
from dataclasses import asdict, dataclass


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
    tokens were found in the prefix cache and not computed.

    `prompt_logprobs`, if asked for: for each token of the prompt what `logprobs` of a completion has for its tokens;
    None for the first, which nothing stands before, and of a Pair for all but its continuation.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    def to_dict(self) -> dict:
        """The result as plain values, ready for JSON."""
        metrics = {"ttft": self.metrics.ttft, "e2e": self.metrics.e2e, "queue_time": self.metrics.queue_time}
        metrics["inter_token_latencies"] = list(self.metrics.inter_token_latencies)
        return {**asdict(self), "metrics": metrics}


@dataclass(frozen=True)
class StreamEvent:
    """News of a stream: what one step added to a completion (`completion_index`, with n > 1) of prompt `index`.

    `text` may be empty (half a character, or a possible beginning of a stop text, is held back). `finish_reason` is
    None until the last event of the completion; `stop_reason` then says which stop text or token it was. `logprobs` are
    those of `token_ids`, if asked for. The counts of tokens are so far. The first event of a request has its
    `prompt_logprobs`, if asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    completion_index: int = 0
    stop_reason: str | int | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


def to_json(values: dict) -> str:
    """A line of JSON, readable where it can be. A number that JSON has no form for, an infinity or NaN, becomes null;
    half a surrogate pair, which UTF-8 can't carry, stays escaped."""
    try:
        line = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return to_json(json.loads(json.dumps(values), parse_constant=lambda _: None))
    return line.encode("utf-8", "backslashreplace").decode("utf-8")

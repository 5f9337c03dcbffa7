"""What the engine returns: results and stream events, made from a request (request.py)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability by the model's raw logits, and its rank among all tokens (1 is the most likely)."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True)
class RequestMetrics:
    """Times of a request, in seconds of `time.perf_counter`."""

    arrival_time: float
    first_token_time: float
    finished_time: float

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds, from the arrival."""
        return self.first_token_time - self.arrival_time

    @property
    def e2e(self) -> float:
        """End to end: seconds from the arrival to the last token."""
        return self.finished_time - self.arrival_time


@dataclass(frozen=True)
class CompletionOutput:
    """A completion.

    Attributes:
        index: which completion of its request.
        text: the generated text, without the end token and without the stop string that ended it.
        token_ids: the generated tokens, including the one that ended it.
        cumulative_logprob: the sum of the chosen tokens' log-probabilities; None unless requested.
        logprobs: if requested, for each generated token: token id -> Logprob, of it and of the most likely ones.
        finish_reason: "stop" (the end token, a stop string, a stop token), "length", or "error": this request alone has
            failed.
        stop_reason: the stop string or the stop token id that ended it, or the message of the error; else None.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: str | int | None

    @classmethod
    def of(cls, request: Any) -> "CompletionOutput":
        has_logprobs = request.params.logprobs is not None
        chosen = zip(request.output_token_ids, request.logprobs, strict=False)
        return cls(
            index=0,
            text=request.text.text,
            token_ids=list(request.output_token_ids),
            cumulative_logprob=sum((entry[i].logprob for i, entry in chosen), 0.0) if has_logprobs else None,
            logprobs=list(request.logprobs) if has_logprobs else None,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
        )


@dataclass(frozen=True)
class RequestOutput:
    """The result of one request. `prompt` is None if the prompt was given as token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics

    @classmethod
    def of(cls, request: Any) -> "RequestOutput":
        """The result so far."""
        times = request.token_times or [request.arrival_time]
        metrics = RequestMetrics(request.arrival_time, times[0], times[-1])
        outputs = [CompletionOutput.of(request)]
        return cls(request.request_id, request.prompt, request.prompt_token_ids, outputs, request.finished, metrics)


@dataclass(frozen=True)
class StreamEvent:
    """A stream event: what one step added to the completion of prompt `index`.

    `text` may be empty: half a character is held back, and so is what may begin a stop string. `finish_reason` is
    None until the last event of the index; `stop_reason` then says which stop string, token or error it was. `logprobs`
    are those of `token_ids`, if requested.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None = None
    logprobs: list[dict[int, Logprob]] | None = None

    @classmethod
    def take(cls, request: Any, index: int) -> "StreamEvent":
        """What is new since the last call, for prompt `index`."""
        (begin, start), text = request.streamed, request.text.text
        end = len(text) if request.finished else request.text.num_final
        request.streamed = len(request.output_token_ids), end
        return cls(
            index,
            text[start:end],
            request.output_token_ids[begin:],
            request.finish_reason,
            stop_reason=request.stop_reason,
            logprobs=request.logprobs[begin:] if request.params.logprobs is not None else None,
        )

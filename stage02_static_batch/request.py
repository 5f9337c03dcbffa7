"""One request: what was asked, and what has come of it so far."""

import time

from .outputs import RequestMetrics, RequestOutput, StreamEvent
from .progress import Progress
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer


class Request:
    """A prompt on its way to a completion.

    Args:
        request_id: unique within the engine.
        prompt: the prompt as given, None if it was token ids.
        prompt_token_ids: the prompt's tokens, at least one.
        params: how to sample and when to stop.
        seed: the key of every draw for this request.
        max_length: prompt and output together never have more tokens.
        tokenizer: turns tokens into text.
        eos_token_ids: the model's end tokens.

    Attributes:
        progress: its output so far; the only thing that a token changes.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        seed: int,
        max_length: int,
        tokenizer: Tokenizer,
        eos_token_ids: tuple[int, ...],
    ):
        self.request_id, self.prompt, self.prompt_token_ids = request_id, prompt, prompt_token_ids
        self.params, self.seed, self.tokenizer, self.eos_token_ids = params, seed, tokenizer, eos_token_ids
        self.max_tokens = min(params.max_tokens, max_length - len(prompt_token_ids))
        self.arrival_time = time.perf_counter()
        self.progress = Progress(params, self.max_tokens, tokenizer, eos_token_ids)
        self._streamed_tokens = self._streamed_characters = 0

    @property
    def output_token_ids(self) -> list[int]:
        return self.progress.token_ids

    @property
    def finished(self) -> bool:
        return self.progress.finish_reason is not None

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output: the sequence that the model sees."""
        return self.prompt_token_ids + self.progress.token_ids

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """The tokens that may not be chosen now: those that would end the output before `min_tokens`."""
        if len(self.progress.token_ids) >= self.params.min_tokens:
            return ()
        return self.params.stop_token_ids + (() if self.params.ignore_eos else self.eos_token_ids)

    def take_event(self, index: int) -> StreamEvent:
        """What is new since the last call, of prompt `index`. Text that may be part of a stop text is held back."""
        progress, begin, start = self.progress, self._streamed_tokens, self._streamed_characters
        end = progress.num_certain_characters
        self._streamed_tokens, self._streamed_characters = len(progress.token_ids), end
        return StreamEvent(
            index,
            progress.text[start:end],
            progress.token_ids[begin:],
            progress.finish_reason,
            stop_reason=progress.stop_reason,
            logprobs=progress.logprobs[begin:] if self.params.logprobs is not None else None,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_output_tokens=len(progress.token_ids),
        )

    def output(self) -> RequestOutput:
        """The result so far; `finished` says if it is the whole one."""
        times = self.progress.token_times or [0.0]
        metrics = RequestMetrics(self.arrival_time, times[0], times[-1])
        completion = self.progress.completion(index=0)
        return RequestOutput(self.request_id, self.prompt, self.prompt_token_ids, [completion], self.finished, metrics)

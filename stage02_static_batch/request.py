"""One request: its tokens, its text so far, and why it ended."""

import time

from .outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from .sampling_params import SamplingParams
from .stop_texts import match
from .tokenizer import Detokenizer, Tokenizer


class Request:
    """A prompt on its way to a completion. `add_token` is the only way that it grows, and decides when it ends.

    Args:
        request_id: unique within the engine.
        prompt: the prompt as given, None if it was token ids.
        prompt_token_ids: the prompt's tokens, at least one.
        params: how to sample and when to stop.
        seed: the key of every draw for this request.
        max_length: prompt and output together never have more tokens.
        tokenizer: turns tokens into text.
        eos_token_ids: the model's end tokens.
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
        self.params, self.seed, self.eos_token_ids = params, seed, eos_token_ids
        self.max_tokens = min(params.max_tokens, max_length - len(prompt_token_ids))
        self.output_token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[dict[int, Logprob]] = []
        self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.arrival_time = time.perf_counter()
        self.first_token_time = self.last_token_time = 0.0
        self.tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._matched = [0] * len(params.stop)  # of each stop text, how much the text ends with
        self._streamed_tokens = self._streamed_characters = 0

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output: the sequence that the model sees."""
        return self.prompt_token_ids + self.output_token_ids

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """The tokens that may not be chosen now: those that would end the output before `min_tokens`."""
        if len(self.output_token_ids) >= self.params.min_tokens:
            return ()
        return self.params.stop_token_ids + (() if self.params.ignore_eos else self.eos_token_ids)

    def add_token(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> None:
        """Append a sampled token; afterwards `finish_reason` says if and why the request ended with it."""
        self.last_token_time = time.perf_counter()
        self.first_token_time = self.first_token_time or self.last_token_time
        self.output_token_ids.append(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)
            self.cumulative_logprob += logprobs[token_id].logprob
        if token_id in self.eos_token_ids and not self.params.ignore_eos:
            self._finish("stop")
        elif token_id in self.params.stop_token_ids:
            self._finish("stop", stop_reason=token_id)
        else:
            self._add_text(self._detokenizer.add(token_id))
            if not self.finished and len(self.output_token_ids) >= self.max_tokens:
                self._finish("length")

    def _add_text(self, new_text: str) -> None:
        """Append text, and end before the first stop text that it completes."""
        old_length = len(self.text)
        self.text += new_text
        if not self.params.stop:
            return
        # A stop text that this token completes may begin in earlier text, but ends in the new one.
        found = [match(stop, n, new_text) for stop, n in zip(self.params.stop, self._matched, strict=True)]
        self._matched = [n for n, _ in found]
        if len(self.output_token_ids) <= self.params.min_tokens:
            return
        ends = [
            (old_length + end - len(stop), stop) for stop, (_, end) in zip(self.params.stop, found, strict=True) if end
        ]
        if ends:
            position, stop = min(ends, key=lambda pair: pair[0])
            self.text = self.text[:position]
            self.finish_reason, self.stop_reason = "stop", stop

    def _finish(self, reason: str, stop_reason: str | int | None = None) -> None:
        tail = self._detokenizer.flush()
        if tail:  # a character that never got its last bytes; it may still complete a stop text
            self._add_text(tail)
        if not self.finished:
            self.finish_reason, self.stop_reason = reason, stop_reason

    def take_new(self) -> tuple[str, list[int]]:
        """The text and tokens that came since the last call; text that may be part of a stop text is held back."""
        end = len(self.text) if self.finished else len(self.text) - self._held_back()
        new_text, self._streamed_characters = self.text[self._streamed_characters : end], end
        new_token_ids = self.output_token_ids[self._streamed_tokens :]
        self._streamed_tokens = len(self.output_token_ids)
        return new_text, new_token_ids

    def _held_back(self) -> int:
        """How many characters at the end of the text could be the beginning of a stop text."""
        return max(self._matched, default=0)

    def output(self) -> RequestOutput:
        """The result so far; `finished` says if it is the whole one."""
        asked = self.params.logprobs is not None
        completion = CompletionOutput(
            index=0,
            text=self.text,
            token_ids=list(self.output_token_ids),
            cumulative_logprob=self.cumulative_logprob if asked else None,
            logprobs=list(self.logprobs) if asked else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
        metrics = RequestMetrics(self.arrival_time, self.first_token_time, self.last_token_time)
        return RequestOutput(self.request_id, self.prompt, self.prompt_token_ids, [completion], self.finished, metrics)

"""What has come of a request so far: its tokens, its text, and why it ended."""

import copy
import time

from .outputs import CompletionOutput, Logprob
from .sampling_params import SamplingParams
from .stop_texts import match
from .tokenizer import Detokenizer, Tokenizer


class Progress:
    """A completion while it grows. `add` is the only way that it does, and decides when it ends.

    Args:
        params: when to stop.
        max_tokens: it never has more.
        tokenizer: turns tokens into text.
        eos_token_ids: the model's end tokens.

    Attributes:
        token_ids: the output's tokens, the one that ended it among them.
        token_times: when each of them came, in seconds of time.perf_counter.
        text: what they say, up to a stop text.
        logprobs: of each token, if they were asked for; cumulative_logprob is the sum of those that were chosen.
        finish_reason, stop_reason: why it ended; None while it goes on.
    """

    def __init__(self, params: SamplingParams, max_tokens: int, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]):
        self.params, self.max_tokens, self.eos_token_ids = params, max_tokens, eos_token_ids
        self.token_ids: list[int] = []
        self.token_times: list[float] = []
        self.text = ""
        self.logprobs: list[dict[int, Logprob]] = []
        self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._detokenizer = Detokenizer(tokenizer)
        self._matched = [0] * len(params.stop)  # of each stop text, how much the text ends with

    def add(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> None:
        """Append a sampled token; afterwards `finish_reason` says if and why this was the last one."""
        self.token_times.append(time.perf_counter())
        self.token_ids.append(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)
            self.cumulative_logprob += logprobs[token_id].logprob
        if token_id in self.eos_token_ids and not self.params.ignore_eos:
            self.finish("stop")
        elif token_id in self.params.stop_token_ids:
            self.finish("stop", stop_reason=token_id)
        else:
            self._add_text(self._detokenizer.add(token_id))
            if self.finish_reason is None and len(self.token_ids) >= self.max_tokens:
                self.finish("length")

    def after(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> "Progress":
        """What it will be with one more token, in an object of its own."""
        draft = self.copy()
        if self.max_tokens:
            draft.add(token_id, logprobs)
        else:
            draft.finish("length")  # only its prompt's log-probabilities were asked for
        return draft

    def copy(self) -> "Progress":
        other = copy.copy(self)
        other.token_ids, other.token_times, other.logprobs = [*self.token_ids], [*self.token_times], [*self.logprobs]
        other._detokenizer = self._detokenizer.copy()
        return other

    def finish(self, reason: str, stop_reason: str | int | None = None) -> None:
        """End it as it is, unless what is left of its text completes a stop text."""
        tail = self._detokenizer.flush()
        if tail:  # a character that never got its last bytes
            self._add_text(tail)
        if self.finish_reason is None:
            self.finish_reason, self.stop_reason = reason, stop_reason

    def _add_text(self, new_text: str) -> None:
        """Append text, and end before the first stop text that it completes."""
        old_length = len(self.text)
        self.text += new_text
        if not self.params.stop:
            return
        # A stop text that this token completes may begin in earlier text, but ends in the new one.
        found = [match(stop, n, new_text) for stop, n in zip(self.params.stop, self._matched, strict=True)]
        self._matched = [n for n, _ in found]
        if len(self.token_ids) <= self.params.min_tokens:
            return
        ends = [
            (old_length + end - len(stop), stop) for stop, (_, end) in zip(self.params.stop, found, strict=True) if end
        ]
        if ends:
            position, stop = min(ends, key=lambda pair: pair[0])
            self.text = self.text[:position]
            self.finish_reason, self.stop_reason = "stop", stop

    @property
    def num_certain_characters(self) -> int:
        """How much of the text stays whatever comes: the rest could be the beginning of a stop text."""
        if self.finish_reason is not None:
            return len(self.text)
        return len(self.text) - max(self._matched, default=0)

    def completion(self, index: int) -> CompletionOutput:
        """As users get it."""
        asked = self.params.logprobs is not None
        return CompletionOutput(
            index=index,
            text=self.text,
            token_ids=list(self.token_ids),
            cumulative_logprob=self.cumulative_logprob if asked else None,
            logprobs=list(self.logprobs) if asked else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

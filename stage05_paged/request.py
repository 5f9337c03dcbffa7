"""One request: its state, its tokens, its text so far, why it ended, and when."""

import copy
import enum
import time
from collections.abc import Iterable

from .outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from .sampling_params import SamplingParams
from .stop_texts import match
from .tokenizer import Detokenizer, Tokenizer

# What a token changes.
GROWING = (
    "output_token_ids",
    "text",
    "logprobs",
    "cumulative_logprob",
    "finish_reason",
    "stop_reason",
    "state",
    "first_token_time",
    "last_token_time",
    "inter_token_latencies",
    "_detokenizer",
    "_matched",
)


class RequestState(enum.Enum):
    """Where a request is: in the queue (again, if it was preempted), in the batch, or out, by itself or by an abort."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class Request:
    """A prompt on its way to a completion. `add_token` is the only way that it grows, and decides when it ends.

    A request for n completions is n of these, its `group`: the first one is prefilled, the others are forked from it.

    Args:
        request_id: unique within the engine.
        prompt: the prompt as given, None if it was token ids.
        prompt_token_ids: the prompt's tokens, at least one.
        params: how to sample and when to stop.
        seed: the key of every draw for this request.
        max_length: prompt and output together never have more tokens.
        tokenizer: turns tokens into text.
        eos_token_ids: the model's end tokens.
        priority: lower is admitted earlier, under the policy "priority".

    Attributes:
        state: changed by the scheduler (waiting, running) and by the request itself (finished, aborted).
        num_computed_tokens: how many tokens of the sequence have their keys and values in the cache.
        num_cached_tokens: how many of its prompt were there already when it was first admitted.
        place: its place in the queue, and the order in which requests keep their memory; given by the scheduler.
        index: which completion of its group it is.
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
        priority: int = 0,
    ):
        self.request_id, self.prompt, self.prompt_token_ids = request_id, prompt, prompt_token_ids
        self.params, self.seed, self.eos_token_ids = params, seed, eos_token_ids
        self.priority, self.state = priority, RequestState.WAITING
        self.num_computed_tokens, self.num_cached_tokens, self.place = 0, 0, None
        self.index, self.group = 0, [self]
        self.inbox: list[Request] | None = None  # of whoever waits for it, see router.py
        self.max_tokens = min(params.max_tokens, max_length - len(prompt_token_ids))
        self.output_token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[dict[int, Logprob]] = []
        self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.arrival_time = time.perf_counter()
        self.first_scheduled_time = self.first_token_time = self.last_token_time = None
        self.inter_token_latencies: list[float] = []
        self.tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._matched = [0] * len(params.stop)  # of each stop text, how much the text ends with
        self._streamed_tokens = self._streamed_characters = 0

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def group_finished(self) -> bool:
        return all(request.finished for request in self.group)

    def fork(self, index: int) -> "Request":
        """Another completion of the same prompt, with the same tokens so far. (Text starts anew: fork before there is
        any, or where nobody asks for it.)"""
        child = copy.copy(self)
        child.index, child.output_token_ids = index, list(self.output_token_ids)
        child.logprobs, child.inter_token_latencies = list(self.logprobs), list(self.inter_token_latencies)
        child._detokenizer = Detokenizer(self.tokenizer)
        return child

    @property
    def beginning(self) -> list["Request"]:
        """Those that get a token when this one does: it alone, but with its prompt's last one the whole group."""
        return [self] if self.output_token_ids or self.index else self.group

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output: the sequence that the model sees."""
        return self.prompt_token_ids + self.output_token_ids

    @property
    def num_tokens(self) -> int:
        """As many as `token_ids`, which is put together anew at each look."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_new_tokens(self) -> int:
        """The tokens that have to go through the model before the next one can be sampled: 1 in a decode."""
        return self.num_tokens - self.num_computed_tokens

    def new_token_ids(self, num_tokens: int) -> list[int]:
        """The next tokens to go through the model."""
        start = self.num_computed_tokens - len(self.prompt_token_ids)
        if start >= 0:
            return self.output_token_ids[start : start + num_tokens]
        return self.token_ids[self.num_computed_tokens : self.num_computed_tokens + num_tokens]

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """The tokens that may not be chosen now: those that would end the output before `min_tokens`."""
        if len(self.output_token_ids) >= self.params.min_tokens:
            return ()
        return self.params.stop_token_ids + (() if self.params.ignore_eos else self.eos_token_ids)

    def add_token(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> None:
        """Append a sampled token; afterwards `finish_reason` says if and why the request ended with it."""
        now = time.perf_counter()
        if self.output_token_ids:
            self.inter_token_latencies.append(now - self.last_token_time)
        self.first_token_time = self.first_token_time or now
        self.last_token_time = now
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

    def after(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> dict:
        """What this request will be with one token more, for `become`. Nothing has changed yet."""
        draft = object.__new__(type(self))
        draft.__dict__.update(self.__dict__)
        draft.output_token_ids, draft.logprobs = list(self.output_token_ids), list(self.logprobs)
        draft.inter_token_latencies = list(self.inter_token_latencies)
        draft._detokenizer = self._detokenizer.copy()
        draft.add_token(token_id, logprobs)
        return {name: draft.__dict__[name] for name in GROWING}

    def become(self, draft: dict) -> None:
        """Take what `after` made, all at once: no Ctrl-C comes in between. To do it twice is the same as once."""
        self.__dict__.update(draft)

    def abort(self) -> None:
        """End it as it is, with finish_reason "abort"."""
        self._finish("abort")
        self.state = RequestState.ABORTED

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
            self.finish_reason, self.stop_reason, self.state = "stop", stop, RequestState.FINISHED

    def _finish(self, reason: str, stop_reason: str | int | None = None) -> None:
        tail = self._detokenizer.flush()
        if tail:  # a character that never got its last bytes; it may still complete a stop text
            self._add_text(tail)
        if not self.finished:
            self.finish_reason, self.stop_reason, self.state = reason, stop_reason, RequestState.FINISHED

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
        """The result of the group so far; `finished` says if it is the whole one."""
        group = self.group
        last_token_times = [request.last_token_time for request in group if request.last_token_time is not None]
        metrics = RequestMetrics(
            self.arrival_time,
            group[0].first_token_time,
            max(last_token_times, default=None),
            group[0].first_scheduled_time,
            tuple(seconds for request in group for seconds in request.inter_token_latencies),
        )
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            [request.completion() for request in group],
            self.group_finished,
            metrics,
            group[0].num_cached_tokens,
        )

    def completion(self) -> CompletionOutput:
        asked = self.params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=list(self.output_token_ids),
            cumulative_logprob=self.cumulative_logprob if asked else None,
            logprobs=list(self.logprobs) if asked else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


def finished_groups(completions: Iterable[Request]) -> list[Request]:
    """The first completion of each request that is done, all n of it, with these."""
    return list(dict.fromkeys([c.group[0] for c in completions if c.finished and c.group_finished]))

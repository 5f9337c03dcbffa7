"""One request: what was asked, where it is, and what has come of it so far."""

import copy
import enum
import itertools
import time
from collections.abc import Iterable

from .outputs import RequestMetrics, RequestOutput, StreamEvent
from .progress import Progress
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer


class RequestState(enum.Enum):
    """Where a request is that is not finished: in the queue (again, if it was preempted), or in the batch."""

    WAITING = "waiting"
    RUNNING = "running"


class Request:
    """A prompt on its way to a completion.

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
        score_from: with params.prompt_logprobs, the first token of the prompt that gets one.

    Attributes:
        state: changed by the scheduler.
        num_computed_tokens: how many tokens of the sequence have their keys and values in the cache.
        num_cached_tokens: how many of its prompt were there already when it was first admitted.
        place: its place in the queue, given by the scheduler; running requests with a later one are preempted first.
        index: which completion of its group it is.
        num_ahead: how many completions its caller asked for before this group, in the same call.
        progress: its output so far; the only thing that a token changes.
        prompt_logprobs: of the prompt's tokens so far; None unless they were asked for.
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
        score_from: int = 1,
    ):
        self.request_id, self.prompt, self.prompt_token_ids = request_id, prompt, prompt_token_ids
        self.params, self.seed, self.tokenizer, self.eos_token_ids = params, seed, tokenizer, eos_token_ids
        self.max_tokens = min(params.max_tokens, max_length - len(prompt_token_ids))
        self.priority, self.state = priority, RequestState.WAITING
        self.num_computed_tokens, self.num_cached_tokens, self.place = 0, 0, None
        self.index, self.group, self.num_ahead = 0, [self], 0
        self.inbox: list[Request] | None = None  # of whoever waits for it, see router.py
        self.arrival_time, self.first_scheduled_time = time.perf_counter(), None
        self.prompt_logprobs = None if params.prompt_logprobs is None else [None] * score_from
        self.progress = Progress(params, self.max_tokens, tokenizer, eos_token_ids)
        self._streamed_tokens = self._streamed_characters = 0

    @property
    def output_token_ids(self) -> list[int]:
        return self.progress.token_ids

    @property
    def finished(self) -> bool:
        return self.progress.finish_reason is not None

    @property
    def group_finished(self) -> bool:
        return all(completion.finished for completion in self.group)

    def fork(self, index: int) -> "Request":
        """Another completion of the same prompt, in the same group, with the same tokens so far."""
        child = copy.copy(self)
        child.index, child.group, child.progress = index, self.group, self.progress.copy()
        return child

    @property
    def beginning(self) -> list["Request"]:
        """Who samples from this one's logits: itself; behind the prompt, the whole group."""
        return [self] if self.progress.token_ids or self.index else self.group

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output: the sequence that the model sees."""
        return self.prompt_token_ids + self.progress.token_ids

    @property
    def num_tokens(self) -> int:
        """As many as `token_ids`, which is put together anew at each look."""
        return len(self.prompt_token_ids) + len(self.progress.token_ids)

    @property
    def num_new_tokens(self) -> int:
        """The tokens that have to go through the model before the next one can be sampled: 1 in a decode."""
        return self.num_tokens - self.num_computed_tokens

    def new_token_ids(self, num_tokens: int) -> list[int]:
        """The next tokens to go through the model."""
        start = self.num_computed_tokens - len(self.prompt_token_ids)
        if start >= 0:
            return self.progress.token_ids[start : start + num_tokens]
        return self.token_ids[self.num_computed_tokens : self.num_computed_tokens + num_tokens]

    @property
    def num_cacheable(self) -> int:
        """How many of its first tokens need not be computed if their keys and values are in the cache: all but the
        last, unless log-probabilities are wanted of what follows earlier ones."""
        if self.prompt_logprobs is None or len(self.prompt_logprobs) == len(self.prompt_token_ids):
            return self.num_tokens - 1
        return len(self.prompt_logprobs) - 1

    def to_score(self, num_tokens: int) -> range:
        """Of the next tokens, given by their positions, those that tell a log-probability of the prompt: the one of the
        token behind them. They are the last ones of the prompt among the next tokens, one behind the other."""
        if self.prompt_logprobs is None:
            return range(0)
        start = max(self.num_computed_tokens, len(self.prompt_logprobs) - 1)
        return range(start, min(self.num_computed_tokens + num_tokens, len(self.prompt_token_ids) - 1))

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
            prompt_logprobs=self.prompt_logprobs and list(self.prompt_logprobs)
            if not begin and not self.index
            else None,
            completion_index=self.index,
            num_cached_tokens=self.group[0].num_cached_tokens,
        )

    def output(self) -> RequestOutput:
        """The result of the group so far; `finished` says if it is the whole one."""
        group = self.group
        times = [completion.progress.token_times for completion in group if completion.progress.token_times]
        metrics = RequestMetrics(
            self.arrival_time,
            min((tokens[0] for tokens in times), default=None),
            max((tokens[-1] for tokens in times), default=None),
            group[0].first_scheduled_time,
            tuple(after - before for tokens in times for before, after in itertools.pairwise(tokens)),
        )
        outputs = [completion.progress.completion(completion.index) for completion in group]
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            outputs,
            self.group_finished,
            metrics,
            group[0].num_cached_tokens,
            prompt_logprobs=self.prompt_logprobs and list(group[0].prompt_logprobs),
        )


def finished_groups(completions: Iterable[Request]) -> list[Request]:
    """The first completion of each request that is done, all n of it, with these."""
    return list(dict.fromkeys([c.group[0] for c in completions if c.finished and c.group_finished]))

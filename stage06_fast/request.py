"""One request: the prompt, its state, and its output so far."""

import copy
import logging
import time

from .support.logprobs import NOT_FINITE
from .support.outputs import Logprob
from .support.philox import completion_seed
from .support.sampling_params import SamplingParams
from .support.scoring import PromptLogprobs
from .support.text import Text
from .support.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Request:
    """A prompt and the tokens generated for it so far. `add` appends a token; `finish_reason` then says
    whether it was the last, and why.

    A prompt with n completions is n of these. With prefix caching, the later ones reuse the first one's full blocks.

    Args:
        request_id: unique within the engine; the completions of a prompt share it.
        prompt: the prompt as given, None if it was token ids.
        prompt_token_ids: the prompt's tokens, at least one.
        params: how to sample and when to stop.
        seed: the key of every draw for this request.
        max_model_len: the most tokens that prompt and output may have together.
        tokenizer: turns tokens into text.
        eos_token_ids: the model's end tokens.
        priority: lower is admitted earlier, under the policy "priority".
        score_from: with params.prompt_logprobs, the index of the first prompt token that gets one.

    Attributes:
        num_computed_tokens: how many of its tokens have their keys and values in the cache, or will have them before it
            reads them: another request of the same step may be computing them.
        num_cached_tokens: prompt tokens found in the prefix cache when it was first admitted.
        rank: its rank in the queue (number, arrival), given by the scheduler; the last running one is preempted first.
        index: which completion of its prompt it is.
        prompt_logprobs: one entry per prompt token so far; None unless requested.
        output_token_ids: the output's tokens, including the one that ended it.
        token_times: when each output token was added, in seconds of time.perf_counter.
        logprobs: one entry per output token, if requested.
        text: makes the output's text, up to a stop string.
        finish_reason, stop_reason: why it ended; None until then.
        num_preemptions: how often it was preempted.
        streamed: how many tokens and characters a stream has sent so far.
    """

    rank: tuple[int, int] | None  # None until it is queued
    first_scheduled_time: float | None

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        seed: int,
        max_model_len: int,
        tokenizer: Tokenizer,
        eos_token_ids: tuple[int, ...],
        priority: int = 0,
        score_from: int = 1,
    ):
        self.request_id, self.prompt, self.prompt_token_ids = request_id, prompt, prompt_token_ids
        self.params, self.seed, self.tokenizer, self.eos_token_ids = params, seed, tokenizer, eos_token_ids
        self.max_tokens = min(params.max_tokens, max_model_len - len(prompt_token_ids))
        self.priority, self.rank, self.first_scheduled_time = priority, None, None
        self.index, self.num_cached_tokens, self.num_preemptions = 0, 0, 0
        self.num_computed_tokens = 0
        self.prompt_logprobs = None
        if (count := params.prompt_logprobs) is not None:
            self.prompt_logprobs = PromptLogprobs(len(prompt_token_ids), score_from, count, tokenizer)
        self.arrival_time = time.perf_counter()
        self.streamed = 0, 0
        self.output_token_ids: list[int] = []
        self.token_times: list[float] = []
        self.logprobs: list[dict[int, Logprob]] = []
        self.text = Text(self.tokenizer, self.params)
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def completion(self, index: int) -> "Request":
        """A request for another completion of the prompt, from its beginning. The first one alone scores the prompt."""
        other = copy.copy(self)
        other.index, other.seed, other.prompt_logprobs = index, completion_seed(self.seed, index), None
        other.output_token_ids, other.token_times, other.logprobs = [], [], []
        other.text = Text(self.tokenizer, self.params)
        return other

    def completions(self) -> list["Request"]:
        """A request for each of the prompt's `n` completions, this one first."""
        return [self, *(self.completion(index) for index in range(1, self.params.n))]

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output: the sequence that the model sees."""
        return self.prompt_token_ids + self.output_token_ids

    @property
    def num_tokens(self) -> int:
        """The length of `token_ids`, without making that list."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_new_tokens(self) -> int:
        """Tokens still to compute before the next one can be sampled: 1 in a decode."""
        return self.num_tokens - self.num_computed_tokens

    def new_token_ids(self, num_tokens: int) -> list[int]:
        """The next tokens to go through the model."""
        start = self.num_computed_tokens - len(self.prompt_token_ids)
        if start >= 0:  # a decode need not build the whole list
            return self.output_token_ids[start : start + num_tokens]
        return self.token_ids[self.num_computed_tokens : self.num_computed_tokens + num_tokens]

    @property
    def num_cacheable(self) -> int:
        """How many of its first tokens may come from the prefix cache: those before the first one whose logits are
        needed."""
        scored = self.prompt_logprobs
        if scored is not None and len(scored) < len(self.prompt_token_ids):
            return len(scored) - 1
        return self.num_tokens - 1

    def add(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> None:
        """Append a sampled token; afterwards `finish_reason` says if and why this was the last one. With `max_tokens` 0
        the token is dropped: only the prompt was to be scored."""
        if not self.output_token_ids and self.prompt_logprobs and self.prompt_logprobs.has_nan():
            raise ValueError(NOT_FINITE)
        if not self.max_tokens:
            self.finish("length")
            return
        if logprobs is not None:
            self.logprobs.append(logprobs)
        self.token_times.append(time.perf_counter())
        self.output_token_ids.append(token_id)
        if token_id in self.eos_token_ids and not self.params.ignore_eos:
            self.finish("stop", None, token_id)
        elif token_id in self.params.stop_token_ids:
            self.finish("stop", token_id, token_id)
        elif stop := self.text.add(token_id, self._past_min_tokens):
            self.finish_reason, self.stop_reason = "stop", stop
        elif len(self.output_token_ids) >= self.max_tokens:
            self.finish("length")

    def add_or_fail(self, token: tuple[int, dict[int, Logprob] | None] | Exception) -> None:
        """Append a sampled token. An error, passed in place of a token or raised here, ends only this request."""
        try:
            if isinstance(token, Exception):
                raise token
            self.add(*token)
        except Exception as error:
            logger.info("request %s failed", self.request_id, exc_info=error)
            message = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            self.finish_reason, self.stop_reason = "error", message

    def finish(self, reason: str, stop_reason: str | int | None = None, stop_token_id: int | None = None) -> None:
        """Finish the request. Its held-back bytes may complete a stop string, which then becomes the reason."""
        if stop := self.text.flush(self._past_min_tokens, stop_token_id):
            reason, stop_reason = "stop", stop
        self.finish_reason, self.stop_reason = reason, stop_reason

    @property
    def _past_min_tokens(self) -> bool:
        """Whether a stop string may end the output: it has more than `min_tokens`."""
        return len(self.output_token_ids) > self.params.min_tokens

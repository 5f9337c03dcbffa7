"""How likely a text is: log-probabilities of the tokens of a prompt, and of a continuation after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .logprobs import top_logprobs
from .outputs import Logprob, RequestOutput
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

SCORING = SamplingParams(max_tokens=0, prompt_logprobs=0)  # nothing is generated


class Pair(NamedTuple):
    """A prompt and a continuation to be scored: two strings, or two lists of token ids. Pass it in place of a prompt,
    with the parameters SCORING."""

    prompt: str | list[int]
    continuation: str | list[int]


@dataclass(frozen=True)
class Score:
    """How likely a continuation is: the sum of its tokens' log-probabilities, their number, and whether greedy decoding
    would choose each of them."""

    logprob: float
    num_tokens: int
    is_greedy: bool


def encode_pair(pair: tuple[Any, Any], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens of both, by the rules of EleutherAI's lm-evaluation-harness (`_encode_pair`): spaces at the end of
    the prompt go to the continuation, since they belong to its first word. The two are encoded together, and split
    after as many tokens as the prompt has alone."""
    prompt, continuation = pair
    if not any(all(isinstance(part, kind) for part in pair) for kind in (str, list | tuple)):
        raise ValueError("a prompt and its continuation are two texts, or two lists of token ids")
    if not continuation:
        raise ValueError("an empty continuation: there is nothing to score")
    if not isinstance(prompt, str):
        return prompt, continuation
    if not prompt.strip():  # the beginning of a text
        return tokenizer.encode(""), tokenizer.encode(prompt + continuation)
    begin, whole = tokenizer.encode(prompt.rstrip()), tokenizer.encode(prompt + continuation)
    if len(whole) <= len(begin):  # "walk" and "ing" together are one token: encode each by itself
        return begin, tokenizer.encode(prompt[len(prompt.rstrip()) :] + continuation)
    return begin, whole[len(begin) :]


class PromptLogprobs(Sequence[dict[int, Logprob] | None]):
    """For each token of a prompt that is scored so far, what `logprobs` of a completion has for its tokens; None for
    the first `start` ones. It reads like a list. The numbers are in arrays, and an entry is made when it is read: a
    thousand tokens with twenty likely ones each would be 21,000 objects.

    Args:
        num_tokens: the prompt's.
        start: the first token that is scored.
        count: how many likely tokens an entry has besides the prompt's.
        tokenizer: has the tokens' texts.
    """

    def __init__(self, num_tokens: int, start: int, count: int, tokenizer: Tokenizer):
        shape, self.start, self.tokenizer = (num_tokens - start, 1 + count), start, tokenizer
        self.num_tokens = num_tokens
        self.token_ids, self.ranks = np.empty(shape, np.int32), np.empty(shape, np.int32)
        self.logprobs, self.num_scored = np.empty(shape, np.float64), 0

    def positions(self, start: int, end: int) -> range:
        """The positions, from `start` up to `end`, whose logits score the prompt token that follows."""
        return range(max(start, len(self) - 1), min(end, self.num_tokens - 1))

    def extend(self, *columns: Tensor) -> None:
        """Add the next tokens: ids, log-probabilities and ranks, each [n, 1 + count]."""
        end = self.num_scored + len(columns[0])
        for array, column in zip((self.token_ids, self.logprobs, self.ranks), columns, strict=True):
            array[self.num_scored : end] = column.numpy()
        self.num_scored = end

    def has_nan(self) -> bool:
        """Whether a log-probability is NaN: then the logits were not finite."""
        return bool(np.isnan(self.logprobs[: self.num_scored]).any())

    def __len__(self) -> int:
        return self.start + self.num_scored

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = range(len(self))[index] - self.start
        if i < 0:
            return None
        columns = (array[i].tolist() for array in (self.token_ids, self.logprobs, self.ranks))
        text = self.tokenizer.token_text
        return {token: Logprob(value, rank, text(token)) for token, value, rank in zip(*columns, strict=True)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied or pickled, it is a list."""
        return list, (list(self),)


def next_token_ids(request: Any, rows: slice) -> list[int]:
    """The tokens of a request's prompt that these rows of the logits score."""
    start = len(request.prompt_logprobs)
    return request.prompt_token_ids[start : start + rows.stop - rows.start]


def score_prompts(logits: Tensor, scored: Sequence[tuple[Any, slice]]) -> None:
    """Give requests the log-probabilities of their prompts.

    Args:
        logits: [n_logits, vocab_size]
        scored: requests, each with its rows of the logits; see `Batch.score_slices`.
    """
    for request, rows in scored:
        token_ids = torch.tensor(next_token_ids(request, rows), dtype=torch.int64, device=logits.device)
        columns = top_logprobs(logits[rows], token_ids[:, None], request.params.prompt_logprobs)
        request.prompt_logprobs.extend(*(column.cpu() for column in columns))


def score_of(output: RequestOutput) -> Score:
    """The score in the result of a Pair. Raises RuntimeError if it was aborted, or failed."""
    (completion,) = output.outputs
    if completion.finish_reason in ("abort", "error"):
        why = "was aborted" if completion.finish_reason == "abort" else f"failed: {completion.stop_reason}"
        raise RuntimeError(f"request {output.request_id} {why}")
    columns = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)  # pyright: ignore[reportArgumentType]
    chosen = [entries[token_id] for token_id, entries in columns if entries is not None]
    return Score(sum(c.logprob for c in chosen), len(chosen), all(c.rank == 1 for c in chosen))

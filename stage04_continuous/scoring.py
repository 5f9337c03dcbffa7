"""How likely a text is: log-probabilities of the tokens of a prompt, and of a continuation behind a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .outputs import RequestOutput
from .request import Request
from .sampler import logprob_entries
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

SCORING = SamplingParams(max_tokens=0, prompt_logprobs=0)  # nothing is generated


class Pair(NamedTuple):
    """A continuation that is to be scored behind a prompt: two texts, or two lists of token ids. It goes where a prompt
    goes, with the parameters SCORING."""

    prompt: str | list[int]
    continuation: str | list[int]


@dataclass(frozen=True)
class Score:
    """How likely a continuation is: the sum of its tokens' log-probabilities, how many tokens that are, and whether
    each of them is the most likely one, as greedy decoding would choose it."""

    logprob: float
    num_tokens: int
    is_greedy: bool


def encode_pair(pair: Pair, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens of both. Spaces at the end of a prompt become the continuation's, whose first word they belong to, and
    the tokens are those of the whole text: the rules of EleutherAI's lm-evaluation-harness (`_encode_pair`)."""
    prompt, continuation = pair
    kinds = [isinstance(part, str) or (isinstance(part, list | tuple) and "ids") for part in pair]
    if kinds[0] != kinds[1] or not kinds[0]:
        raise ValueError("a prompt and its continuation are two texts, or two lists of token ids")
    if not continuation:
        raise ValueError("an empty continuation: there is nothing to score")
    if not isinstance(prompt, str):
        return prompt, continuation
    if not prompt.strip():  # the beginning of a text
        return tokenizer.encode(""), tokenizer.encode(prompt + continuation)
    begin, whole = tokenizer.encode(prompt.rstrip()), tokenizer.encode(prompt + continuation)
    if len(whole) <= len(begin):  # "walk" and "ing" are one token together: each by itself
        return begin, tokenizer.encode(prompt[len(prompt.rstrip()) :] + continuation)
    return whole[: len(begin)], whole[len(begin) :]


def score_prompts(logits: Tensor, scored: Sequence[tuple[Request, slice]]) -> None:
    """Give requests the log-probabilities of the next tokens of their prompts. These are the same however often they
    are computed, so it does not matter whether the step then happens.

    logits: [n_asked, vocab_size]; scored: whose of these rows are behind tokens of a prompt.
    """
    for request, rows in scored:
        start, params = len(request.prompt_logprobs), request.params
        token_ids = request.prompt_token_ids[start : start + rows.stop - rows.start]
        request.prompt_logprobs += logprob_entries(
            logits[rows],  # [n, vocab_size]
            torch.tensor(token_ids, device=logits.device),  # [n]
            [params.prompt_logprobs] * len(token_ids),
            request.tokenizer.token_text,
        )


def score_of(output: RequestOutput) -> Score:
    """Of the result of a Pair."""
    columns = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    chosen = [entries[token_id] for token_id, entries in columns if entries is not None]
    return Score(sum(c.logprob for c in chosen), len(chosen), all(c.rank == 1 for c in chosen))

"""From the logits of one sequence to its next token: processors, penalties, temperature, top-k, top-p, min-p, draw.

A draw is a pure function of (seed, position), see support/philox.py: no generator keeps a state, so a request gives the
same tokens whatever else the engine has done before or does beside it.
"""

import math

import torch
from torch import Tensor

from .request import Request
from .support.logits_processors import apply_logits_processors
from .support.logprobs import NOT_FINITE, logprob_entries
from .support.outputs import Logprob
from .support.philox import uniform

Token = tuple[int, dict[int, Logprob] | None]  # its id, and its log-probabilities if requested


def sample(logits: Tensor, request: Request) -> Token | Exception:
    """The next token of a request. If its logits processors fail, or its logits are not finite, it gets the error
    instead, and no other request is affected.

    Args:
        logits: [vocab_size] float32, as the model gave them.
    """
    try:
        return choose(logits, request)
    except Exception as error:
        return error


def choose(logits: Tensor, request: Request) -> Token:
    """The next token, with its log-probabilities if requested. [vocab_size] -> Token"""
    params = request.params
    scores = penalize(logits, request)
    if not scores.max().isfinite():
        raise ValueError(NOT_FINITE)
    if params.temperature == 0:
        token_id = int(scores.argmax())
    else:
        scores = (scores - scores.max()) / params.temperature  # the best is 0, so no temperature overflows
        if params.top_k > 0:
            scores = keep_top_k(scores, params.top_k)
        if params.top_p < 1:
            scores = keep_top_p(scores, 1 - params.top_p)
        if params.min_p > 0:
            scores = keep_min_p(scores, params.min_p)
        u = uniform([request.seed], [len(request.output_token_ids)])  # [1]
        token_id = int(draw(scores, torch.from_numpy(u).to(scores.device)))
    if params.logprobs is None:
        return token_id, None
    # Of the model's raw logits, before penalties and temperature.
    chosen = torch.tensor([token_id], dtype=torch.int64, device=logits.device)
    (logprobs,) = logprob_entries(logits[None], chosen, [params.logprobs], request.tokenizer.token_text)
    return token_id, logprobs


def penalize(logits: Tensor, request: Request) -> Tensor:
    """Apply the logits processors, and lower the logits of tokens that were used before. [vocab_size] -> same"""
    params, scores = request.params, logits.clone()
    apply_logits_processors(scores[None], [request])
    if params.repetition_penalty != 1:
        used = torch.tensor(request.token_ids, dtype=torch.int64, device=scores.device)  # [n_used]
        scores = penalize_repetition(scores, used, params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:
        output = torch.tensor(request.output_token_ids, dtype=torch.int64, device=scores.device)  # [n_output]
        counts = torch.bincount(output, minlength=len(scores)).to(scores.dtype)  # [vocab_size]
        scores -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0).to(scores.dtype)
    return scores


# --- The steps: each takes and gives scores [vocab_size]; a dropped token is at -inf. --------------------------------


def penalize_repetition(scores: Tensor, used: Tensor, penalty: float) -> Tensor:
    """Make used tokens less likely: positive logits are divided, negative ones multiplied (Keskar et al. 2019).

    used: [n_used] token ids; duplicates are harmless: the same value is written twice.
    """
    chosen = scores.gather(-1, used)  # [n_used]
    return scores.scatter(-1, used, torch.where(chosen > 0, chosen / penalty, chosen * penalty))


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """Drop all but the k best; ties with the k-th stay."""
    kth = scores.topk(min(k, len(scores))).values[-1]  # [k], descending -> a number
    return scores.masked_fill(scores < kth, -math.inf)


def keep_top_p(scores: Tensor, rest: float) -> Tensor:
    """Drop the tail: from the least likely up, while what is dropped sums to at most the rest, 1 - p."""
    ascending, order = scores.sort(dim=-1, stable=True)
    tail = ascending.softmax(dim=-1).cumsum(dim=-1) <= rest
    tail[-1] = False  # the best token stays
    return scores.masked_fill(torch.zeros_like(tail).scatter(-1, order, tail), -math.inf)


def keep_min_p(scores: Tensor, p: float) -> Tensor:
    """Drop what is less than p times as likely as the best."""
    probs = scores.softmax(dim=-1)
    return scores.masked_fill(probs < p * probs.max(), -math.inf)


def draw(scores: Tensor, u: Tensor) -> Tensor:
    """The token at which the cumulative distribution passes u (inverse transform sampling). -> [1]"""
    cdf = scores.double().softmax(dim=-1).cumsum(dim=-1)  # float32 would lose the rare tokens
    return torch.searchsorted(cdf, u * cdf[-1:], right=True)  # the first with cdf > u: never a dropped one

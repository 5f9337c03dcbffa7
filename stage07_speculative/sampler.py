"""From the logits of one sequence to its next token: processors, penalties, temperature, top-k, top-p, min-p, draw.

A draw is a pure function of (seed, position), see support/philox.py: no generator keeps a state, so a request gets the
same random numbers whatever else the engine has done or is doing.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .kernels.c_sampler import CSampler
from .request import Request
from .support.logits_processors import apply_logits_processors
from .support.logprobs import NOT_FINITE, logprobs_of
from .support.outputs import Logprob
from .support.philox import uniform

Token = tuple[int, dict[int, Logprob] | None]  # its id, and its log-probabilities if requested


def sample(logits: Tensor, request: Request) -> Token | Exception:
    """The next token of a request. If its logits processors fail, or its logits are not finite, returns the error
    instead of raising it, so no other request is affected.

    Args:
        logits: [vocab_size] float32, as the model gave them.
    """
    try:
        token_id = choose(logits, request)
        return token_id, raw_logprobs(logits, token_id, request)
    except Exception as error:
        return error


def sample_rows(logits: Sequence[Tensor], requests: list[Request], kernel: CSampler | None) -> list[Token | Exception]:
    """`sample` for each row, all in one call of the kernel if there is one. n_rows x [vocab_size] -> n_rows of them"""
    if kernel is not None:
        return kernel(logits, requests)
    return [sample(row, request) for row, request in zip(logits, requests, strict=True)]


def choose(logits: Tensor, request: Request) -> int:
    """The next token's id. [vocab_size] -> scalar"""
    params = request.params
    scores = penalize(logits, request)
    best, token_id = scores.max(dim=-1)
    if not best.isfinite():
        raise ValueError(NOT_FINITE)
    if params.temperature == 0:
        return int(token_id)
    scores = (scores - best) / params.temperature  # the best is 0, so no temperature overflows
    if params.top_k > 0:
        scores = keep_top_k(scores, params.top_k)
    weights = scores.double().exp()  # probabilities up to a factor; float32 would lose the rare tokens
    if params.top_p < 1:
        weights = keep_top_p(weights, params.top_p)
    if params.min_p > 0:
        weights = keep_min_p(weights, params.min_p)
    return draw(weights, uniform(request.seed, len(request.output_token_ids)))


def raw_logprobs(logits: Tensor, token_id: int, request: Request) -> dict[int, Logprob] | None:
    """Log-probabilities of the chosen token and the likeliest ones, if requested: before penalties and temperature."""
    if request.params.logprobs is None:
        return None
    return logprobs_of(logits, token_id, request.params.logprobs, request.tokenizer.token_text)


def penalize(logits: Tensor, request: Request) -> Tensor:
    """Apply the logits processors, and lower the logits of tokens that were used before. [vocab_size] -> same"""
    params, scores = request.params, logits.clone()
    apply_logits_processors(scores, request)
    if params.repetition_penalty != 1:
        used = torch.tensor(request.token_ids, dtype=torch.int64, device=scores.device)  # [n_used]
        scores = penalize_repetition(scores, used, params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:
        output = torch.tensor(request.output_token_ids, dtype=torch.int64, device=scores.device)  # [n_output]
        counts = torch.bincount(output, minlength=len(scores)).to(scores.dtype)  # [vocab_size]
        scores -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0).to(scores.dtype)
    return scores


# --- The steps, on [vocab_size]: a dropped token's score is -inf, its weight 0. ---------------------------------------


def penalize_repetition(scores: Tensor, used: Tensor, penalty: float) -> Tensor:
    """Make used tokens less likely: positive logits are divided, negative ones multiplied (Keskar et al. 2019).

    used: [n_used] token ids; duplicates are harmless: the same value is written twice.
    """
    chosen = scores.gather(-1, used)  # [n_used]
    return scores.scatter(-1, used, torch.where(chosen > 0, chosen / penalty, chosen * penalty))


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """Drop all but the k best; ties with the k-th stay."""
    kth = scores.topk(min(k, len(scores))).values[-1]  # [k], descending -> scalar
    return scores.masked_fill(scores < kth, -math.inf)


def keep_top_p(weights: Tensor, p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens whose probabilities sum to at least p (Holtzman et al. 2020); of
    equal ones, the first."""
    total = weights.sum()
    # Sorting the whole vocabulary would take longer than everything else. Tokens with less than (1 - p) / vocab_size
    # of the probability are always dropped: all of them together have less than 1 - p.
    candidates = (weights >= (1 - p) * total / len(weights)).nonzero().squeeze(-1)  # [n_candidates]
    descending, order = weights[candidates].sort(descending=True, stable=True)
    num_kept = 1 + int((descending.cumsum(dim=-1) < p * total).sum())
    kept = candidates[order[:num_kept]]
    return torch.zeros_like(weights).scatter(-1, kept, weights[kept])


def keep_min_p(weights: Tensor, p: float) -> Tensor:
    """Drop tokens less than p times as likely as the best, whose weight is 1."""
    return weights.masked_fill(weights < p, 0)


def draw(weights: Tensor, u: float) -> int:
    """The token at which the cumulative distribution passes u (inverse transform sampling)."""
    cdf = weights.cumsum(dim=-1)
    return int(torch.searchsorted(cdf, u * cdf[-1:], right=True))  # the first with cdf > u * total: never a dropped one

"""From the logits of many sequences to the next tokens: processors, penalties, temperature, top-k, top-p, min-p, draw.

Every row has parameters of its own. Each step is one tensor operation over the rows that ask for it, with a column of
their parameters beside them; a step that no row asks for is left out.

A draw is a pure function of (seed, position), see support/philox.py: no generator keeps a state, so a request gives the
same tokens whatever else the engine has done before or does beside it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .request import Request
from .support.logits_processors import apply_logits_processors, is_processed
from .support.logprobs import NOT_FINITE, logprob_entries
from .support.outputs import Logprob
from .support.philox import uniform

Token = tuple[int, dict[int, Logprob] | None]  # its id, and its log-probabilities if requested


def sample(
    logits: Tensor, requests: list[Request], argmax: Callable[[Tensor], Tensor] | None = None
) -> list[Token | Exception]:
    """The next token of each request. A request whose logits processors fail, or whose logits are not finite, gets the
    error instead, and no other request is affected.

    Args:
        logits: [n_rows, vocab_size] float32, as the model gave them, a row per request.
        argmax: does what `best` does; None is `best`.
    """
    try:
        token_ids = choose(logits, requests, argmax)  # [n_rows], on the device
        return with_logprobs(token_ids.tolist(), token_ids, logits, requests)
    except Exception as error:  # of one row at least: find out which, row by row
        if len(requests) == 1:
            return [error]
        return [sample(logits[i : i + 1], [request], argmax)[0] for i, request in enumerate(requests)]


def choose(logits: Tensor, requests: list[Request], argmax: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The tokens alone; -1 where there is none. [n_rows, vocab_size] -> [n_rows]"""
    scores = penalize(logits, requests)
    token_ids = best(scores) if argmax is None else argmax(scores)  # [n_rows]
    drawn = [i for i, request in enumerate(requests) if request.params.temperature > 0]
    if drawn:
        rows = [requests[i] for i in drawn]
        scores = scores[drawn]  # [n_drawn, vocab_size]
        scores = scores - scores.amax(dim=-1, keepdim=True)  # the best is 0, so no temperature overflows
        scores = for_rows(scores, [r.params.temperature for r in rows], 1, torch.div)
        scores = for_rows(scores, [r.params.top_k for r in rows], 0, keep_top_k)
        scores = for_rows(scores, [1 - r.params.top_p for r in rows], 0, keep_top_p)
        scores = for_rows(scores, [r.params.min_p for r in rows], 0, keep_min_p)
        keys = [[r.seed] for r in rows], [[len(r.output_token_ids)] for r in rows], [[r.index] for r in rows]
        u = uniform(*keys)  # [n_drawn, 1]
        tokens = draw(scores, torch.from_numpy(u).to(scores.device)).squeeze(-1)  # [n_drawn]
        token_ids[drawn] = torch.where(token_ids[drawn] < 0, -1, tokens)
    return token_ids


def with_logprobs(
    chosen: list[int], token_ids: Tensor, logits: Tensor, requests: list[Request]
) -> list[Token | Exception]:
    """The chosen tokens, on the host and on the device, with their log-probabilities. Raises ValueError if there is
    none for a row."""
    if -1 in chosen:
        raise ValueError(NOT_FINITE)
    return list(zip(chosen, raw_logprobs(logits, token_ids, requests), strict=True))


def best(scores: Tensor) -> Tensor:
    """The token with the largest score; -1 if that is no finite number. [n_rows, vocab_size] -> [n_rows]"""
    values, token_ids = scores.max(dim=-1)
    return torch.where(values.isfinite(), token_ids, -1)


def for_rows(scores: Tensor, values: list[float], off: float, step: Callable) -> Tensor:
    """Apply a step to the rows whose parameter is not at the value that turns it off. [n_rows, vocab_size] -> same"""
    rows = [i for i, value in enumerate(values) if value != off]
    if not rows:
        return scores
    column = scores.new_tensor([[values[i]] for i in rows])  # [n, 1]
    index = torch.tensor(rows, dtype=torch.int64, device=scores.device)
    return scores.index_copy(0, index, step(scores[index], column))


def penalize(logits: Tensor, requests: list[Request]) -> Tensor:
    """Apply the logits processors, and lower the logits of tokens that were used. [n_rows, vocab_size] -> same"""
    if not any(asks_for_penalties(request) for request in requests):
        return logits
    scores = logits.clone()
    apply_logits_processors(scores, requests)
    repeating = [r for r in requests if r.params.repetition_penalty != 1]
    if repeating:
        used, _ = pad([r.token_ids for r in repeating], scores.device)  # [n, n_used]
        penalties = [r.params.repetition_penalty for r in requests]
        scores = for_rows(scores, penalties, 1, lambda s, penalty: penalize_repetition(s, used, penalty))
    if any(r.params.frequency_penalty or r.params.presence_penalty for r in requests):
        output, own = pad([r.output_token_ids for r in requests], scores.device)  # [n_rows, n_output]
        counts = torch.zeros_like(scores).scatter_add(-1, output, own.to(scores.dtype))  # [n_rows, vocab_size]
        frequency = scores.new_tensor([[r.params.frequency_penalty] for r in requests])
        presence = scores.new_tensor([[r.params.presence_penalty] for r in requests])
        scores -= frequency * counts + presence * (counts > 0)
    return scores


def asks_for_penalties(request: Request) -> bool:
    p = request.params
    penalized = p.repetition_penalty != 1 or bool(p.frequency_penalty or p.presence_penalty)
    return penalized or is_processed(request)


def pad(lists: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token lists as a rectangle, filled up with each one's first token; which places are its own. 2 x [n, longest]"""
    longest = max(map(len, lists))
    filled = [tokens + (tokens[:1] or [0]) * (longest - len(tokens)) for tokens in lists]
    lengths = torch.tensor([len(tokens) for tokens in lists], dtype=torch.int64, device=device)
    own = torch.arange(longest, dtype=torch.int64, device=device) < lengths[:, None]
    return torch.tensor(filled, dtype=torch.int64, device=device).view(len(lists), longest), own


def raw_logprobs(logits: Tensor, token_ids: Tensor, requests: list[Request]) -> list[dict[int, Logprob] | None]:
    """The chosen token and the most likely ones, by the model's raw logits, before penalties and temperature."""
    result: list[dict[int, Logprob] | None] = [None] * len(requests)
    rows = [i for i, request in enumerate(requests) if request.params.logprobs is not None]
    if rows:
        counts = [requests[i].params.logprobs for i in rows]
        entries = logprob_entries(logits[rows], token_ids[rows], counts, requests[0].tokenizer.token_text)
        for i, entry in zip(rows, entries, strict=True):
            result[i] = entry
    return result


# --- The steps: each takes and gives scores [..., vocab_size]; a dropped token is at -inf. Parameters are [..., 1]. --


def penalize_repetition(scores: Tensor, used: Tensor, penalty: Tensor) -> Tensor:
    """Make used tokens less likely: positive logits are divided, negative ones multiplied (Keskar et al. 2019).

    used: [..., n_used] token ids; duplicates are harmless: the same value is written twice.
    """
    chosen = scores.gather(-1, used)  # [..., n_used]
    return scores.scatter(-1, used, torch.where(chosen > 0, chosen / penalty, chosen * penalty))


def keep_top_k(scores: Tensor, k: Tensor) -> Tensor:
    """Drop all but the k best; ties with the k-th stay."""
    best = scores.topk(min(int(k.max()), scores.shape[-1]), dim=-1).values  # [..., most], descending
    kth = best.gather(-1, k.long().clamp(max=best.shape[-1]) - 1)  # [..., 1]
    return scores.masked_fill(scores < kth, -math.inf)


def keep_top_p(scores: Tensor, rest: Tensor) -> Tensor:
    """Drop the tail: from the least likely up, while what is dropped sums to at most the rest, 1 - p."""
    ascending, order = scores.sort(dim=-1, stable=True)
    tail = ascending.softmax(dim=-1).cumsum(dim=-1) <= rest
    tail[..., -1] = False  # the best token stays
    return scores.masked_fill(torch.zeros_like(tail).scatter(-1, order, tail), -math.inf)


def keep_min_p(scores: Tensor, p: Tensor) -> Tensor:
    """Drop what is less than p times as likely as the best."""
    probs = scores.softmax(dim=-1)
    return scores.masked_fill(probs < p * probs.amax(dim=-1, keepdim=True), -math.inf)


def draw(scores: Tensor, u: Tensor) -> Tensor:
    """The token at which the cumulative distribution passes u (inverse transform sampling). -> [..., 1]"""
    cdf = scores.double().softmax(dim=-1).cumsum(dim=-1)  # float32 would lose the rare tokens
    return torch.searchsorted(cdf, u * cdf[..., -1:], right=True)  # the first with cdf > u: never a dropped one

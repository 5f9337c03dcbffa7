"""From the logits of one sequence to its next token: penalties, temperature, top-k, top-p, min-p, draw.

A draw is a pure function of (seed, position): no generator keeps a state, so a request gives the same tokens whatever
else the engine has done before or does beside it.
"""

import math

import numpy as np
import torch
from torch import Tensor

from .outputs import Logprob
from .request import Request

NOT_FINITE = "the model's logits are no numbers: its weights are damaged, or its values too large for this dtype"


def sample(logits: Tensor, request: Request) -> tuple[int, dict[int, Logprob] | None]:
    """The next token of a request, with its log-probabilities if they were asked for.

    Args:
        logits: [vocab_size] float32, as the model gave them.
    """
    params = request.params
    scores = penalize(logits, request)
    if not scores.max().isfinite():
        raise ValueError(NOT_FINITE)
    if params.temperature == 0:
        token_id = int(scores.argmax())
    else:
        scores = (scores - scores.max()) / params.temperature  # the best is 0, so no temperature overflows
        if params.top_k > 0:
            scores = keep_top_k(scores, scores.new_tensor([params.top_k]))
        if params.top_p < 1:
            scores = keep_top_p(scores, scores.new_tensor([1 - params.top_p]))
        if params.min_p > 0:
            scores = keep_min_p(scores, scores.new_tensor([params.min_p]))
        u = uniform([request.seed], [len(request.output_token_ids)])  # [1]
        token_id = int(draw(scores, torch.from_numpy(u).to(scores.device)))
    logprobs = None if params.logprobs is None else raw_logprobs(logits, token_id, request)
    return token_id, logprobs


def penalize(logits: Tensor, request: Request) -> Tensor:
    """Lower the logits of tokens that were used before, and forbid those that may not come yet. [vocab_size] -> same"""
    params, scores = request.params, logits.clone()
    if params.repetition_penalty != 1:
        used = torch.tensor(request.token_ids, dtype=torch.int64, device=scores.device)  # [n_used]
        penalty = scores.new_tensor([params.repetition_penalty])
        scores = penalize_repetition(scores, used, penalty)
    if params.frequency_penalty or params.presence_penalty:
        output = torch.tensor(request.output_token_ids, dtype=torch.int64, device=scores.device)  # [n_output]
        counts = torch.bincount(output, minlength=len(scores)).to(scores.dtype)  # [vocab_size]
        scores -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0).to(scores.dtype)
    scores[list(request.banned_token_ids)] = -math.inf
    return scores


def raw_logprobs(logits: Tensor, token_id: int, request: Request) -> dict[int, Logprob]:
    """The chosen token and the most likely ones, by the model's raw logits, before penalties and temperature."""
    logprobs = logits.log_softmax(dim=-1)
    best = logprobs.topk(request.params.logprobs).indices.tolist()
    ids = dict.fromkeys([token_id, *best])  # the chosen one first, and once
    ranks = [int((logprobs > logprobs[i]).sum()) + 1 for i in ids]
    text = request.tokenizer.token_text
    return {i: Logprob(float(logprobs[i]), rank, text(i)) for i, rank in zip(ids, ranks, strict=True)}


# --- The steps: each takes and gives scores [..., vocab_size]; a dropped token is at -inf. Parameters are [..., 1]. --


def penalize_repetition(scores: Tensor, used: Tensor, penalty: Tensor) -> Tensor:
    """Make used tokens less likely: positive logits are divided, negative ones multiplied (Keskar et al. 2019).

    used: [..., n_used] token ids; one that stands there twice is written twice with the same value.
    """
    chosen = scores.gather(-1, used)  # [..., n_used]
    return scores.scatter(-1, used, torch.where(chosen > 0, chosen / penalty, chosen * penalty))


def keep_top_k(scores: Tensor, k: Tensor) -> Tensor:
    """Drop all but the k best, and what equals the k-th."""
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


# --- Randomness -----------------------------------------------------------------------------------------------------


def philox(seed, counter, stream=0):
    """Philox4x32-10: turn a 64-bit seed and a counter into random bits, without any state. Takes integers or arrays.

    Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", section 3.3. Philox multiplies and mixes
    four 32-bit words of counter with two of key, ten rounds; each round the key grows by Weyl constants.

    Returns:
        four uint64 arrays, each holding 32 random bits.
    """
    u64 = lambda x: np.asarray(x, dtype=np.uint64)  # noqa: E731
    low, half = u64(0xFFFFFFFF), u64(32)
    k0, k1 = u64(seed) & low, u64(seed) >> half
    c0, c1, c2, c3 = u64(counter) & low, u64(counter) >> half, u64(stream) & low, u64(stream) >> half
    for _ in range(10):
        p0, p1 = c0 * u64(0xD2511F53), c2 * u64(0xCD9E8D57)  # 32 x 32 -> 64 bits
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + u64(0x9E3779B9)) & low, (k1 + u64(0xBB67AE85)) & low
    return c0, c1, c2, c3


def uniform(seed, position) -> np.ndarray:
    """The random number of an output position: in (0, 1), never 0 or 1, a multiple of 2**-53. Integers or arrays."""
    a, b, _, _ = philox(seed, position)
    return ((a << np.uint64(20) | b >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52


def derive_seed(engine_seed: int, number: int) -> int:
    """The seed of the engine's request `number`, for requests that bring none."""
    a, b, _, _ = philox(engine_seed, number, stream=1)
    return int(a << np.uint64(32) | b)

"""Log-probabilities of the chosen token and of the most likely ones."""

from collections.abc import Callable

import torch
from torch import Tensor

from .outputs import Logprob

NOT_FINITE = (
    "no token can be sampled: the model's logits are not finite (its weights are damaged, or its values too large for "
    "this dtype), or the request's logits processors forbid every token"
)


def top_logprobs(logits: Tensor, token: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """A token and the k most likely ones: their ids, log-probabilities and ranks, each [..., 1 + k].

    logits: [..., vocab_size]; token: [..., 1]
    """
    chosen, best = logits.gather(-1, token), logits.topk(k, dim=-1)  # [..., 1], 2 x [..., k], descending
    ids = torch.cat([token, best.indices], dim=-1)  # [..., 1 + k]: the chosen one first
    values = torch.cat([chosen, best.values], dim=-1) - logits.logsumexp(dim=-1, keepdim=True)  # [..., 1 + k]
    better = [(logits > chosen).sum(dim=-1, keepdim=True), torch.searchsorted(-best.values, -best.values)]
    return ids, values, torch.cat(better, dim=-1) + 1


def logprobs_of(logits: Tensor, token_id: int, k: int, text: Callable[[int], str]) -> dict[int, Logprob]:
    """The log-probabilities of a token and of the k most likely ones. logits: [vocab_size]"""
    token = torch.tensor([token_id], dtype=torch.int64, device=logits.device)
    columns = [column.tolist() for column in top_logprobs(logits, token, k)]
    return {i: Logprob(value, rank, text(i)) for i, value, rank in zip(*columns, strict=True)}

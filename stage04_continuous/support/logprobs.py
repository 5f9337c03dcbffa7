"""Log-probabilities of the chosen token and of the most likely ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .outputs import Logprob

NOT_FINITE = (
    "no token can be sampled: the model's logits are not finite (its weights are damaged, or its values too large for "
    "this dtype), or the request's logits processors forbid every token"
)


def top_logprobs(logits: Tensor, token_ids: list[int], k: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row, a token and the k most likely ones: their ids, log-probabilities and ranks, each [n, 1 + k].

    logits: [n, vocab_size]
    """
    token = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]  # [n, 1]
    chosen, best = logits.gather(-1, token), logits.topk(k, dim=-1)  # [n, 1], 2 x [n, k], descending
    ids = torch.cat([token, best.indices], dim=-1)  # [n, 1 + k]: the chosen one first
    values = torch.cat([chosen, best.values], dim=-1) - logits.logsumexp(dim=-1, keepdim=True)  # [n, 1 + k]
    better = [(logits > chosen).sum(dim=-1, keepdim=True), torch.searchsorted(-best.values, -best.values)]
    return ids, values, torch.cat(better, dim=-1) + 1


def logprob_entries(
    logits: Tensor, token_ids: list[int], counts: list[Any], text: Callable[[int], str]
) -> list[dict[int, Logprob]]:
    """For each row, the log-probability of a token, and those of the `counts[i]` most likely ones.

    logits: [n, vocab_size]
    """
    columns = [column.tolist() for column in top_logprobs(logits, token_ids, max(counts))]
    return [
        {i: Logprob(value, rank, text(i)) for i, value, rank in [*zip(*row, strict=True)][: 1 + count]}
        for count, *row in zip(counts, *columns, strict=True)
    ]

"""A solution of exercise 2.2."""

import torch
from torch import Tensor


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, u: Tensor) -> Tensor:
    """A token for each row, without a loop over the rows.

    Args:
        logits: [rows, vocab] float32; temperature: [rows], 0 is greedy; top_k: [rows] int64, 0 keeps all; u: [rows]
            random numbers, 0 <= u < 1.

    Returns:
        [rows] int64
    """
    greedy = temperature == 0
    scores = logits / torch.where(greedy, 1.0, temperature)[:, None]
    vocab_size = logits.shape[1]
    k = torch.where(top_k == 0, vocab_size, top_k).clamp(max=vocab_size)
    kth = scores.sort(dim=-1, descending=True).values.gather(1, k[:, None] - 1)  # [rows, 1]
    scores = scores.masked_fill(scores < kth, -torch.inf)
    cdf = scores.double().softmax(dim=-1).cumsum(dim=-1)
    drawn = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]
    return torch.where(greedy, logits.argmax(dim=-1), drawn)


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

LOOP = """    rows = [sample_one(*row) for row in zip(logits, temperature, top_k, u)]
    return torch.cat(rows)


def sample_one(logits, temperature, top_k, u):
    logits, temperature, top_k, u = logits[None], temperature[None], top_k[None], u[None]
    greedy = temperature == 0
"""
MUTANTS = [
    ("zero keeps one", "torch.where(top_k == 0, vocab_size, top_k)", "top_k.clamp(min=1)", "top_k 0 keeps all"),
    ("forgets the greedy rows", "torch.where(greedy, logits.argmax(dim=-1), drawn)", "drawn", "temperature 0 is greedy"),
    ("greedy by a top-k of 1", ("torch.where(top_k == 0, vocab_size, top_k)", "torch.where(greedy, logits.argmax(dim=-1), drawn)"),
     ("torch.where(greedy, 1, torch.where(top_k == 0, vocab_size, top_k))", "drawn"), "the first of equal logits"),
    ("one greedy row makes all greedy", "return torch.where(greedy,", "return torch.where(greedy.any(),", "only the rows with temperature 0"),
    ("a temperature below 1e-5 is greedy", "greedy = temperature == 0\n", "greedy = temperature < 1e-5\n", "only 0 is greedy"),
    ("multiplies", "scores = logits / ", "scores = logits * ", "the temperature divides"),
    ("a temperature of at least 0.01", "torch.where(greedy, 1.0, temperature)", "torch.where(greedy, 1.0, temperature).clamp(min=0.01)",
     "a small temperature divides too"),
    ("the largest k for all", "gather(1, k[:, None] - 1)", "gather(1, k.max().expand(len(k), 1) - 1)", "each row has its top_k"),
    ("ties by place", "scores.masked_fill(scores < kth, -torch.inf)",
     "scores.masked_fill(scores.argsort(descending=True, stable=True).argsort() >= k[:, None], -torch.inf)",
     "ties with the k-th largest"),
    ("one number for all rows", "u[:, None] *", "u[0] *", "each row has its u"),
    ("at least u", "right=True", "right=False", "the sum is greater than u"),
    ("a clamp instead of a scale", (".double().softmax", "torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]"),
     (".softmax", "torch.searchsorted(cdf, u[:, None].float(), right=True)[:, 0].clamp(max=vocab_size - 1)"), "scale u by the last sum"),
    ("no scale", "u[:, None] * cdf[:, -1:]", "u[:, None].double()", "u is torch.float64"),
    ("in float32", "scores.double().softmax(dim=-1).cumsum(dim=-1)", "scores.softmax(dim=-1).cumsum(dim=-1).double()",
     "Rare tokens are not rounded away"),
    ("a loop over the rows", "    greedy = temperature == 0\n", LOOP, "no loop over the rows"),
    ("numbers of Python", "    vocab_size = logits.shape[1]\n", "    vocab_size = len(logits.tolist()[0])\n", "the numbers stay in torch"),
]  # fmt: skip

ALSO_RIGHT = [
    ("one k for the whole batch, taken out of it", "    kth = scores.sort(dim=-1, descending=True).values.gather(1, k[:, None] - 1)  # [rows, 1]\n",
     "    kth = scores.topk(k.max().item()).values.gather(1, k[:, None] - 1)\n"),
    ("compares with the cumulative sums", "torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]",
     "(cdf <= u[:, None] * cdf[:, -1:]).sum(dim=-1)"),
]  # fmt: skip

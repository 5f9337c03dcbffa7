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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

LOOP = """    rows = [sample_one(*row) for row in zip(logits, temperature, top_k, u)]
    return torch.cat(rows)


def sample_one(logits, temperature, top_k, u):
    logits, temperature, top_k, u = logits[None], temperature[None], top_k[None], u[None]
    greedy = temperature == 0
"""
PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("in float32", "cdf = scores.double()", "u = u.float()\n    cdf = scores", "sum in float64"),
    ("forgets the greedy rows", "torch.where(greedy, logits.argmax(dim=-1), drawn)", "drawn", "greedy is the argmax"),
    ("one greedy row makes all greedy", "return torch.where(greedy,", "return torch.where(greedy.any(),", "must not make all rows greedy"),
    ("multiplies", "scores = logits / ", "scores = logits * ", "multiplied by the temperature"),
    ("the largest k for all", "gather(1, k[:, None] - 1)", "gather(1, k.max().expand(len(k), 1) - 1)", "the largest k"),
    ("the smallest k for all", "gather(1, k[:, None] - 1)", "gather(1, k.min().expand(len(k), 1) - 1)",
     "all rows got the smallest k"),
    ("zero keeps one", "torch.where(top_k == 0, vocab_size, top_k)", "top_k.clamp(min=1)", "keeps all, not none"),
    ("ties by place", "scores.masked_fill(scores < kth, -torch.inf)",
     "scores.masked_fill(scores.argsort(descending=True, stable=True).argsort() >= k[:, None], -torch.inf)",
     "tie with the k-th"),
    ("one number for all rows", "u[:, None] *", "u[0] *", "one u was used"),
    ("at least u", "right=True", "right=False", "greater than u"),
    ("falls off the end", "u[:, None] * cdf[:, -1:]", "u[:, None].double() * 1.000001", "scale u by the last sum"),
    ("changes the caller's logits", "    greedy = temperature == 0\n",
     "    greedy = temperature == 0\n    logits += 1\n", "work on a copy"),
    ("a loop over the rows", "    greedy = temperature == 0\n", LOOP, "a loop over the rows"),
    ("greedy by a tiny temperature", ("torch.where(greedy, 1.0, temperature)", "torch.where(greedy, logits.argmax(dim=-1), drawn)"),
     ("torch.where(greedy, 1e-6, temperature)", "drawn"), "takes the first of equal logits"),
    ("greedy by a top-k of 1", ("torch.where(top_k == 0, vocab_size, top_k)", "torch.where(greedy, logits.argmax(dim=-1), drawn)"),
     ("torch.where(greedy, 1, torch.where(top_k == 0, vocab_size, top_k))", "drawn"), "takes the first of equal logits"),
    ("a temperature of at least 0.01", "torch.where(greedy, 1.0, temperature)", "torch.where(greedy, 1.0, temperature).clamp(min=0.01)",
     "none is clamped"),
    ("a temperature just above 0 is greedy", "greedy = temperature == 0\n", "greedy = temperature < 0.05\n", "only 0 takes the first"),
    ("a temperature below 1e-5 is greedy", "greedy = temperature == 0\n", "greedy = temperature < 1e-5\n", "only 0 takes the first"),
    ("a little is added to the temperature", "temperature)[:, None]", "temperature + 1e-6)[:, None]", "logits 0 and 1e-6"),
    ("a large number instead of infinity", "scores < kth, -torch.inf", "scores < kth, -1e9", PASTE),
    ("a clamp instead of a scale", (".double().softmax", "torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]"),
     (".softmax", "torch.searchsorted(cdf, u[:, None].float(), right=True)[:, 0].clamp(max=vocab_size - 1)"), "clamping hides"),
    ("int32 where all are greedy", "    scores = logits /", "    if greedy.all():\n        return logits.argmax(dim=-1).int()\n    scores = logits /", "torch.int64"),
    ("int32", "logits.argmax(dim=-1), drawn)", "logits.argmax(dim=-1), drawn).int()", "int64"),
    ("a column", "logits.argmax(dim=-1), drawn)", "logits.argmax(dim=-1), drawn)[:, None]", "expected:  [1, 2]"),
    ("changes the caller's temperature", "    scores = logits / torch.where(greedy, 1.0, temperature)[:, None]\n",
     "    temperature[greedy] = 1.0\n    scores = logits / temperature[:, None]\n", "work on a copy"),
    ("the last of equals is greedy", "torch.where(greedy, logits.argmax(dim=-1), drawn)",
     "torch.where(greedy, vocab_size - 1 - logits.flip(1).argmax(dim=-1), drawn)", "greedy takes the first"),
    ("top-k of one less", "gather(1, k[:, None] - 1)", "gather(1, (k[:, None] - 2).clamp(min=0))", "k - 1 tokens"),
    ("numbers of Python", "    vocab_size = logits.shape[1]\n", "    vocab_size = len(logits.tolist()[0])\n", "a loop over the rows"),
    ("no largest subtracted", "scores.double().softmax(dim=-1).cumsum(dim=-1)", "scores.double().exp().cumsum(dim=-1)", "expected:  [1]"),
]  # fmt: skip

ALSO_RIGHT = [
    ("one k for the whole batch, taken out of it", "    kth = scores.sort(dim=-1, descending=True).values.gather(1, k[:, None] - 1)  # [rows, 1]\n",
     "    kth = scores.topk(k.max().item()).values.gather(1, k[:, None] - 1)\n"),
    ("compares with the cumulative sums", "torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]",
     "(cdf <= u[:, None] * cdf[:, -1:]).sum(dim=-1)"),
]  # fmt: skip

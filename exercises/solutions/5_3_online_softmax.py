"""A solution of exercise 5.3."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor


def attend(query: Tensor, blocks: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
    """The attention of one token over blocks of (keys, values): [n_head, head_dim] -> [n_head, head_dim]"""
    n_head, head_dim = query.shape
    largest = torch.full((n_head, 1), -torch.inf)
    total, weighted = torch.zeros(n_head, 1), torch.zeros(n_head, head_dim)
    for keys, values in blocks:
        scores = torch.einsum("hd,thd->ht", query, keys) / math.sqrt(head_dim)  # [n_head, n]
        new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
        weights, correction = (scores - new).exp(), (largest - new).exp()
        total = total * correction + weights.sum(dim=-1, keepdim=True)
        weighted = weighted * correction + torch.einsum("ht,thd->hd", weights, values)
        largest = new
    return weighted / total


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

MUTANTS = [
    ("not divided", "return weighted / total", "return weighted", "at the end"),
    ("no scale", " / math.sqrt(head_dim)", "", "the scores are query"),
    ("the sum is not corrected", "total * correction", "total", "the sum *and* the weighted values"),
    ("the values are not corrected", "weighted * correction", "weighted", "the sum *and* the weighted values"),
    ("the last block alone", "weighted = weighted * correction +", "total, weighted = weights.sum(dim=-1, keepdim=True),",
     "only the last block"),
    ("the first block alone", "        largest = new\n", "        largest = new\n        break\n", "only the first block"),
    ("a mean of blocks", "        total = total * correction + weights.sum(dim=-1, keepdim=True)\n"
     "        weighted = weighted * correction + torch.einsum(\"ht,thd->hd\", weights, values)\n",
     "        total = total + 1\n        weighted = weighted + torch.einsum(\"ht,thd->hd\", scores.softmax(dim=-1), values)\n",
     "computed per block"),
    ("one largest for all heads", "scores.amax(dim=-1, keepdim=True))", "scores.amax().expand(n_head, 1))", "for every head"),
    ("no largest", "new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))", "new = torch.zeros(n_head, 1)",
     "finite numbers"),
    ("begins at zero", "torch.full((n_head, 1), -torch.inf)", "torch.zeros(n_head, 1)", "start the largest at -inf"),
    ("two passes", "    for keys, values in blocks:\n", "    blocks = list(blocks)\n    for keys, values in blocks:\n",
     "two passes would"),
    ("gathers", "    for keys, values in blocks:\n", "    both = list(blocks)\n"
     "    for keys, values in [(torch.cat([k for k, _ in both]), torch.cat([v for _, v in both]))]:\n", "two passes would"),
    ("begins at -10,000", "torch.full((n_head, 1), -torch.inf)", "torch.full((n_head, 1), -1e4)", "start the largest at -inf"),
    ("begins at the smallest float, and divides with care", ("torch.full((n_head, 1), -torch.inf)", "return weighted / total"),
     ("torch.full((n_head, 1), -1e4)", "return weighted / total.clamp(min=1e-9)"), "expected:"),
    ("the largest of the block before", "new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))", "new = scores.amax(dim=-1, keepdim=True)",
     "from the old largest"),
    ("the largest is not kept", "        largest = new\n", "        largest = new if largest.isinf().any() else largest\n", "scores of thousands"),
    ("corrects the other way round", "(largest - new).exp()", "(new - largest).exp()", "NaN"),
    ("a scale of √8", "math.sqrt(head_dim)", "math.sqrt(8)", "expected:"),
    ("a mean weighted by the blocks' lengths", "total = total * correction + weights.sum(dim=-1, keepdim=True)",
     "total = total * correction + len(keys)", "expected:"),
    ("a maximum of -1e5", "-torch.inf)", "-1e5)", "minus a billion"),
]  # fmt: skip

ALSO_RIGHT = [
    ("token by token", "    for keys, values in blocks:\n", "    for keys, values in ((k[i : i + 1], v[i : i + 1]) for k, v in blocks for i in range(len(k))):\n"),
    ("the first block begins", ("    largest = torch.full((n_head, 1), -torch.inf)\n    total, weighted = torch.zeros(n_head, 1), torch.zeros(n_head, head_dim)\n",
     "new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))"),
     ("    largest = total = weighted = None\n", "new = scores.amax(dim=-1, keepdim=True)\n        if largest is None:\n"
      "            largest, total, weighted = new, torch.zeros(n_head, 1), torch.zeros(n_head, head_dim)\n        new = torch.maximum(largest, new)")),
    ("the log of the sum instead of both", ("return weighted / total",), ("return (weighted.log() - total.log()).exp() if (weighted > 0).all() else weighted / total",)),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

START = "torch.full((n_head, 1), -torch.inf)"
NEW = "new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))"
TOTAL = "        total = total * correction + weights.sum(dim=-1, keepdim=True)\n"
WEIGHTED = '        weighted = weighted * correction + torch.einsum("ht,thd->hd", weights, values)\n'
LOOP = "    for keys, values in blocks:\n"
MUTANTS = [
    ("not divided", "return weighted / total", "return weighted", "divided by the sum of the weights"),
    ("no scale", " / math.sqrt(head_dim)", "", "sqrt(head_dim)"),
    ("a scale of √4", "math.sqrt(head_dim)", "math.sqrt(4)", "for any head_dim"),
    ("the sum is not corrected", "total * correction", "total", "are both multiplied"),
    ("the values are not corrected", "weighted * correction", "weighted", "are both multiplied"),
    ("the last block alone", "weighted = weighted * correction +", "total, weighted = weights.sum(dim=-1, keepdim=True),",
     "every token of every block counts"),
    ("a mean of blocks", TOTAL + WEIGHTED, "        total = total + 1\n"
     "        weighted = weighted + torch.einsum(\"ht,thd->hd\", scores.softmax(dim=-1), values)\n", "every token of every block counts"),
    ("the largest of the block alone", NEW, "new = scores.amax(dim=-1, keepdim=True)", "stays the largest"),
    ("the largest is not kept", "        largest = new\n", "        largest = new if largest.isinf().any() else largest\n",
     "kept from block to block"),
    ("one largest for all heads", "scores.amax(dim=-1, keepdim=True))", "scores.amax().expand(n_head, 1))", "each head has its own"),
    ("no largest", NEW, "new = torch.zeros(n_head, 1)", "e^x overflows"),
    ("begins at -10,000", START, "torch.full((n_head, 1), -1e4)", "starts at -inf"),
    ("two passes", LOOP, "    blocks = list(blocks)\n" + LOOP, "two passes would"),
    ("gathers", LOOP, "    all_keys = torch.zeros(0, n_head, head_dim)\n" + LOOP + "        all_keys = torch.cat([all_keys, keys])\n",
     "the blocks were gathered"),
]  # fmt: skip

ALSO_RIGHT = [
    ("token by token", LOOP, "    for keys, values in ((k[i : i + 1], v[i : i + 1]) for k, v in blocks for i in range(len(k))):\n"),
    ("the first block begins", ("    largest = torch.full((n_head, 1), -torch.inf)\n    total, weighted = torch.zeros(n_head, 1), torch.zeros(n_head, head_dim)\n", NEW),
     ("    largest = total = weighted = None\n", "new = scores.amax(dim=-1, keepdim=True)\n        if largest is None:\n"
      "            largest, total, weighted = new, torch.zeros(n_head, 1), torch.zeros(n_head, head_dim)\n        new = torch.maximum(largest, new)")),
    ("the log of the sum instead of both", "return weighted / total", "return (weighted.log() - total.log()).exp() if (weighted > 0).all() else weighted / total"),
]  # fmt: skip

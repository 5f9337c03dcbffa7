"""A solution of exercise 5.2."""

import math

import torch
from torch import Tensor


def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor, table: list[int], length: int) -> Tensor:
    """The attention of one token over its sequence: [n_head, head_dim] -> [n_head, head_dim]"""
    keys = key_cache[table].flatten(0, 1)[:length]  # [length, n_head, head_dim]
    values = value_cache[table].flatten(0, 1)[:length]
    scores = torch.einsum("hd,thd->ht", query, keys) / math.sqrt(query.shape[-1])  # [n_head, length]
    return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values)


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

BODY = """keys = key_cache[table].flatten(0, 1)[:length]  # [length, n_head, head_dim]
    values = value_cache[table].flatten(0, 1)[:length]
    scores = torch.einsum("hd,thd->ht", query, keys) / math.sqrt(query.shape[-1])  # [n_head, length]
    return"""
MASKED = BODY.replace("[:length]", "").replace("    return", "    scores[:, length:] = -torch.inf\n    return")
MUTANTS = [
    ("no scale", " / math.sqrt(query.shape[-1])", "", "divided by √head_dim"),
    ("scaled by head_dim", "math.sqrt(query.shape[-1])", "query.shape[-1]", "divided by √head_dim"),
    ("swapped", BODY, BODY.replace("key_cache", "other").replace("value_cache", "key_cache").replace("other", "value_cache"),
     "the mean of the values"),
    ("no table", BODY, BODY.replace("[table]", ""), "of the table's block"),
    ("softmax over heads", "softmax(dim=-1)", "softmax(dim=0)", "for each head"),
    ("one softmax for all heads", "scores.softmax(dim=-1)", "scores.flatten().softmax(dim=0).view_as(scores)", "for each head"),
    ("the first block", BODY, BODY.replace("[table]", "[table[:1]]"), "all blocks of the table"),
    ("the whole last block", BODY, BODY.replace("[:length]", ""), "to nothing that comes after it"),
    ("without itself", BODY, BODY.replace("[:length]", "[: length - (length % 4 > 0)]"), "attends to itself"),
    ("a weight of zero", BODY, MASKED, "0 * NaN is NaN"),
    ("blocks in the order of their numbers", BODY, BODY.replace("[table]", "[sorted(table)]"), "in the order of the table"),
    ("blocks of four", BODY, BODY.replace("[:length]", "[: length if key_cache.shape[1] > 1 else 4]"), "blocks of 1"),
    ("writes into the cache", "    scores =", "    key_cache.nan_to_num_(), value_cache.nan_to_num_()\n    scores =", "the cache was changed"),
]  # fmt: skip

ALSO_RIGHT = [
    ("a loop over tokens", BODY.split("    scores")[0], "slots = [(table[i // key_cache.shape[1]], i % key_cache.shape[1]) for i in range(length)]\n"
     "    keys, values = (torch.stack([cache[slot] for slot in slots]) for cache in (key_cache, value_cache))\n"),
    ("torch's own attention", "    return torch.einsum(", "    return torch.nn.functional.scaled_dot_product_attention(\n"
     "        query[:, None], keys.transpose(0, 1), values.transpose(0, 1))[:, 0]\n    return torch.einsum("),
]  # fmt: skip

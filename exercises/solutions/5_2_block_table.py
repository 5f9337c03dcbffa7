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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

MASKED = """keys = key_cache[table].flatten(0, 1)
    values = value_cache[table].flatten(0, 1)
    scores = torch.einsum("hd,thd->ht", query, keys) / math.sqrt(query.shape[-1])  # [n_head, length]
    scores[:, length:] = -torch.inf
    return"""
BODY = """keys = key_cache[table].flatten(0, 1)[:length]  # [length, n_head, head_dim]
    values = value_cache[table].flatten(0, 1)[:length]
    scores = torch.einsum("hd,thd->ht", query, keys) / math.sqrt(query.shape[-1])  # [n_head, length]
    return"""
PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("no scale", " / math.sqrt(query.shape[-1])", "", "square root of head_dim"),
    ("scaled by head_dim", "math.sqrt(query.shape[-1])", "query.shape[-1]", "not by head_dim"),
    ("swapped", BODY, BODY.replace("key_cache", "other").replace("value_cache", "key_cache").replace("other", "value_cache"),
     "keys and values are swapped"),
    ("no table", BODY, BODY.replace("[table]", ""), "the table says which block"),
    ("softmax over heads", "softmax(dim=-1)", "softmax(dim=0)", "over the tokens"),
    ("the first block", BODY, BODY.replace("[table]", "[table[:1]]"), "only the first block"),
    ("the last block", BODY, BODY.replace("[table]", "[table[-1:]]"), "only the last block"),
    ("the whole last block", BODY, BODY.replace("[:length]", ""), "after the last token"),
    ("without itself", BODY, BODY.replace("[:length]", "[: length - (length % 4 > 0)]"), "it attends to itself"),
    ("a weight of zero", BODY, MASKED, "a weight of 0 is not enough"),
    ("writes into the cache", "    scores =", "    key_cache[table] /= 1.0 + 1e-3\n    scores =", "others read the same cache"),
    ("blocks in the order of their numbers", BODY, BODY.replace("[table]", "[sorted(table)]"), "expected:"),
    ("blocks of four", BODY, BODY.replace("[:length]", "[: length if key_cache.shape[1] > 1 else 4]"), "5 tokens in blocks of 1"),
    ("blocks that are full alone", BODY, BODY.replace("[:length]", "[: max(1, length // key_cache.shape[1] * key_cache.shape[1])]"), "expected:"),
    ("one softmax for all heads", "scores.softmax(dim=-1)", "scores.flatten().softmax(dim=0).view_as(scores)", "expected:"),
    ("a scale of 8 for every width", "math.sqrt(query.shape[-1])", "math.sqrt(8)", PASTE),
    ("NaN to numbers", ("key_cache[table].flatten(0, 1)[:length]  # [length, n_head, head_dim]", "value_cache[table].flatten(0, 1)[:length]"),
     ("key_cache[table].flatten(0, 1).nan_to_num()", "value_cache[table].flatten(0, 1).nan_to_num()"), "after the last token"),
    ("empties the caller's table", "    return torch.einsum(", "    table.clear()\n    return torch.einsum(", "work on a copy"),
    ("keeps what it gathered", "    scores =", "    kept = attend.__dict__\n    keys, values = kept.setdefault(str((table, length, key_cache.shape)), (keys, values))\n    scores =", "blocks are reused"),
    ("a view for one token", "    scores =", "    if length == 1:\n        return value_cache[table[0], 0]\n    scores =", "others read the same cache"),
    ("in double", "    return torch.einsum(\"ht,thd->hd\", scores.softmax(dim=-1), values)", "    return torch.einsum(\"ht,thd->hd\", scores.softmax(dim=-1).double(), values.double())", "torch.float32"),
    ("fills the cache", "    scores =", "    key_cache.nan_to_num_(), value_cache.nan_to_num_()\n    scores =", "others read the same cache"),
]  # fmt: skip

ALSO_RIGHT = [
    ("a loop over tokens", BODY.split("    scores")[0], "slots = [(table[i // key_cache.shape[1]], i % key_cache.shape[1]) for i in range(length)]\n"
     "    keys, values = (torch.stack([cache[slot] for slot in slots]) for cache in (key_cache, value_cache))\n"),
    ("torch's own attention", "    return torch.einsum(", "    return torch.nn.functional.scaled_dot_product_attention(\n"
     "        query[:, None], keys.transpose(0, 1), values.transpose(0, 1))[:, 0]\n    return torch.einsum("),
]  # fmt: skip

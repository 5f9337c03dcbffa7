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


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

MASKED = """keys = key_cache[table].flatten(0, 1)
    values = value_cache[table].flatten(0, 1)
    scores = torch.einsum("hd,thd->ht", query, keys) / math.sqrt(query.shape[-1])  # [n_head, length]
    scores[:, length:] = -torch.inf
    return"""
BODY = """keys = key_cache[table].flatten(0, 1)[:length]  # [length, n_head, head_dim]
    values = value_cache[table].flatten(0, 1)[:length]
    scores = torch.einsum("hd,thd->ht", query, keys) / math.sqrt(query.shape[-1])  # [n_head, length]
    return"""
MUTANTS = [
    ("no scale", " / math.sqrt(query.shape[-1])", "", "square root of head_dim"),
    ("scaled by head_dim", "math.sqrt(query.shape[-1])", "query.shape[-1]", "not by head_dim"),
    ("swapped", BODY, BODY.replace("key_cache", "other").replace("value_cache", "key_cache").replace("other", "value_cache"),
     "keys and values are swapped"),
    ("no table", BODY, BODY.replace("[table]", ""), "the table says which one"),
    ("softmax over heads", "softmax(dim=-1)", "softmax(dim=0)", "over the tokens"),
    ("the first block", BODY, BODY.replace("[table]", "[table[:1]]"), "only the first block"),
    ("the last block", BODY, BODY.replace("[table]", "[table[-1:]]"), "only the last block"),
    ("the whole last block", BODY, BODY.replace("[:length]", ""), "behind the last token"),
    ("without itself", BODY, BODY.replace("[:length]", "[: length - (length % 4 > 0)]"), "it looks at itself"),
    ("a weight of zero", BODY, MASKED, "a weight of 0 is not enough"),
    ("writes into the cache", "    scores =", "    key_cache[table] /= 1.0 + 1e-3\n    scores =", "others read the same cache"),
]  # fmt: skip

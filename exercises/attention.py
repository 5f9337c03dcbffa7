"""For the checks of attention: dense attention, and a comparison that shows both results."""

import math

import torch


def dense(query, keys, values):
    """The attention of one token in float64. query: [n_head, head_dim], keys and values: [n, n_head, head_dim]."""
    scores = torch.einsum("hd,thd->ht", query.double(), keys.double()) / math.sqrt(query.shape[-1])
    return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values.double()).float()


def compare(got, expected, said=""):
    """Fail with these words unless both are close."""
    told = lambda message: f"{said}\n{message}\nexpected  {expected.tolist()}\ngot       {got.tolist()}"  # noqa: E731
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4, msg=told)

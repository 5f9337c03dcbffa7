"""Exercise 5.3, the online softmax. Instructions: 5_3_online_softmax.md."""

from collections.abc import Iterator

from torch import Tensor


def attend(query: Tensor, blocks: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
    """The attention of one token over blocks of (keys, values): [n_head, head_dim] -> [n_head, head_dim]"""
    raise NotImplementedError

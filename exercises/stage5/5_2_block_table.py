"""Exercise 5.2, attention through a block table. Instructions: 5_2_block_table.md."""

from torch import Tensor


def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor, table: list[int], length: int) -> Tensor:
    """The attention of one token over its sequence: [n_head, head_dim] -> [n_head, head_dim]"""
    raise NotImplementedError

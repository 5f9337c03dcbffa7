"""The keys and values of a batch, kept from step to step, and how much memory they take.

A token's key and value depend only on itself and the tokens before it, so they never change once they are computed.
Keeping them reduces the work of a step from a whole sequence to a single token.
"""

import torch
from torch import Tensor

from .support.memory import free_memory

SHARE_OF_FREE_MEMORY = 0.5  # a cache's share by default; the rest is for a prefill's activations


class KVCache:
    """Room for the keys and values of one batch, allocated once and written in place. Owned by the batch, and freed
    with it.

    Columns are those of the left-padded batch: every row's next token goes into the same column, `length`.
    """

    def __init__(
        self,
        n_layer: int,
        batch: int,
        n_head: int,
        max_len: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.data = torch.empty(n_layer, 2, batch, n_head, max_len, head_dim, dtype=dtype, device=device)
        self.length = 0  # filled columns

    @property
    def num_tokens(self) -> int:
        """How many tokens fit, over all rows."""
        return self.data.shape[2] * self.data.shape[4]

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values of new columns after the filled ones, and return those of all columns.

        2 x [batch, n_head, n_new, head_dim] -> 2 x [batch, n_head, length + n_new, head_dim], views without a copy
        """
        end = self.length + k.shape[2]
        keys, values = self.data[layer, :, :, :, :end]
        keys[:, :, self.length :] = k
        values[:, :, self.length :] = v
        return keys, values


def bytes_per_token(n_layer: int, n_embd: int, dtype: torch.dtype) -> int:
    """The bytes of one token: a key and a value of n_embd numbers in every layer."""
    return 2 * n_layer * n_embd * dtype.itemsize


def default_cache_bytes(device: torch.device) -> int:
    """Half of the memory that is free now."""
    return int(free_memory(device) * SHARE_OF_FREE_MEMORY)


def check_cache_bytes(num_bytes: int, device: torch.device) -> None:
    """Raise ValueError unless a device has this much memory: a system that overcommits may kill the process later."""
    free = free_memory(device)
    if num_bytes > free:
        raise ValueError(f"the KV cache would take {num_bytes:,} bytes of memory, but only {free:,} are free")

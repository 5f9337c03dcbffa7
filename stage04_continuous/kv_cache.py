"""The keys and values of all running requests, and how much memory they take.

The cache is a row of slots, each with room for the longest possible sequence. A request has a slot from the step in
which it joins to the step in which it leaves; the scheduler says which. Its position i is place i of its slot.
"""

import torch
from torch import Tensor

from .support.memory import free_memory

SHARE_OF_FREE_MEMORY = 0.5  # the cache's share by default; the rest is for a prefill's activations


class KVCache:
    """Room for the keys and values of `num_slots` requests, allocated once, written in place. Owned by the runner."""

    def __init__(
        self,
        n_layer: int,
        num_slots: int,
        n_head: int,
        max_len: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        # Every position is written before it is read: no need for zeros.
        self.data = torch.empty(n_layer, 2, num_slots, n_head, max_len, head_dim, dtype=dtype, device=device)

    def update(self, layer: int, slots: Tensor, positions: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values of new tokens, and return those of all slots.

        slots, positions: [num_tokens], where each token goes; k, v: [num_tokens, n_head, head_dim]
        -> 2 x [num_slots, n_head, max_len, head_dim], views without a copy
        """
        keys, values = self.data[layer]
        keys[slots, :, positions] = k
        values[slots, :, positions] = v
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

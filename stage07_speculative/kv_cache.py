"""The keys and values of all requests, in blocks, and how much memory they take.

The cache is a pool of blocks, each with room for `block_size` tokens in every layer. The block manager decides which
request has which blocks; the cache only sees slots. Slot s is offset s % block_size in block s // block_size.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .attention import PagedAttention
from .support.memory import empty, free_memory

# The cache's share by default: on a CPU the rest is for a step's activations and other programs; on CUDA, which is
# rarely shared, the activations are measured.
SHARE_OF_FREE_MEMORY = {"cpu": 0.5, "cuda": 0.9}
PREFAULT = 128 << 20  # numbers of the cache whose memory is touched at the start: 7,281 tokens of GPT-2 small


class KVCache:
    """Room for the keys and values of `num_blocks` blocks, allocated once, written in place. Owned by the runner.
    `paged_attention` is the function that reads it; `large_pages` (on a CPU) puts it into pages of 2 MB."""

    def __init__(
        self,
        n_layer: int,
        num_blocks: int,
        block_size: int,
        n_head: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        paged_attention: PagedAttention,
        large_pages: bool = False,
    ):
        self.block_size, self.paged_attention = block_size, paged_attention
        # No request reads a slot before it is written (`try_step` may, but its result is dropped): no need for zeros.
        # A block's keys are transposed: see attention.py.
        make = empty if large_pages else functools.partial(torch.empty, device=device)
        self.keys = make((n_layer, num_blocks, n_head, head_dim, block_size), dtype=dtype)
        self.values = make((n_layer, num_blocks, n_head, block_size, head_dim), dtype=dtype)
        # The system provides memory at first touch, so touch what most runs need now, not within a step. The first
        # blocks are taken first, and the pool may be far larger than what is ever used.
        first = PREFAULT // (2 * self.keys[:, 0].numel())
        self.keys[:, :first].zero_()
        self.values[:, :first].zero_()

    def write(self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
        """Write a layer's keys and values of new tokens to their slots.

        If a head's value is not finite, it is written as zeros, and its key as NaN. Later tokens, which read the key,
        get NaN; earlier ones give the value a weight of zero, and zero times NaN would be NaN.

        slot_mapping: [num_tokens], a slot each; k, v: [num_tokens, n_head, head_dim]
        """
        broken = ~v.sum(dim=-1, keepdim=True, dtype=torch.float32).isfinite()  # [num_tokens, n_head, 1]
        if broken.is_cuda or broken.any():  # on CUDA, looking would make the CPU wait
            k, v = k.masked_fill(broken, math.nan), v.masked_fill(broken, 0)
        blocks, offsets = slot_mapping // self.block_size, slot_mapping % self.block_size
        self.keys[layer][blocks, :, :, offsets] = k
        self.values[layer][blocks, :, offsets] = v

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, in every layer: (from, to)."""
        if pairs:
            source, target = zip(*pairs, strict=True)
            self.keys[:, list(target)] = self.keys[:, list(source)]
            self.values[:, list(target)] = self.values[:, list(source)]


def bytes_per_token(n_layer: int, n_embd: int, dtype: torch.dtype) -> int:
    """The bytes of one token: a key and a value of n_embd numbers in every layer."""
    return 2 * n_layer * n_embd * dtype.itemsize


def default_cache_bytes(device: torch.device, taken: int) -> int:
    """Bytes for the cache: a share of what is free now, but for the bytes `taken` by a step or another cache."""
    return int(max(0, free_memory(device) - taken) * SHARE_OF_FREE_MEMORY[device.type])


def check_cache_bytes(num_bytes: int, device: torch.device) -> None:
    """Raise ValueError unless a device has this much memory: a system that overcommits may kill the process later."""
    free = free_memory(device)
    if num_bytes > free:
        raise ValueError(f"the KV cache would take {num_bytes:,} bytes of memory, but only {free:,} are free")

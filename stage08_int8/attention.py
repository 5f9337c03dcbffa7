"""Attention over a paged KV cache: one function, three backends.

    paged_attention(query, k_cache, v_cache, block_tables, query_start_loc, seq_lens) -> out

A step's tokens are concatenated. A request has one of them (a decode) or several (a prefill, or a chunk of one).
Attention treats both alike: queries, and the keys that they may see.

    query            [num_tokens, n_head, head_dim]
    k_cache          [num_blocks, n_head, head_dim, block_size], keys transposed (see kernels/attention.c)
    v_cache          [num_blocks, n_head, block_size, head_dim], of the same dtype: float32, bfloat16 or float16
    block_tables     [num_seqs, table_width] int64: position p of request i is in block_tables[i, p // block_size];
                     entries past its last block are not read
    query_start_loc  [num_seqs + 1] int64: request i has the queries query_start_loc[i] : query_start_loc[i + 1]
    seq_lens         [num_seqs] int64: keys of each request; its queries belong to its last positions, and each sees the
                     keys up to its own position
    out              [num_tokens, n_head, head_dim], in the query's dtype; sums are kept in float32

The rest of the cache is never used, not even multiplied by zero: it may be NaN.
"""

import functools
import logging
import math
import os
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from .kernels import c_kernel

PagedAttention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def paged_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor
) -> Tensor:
    """In plain torch, one request at a time: gather its keys and values, and attend. The reference for the kernels."""
    block_size, out = k_cache.shape[3], torch.empty_like(query)
    starts = query_start_loc.tolist()
    for i, seq_len in enumerate(seq_lens.tolist()):
        new = slice(starts[i], starts[i + 1])  # its queries, n_new of them
        blocks = block_tables[i, : -(-seq_len // block_size)]
        keys = k_cache[blocks].permute(1, 2, 0, 3).flatten(2)[..., :seq_len].float()  # [n_head, head_dim, seq_len]
        values = v_cache[blocks].transpose(0, 1).flatten(1, 2)[:, :seq_len].float()  # [n_head, seq_len, head_dim]
        scores = query[new].transpose(0, 1).float() @ keys / math.sqrt(query.shape[-1])  # [n_head, n_new, seq_len]
        visible = torch.ones_like(scores[0], dtype=torch.bool).tril(seq_len - scores.shape[1])  # [n_new, seq_len]
        weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
        out[new] = (weights @ values).transpose(0, 1).to(out.dtype)  # [n_new, n_head, head_dim]
    return out


def pick_backend(
    name: str, device: torch.device, head_dim: int, on: Collection[str] = ("prefill", "tiles")
) -> tuple[str, PagedAttention]:
    """The name and the function of a backend. "auto" is Triton on CUDA and C on a CPU, or torch without these.

    Raises:
        ValueError: there is no such backend, or it does not run here; says why.
    """
    wanted = name if name != "auto" else "triton" if device.type == "cuda" else "c"
    if wanted == "torch":
        return wanted, paged_attention
    try:
        return wanted, pick_c(device, head_dim, on) if wanted == "c" else pick_triton(device, head_dim)
    except RuntimeError as error:
        if name != "auto":
            raise ValueError(f"attention_backend {name!r} does not run here: {error}") from None
        logging.getLogger(__name__).warning("attention_backend is torch, the slow one: %s", error)
        return "torch", paged_attention


def pick_c(device: torch.device, head_dim: int, on: Collection[str]) -> PagedAttention:
    if device.type != "cpu":
        raise RuntimeError(f"it runs on a CPU, not on {device}")
    if head_dim > c_kernel.MAX_HEAD_DIM:
        raise RuntimeError(f"it takes heads of up to {c_kernel.MAX_HEAD_DIM} dimensions, not {head_dim}")
    c_kernel.load_kernel()
    return functools.partial(c_kernel.paged_attention, prompts="prefill" in on, tiles="tiles" in on)


def pick_triton(device: torch.device, head_dim: int) -> PagedAttention:
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("it needs CUDA; on a CPU set TRITON_INTERPRET=1, which is slow and meant for tests")
    try:
        from .kernels import triton_kernel
    except ImportError as error:
        raise RuntimeError(f"the package triton can't be imported: {error}") from None
    if head_dim > triton_kernel.MAX_HEAD_DIM:
        raise RuntimeError(f"it takes heads of up to {triton_kernel.MAX_HEAD_DIM} dimensions, not {head_dim}")
    return triton_kernel.paged_attention

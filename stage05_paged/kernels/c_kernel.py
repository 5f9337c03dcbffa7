"""Calls paged_attention.c with ctypes; compiler.py compiles it on first use."""

import ctypes
import functools
import math

import torch
from torch import Tensor

from ..support.compiler import compile_kernel

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MAX_HEAD_DIM = 256  # MAX_DIM in the source


def paged_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor
) -> Tensor:
    """See attention.py. Needs contiguous caches and int64 indices, all on the CPU."""
    _, n_head, head_dim, block_size = k_cache.shape
    scaled = (query.float() / math.sqrt(head_dim)).contiguous()  # [num_tokens, n_head, head_dim]
    out = torch.empty_like(scaled)
    tensors = (out, scaled, k_cache, v_cache, block_tables, query_start_loc, seq_lens)
    pointers = map(Tensor.data_ptr, tensors)
    sizes = (len(seq_lens), block_tables.shape[1], n_head, head_dim, block_size)
    arguments = (*pointers, *sizes, DTYPES[k_cache.dtype], torch.get_num_threads())
    if load_kernel()(*arguments):
        raise MemoryError("no memory for a step's attention")
    return out.to(query.dtype)


@functools.cache
def load_kernel():
    """The compiled function. Raises RuntimeError, in one line, if it can't be had."""
    try:
        library = ctypes.CDLL(str(compile_kernel()))
    except OSError as error:
        raise RuntimeError(f"the compiled C kernel can't be loaded: {error}") from None
    kernel = library.paged_attention
    kernel.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 5 + [ctypes.c_int] * 2
    return kernel

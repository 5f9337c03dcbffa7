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
    indices = (block_tables, query_start_loc, seq_lens)
    pointers = [address(tensor, torch.float32) for tensor in (out, scaled)]
    pointers += [address(k_cache, *DTYPES), address(v_cache, k_cache.dtype)]
    pointers += [address(tensor, torch.int64) for tensor in indices]
    sizes = (len(seq_lens), block_tables.shape[1], n_head, head_dim, block_size)
    arguments = (*pointers, *sizes, DTYPES[k_cache.dtype], torch.get_num_threads())
    if load_kernel()(*arguments):
        raise MemoryError("no memory for a step's attention")
    return out.to(query.dtype)


def address(tensor: Tensor, *dtypes: torch.dtype) -> int:
    """The address of a tensor's numbers. C checks nothing, so this does: raises TypeError unless they are of one of
    these types, contiguous, and on the CPU."""
    if tensor.dtype not in dtypes or not tensor.is_contiguous() or not tensor.is_cpu:
        wanted = " or ".join(map(str, dtypes))
        raise TypeError(
            f"the C kernels take contiguous tensors of {wanted} on the CPU, not one of {tensor.dtype} with strides "
            f"{tensor.stride()} on {tensor.device}"
        )
    return tensor.data_ptr()


@functools.cache
def load_kernel():
    """The compiled function. Raises RuntimeError, in one line, if there is none."""
    try:
        library = ctypes.CDLL(str(compile_kernel()))
    except OSError as error:
        raise RuntimeError(f"the compiled C kernel can't be loaded: {error}") from None
    kernel = library.paged_attention
    kernel.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 5 + [ctypes.c_int] * 2
    return kernel

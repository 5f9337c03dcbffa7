"""Calls the C kernels with ctypes; compiler.py compiles them on first use."""

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from ..support.compiler import compile_kernel

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # the formats of vectors.h
SPLIT, INT8, INT16 = 3, 4, 5
SIZES = (4, 2, 2, 2, 1, 2)  # bytes of a number of each format; of a SPLIT's half
MAX_HEAD_DIM = 256  # nothing larger has been tried

# The kinds of product (product.h): number, and format of the activations.
KINDS = {
    "fma_float32": (0, 0),
    "fma_bfloat16": (1, 0),
    "dot_bfloat16": (2, 1),
    "pairs_int8": (3, INT16),
    "dot_int8": (4, INT8),
    "tiles_bfloat16": (5, 1),
    "tiles_split": (6, SPLIT),
    "tiles_int8": (7, INT8),
}


# --- The structs of kernels.h, vectors.h and forward.c --------------------------------------------------------------


def struct(name: str, **fields) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(fields.items())})


INT, PTR = c_int64, c_void_p
Rows = struct("Rows", data=PTR, stride=INT, plane=INT, format=INT)
Linear = struct("Linear", panels=PTR, bias=PTR, in_=INT, out=INT, kind=INT, scales=PTR)
Cache = struct("Cache", keys=PTR, values=PTR, n_head=INT, head_dim=INT, block_size=INT, format=INT)
Step = struct(
    "Step",
    **dict.fromkeys(
        ("token_ids", "positions", "slot_mapping", "block_tables", "query_start_loc", "seq_lens", "logits_indices"), PTR
    ),
    **dict.fromkeys(("num_tokens", "num_seqs", "table_width", "num_logits"), INT),
)
Layer = struct(
    "Layer",
    **dict.fromkeys(("ln_1_weight", "ln_1_bias", "ln_2_weight", "ln_2_bias"), PTR),
    **dict.fromkeys(("c_attn", "attn_c_proj", "c_fc", "mlp_c_proj"), Linear),
)
Model = struct(
    "Model",
    **dict.fromkeys(("n_layer", "n_embd", "format"), INT),
    epsilon=c_double,
    wte=PTR,
    wpe=PTR,
    layers=POINTER(Layer),
    ln_f_weight=PTR,
    ln_f_bias=PTR,
    head=Linear,
)
Workspace = struct(
    "Workspace",
    x=PTR,
    **dict.fromkeys(("normed", "qkv", "attended", "inner", "integers"), Rows),
)

# The arguments of each kernel alone (alone.c).
ALONE = {
    "pack": [PTR, PTR, INT, INT, INT, INT, INT, c_int, c_int],
    "linear": [POINTER(Linear), POINTER(Rows), INT, c_int, PTR, POINTER(Rows), POINTER(Linear), c_int],
    "embed": [PTR, PTR, PTR, INT, PTR, PTR, INT, INT, c_int],
    "embed_int8": [PTR, POINTER(Linear), PTR, INT, PTR, PTR, INT, c_int],
    "quantize": [POINTER(Rows), POINTER(Rows), INT, INT, c_int],
    "layer_norm": [POINTER(Rows), PTR, PTR, INT, INT, PTR, PTR, c_float, c_int],
    "sample_rows": [PTR, INT, INT, PTR, c_int],
    "score_rows": [PTR, PTR, INT, INT, INT, PTR, PTR, PTR, PTR, c_int],
    "write_kv": [POINTER(Cache), POINTER(Rows), POINTER(Step), c_int],
    "paged_attention": [POINTER(Rows), POINTER(Rows), POINTER(Cache), POINTER(Step), c_int, c_int, c_int],
}
FORWARD = [POINTER(Model), POINTER(Workspace), POINTER(Cache), POINTER(Step), PTR, *[c_int] * 3]
STORE, ADD, TO_ROWS, GELU = range(4)  # what to do with a linear layer's result (kernels.h)


# --- What the rest of the stage calls -------------------------------------------------------------------------------


def paged_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    prompts: bool = True,
    tiles: bool = True,
) -> Tensor:
    """See attention.py. Needs contiguous caches and int64 indices, all on the CPU.

    prompts: attention of many queries as matrix products; else a few queries at a time. The bits are the same.
    tiles: use AMX for caches in bfloat16.
    """
    num_tokens, n_head, head_dim = query.shape
    query = query.contiguous()  # [num_tokens, n_head, head_dim]
    out = torch.empty_like(query, dtype=torch.float32)
    step = Step(
        block_tables=address(block_tables, torch.int64),
        query_start_loc=address(query_start_loc, torch.int64),
        seq_lens=address(seq_lens, torch.int64),
        num_tokens=num_tokens,
        num_seqs=len(seq_lens),
        table_width=block_tables.shape[1],
    )
    width = n_head * head_dim
    rows, queries = (Rows(address(t, *DTYPES), t.itemsize * width, 0, DTYPES[t.dtype]) for t in (out, query))
    cache = cache_struct(k_cache, v_cache)
    kind, threads = attention_kind(k_cache.dtype, tiles), torch.get_num_threads()
    load_kernel().paged_attention(rows, queries, cache, step, kind, prompts, threads)
    return out.to(query.dtype)


def attention_kind(dtype: torch.dtype, tiles: bool) -> int:
    """The kind of product for a cache of this type, as a number."""
    kinds = ["tiles_bfloat16"] * tiles + ["dot_bfloat16"] if dtype == torch.bfloat16 else []
    return KINDS[next(filter(has_kind, kinds), "fma_float32")][0]


def cache_struct(k_cache: Tensor, v_cache: Tensor) -> Structure:
    """One layer's cache: [num_blocks, n_head, head_dim, block_size], [num_blocks, n_head, block_size, head_dim]."""
    pointers = address(k_cache, *DTYPES), address(v_cache, k_cache.dtype)
    return Cache(*pointers, *k_cache.shape[1:], DTYPES[k_cache.dtype])


def pack(weight: Tensor, kind: str, alloc: Callable[[int], Tensor] | None = None) -> Tensor:
    """A matrix in panels of 32 columns (product.c): [out, in] of any strides -> uint8 [num_bytes], from `alloc`."""
    (out, in_), size = weight.shape, 4 if kind in ("fma_float32", "tiles_split") else 1 if kind.endswith("int8") else 2
    num_bytes = round_up(out, 32) * round_up(in_, 64 if size == 1 else 32) * size
    panels = alloc(num_bytes) if alloc else torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
    formats = DTYPES if size > 1 else {torch.int8: INT8}
    pointers = address(panels, torch.uint8), address(weight, *formats, any_strides=True)
    sizes = (formats[weight.dtype], *weight.stride(), out, in_, KINDS[kind][0])
    load_kernel().pack(*pointers, *sizes, torch.get_num_threads())
    return panels


def address(tensor: Tensor, *dtypes: torch.dtype, any_strides: bool = False) -> int:
    """The address of a tensor's numbers. C checks nothing, so this does: raises TypeError unless they are of one of
    these types, contiguous (unless C knows the strides), and on the CPU."""
    if tensor.dtype not in dtypes or not (any_strides or tensor.is_contiguous()) or not tensor.is_cpu:
        wanted = " or ".join(map(str, dtypes))
        raise TypeError(
            f"the C kernels take contiguous tensors of {wanted} on the CPU, not one of {tensor.dtype} with strides "
            f"{tensor.stride()} on {tensor.device}"
        )
    return tensor.data_ptr()


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def has_kind(kind: str) -> bool:
    """Whether this CPU has a kind of product."""
    return bool(load_kernel().has_kind(KINDS[kind][0]))


# --- Loading --------------------------------------------------------------------------------------------------------


@functools.cache
def load_kernel() -> ctypes.CDLL:
    """The compiled functions. Raises RuntimeError, in one line, if there are none."""
    try:
        library = ctypes.CDLL(str(compile_kernel()))
    except OSError as error:
        raise RuntimeError(f"the compiled C kernel can't be loaded: {error}") from None
    for name, types in ALONE.items():
        function = library[f"{name}_alone"]
        function.argtypes, function.restype = types, None
        setattr(library, name, function)
    library.forward.argtypes, library.has_kind.argtypes = FORWARD, [c_int]
    library.sampler_bytes.argtypes, library.sampler_bytes.restype = [INT], INT
    for function in (library.forward, library.paged_attention):  # these allocate memory
        function.restype, function.errcheck = c_int, check_memory  # pyright: ignore[reportAttributeAccessIssue]
    return library


def check_memory(failed: int, *_) -> None:
    if failed:
        raise MemoryError("no memory for a step's attention")

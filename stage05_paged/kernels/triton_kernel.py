"""Attention over a paged KV cache in Triton: for CUDA, and for the CPU in Triton's interpreter (TRITON_INTERPRET=1).

A program takes a tile of up to ROWS queries of one request, one head, and a part of the keys (a split), and walks along
that part with the online softmax (see the C kernel). Few queries and many keys, as in a decode of a long sequence,
would leave most of a GPU idle, so the keys are split over programs and a second kernel puts the parts together: the
softmax of parts with maxima m_i, sums l_i and weighted sums a_i is sum(e^(m_i - m) a_i) / sum(e^(m_i - m) l_i).

Source: Dao et al. 2023, "Flash-Decoding for long-context inference"; Milakov and Gimelshein 2018.
"""

import contextlib
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # queries of a program: the fewest that tl.dot takes
KEYS = 64  # keys in an iteration
MAX_HEAD_DIM = 128  # more would not fit into the shared memory of every GPU
DOT_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def attend_to_split(
    query, k_cache, v_cache, block_tables, query_start_loc, seq_lens, requests, weighted, maxima, sums,
    scale, table_width, head_dim, split_size,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n_head, num_splits = tl.num_programs(1), tl.num_programs(2)
    i = tl.load(requests + tile)
    start, end, num_keys = tl.load(query_start_loc + i), tl.load(query_start_loc + i + 1), tl.load(seq_lens + i)
    first = start + (tile - (start // ROWS + i)) * ROWS
    if first >= end:
        return
    rows = first + tl.arange(0, ROWS)  # [ROWS]: which queries; those past the end are other requests', or none
    positions = num_keys - (end - rows)
    dims = tl.arange(0, DIM)
    here = (rows < end)[:, None] & (dims < head_dim)[None, :]
    q = tl.load(query + (rows[:, None] * n_head + head) * head_dim + dims[None, :], mask=here, other=0.0)  # [ROWS, DIM]

    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    stop = tl.minimum(num_keys - tl.maximum(end - first - ROWS, 0), (split + 1) * split_size)
    for begin in range(split * split_size, stop, KEYS):
        keys = begin + tl.arange(0, KEYS)  # [KEYS]: positions
        exists = keys < stop
        block = tl.load(block_tables + i * table_width + keys // BLOCK_SIZE, mask=exists, other=0)
        base, offset = (block * n_head + head) * head_dim * BLOCK_SIZE, keys % BLOCK_SIZE
        at = base[None, :] + dims[:, None] * BLOCK_SIZE + offset[None, :]
        k = tl.load(k_cache + at, mask=exists[None, :] & (dims < head_dim)[:, None], other=0.0)  # [DIM, KEYS]
        scores = tl.dot(q.to(DOT), k.to(DOT), input_precision="ieee") * scale  # [ROWS, KEYS]
        visible = exists[None, :] & (keys[None, :] <= positions[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        highest = tl.maximum(maximum, tl.max(scores, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)  # else -inf - -inf, where a row has seen no key yet
        weights = tl.exp(scores - finite[:, None])
        shrink = tl.exp(maximum - finite)
        at = base[:, None] + offset[:, None] * head_dim + dims[None, :]
        v = tl.load(v_cache + at, mask=exists[:, None] & (dims < head_dim)[None, :], other=0.0)  # [KEYS, DIM]
        acc = acc * shrink[:, None] + tl.dot(weights.to(DOT), v.to(DOT), input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        maximum = highest

    part = (rows * n_head + head) * num_splits + split
    tl.store(weighted + part[:, None] * head_dim + dims[None, :], acc, mask=here)
    tl.store(maxima + part, maximum, mask=rows < end)
    tl.store(sums + part, total, mask=rows < end)


@triton.jit
def combine_splits(out, weighted, maxima, sums, head_dim, num_splits, SPLITS: tl.constexpr, DIM: tl.constexpr):
    row = tl.program_id(0)  # of [num_tokens * n_head]
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, DIM)
    exists = splits < num_splits
    maximum = tl.load(maxima + row * num_splits + splits, mask=exists, other=float("-inf"))  # [SPLITS]
    share = tl.exp(maximum - tl.max(maximum, 0))
    total = tl.sum(share * tl.load(sums + row * num_splits + splits, mask=exists, other=0.0), 0)
    at = (row * num_splits + splits)[:, None] * head_dim + dims[None, :]
    parts = tl.load(weighted + at, mask=exists[:, None] & (dims < head_dim)[None, :], other=0.0)  # [SPLITS, DIM]
    tl.store(out + row * head_dim + dims, tl.sum(share[:, None] * parts, 0) / total, mask=dims < head_dim)


def paged_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_splits: int | None = None,
) -> Tensor:
    """See attention.py. num_splits: over how many programs a sequence's keys go; None fills the GPU."""
    num_tokens, n_head, head_dim = query.shape
    block_size, table_width, num_seqs = k_cache.shape[3], block_tables.shape[1], len(seq_lens)
    query, dim = query.contiguous(), max(16, triton.next_power_of_2(head_dim))
    # The request of each tile of queries, without reading lengths back from the GPU, which would mean waiting for it:
    # request i gets the tiles from query_start_loc[i] // ROWS + i on. They are enough; those left over return at once.
    num_tiles = num_tokens // ROWS + num_seqs
    numbers = torch.arange(num_tiles, dtype=torch.int64, device=query.device)
    first_tiles = query_start_loc[:-1] // ROWS + numbers[:num_seqs]
    requests = torch.searchsorted(first_tiles, numbers, right=True) - 1
    longest = table_width * block_size
    if num_splits is None:
        cuda = query.device.type == "cuda"
        programs = 4 * torch.cuda.get_device_properties(query.device).multi_processor_count if cuda else 1
        num_splits = max(1, min(programs // (num_tiles * n_head), triton.cdiv(longest, KEYS)))
    split_size = triton.cdiv(triton.cdiv(longest, num_splits), KEYS) * KEYS
    # Tensor cores multiply 16-bit numbers and add in float32. The interpreter has no bfloat16 products.
    dot = DOT_TYPES[k_cache.dtype] if query.device.type == "cuda" else tl.float32
    weighted = query.new_empty(num_tokens, n_head, num_splits, head_dim, dtype=torch.float32)
    maxima, sums = (query.new_empty(num_tokens, n_head, num_splits, dtype=torch.float32) for _ in range(2))
    out = torch.empty_like(query)
    # Triton launches on the current device, wherever the tensors are.
    with torch.cuda.device(query.device) if query.device.type == "cuda" else contextlib.nullcontext():
        attend_to_split[num_tiles, n_head, num_splits](
            query, k_cache, v_cache, block_tables, query_start_loc, seq_lens, requests, weighted, maxima, sums,
            1 / math.sqrt(head_dim), table_width, head_dim, split_size,
            BLOCK_SIZE=block_size, ROWS=ROWS, KEYS=KEYS, DIM=dim, DOT=dot,
        )  # fmt: skip
        combine_splits[(num_tokens * n_head,)](
            out, weighted, maxima, sums, head_dim, num_splits, SPLITS=triton.next_power_of_2(num_splits), DIM=dim
        )
    return out

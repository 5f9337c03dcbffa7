"""Against dense attention in float64, with NaN wherever nothing belongs to the sequence."""

import math

import torch

from exercises.examples import Example, at_random
from exercises.grading import expect, has_nan, require
from exercises.tiny import one_thread


def dense(query, keys, values, scale=None):
    scores = torch.einsum("hd,thd->ht", query.double(), keys.double()) * (scale or 1 / math.sqrt(query.shape[-1]))
    return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values.double()).float()


def scattered(length, table, block_size=4, n_head=2, head_dim=8, fill=0.0, seed=0):
    """query, caches, and the keys and values as they should be read."""
    torch.manual_seed(seed)
    keys, values = torch.randn(2, length, n_head, head_dim)
    caches = torch.full((2, 9, block_size, n_head, head_dim), fill)
    for i in range(length):
        caches[0, table[i // block_size], i % block_size] = keys[i]
        caches[1, table[i // block_size], i % block_size] = values[i]
    return torch.randn(n_head, head_dim), *caches, keys, values


def test_a_block(work):
    query, key_cache, value_cache, keys, values = scattered(4, [3])
    said = {
        "the scores are divided by the square root of head_dim": dense(query, keys, values, 1.0),
        "by its square root, not by head_dim": dense(query, keys, values, 1 / 8),
        "keys and values are swapped": dense(query, values, keys),
        "it reads block 0 of the cache: the table says which block to read": torch.zeros(2, 8),
        "the softmax goes over the tokens, for each head": torch.einsum("ht,thd->hd", (
            torch.einsum("hd,thd->ht", query, keys) / math.sqrt(8)).softmax(dim=0), values),
    }  # fmt: skip
    got = work.attend(query, key_cache, value_cache, [3], 4)
    require(list(got.shape) == [2, 8], "shape of the result", [2, 8], list(got.shape))
    expect("four tokens in block 3", got, dense(query, keys, values), said)


def test_the_order_of_the_table(work):
    query, key_cache, value_cache, keys, values = scattered(8, [5, 2])
    got = work.attend(query, key_cache, value_cache, [5, 2], 8)
    expect("eight tokens in blocks 5 and 2", got, dense(query, keys, values), {
        "only the first block was read": dense(query, keys[:4], values[:4]),
        "only the last block was read": dense(query, keys[4:], values[4:])})  # fmt: skip


def test_not_one_more(work):
    query, key_cache, value_cache, keys, values = scattered(6, [5, 2])
    got = work.attend(query, key_cache, value_cache, [5, 2], 6)
    both = [torch.cat([x, torch.zeros(2, 2, 8)]) for x in (keys, values)]
    expect("six tokens in blocks 5 and 2", got, dense(query, keys, values), {
        "what comes after the last token is not part of the sequence": dense(query, *both),
        "the last token is left out: it attends to itself too": dense(query, keys[:5], values[:5])})  # fmt: skip
    query, key_cache, value_cache, keys, values = scattered(6, [5, 2], fill=math.nan)
    got = work.attend(query, key_cache, value_cache, [5, 2], 6)
    expect("the same, with NaN in every place that is not the sequence's", got, dense(query, keys, values),
           likely="0 times NaN is NaN: leave out everything past the length; a weight of 0 is not enough" if has_nan(got)
           else "")  # fmt: skip
    query, key_cache, value_cache, keys, values = scattered(3, [7, 1, 4], fill=math.nan)
    got = work.attend(query, key_cache, value_cache, [7, 1, 4], 3)
    expect("three tokens, and blocks that were allocated ahead of time", got, dense(query, keys, values),
           likely="a table may be longer than the sequence needs")  # fmt: skip


def test_nothing_is_changed(work):
    for length in (6, 1):
        query, key_cache, value_cache, *_ = scattered(length, [5, 2], fill=math.nan)
        before = [x.clone() for x in (query, key_cache, value_cache)]
        table = [5, 2]
        got = work.attend(query, key_cache, value_cache, table, length)
        given = [x.untyped_storage().data_ptr() for x in (query, key_cache, value_cache)]
        require(got.place[0] not in given, f"the result after {length} tokens", "a new tensor", "a view of an argument",
                "the engine goes on computing with the result, and others read the same cache")  # fmt: skip
        after = (query, key_cache, value_cache)
        unchanged = all(torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in zip(before, after, strict=True))
        require(unchanged, f"query and caches after {length} tokens", "as they were", "changed, or the result is a view of them",
                "others read the same cache")  # fmt: skip
        expect(
            f"the table after {length} tokens",
            table,
            [5, 2],
            likely="the allocator goes on using this list: work on a copy",
        )


def test_blocks_are_used_again(work):
    """The same table and length with other keys: the earlier request has ended."""
    for seed in (1, 2):
        query, key_cache, value_cache, keys, values = scattered(4, [3], seed=seed)
        got = work.attend(query, key_cache, value_cache, [3], 4)
        expect("four tokens in block 3" + ", and other ones later" * (seed - 1), got, dense(query, keys, values),
               likely="blocks are reused: what was gathered for one request does not belong to another")  # fmt: skip
    expect("dtype of the result", str(got.dtype), "torch.float32")


def test_sizes(work):
    for length, table, block_size in ((1, [0], 1), (5, [8, 0, 3, 1, 6], 1), (17, [2, 0], 16), (40, [8, 1, 3], 16)):
        query, key_cache, value_cache, keys, values = scattered(length, table, block_size, n_head=3, fill=math.nan)
        got = work.attend(query, key_cache, value_cache, table, length)
        expect(f"{length} tokens in blocks of {block_size}", got, dense(query, keys, values))


@one_thread()
def test_any_cache(work):
    """Blocks of any size in any order, more than needed, NaN in all others; sometimes all scores are equal."""

    def check(choose):
        block_size, n_head, head_dim = choose.between(1, 5), choose.between(1, 3), choose.one_of([4, 1, 8])
        order, left = [], list(range(9))
        for _ in range(choose.between(1, 5)):
            order.append(left.pop(choose.upto(len(left) - 1)))
        length, scale = choose.between(1, block_size * len(order)), choose.one_of([1.0, 0.0, 1000.0])
        seed = choose.upto(9)
        query, _, _, keys, values = scattered(length, order, block_size, n_head, head_dim, math.nan, seed)
        example = Example(work, __file__, "import math", "from exercises.stage5.test_5_2_block_table import scattered")
        example.do(
            f"query, key_cache, value_cache, *_ = scattered({length}, {order}, {block_size}, {n_head}, {head_dim}, math.nan, {seed})"
        )
        example.expect(f"work.attend({scale} * query, key_cache, value_cache, {order}, {length}).tolist()",
                       dense(scale * query, keys, values).tolist(), tolerance=1e-3)  # fmt: skip

    at_random(check, 100)


def test_long_sequences(work):
    """A thousand tokens, tables of hundreds of blocks, block numbers beyond 65,535."""
    for length, num_blocks, block_size, heads in ((1100, 400, 16, 2), (1000, 70_000, 1, 1), (700, 4, 300, 1)):
        torch.manual_seed(length)
        key_cache, value_cache = torch.full((2, num_blocks, block_size, heads, 4), math.nan)
        table = torch.randperm(num_blocks)[: -(-length // block_size) + (num_blocks > 300)].tolist()
        keys, values = torch.randn(2, length, heads, 4)
        places = torch.tensor([table[i // block_size] * block_size + i % block_size for i in range(length)])
        key_cache.view(-1, heads, 4)[places], value_cache.view(-1, heads, 4)[places] = keys, values
        query = torch.randn(heads, 4)
        expect(f"{length} tokens in blocks of {block_size}, of {num_blocks}",
               work.attend(query, key_cache, value_cache, table, length), dense(query, keys, values))  # fmt: skip

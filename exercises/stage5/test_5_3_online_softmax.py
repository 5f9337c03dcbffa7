"""5.3 The online softmax: against dense attention in float64, and what is kept between blocks."""

import gc
import math
import random
import weakref

import pytest
import torch

from exercises.attention import compare, dense


def blocks_of(scores):
    """Keys and values with these scores ([block][token][head]) for a query of ones of width 4. A token's values are its
    number."""
    for i, block in enumerate(scores):
        keys = torch.tensor(block)[:, :, None].expand(-1, -1, 4) / 2  # 4 numbers of half a score, divided by √4
        first = sum(map(len, scores[:i]))
        yield keys, torch.arange(first, first + len(block)).float()[:, None, None].expand(keys.shape).clone()


def check(work, scores, said=""):
    """Expect dense attention; the blocks are an iterator."""
    blocks = list(blocks_of(scores))
    query = torch.ones(blocks[0][0].shape[1:])
    expected = dense(query, *map(torch.cat, zip(*blocks, strict=True)))
    compare(work.attend(query, iter(blocks)), expected, f"{said}\nthe scores, block by block: {scores}")


@pytest.mark.parametrize("scores", [
    pytest.param([[[1.0], [1.0], [1.0]]], id="one block, equal scores: the mean of the values; divide by the sum of the weights"),
    pytest.param([[[0.0], [math.log(3)]]], id="one block, which is plain attention: the scores are query · keys / √head_dim"),
    pytest.param([[[1.0], [1.0]], [[1.0]]], id="two blocks, equal scores: all blocks count, and each token as much as any other"),
    pytest.param([[[5.0], [0.0]], [[2.0], [1.0]]], id="two blocks, the largest score comes first: it stays the largest"),
    pytest.param([[[2.0], [1.0]], [[5.0], [0.0]]], id="when a larger score comes, the sum and the weighted values are multiplied by e^(old - new)"),
    pytest.param([[[2.0], [1.0]], [[5.0], [0.0]], [[3.0]], [[9.0], [8.0]]], id="the largest score so far is kept from block to block"),
    pytest.param([[[2.0, 900.0], [1.0, 0.0]], [[5.0, 0.0], [0.0, 901.0]]], id="each head has its own largest score"),
    pytest.param([[[10_000.0], [9_999.0]], [[9_998.0], [9_999.5]]], id="scores of 10,000: subtract the largest score, or e^x overflows"),
    pytest.param([[[-10_000.0], [-9_999.0]], [[-9_998.0], [-9_999.5]]], id="scores far below zero: start the largest at -inf, or all weights are 0"),
])  # fmt: skip
def test_scores(work, scores):
    check(work, scores)


def test_the_width(work):
    """The scores are divided by √head_dim, for any head_dim."""
    for head_dim in (1, 9):
        torch.manual_seed(0)
        query, keys, values = torch.randn(2, head_dim), *torch.randn(2, 5, 2, head_dim)
        compare(work.attend(query, iter([(keys, values)])), dense(query, keys, values), f"head_dim {head_dim}")


def test_each_block_is_seen_once(work):
    """Of 30 blocks no more than two or three are kept at a time: a kernel reads each once."""
    alive, most = weakref.WeakSet(), 0

    def blocks():
        nonlocal most
        for _ in range(30):
            keys, values = torch.randn(2, 4, 2, 8)
            alive.add(keys)
            yield keys, values
            del keys, values
            gc.collect()
            most = max(most, len(alive))

    work.attend(torch.randn(2, 8), blocks())
    assert most <= 3, "the blocks are collected: keep three things per head, and no block"


def test_any_blocks(work):
    """Random blocks and scores, equal ones among them, at any height, another for each head."""
    for seed in range(150):
        choose = random.Random(seed)
        heights = choose.choices([0, 100, 10_000, -100, -20_000], k=choose.randint(1, 2))
        token = lambda heights=heights, choose=choose: [height + choose.randint(0, 6) / 2 for height in heights]  # noqa: E731
        check(work, [[token() for _ in range(choose.randint(1, 3))] for _ in range(choose.randint(1, 2 + seed // 40))])

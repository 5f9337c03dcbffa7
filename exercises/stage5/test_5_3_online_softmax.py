"""5.3 The online softmax: against dense attention in float64, and what is kept between blocks."""

import math
import random

import pytest
import torch
from torch.overrides import TorchFunctionMode

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
    compare(work.attend(query, iter(blocks)), expected, said)


@pytest.mark.parametrize("scores", [
    pytest.param([[[1.0], [1.0], [1.0]]], id="one block, equal scores: divided by the sum of the weights, it is the mean of the values"),
    pytest.param([[[0.0], [math.log(3)]]], id="one block is plain attention, with the scores query * keys / sqrt(head_dim)"),
    pytest.param([[[1.0], [1.0]], [[1.0]]], id="two blocks, equal scores: every token of every block counts"),
    pytest.param([[[2.0], [1.0]], [[5.0], [0.0]]], id="when a larger score comes, the sum and the weighted values are both multiplied by e^(old - new)"),
    pytest.param([[[10_000.0], [9_999.0]], [[9_998.0], [9_999.5]]], id="scores of 10,000: subtract the largest score from each, or e^x overflows"),
    pytest.param([[[200.0], [0.0]], [[2.0], [1.0]]], id="the largest score so far stays the largest, whatever comes after it"),
    pytest.param([[[2.0], [1.0]], [[5.0], [0.0]], [[3.0]], [[9.0], [8.0]]], id="the largest score so far is kept from block to block"),
    pytest.param([[[-1e6], [1 - 1e6]], [[2 - 1e6], [-1e6]]], id="scores far below zero: the largest starts at -inf, or all weights are 0"),
    pytest.param([[[2.0, 900.0], [1.0, 0.0]], [[5.0, 0.0], [0.0, 901.0]]], id="each head has its own largest score"),
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
    """Each block is seen once: before the next one comes, its memory is used for something else."""

    def seen_once():
        for keys, values in blocks_of([[[1.0]], [[2.0]], [[3.0]]]):
            yield keys, values
            keys.fill_(math.nan), values.fill_(math.nan)

    got = work.attend(torch.ones(1, 4), seen_once())
    assert not got.isnan().any().item(), "two passes would read everything twice"


class Largest(TorchFunctionMode):
    """The most numbers in a tensor that was computed."""

    num = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.num = max(self.num, result.numel() if isinstance(result, torch.Tensor) else 0)
        return result


def test_nothing_is_gathered(work):
    """No tensor grows with the number of blocks: keep three things per head, and no keys or values."""
    blocks = iter(list(blocks_of([[[1.0]] * 4] * 50)))
    with Largest() as largest:
        work.attend(torch.ones(1, 4), blocks)
    assert largest.num <= 2 * 4 * 4, "the blocks were gathered: a tensor has more numbers than two blocks"


def test_any_blocks(work):
    """Random blocks and scores, equal ones among them, at any height, another for each head."""
    for seed in range(80):
        choose = random.Random(seed)
        heights = choose.choices([0, 100, 10_000, -100, -20_000], k=choose.randint(1, 2))
        token = lambda heights=heights, choose=choose: [height + choose.randint(0, 6) / 2 for height in heights]  # noqa: E731
        scores = [[token() for _ in range(choose.randint(1, 3))] for _ in range(choose.randint(1, 2 + seed // 30))]
        check(work, scores, f"the scores, block by block: {scores}")

"""5.2 Attention through a block table: against dense attention in float64."""

import math
import random

import pytest
import torch

from exercises.attention import compare, dense


def scattered(keys, values, table, block_size, left_over):
    """Both caches: keys and values in the blocks of the table, and something else everywhere else."""
    caches = torch.full((2, 9, block_size, *keys.shape[1:]), left_over)
    for i in range(len(keys)):
        place = table[i // block_size], i % block_size
        caches[0][place], caches[1][place] = keys[i], values[i]
    return caches


def check(work, query, keys, values, table, block_size=4, left_over=0.0, said=""):
    caches = scattered(keys, values, table, block_size, left_over)
    before = caches.clone()
    compare(work.attend(query, *caches, list(table), len(keys)), dense(query, keys, values), said)
    unchanged = torch.equal(caches.nan_to_num(7), before.nan_to_num(7))
    assert unchanged, "the cache was changed, and others read it"


def test_equal_scores(work):
    """Equal scores: the result is the mean of the values of the table's block, for each head."""
    values = torch.arange(4 * 2 * 3.0).view(4, 2, 3)
    check(work, torch.ones(2, 3), torch.ones(4, 2, 3), values, [3])


def test_the_scale(work):
    """The scores are divided by √head_dim before the softmax."""
    scores, values = torch.tensor([[0, 0, 0, math.log(5)], [0.0, 0.0, 0.0, 8.0]])[:, :, None, None].expand(2, 4, 1, 4)
    check(
        work,
        torch.ones(1, 4),
        scores / 2,
        values,
        [3],
        said="the scores are 0, 0, 0 and log 5, the weights 1/8 and 5/8",
    )


@pytest.mark.parametrize(("length", "table", "left_over"), [
    pytest.param(4, [3], 0.0, id="one full block"),
    pytest.param(8, [2, 5], 0.0, id="all blocks of the table are read"),
    pytest.param(6, [2, 5], 0.0, id="the last token attends to itself, and to nothing that comes after it"),
    pytest.param(6, [5, 2], 0.0, id="the keys are in the order of the table, not of the blocks' numbers"),
    pytest.param(6, [5, 2], math.nan, id="what comes after the last token may be NaN: 0 * NaN is NaN, so leave it out"),
    pytest.param(3, [7, 1, 4], math.nan, id="the table may have more blocks than the sequence needs yet"),
    pytest.param(1, [0], math.nan, id="the first token attends to itself alone"),
])  # fmt: skip
def test_blocks_of_four(work, length, table, left_over):
    torch.manual_seed(0)
    query, keys, values = torch.randn(2, 8), *torch.randn(2, length, 2, 8)
    check(work, query, keys, values, table, 4, left_over)


def test_any_cache(work):
    """Random tables, blocks, heads: the same as dense attention; what is left over is NaN."""
    torch.manual_seed(0)
    for seed in range(80):
        choose = random.Random(seed)
        block_size, n_head, head_dim = choose.randint(1, 5), choose.randint(1, 3), choose.choice([1, 4, 8])
        table = choose.sample(range(9), choose.randint(1, 1 + seed // 20))
        length = choose.randint(1, block_size * len(table))
        query, keys, values = torch.randn(n_head, head_dim), *torch.randn(2, length, n_head, head_dim)
        said = f"{length} tokens, table {table}, blocks of {block_size}, {n_head} heads of {head_dim}"
        check(work, query, keys, values, table, block_size, math.nan, said)

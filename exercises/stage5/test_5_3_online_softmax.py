"""Against dense attention in float64: one block, several, large scores; and what is kept between blocks."""

import math

import torch

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require
from exercises.tiny import one_thread

OVERFLOWS = (
    "e^x overflows unless x is at most 0: subtract the largest score so far from each score, and from the old largest"
)


def dense(query, keys, values):
    scores = torch.einsum("hd,thd->ht", query.double(), keys.double()) / math.sqrt(query.shape[-1])
    return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values.double()).float()


def data(sizes, scale=1.0, n_head=2, head_dim=8, seed=0):
    torch.manual_seed(seed)
    total = sum(sizes)
    query = torch.randn(n_head, head_dim)
    keys = scale * torch.randn(total, n_head, head_dim)
    values = torch.randn(total, n_head, head_dim)
    return query, keys, values, list(zip(keys.split(sizes), values.split(sizes), strict=True))


def is_nan(result):
    return isinstance(result, torch.Tensor) and bool(result.isnan().any())


def blocks_of(scores):
    """Blocks of (keys, values), for a query of ones of width 4, from [block][token][head] -> score. The values are the
    number of the token."""
    number = 0
    for block in scores:
        keys = torch.tensor(block)[:, :, None].expand(-1, -1, 4) / 2  # 4 numbers of half a score, divided by √4
        values = torch.arange(number, number + len(block)).float()[:, None, None].expand(keys.shape).clone()
        number += len(block)
        yield keys, values


def test_one_block(work):
    query, keys, values, blocks = data([5])
    said = {"divide by the sum of the weights at the end": dense(query, keys, values) * torch.einsum(
        "hd,thd->ht", query, keys).div(math.sqrt(8)).sub(torch.einsum("hd,thd->ht", query, keys).div(math.sqrt(8)).amax(-1, True))
        .exp().sum(-1, keepdim=True)}  # fmt: skip
    got = work.attend(query, iter(blocks))
    said["the scores are query · keys / √head_dim"] = OneOf(
        [dense(query * math.sqrt(8), keys, values), dense(query / math.sqrt(8), keys, values)]
    )
    likely = "at first there is nothing to correct: the factor is e^(-inf) = 0, while inf - inf is NaN"
    expect(
        "one block of 5, which is plain attention",
        got,
        dense(query, keys, values),
        said,
        likely=likely if is_nan(got) else "",
    )


def test_blocks(work):
    """The largest score in the second block, then in the first: both corrections have to be right."""
    query, keys, values, _ = data([6], seed=3)
    scores = torch.einsum("hd,thd->ht", query, keys).sum(0)
    means = lambda parts: sum(dense(query, k, v) for k, v in parts) / len(parts)  # noqa: E731
    for name, order in (("growing", scores.argsort()), ("falling", scores.argsort(descending=True))):
        k, v = keys[order], values[order]
        blocks = list(zip(k.split([4, 2]), v.split([4, 2]), strict=True))
        said = {"a softmax was computed per block, and their mean was taken": means(blocks),
                "only the last block is in the result": dense(query, *blocks[-1]),
                "only the first block is in the result": dense(query, *blocks[0])}  # fmt: skip
        expect(f"blocks of 4 and 2, scores {name}", work.attend(query, iter(blocks)), dense(query, k, v), said,
               likely="one block was right, so the error is between blocks: when a larger score comes, the sum *and* "
               "the weighted values are multiplied by e^(old - new largest)")  # fmt: skip


def test_heads_have_their_own_largest(work):
    query, keys, values, _ = data([6])
    keys = keys.clone()
    keys[:3, 0] *= 400
    keys[3:, 1] *= 400
    blocks = list(zip(keys.split(3), values.split(3), strict=True))
    got = work.attend(query, iter(blocks))
    require(bool(got.isfinite().all()), "heads whose scores differ by thousands", "finite numbers", got,
            f"keep the largest score separately for every head; {OVERFLOWS}")  # fmt: skip
    expect("heads whose scores differ by thousands", got, dense(query, keys, values), tolerance=1e-4)


def test_large_scores(work):
    query, keys, values, blocks = data([4, 4, 4], scale=5000.0)
    got = work.attend(query, iter(blocks))
    require(bool(got.isfinite().all()), "scores of thousands", "finite numbers", got, OVERFLOWS)
    expect("scores of thousands", got, dense(query, keys, values), tolerance=1e-3)


def test_scores_far_below_zero(work):
    query, values = torch.full((2, 4), 0.5), torch.randn(6, 2, 4)
    for height in (-170.0, -20_000.0):
        keys = torch.tensor([[height + i % 3, height - i % 2] for i in range(6)])[:, :, None].expand(6, 2, 4)
        got = work.attend(query * 2, iter(list(zip(keys.split(3), values.split(3), strict=True))))
        likely = (
            "start the largest at -inf: with any other start, scores far below it get a weight of 0, and 0 / 0 is NaN"
        )
        expect(f"all scores about {2 * height:g}", got, dense(query * 2, keys, values), tolerance=1e-4,
               likely=likely if is_nan(got) else "")  # fmt: skip


def test_each_block_is_seen_once(work):
    """Blocks that nobody keeps are gone; an answer that collects them for a second pass is detected."""
    pairs = ((torch.randn(4, 2, 8), torch.randn(4, 2, 8)) for _ in range(30))
    work.attend(torch.randn(2, 8), pairs)
    require(work.most_alive <= 3, "blocks, of 30, that were kept at the same time", "no more than two or three", work.most_alive,
            "each block is seen once: two passes would read everything twice")  # fmt: skip


def test_any_split(work):
    for seed, sizes in enumerate(([1], [1, 1, 1], [16, 16, 3], [7, 1, 20, 2])):
        query, keys, values, blocks = data(sizes, seed=seed)
        expect(f"blocks of {sizes}", work.attend(query, iter(blocks)), dense(query, keys, values))


def test_nothing_is_gathered(work):
    """No tensor may grow with the number of blocks."""

    query, _, _, blocks = data([4] * 50)
    with work.measured() as measured:
        work.attend(query, iter(blocks))
    require(measured.largest <= 4 * 2 * 8 * 2, "the largest tensor made for 50 blocks of 4", "no larger than a block or two (128 numbers)",
            measured.largest, "the blocks were gathered: keep three things per head, not the blocks")  # fmt: skip


def slowly(scores):
    """The weighted mean of the tokens' numbers, for each head: two passes over all scores, in plain Python."""
    tokens, means = [token for block in scores for token in block], []
    for of_head in zip(*tokens, strict=True):
        weights = [math.exp(score - max(of_head)) for score in of_head]
        means.append(sum(i * weight for i, weight in enumerate(weights)) / sum(weights))
    return [[mean] * 4 for mean in means]


@one_thread()
def test_any_blocks(work):
    """Blocks of any length; scores that are equal, rise or fall, at any magnitude, different for each head."""

    def check(choose):
        heights = choose.some(lambda: choose.one_of([0.0, 100.0, 10_000.0, -100.0, -20_000.0]), 3, least=1)
        token = lambda: [height + choose.upto(6) / 2 for height in heights]  # noqa: E731
        scores = choose.some(lambda: choose.some(token, 3, least=1), 4, least=1)
        example = Example(
            work, __file__, "import torch", "from exercises.stage5.test_5_3_online_softmax import blocks_of"
        )
        example.expect(
            f"work.attend(torch.ones({len(heights)}, 4), blocks_of({scores})).tolist()", slowly(scores), tolerance=1e-4
        )

    at_random(check, 150)


def test_many_blocks(work):
    """A thousand blocks, a block of a thousand tokens, hundreds of heads, scores below minus a million."""
    for sizes, heads in (([1] * 1000, 1), ([1100, 1], 2), ([3, 2], 1000)):
        query, keys, values, blocks = data(sizes, n_head=heads, head_dim=4)
        expect(
            f"{len(sizes)} blocks of up to {max(sizes)}, {heads} heads",
            work.attend(query, iter(blocks)),
            dense(query, keys, values),
        )
    keys, values = torch.full((6, 1, 4), -5e8), torch.arange(24.0).view(6, 1, 4)
    got = work.attend(torch.ones(1, 4), iter(list(zip(keys.split(3), values.split(3), strict=True))))
    expect("all scores at minus a billion", got, values.mean(0), likely="start the largest at -inf and nowhere else")

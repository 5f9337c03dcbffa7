"""2.2 A sampler for rows: rows in a batch against the same rows alone, and the number of operations."""

import math
import random

import pytest
import torch


def case(rule, weights, temperature, top_k, u, expected):
    return pytest.param(weights, temperature, top_k, u, expected, id=rule)


@pytest.mark.parametrize(("weights", "temperature", "top_k", "u", "expected"), [
    case("top_k 0 keeps all tokens", [(4, 3, 2, 1)], [1], [0], [0.95], [3]),
    case("temperature 0 is greedy, whatever u is", [(1, 5, 2), (7, 5, 9)], [0, 0], [0, 0], [0.9, 0.1], [1, 2]),
    case("greedy takes the first of equal logits", [(5, 9, 9, 9)] * 3, [0] * 3, [0] * 3, [0.1, 0.5, 0.9], [1, 1, 1]),
    case("only the rows with temperature 0 are greedy", [(1, 2, 1)] * 2, [0, 1], [0, 0], [0.9, 0.9], [1, 2]),
    case("only 0 is greedy: a small temperature draws", [(1, 1)], [1e-6], [0], [0.9], [1]),
    case("the temperature divides the logits of its row", [(1, 4)] * 2, [0.5, 2], [0, 0], [0.2, 0.2], [1, 0]),
    case("a small temperature divides too", [(1, 1.015)], [0.001], [0], [0.1], [1]),
    case("each row has its top_k", [(4, 3, 2, 1)] * 3, [1] * 3, [1, 2, 0], [0.95] * 3, [0, 1, 3]),
    case("what ties with the k-th largest is kept", [(2, 1, 1)], [1], [2], [0.99], [2]),
    case("a top_k larger than the vocabulary keeps all", [(1, 1, 1)], [1], [9], [0.9], [2]),
    case("each row has its u", [(1, 1, 1, 1)] * 4, [1] * 4, [0] * 4, [0.1, 0.3, 0.6, 0.9], [0, 1, 2, 3]),
    case("the sum is greater than u: a token of probability 0 is never drawn", [(0, 1)], [1], [0], [0.0], [1]),
])  # fmt: skip
def test_sample(work, weights, temperature, top_k, u, expected):
    logits = torch.tensor(weights, dtype=torch.float32).log()
    got = work.sample(logits, torch.tensor(temperature, dtype=torch.float32), torch.tensor(top_k), torch.tensor(u))
    assert got.tolist() == expected
    assert got.dtype == torch.int64


def drawn(work, logits, u):
    """Tokens at temperature 1, without top-k."""
    rows = len(logits)
    return work.sample(logits, torch.ones(rows), torch.zeros(rows, dtype=torch.int64), u)


def test_u_just_below_1(work):
    """u just below 1, 50,000 tokens, the last 9 without probability: none of them is drawn, though sums are rounded."""
    logits = torch.randn(8, 50_000, generator=torch.Generator().manual_seed(0))
    logits[:, -9:] = -torch.inf
    for u in (torch.full((8,), 1 - 2**-24), torch.full((8,), 1 - 2**-53, dtype=torch.float64)):
        got = [token for token in drawn(work, logits, u).tolist() if token >= 50_000 - 9]
        assert got == [], f"scale u by the last sum of its row, in float64; u is {u.dtype}"


def test_rare_tokens(work):
    """Rare tokens are not rounded away: 999 of them share 15 millionths, and u = 1 - 1e-6."""
    rare = math.exp(-18)
    expected = math.floor(((1 - 1e-6) * (1 + 999 * rare) - 1) / rare) + 1
    got = drawn(work, torch.tensor([[0.0] + [-18.0] * 999]), torch.tensor([1 - 1e-6], dtype=torch.float64))
    assert got.tolist() == [expected]


class Operations(torch.overrides.TorchFunctionMode):
    """The names of all torch functions that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_operations(work):
    """As many torch operations for 32 rows as for 2: no loop over the rows."""
    counts = []
    for rows in (2, 32):
        logits, numbers, top_k = torch.randn(rows, 50), torch.rand(rows), torch.arange(rows) % 9
        with Operations() as operations:
            work.sample(logits, numbers, top_k, numbers)
        assert {"tolist", "numpy"} & set(operations.names) == set(), "the numbers stay in torch: no loop over them"
        counts.append(len(operations.names))
    assert counts[1] == counts[0], "torch functions called for 32 rows, compared with 2"


def alone(logits, temperature, top_k, u):
    """The token of one row, weight by weight."""
    if temperature == 0:
        return logits.index(max(logits))
    kth = sorted(logits, reverse=True)[min(top_k or len(logits), len(logits)) - 1]
    weights = [math.exp((x - max(logits)) / temperature) if x >= kth else 0.0 for x in logits]
    return next(i for i in range(len(weights)) if sum(weights[: i + 1]) > u * sum(weights))


def test_any_rows(work):
    """Rows of a few tokens with many ties, and logits of any size: each as if it were alone."""
    for seed in range(200):
        choose, vocab_size = random.Random(seed), 1 + seed // 40
        logits, temperature, top_k, u = zip(*[(
            [size + choose.randint(0, 4) / 2 for _ in range(vocab_size)],
            choose.choice([0.0, 0.001, 0.5, 1.0, 2.0, 50.0]), choose.choice([0, 1, 2, 3, 9]), choose.randrange(1, 32, 2) / 32,
        ) for size in choose.choices([0.0, 1000.0, -20_000.0], k=choose.randint(1, vocab_size))], strict=True)  # fmt: skip
        got = work.sample(torch.tensor(logits), torch.tensor(temperature), torch.tensor(top_k), torch.tensor(u))
        expected = [*map(alone, logits, temperature, top_k, u)]
        assert got.tolist() == expected, f"logits {logits}, temperature {temperature}, top_k {top_k}, u {u}"

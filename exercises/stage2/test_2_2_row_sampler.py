"""Rows in a batch against the same rows alone, and the number of operations."""

import math

import torch
from exercises.examples import Example, at_random
from exercises.grading import expect, require

from exercises.tiny import one_thread


def call(work, logits, temperature, top_k, u):
    return work.sample(torch.tensor(logits), torch.tensor(temperature), torch.tensor(top_k),
                       torch.tensor(u, dtype=torch.float64)).tolist()  # fmt: skip


def of(*weights):
    return [float(w) for w in torch.tensor(weights, dtype=torch.float64).log()]


def test_greedy_rows(work):
    logits = [[1.0, 5.0, 2.0], [7.0, 5.0, 9.0]]
    got = call(work, logits, [0.0, 0.0], [0, 0], [0.0, 0.0])
    said = {"greedy is the argmax of the row, whatever u is": [0, 0],
            "greedy is the argmax of the row; dividing by 0 gives NaN, and a search in NaN finds nothing": [3, 3]}  # fmt: skip
    expect("temperature 0 in both rows", got, [1, 2], said)
    said = "greedy takes the first of equal logits: a very small temperature, or a top-k of 1, keeps them all and draws"
    expect("temperature 0, logits 5, 9, 9, 9, u = 0.1, 0.5 and 0.9", call(
        work, [[5.0, 9.0, 9.0, 9.0]] * 3, [0.0] * 3, [0] * 3, [0.1, 0.5, 0.9]), [1, 1, 1],
        {said: [1, 2, 3], "of equal logits greedy takes the first": [3, 3, 3]})  # fmt: skip


def test_each_row_has_its_k(work):
    logits = [of(4, 3, 2, 1)] * 3
    said = {"all rows got the largest k": [3, 3, 3], "all rows got the smallest k": [0, 0, 0],
            "top_k 0 keeps all, not none": [0, 1, 0],
            "k - 1 tokens were kept": [0, 0, 2]}  # fmt: skip
    got = call(work, logits, [1.0] * 3, [1, 2, 0], [0.95, 0.95, 0.95])
    expect("top_k 1, 2 and 0 (all), weights 4 3 2 1, u = 0.95", got, [0, 1, 3], said)
    expect("top_k 2, weights 2, 1, 1, u = 0.99", call(work, [of(2, 1, 1)], [1.0], [2], [0.99]), [2],
           {"tokens that tie with the k-th are kept too": [1]})  # fmt: skip


def test_a_greedy_row_beside_another(work):
    logits = [of(1, 2, 1), of(1, 2, 1)]
    said = {"one greedy row must not make all rows greedy": [1, 1]}
    expect("temperatures 0 and 1, u = 0.9", call(work, logits, [0.0, 1.0], [0, 0], [0.9, 0.9]), [1, 2], said)


def test_each_row_has_its_temperature(work):
    """Weights 1, 4 at temperature 0.5 are 1, 16; at 2 they are 1, 2: u = 0.2 falls on the second, then on the first."""
    logits = [of(1, 4), of(1, 4)]
    said = {"the logits were multiplied by the temperature instead of divided": [0, 1]}
    expect("temperatures 0.5 and 2, u = 0.2", call(work, logits, [0.5, 2.0], [0, 0], [0.2, 0.2]), [1, 0], said)
    said = {"a small temperature is still a temperature: only 0 is special, and none is clamped": [0, 0]}
    got = call(work, [[0.0, 0.015625]] * 2, [0.001, 1.0], [0, 0], [0.1, 0.1])
    expect("logits 0 and 1/64, temperatures 0.001 and 1, u = 0.1", got, [1, 0], said)
    got = call(work, [[0.0, 1e-6]] * 2, [1e-7, 1.0], [0, 0], [0.1, 0.1])
    expect("logits 0 and 1e-6, temperatures 1e-7 and 1, u = 0.1", got, [1, 0], said)
    said = "a small temperature draws among equal logits; only 0 takes the first"
    expect("logits 1 and 1, temperature 1e-6, u = 0.9", call(work, [[1.0, 1.0]], [1e-6], [0], [0.9]), [1], {said: [0]})


def test_each_row_has_its_number(work):
    got = call(work, [of(1, 1, 1, 1)] * 4, [1.0] * 4, [0] * 4, [0.1, 0.3, 0.6, 0.9])
    expect("four rows with u = 0.1, 0.3, 0.6, 0.9", got, [0, 1, 2, 3], {"one u was used for all rows": [0, 0, 0, 0]})
    got = call(work, [[-torch.inf, 0.0]], [1.0], [0], [0.0])
    expect("u = 0, the first token has no probability", got, [1], {"the sum has to be greater than u": [0]})


def test_edges(work):
    got = call(work, [of(1, 1, 1)], [1.0], [9], [0.9])
    expect("top_k 9 of three tokens, u = 0.9", got, [2])
    torch.manual_seed(0)
    tokens = work.sample(
        torch.randn(8, 50_000), torch.ones(8), torch.zeros(8, dtype=torch.int64), torch.full((8,), 1 - 2**-24)
    )
    require(int(tokens.max()) < 50_000, "eight rows of 50,000 tokens, u just below 1", "tokens below 50,000", tokens,
            "the last sum may be a little below 1: scale u by the last sum of its row")  # fmt: skip
    logits = torch.randn(8, 50_000)
    logits[:, -1] = -torch.inf
    tokens = work.sample(logits, torch.ones(8), torch.zeros(8, dtype=torch.int64), torch.full((8,), 1 - 2**-24))
    require(int(tokens.max()) < 49_999, "the same, and the last token has no probability", "tokens below 49,999", tokens,
            "clamping hides that u fell off the end: scale u by the last sum of its row, in float64")  # fmt: skip
    tokens = work.sample(torch.randn(2, 9), torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.rand(2))
    expect("dtype of the tokens when all rows are greedy", str(tokens.dtype), "torch.int64")
    logits, temperature = torch.randn(4, 9), torch.tensor([0.5, 0.0, 1.0, 0.0])
    arguments = logits, temperature, torch.tensor([2, 0, 0, 1]), torch.rand(4)
    before = [tensor.clone() for tensor in arguments]
    tokens = work.sample(*arguments)
    for name, tensor, kept in zip(("logits", "temperature", "top_k", "u"), arguments, before, strict=True):
        require(torch.equal(tensor, kept), f"the caller's {name} afterwards", "as they were", "changed",
                "the engine uses it again: work on a copy")  # fmt: skip
    expect("shape of the tokens of four rows", list(tokens.shape), [4],
           {"a column was returned: drop that dimension, [:, 0]": [4, 1]})  # fmt: skip
    expect("dtype of the tokens", str(tokens.dtype), "torch.int64",
           {"token ids are int64, the dtype that torch indexes with": "torch.int32"})  # fmt: skip


@one_thread()
def test_no_loop_over_rows(work):
    said = "a loop over the rows: at batch 64 the sampler would take longer than the model"
    counts = []
    for rows in (2, 32):
        torch.manual_seed(0)
        arguments = torch.randn(rows, 50), torch.rand(rows), torch.randint(0, 9, (rows,)), torch.rand(rows)
        with work.measured() as measured:
            work.sample(*arguments)
        require(not measured.in_python, "the numbers of the tensors", "they stay in torch", "they were turned into Python numbers",
                "a loop over the rows, in Python? find the operation that handles all of them at once")  # fmt: skip
        counts.append(measured.operations)
    require(
        counts[0] == counts[1],
        "torch operations for 2 and for 32 rows",
        "the same number for 32 rows as for 2",
        counts,
        said,
    )


def slowly(logits, temperature, top_k, u):
    """The token of one row, weight by weight; None where rounding decides."""
    if temperature == 0:
        return logits.index(max(logits))
    kth = sorted(logits, reverse=True)[min(top_k or len(logits), len(logits)) - 1]
    weights = [math.exp((x - max(logits)) / temperature) if x >= kth else 0.0 for x in logits]
    sums = [sum(weights[: i + 1]) / sum(weights) for i in range(len(weights))]
    unsure = any(0 < w < 1e-6 for w in weights) if u == 0 else any(abs(s - u) < 1e-3 for s in sums)
    return None if unsure else next(i for i, s in enumerate(sums) if s > u)


@one_thread()
def test_any_rows(work):
    """Rows of a few tokens with many ties, at any magnitude and temperature."""

    def check(choose):
        vocab_size = choose.between(1, 5)

        def row():
            height = choose.one_of([0.0, 1000.0, -20_000.0])
            return ([height + choose.upto(4) / 2 for _ in range(vocab_size)], choose.one_of([1.0, 0.0, 0.5, 2.0, 0.001, 50.0, 1e-5]),
                    choose.one_of([0, 1, 2, 3, 9]), choose.upto(15) / 16)  # fmt: skip

        rows = choose.some(row, 4, least=1)
        expected = [slowly(*row) for row in rows]
        if None not in expected:
            example = Example(work, __file__, "import torch")
            arguments = ", ".join(f"torch.tensor({list(column)})" for column in zip(*rows, strict=True))
            example.expect(f"work.sample({arguments}).tolist()", expected)

    at_random(check)


def test_many_rows(work):
    """A thousand rows of a thousand tokens: in each, the token follows from the row's own weights."""
    rows, places = torch.arange(1000), torch.arange(1000) * 7 % 1000
    logits = torch.full((1000, 1000), -20_000.0)
    logits[rows, places] = 0.0
    temperature, top_k = (rows % 2).float(), rows % 3 * 400
    got = work.sample(logits, temperature, top_k, torch.full((1000,), 0.5))
    expect("a thousand rows with a likely token each", got, places)
    u = (rows + 0.5).double() / 1000
    got = work.sample(torch.zeros(1000, 1000), torch.ones(1000), torch.full((1000,), 70_000), u)
    expect("a thousand equal tokens, u = 0.0005, 0.0015, …", got, rows)
    rare = torch.tensor([[0.0] + [-18.0] * 999])
    got = work.sample(
        rare, torch.ones(1), torch.zeros(1, dtype=torch.int64), torch.tensor([1 - 1e-6], dtype=torch.float64)
    )
    weights = [1.0] + [math.exp(-18)] * 999
    sums = [sum(weights[: i + 1]) / sum(weights) for i in range(1000)]
    expect("999 tokens that share 15 millionths, u = 1 - 1e-6", got, torch.tensor([next(i for i, s in enumerate(sums) if s > 1 - 1e-6)]),
           likely="in float32 the rare tokens lose their share: sum in float64")  # fmt: skip

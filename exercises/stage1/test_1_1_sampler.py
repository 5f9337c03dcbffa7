"""What a sampler has to do, case by case; the engine's own sampler is the reference in the last one."""

import math
import random

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect

from tools.engines import STAGES

NAMES = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def of(weights: list[float]) -> list[float]:
    """Logits whose probabilities are proportional to these weights."""
    return [math.log(w) for w in weights]


def shares(*weights: float) -> list[float]:
    return [w / sum(weights) for w in weights]


def test_temperature(work):
    case = "weights 1, 4, 9 at temperature {}"
    said = {"the logits were multiplied by the temperature; dividing flattens": shares(1, 16, 81)}
    expect(case.format(2), work.distribution(of([1, 4, 9]), temperature=2), shares(1, 2, 3), said)
    expect(case.format(0.5), work.distribution(of([1, 4, 9]), temperature=0.5), shares(1, 16, 81))
    said = {"even a very low temperature divides: only 0 itself takes the best token": [0, 1]}
    got = work.distribution([0.0, 0.001], temperature=0.001)
    expect("logits 0 and 0.001 at temperature 0.001", got, shares(1, math.e), said)
    got = work.distribution([1.0, 1.0], temperature=1e-6)
    expect("two equal logits at temperature 0.000001", got, [0.5, 0.5], {"only 0 itself takes the best token": [1, 0]})
    expect("logits 1000 and 999", work.distribution([1000.0, 999.0]), shares(math.e, 1), tolerance=1e-6)


def test_greedy(work):
    said = {"of equal logits the first one is taken, not the last": [0, 0, 0, 1], "they share": [0, 0.5, 0, 0.5]}
    expect(
        "temperature 0, logits 1, 3, 2, 3",
        work.distribution([1.0, 3.0, 2.0, 3.0], temperature=0),
        [0.0, 1.0, 0.0, 0.0],
        said,
    )


def test_top_k(work):
    expect("top_k=3, weights 4, 2, 2, 1", work.distribution(of([4, 2, 2, 1]), top_k=3), shares(4, 2, 2, 0),
           {"the k-th best is kept": shares(4, 0, 0, 0), "one too many: the k-th best is the last": shares(4, 2, 2, 1)})  # fmt: skip
    said = {"of tokens that tie with the k-th best, keep all: position must not decide": shares(4, 2, 0, 0)}
    expect("top_k=2, weights 4, 2, 2, 1", work.distribution(of([4, 2, 2, 1]), top_k=2), shares(4, 2, 2, 0), said)
    said = {"top_k counts at any temperature": shares(2, 2**0.5, 2**0.5, 1)}
    got = work.distribution(of([16, 4, 4, 1]), temperature=4, top_k=3)
    expect("temperature 4 and top_k=3, weights 16, 4, 4, 1", got, shares(2, 2**0.5, 2**0.5, 0), said)
    expect("top_k=9 of 4 tokens", work.distribution(of([4, 2, 2, 1]), top_k=9), shares(4, 2, 2, 1))


def test_top_p(work):
    said = {"the token that crosses the line is kept: without it they sum to less than top_p": shares(5, 0, 0, 0)}
    expect("top_p=0.6, weights 5, 3, 1, 1", work.distribution(of([5, 3, 1, 1]), top_p=0.6), shares(5, 3, 0, 0), said)
    said = {"the most likely token is always kept": [0, 0, 0]}
    expect("top_p=0.1, weights 5, 3, 1", work.distribution(of([5, 3, 1]), top_p=0.1), [1.0, 0.0, 0.0], said)

    said = {"among ties, the token with the lower id is kept first": shares(0, 0, 1, 1),
            "until they sum to *at least* top_p: two of four are 0.5": shares(1, 1, 1, 0)}  # fmt: skip
    expect("top_p=0.5, four equal weights", work.distribution(of([1, 1, 1, 1]), top_p=0.5), shares(1, 1, 0, 0), said)


def test_top_p_to_the_last_digit(work):
    got = work.distribution(of([0.5, 0.4995, 0.0005]), top_p=0.9998)
    expect("top_p=0.9998, weights 0.5, 0.4995, 0.0005", got, [0.5, 0.4995, 0.0005],
           {"the token that crosses the line is kept: without it they sum to less than top_p": shares(0.5, 0.4995, 0)})  # fmt: skip


def test_min_p(work):
    said = {"min_p is relative to the best token's probability, not a probability by itself": [1, 0, 0, 0]}
    got = work.distribution(of([10, 4, 3, 2]), min_p=0.25)
    expect("min_p=0.25, weights 10, 4, 3, 2", got, shares(10, 4, 3, 0), said)
    got = work.distribution(of([4, 2, 4]), min_p=1.0)
    expect("min_p=1, weights 4, 2, 4", got, shares(4, 0, 4))


def test_order(work):
    """Weights 9, 4, 1 at temperature 0.5 are 81, 16, 1: the nucleus of 0.8 is the first alone."""
    said = {"top-p was applied before the temperature": shares(81, 16, 0)}
    got = work.distribution(of([9, 4, 1]), temperature=0.5, top_p=0.8)
    expect("temperature 0.5 and top_p 0.8, weights 9, 4, 1", got, [1.0, 0.0, 0.0], said)
    said = {"top-p works on what top-k has kept, renormalized to sum to 1": shares(4, 3, 0, 0)}
    got = work.distribution(of([4, 3, 2, 1]), top_k=2, top_p=0.55)
    expect("top_k=2 and top_p=0.55, weights 4, 3, 2, 1", got, [1.0, 0.0, 0.0, 0.0], said)


def test_draw(work):
    said = {"the sum has to be greater than u: at u = 0 a token of probability 0 is never drawn": 0}
    expect("u = 0, probabilities 0, 0.5, 0.5", work.draw([0.0, 0.5, 0.5], 0.0), 1, said)
    expect("u = 0.5, probabilities 0, 0.5, 0.5", work.draw([0.0, 0.5, 0.5], 0.5), 2)
    expect("u = 0.99, probabilities 0.25, 0.75, 0", work.draw([0.25, 0.75, 0.0], 0.99), 1)
    u = 1 - 2**-53
    got = work.draw([0.3, 0.3, 0.3, 0.09999999, 0.0], u)
    said = "rounding may leave the sum below u; then return the last token whose probability is not 0"
    expect("u just below 1, 0.3, 0.3, 0.3, 0.09999999, 0", got, 3, {said: OneOf([4, 5])})
    got = work.draw([0.3, 0.3, 0.3, 0.09999999, 0.0, 0.0], u)
    expect("the same with one more 0", got, 3, {said: OneOf([4, 5, 6])})
    got = work.draw([0.25, 0.25, 0.5], 0.25 - 1e-9)
    expect(
        "u a billionth below 0.25, probabilities 0.25, 0.25, 0.5",
        got,
        0,
        {"compare with u itself, without a tolerance": 1},
    )
    expect("u just below 1, ten times 0.1 (they sum to less than 1)", work.draw([0.1] * 10, u), 9, {said: 10})


def slowly(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float] | None:
    """The same, from a list of tokens, most likely first, dropped from the end one at a time. None if rounding would
    decide where to cut."""
    if temperature == 0:
        return [float(i == logits.index(max(logits))) for i in range(len(logits))]
    row = sorted(range(len(logits)), key=lambda i: -logits[i])
    weight = {i: math.exp((logits[i] - max(logits)) / temperature) for i in row}
    while top_k and len(row) > top_k and logits[row[-1]] < logits[row[top_k - 1]]:
        row.pop()
    total = sum(weight[i] for i in row)
    while len(row) > 1 and sum(weight[i] for i in row[:-1]) >= top_p * total * (1 + 1e-9):
        row.pop()
    sums = [sum(weight[i] for i in row[:n]) for n in range(1, len(row) + 1)]
    while weight[row[-1]] < min_p * weight[row[0]]:
        row.pop()
    if any(abs(s - top_p * total) < 1e-4 * total for s in sums if top_p < 1):
        return None
    if any(abs(w - min_p) < 1e-4 for w in weight.values() if 0 < min_p < 1):
        return None
    return [weight[i] / sum(weight[j] for j in row) if i in row else 0.0 for i in range(len(logits))]


def test_any_distribution(work):
    """A few tokens with many ties, at any magnitude."""

    def check(choose):
        height = choose.one_of([0.0, 1000.0, -20_000.0])
        logits = [height + choose.upto(4) / 2 for _ in range(choose.between(1, 5))]
        values = (choose.one_of([1.0, 0.5, 2.0, 0.0, 0.01]), choose.one_of([0, 1, 2, 3, 7]),
                  choose.one_of([1.0, 0.9, 0.6, 0.4, 0.01]), choose.one_of([0.0, 0.3, 0.7, 1.0]))  # fmt: skip
        expected = slowly(logits, *values)
        if expected is not None:
            arguments = ", ".join(
                f"{name}={value}" for name, value in zip(NAMES, values, strict=True) if value != NAMES[name]
            )
            example = Example(work, __file__)
            example.do(f"logits = {logits}")
            example.expect(f"work.distribution(logits{', ' * bool(arguments)}{arguments})", expected, tolerance=1e-4)
            example.look("logits", logits, likely="the caller's logits were changed: work on a copy")

    at_random(check, 400)


def test_any_draw(work):
    """Probabilities and numbers whose sums are exact in floating point."""

    def check(choose):
        shares = [choose.upto(4) for _ in range(choose.between(1, 5))]
        shares[choose.upto(len(shares) - 1)] += max(0, 16 - sum(shares))
        probabilities, u = [share / 16 for share in shares], choose.upto(255) / 256
        expected = next(i for i in range(len(shares)) if sum(probabilities[: i + 1]) > u)
        example = Example(work, __file__)
        example.expect(f"work.draw({probabilities}, {u})", expected)

    at_random(check, 100)


def test_against_the_engine(work):
    """Random logits and parameters, against stage 1's own sampler; half of the rows have ties."""
    import torch

    rng, stage = random.Random(0), STAGES[0]
    for i in range(40):
        logits = [rng.gauss(0, 2) for _ in range(30)]
        if i % 2:
            logits = [float(round(logit)) for logit in logits]
        values = dict(temperature=rng.choice([0.5, 1.0, 1.7]), top_k=rng.choice([0, 5, 20]),
                      top_p=rng.choice([1.0, 0.9, 0.5]), min_p=rng.choice([0.0, 0.05, 0.3]))  # fmt: skip
        request = stage.make_request(stage.SamplingParams(**values))
        expected = stage.filtered(torch.tensor([logits]), [request])[0].softmax(dim=-1).tolist()
        expect(f"30 random logits, {values}", work.distribution(logits, **values), expected, tolerance=1e-4)


def test_many_tokens(work):
    """A whole vocabulary, with ranks and probabilities far down the list."""
    logits = [-0.01 * i for i in range(1100)]
    random.Random(1).shuffle(logits)
    for temperature, k, top_p, min_p in (
        (1.0, 0, 0.9, 0.0),
        (1.0, 300, 0.8, 0.0),
        (2.0, 70_000, 1.0, 0.5),
        (0, 5, 1.0, 0.0),
    ):
        tried = ((temperature, k, top_p + i / 3000 * (top_p < 1), min_p) for i in range(9))
        values, expected = next((v, e) for v in tried if (e := slowly(logits, *v)) is not None)
        case = "1,100 tokens, temperature={}, top_k={}, top_p={}, min_p={}".format(*values)
        expect(case, work.distribution(logits, *values), expected, tolerance=1e-6)
    expect("weights 1,000,000 and 1: nothing is dropped unless asked", work.distribution(of([1e6, 1])), shares(1e6, 1),
           tolerance=1e-7)  # fmt: skip
    expect("2,048 equal tokens, u = 1500.5 / 2048", work.draw([1 / 2048] * 2048, 1500.5 / 2048), 1500)

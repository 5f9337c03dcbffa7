"""1.1 The sampler: each parameter, their order, and the draw."""

import math
import random

import pytest


def case(rule, weights, expected, **parameters):
    """Logits whose probabilities are proportional to these weights, before and after."""
    return pytest.param(weights, parameters, [w / sum(expected) for w in expected], id=rule)


@pytest.mark.parametrize(("exp_logits", "parameters", "expected"), [
    case("no parameters: nothing is dropped", (1e6, 1), (1e6, 1)),
    case("the temperature divides the logits: 2 flattens", (1, 4, 9), (1, 2, 3), temperature=2),
    case("the temperature divides the logits: 0.5 sharpens", (1, 4, 9), (1, 16, 81), temperature=0.5),
    case("temperature 0 takes the largest logit, the first of equal ones", (1, 3, 2, 3), (0, 1, 0, 0), temperature=0),
    case("only temperature 0 itself is greedy", (1, 1), (1, 1), temperature=1e-6),
    case("the k-th best is kept", (4, 3, 2, 1), (4, 3, 2, 0), top_k=3),
    case("what equals the k-th is kept: position must not decide", (4, 2, 2, 1), (4, 2, 2, 0), top_k=2),
    case("a top_k larger than the number of tokens keeps all", (4, 2, 1), (4, 2, 1), top_k=9),
    case("the token that crosses the line of top_p is kept", (5, 3, 1, 1), (5, 3, 0, 0), top_p=0.6),
    case("top_p keeps the most likely token, however small it is", (3, 5, 1), (0, 1, 0), top_p=0.1),
    case("of equally likely tokens the lower id is kept first", (1, 2, 1), (1, 2, 0), top_p=0.6),
    case("the sum has to be at least top_p, not more", (1, 1, 1, 1), (1, 1, 0, 0), top_p=0.5),
    case("min_p is relative to the most likely token", (10, 4, 3, 2), (10, 4, 3, 0), min_p=0.25),
    case("min_p keeps what is at least that likely: at 1, the best", (4, 2, 4), (1, 0, 1), min_p=1.0),
    case("the temperature comes before top-p", (9, 4, 1), (1, 0, 0), temperature=0.5, top_p=0.8),
    case("top-p works on what top-k has kept, rescaled", (4, 3, 2, 1), (1, 0, 0, 0), top_k=2, top_p=0.55),
    case("top-p comes before min-p", (5, 3, 1, 1), (5, 3, 0, 0), top_p=0.6, min_p=0.5),
])  # fmt: skip
def test_distribution(work, exp_logits, parameters, expected):
    got = work.distribution([math.log(weight) for weight in exp_logits], **parameters)
    assert got == pytest.approx(expected, abs=1e-7)


def test_large_logits(work):
    """Only the differences between logits count, and exp(1000) overflows."""
    assert work.distribution([1000.0, 1000.0]) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(("probabilities", "u", "expected"), [
    pytest.param([0.5, 0.5], 0.25, 0, id="a sum greater than u"),
    pytest.param([0.0, 0.5, 0.5], 0.0, 1, id="a token of probability 0 is never drawn"),
    pytest.param([0.5, 0.5], 0.5, 1, id="the sum has to be greater than u, not equal"),
    pytest.param([0.25, 0.25, 0.5], 0.25 - 1e-9, 0, id="compare with u itself, without a tolerance"),
    pytest.param([0.1] * 10 + [0.0] * 2, 1 - 2**-53, 9, id="ten times 0.1 sums to less than 1: return the last token "
                 "whose probability is not 0"),
])  # fmt: skip
def test_draw(work, probabilities, u, expected):
    assert work.draw(probabilities, u) == expected


def slowly(logits, temperature, top_k, top_p, min_p):
    """The same, from a list of tokens, the most likely first, dropped from its end one at a time."""
    row = sorted(range(len(logits)), key=lambda i: -logits[i])
    if temperature == 0:
        row, temperature = row[:1], 1.0
    weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    while 0 < top_k < len(row) and logits[row[-1]] < logits[row[top_k - 1]]:
        row.pop()
    total = sum(weights[i] for i in row)
    while len(row) > 1 and sum(weights[i] for i in row[:-1]) >= top_p * total:
        row.pop()
    while weights[row[-1]] < min_p * weights[row[0]]:
        row.pop()
    total = sum(weights[i] for i in row)
    return [weights[i] / total if i in row else 0.0 for i in range(len(logits))]


def test_any_distribution(work):
    """A few tokens with many ties, and logits of any size."""
    for seed in range(400):
        choose = random.Random(seed)
        size = choose.choice([0.0, 1000.0, -20_000.0])
        logits = [size + choose.randint(0, 4) / 2 for _ in range(choose.randint(1, 2 + seed // 100))]
        values = dict(temperature=choose.choice([0, 0.01, 0.5, 1.0, 2.0]), top_k=choose.choice([0, 0, 1, 2, 3, 7]),
                      top_p=choose.choice([1.0, 0.931, 0.613, 0.367]), min_p=choose.choice([0.0, 0.3, 0.7]))  # fmt: skip
        called = f"distribution({logits}, {', '.join(f'{name}={value}' for name, value in values.items())})"
        assert work.distribution([*logits], **values) == pytest.approx(slowly(logits, **values), abs=1e-4), called

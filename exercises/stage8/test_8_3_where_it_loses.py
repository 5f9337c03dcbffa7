"""8.3 Where int8 loses: what is found goes through stage 8's own rounding; what is computed is compared with the text."""

import math
import random

import pytest
import torch

from stage08_int8.quantize import Int8Linear, quantize


def test_outlier(work):
    """Eight activations: seven of 0.5 to 1, or -1 to -0.5, which all become 0."""
    got = work.outlier()
    assert list(map(math.isfinite, got)) == [True] * 8, f"a list of eight numbers, got {got}"
    rest = sorted(got, key=abs)[:7]
    assert all(0.5 <= abs(number) <= 1 for number in rest), f"seven are from 0.5 to 1, or from -1 to -0.5, got {got}"
    integers, _ = quantize(torch.tensor(got, dtype=torch.float32))
    num_left = sum(i != 0 for i in integers.tolist())
    assert num_left <= 1, (
        f"{got} become {integers.tolist()}: half the scale of the largest must be more than the others"
    )


def test_flips(work):
    """In floats output 0 is greater than output 1 by at least a tenth of itself; in stage 8 output 1 is greater."""
    weight, x = (torch.tensor(value, dtype=torch.float32) for value in work.flips())
    assert (weight.shape, x.shape) == ((2, 4), (4,)), "weights of two outputs and four inputs, and four activations"
    first, second = (weight.double() @ x.double()).tolist()
    assert first - second >= max(1e-9, 0.1 * abs(first)), f"in floats the outputs are {first} and {second}"
    rounded = Int8Linear(weight)(x[None])[0].tolist()
    assert rounded[1] > rounded[0], (
        f"in stage 8 the outputs are {rounded}: what if output 0 had a large weight, which makes its scale large, "
        "multiplied by an activation of 0?"
    )


# (weights, bandwidth, (products of float32, of int8), seconds of the rest)
PICTURE = (1e8, 2e10, (5e10, 4e10), 0.0)
BUSY = (1e8, 2e10, (5e10, 4e10), 0.004)
FAST = (1e8, 2e10, (5e10, 2e11), 0.0)


def case(rule, rows, machine, before, after):
    return pytest.param(rows, machine, before / after, id=rule)


@pytest.mark.parametrize(("rows", "machine", "expected"), [
    case("int8 reads a quarter of the bytes", 1, (1e8, 2e10, (1e20, 1e20), 0.0), 20, 5),
    case("reading and multiplying overlap: the longer of the two counts", 1, PICTURE, 20, 5),
    case("the products of float32 and of int8 take different times", 1, (1e8, 2e10, (5e10, 1e10), 0.0), 20, 10),
    case("every row is multiplied by all weights, which are read once", 5, PICTURE, 20, 12.5),
    case("with many rows int8 may be slower", 10, PICTURE, 20, 25),
    case("with many rows multiplying takes longer: then bytes no longer matter", 40, FAST, 80, 20),
    case("the rest comes on top, the same seconds per row in both", 3, BUSY, 20 + 12, 7.5 + 12),
    case("the rest comes on top even if it is the longest", 8, BUSY, 20 + 32, 20 + 32),
])  # fmt: skip
def test_gain(work, rows, machine, expected):
    assert work.gain(rows, *machine) == pytest.approx(expected)


@pytest.mark.parametrize(("machine", "most", "expected"), [
    pytest.param((1e8, 1.9e10, (5e10, 4e10), 0.0), 100, 9, id="the smallest number of rows with which int8 is slower"),
    pytest.param((1e8, 2e10, (5e10, 5e10), 0.0), 50, None, id="equally fast is not slower"),
    pytest.param(PICTURE, 9, 9, id="`most` rows count too"),
    pytest.param(PICTURE, 8, None, id="None if it never is, up to `most` rows"),
    pytest.param(FAST, 300, None, id="None if multiplying is faster too"),
    pytest.param((1e8, 2e10, (5e10, 1e9), 0.001), 100, 1, id="it may lose with one row"),
])  # fmt: skip
def test_loses_from(work, machine, most, expected):
    assert work.loses_from(*machine, most) == expected


def gain_slowly(rows, weights, bandwidth, products, rest):
    before = max(4 * weights / bandwidth, rows * weights / products[0]) + rows * rest
    return before / (max(weights / bandwidth, rows * weights / products[1]) + rows * rest)


def test_any_machine(work):
    """Random machines: the same as the longer of reading and multiplying, plus the rest."""
    for seed in range(300):
        choose = random.Random(seed)
        weights, bandwidth, *products = (float(choose.randint(1, 20)) for _ in range(4))
        machine = weights, bandwidth, tuple(products), choose.randint(0, 8) / 8
        rows, most = choose.randint(1, 30), choose.randint(1, 40)
        assert work.gain(rows, *machine) == pytest.approx(gain_slowly(rows, *machine)), f"gain({rows}, *{machine})"
        gains = [gain_slowly(n, *machine) for n in range(1, most + 1)]
        if all(abs(gain - 1) > 1e-9 for gain in gains):
            expected = next((n for n, gain in enumerate(gains, start=1) if gain < 1), None)
            assert work.loses_from(*machine, most) == expected, f"loses_from(*{machine}, {most})"

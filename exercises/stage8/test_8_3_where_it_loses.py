"""Found numbers go through stage 8's own rounding; computed ones are compared with what the text says."""

import math

import torch
from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require

from stage08_int8.quantize import Int8Linear, quantize

# (weights, bandwidth, (products of float32, of int8), seconds of the rest)
WIDENS = (1e8, 2e10, (5e10, 4e10), 0.0)  # the picture's
VNNI = (1e8, 2e10, (5e10, 2e11), 0.0)
BUSY = (1e8, 2e10, (5e10, 4e10), 0.004)
SLOW = (1e8, 2e10, (5e10, 1e9), 0.001)
ODD = (1e8, 2e10, (5e10, 1.5e10), 0.001)  # with 5 rows each mistake gives a different answer
NEVER_EVEN = (1e8, 1.9e10, (5e10, 4e10), 0.0)


def is_numbers(value, count):
    return isinstance(value, list) and len(value) == count and all(
        type(number) in (int, float) and math.isfinite(number) for number in value)  # fmt: skip


# --- What is found ----------------------------------------------------------------------------------------------------


def test_outlier(work):
    got = work.outlier()
    require(is_numbers(got, 8), "outlier()", "a list of eight numbers", got)
    rest = sorted(got, key=abs)[:7]
    require(
        all(0.5 <= abs(number) <= 1 for number in rest), f"outlier(): {got}", "seven of 0.5 to 1, or -1 to -0.5", rest
    )
    integers, _ = quantize(torch.tensor(got, dtype=torch.float32))
    require(int((integers != 0).sum()) <= 1, f"outlier(): {got}, as stage 8 rounds them", "seven zeros", integers.tolist(),
            "they become 0 if the largest is so large that half its scale is more than 1")  # fmt: skip


def test_flips(work):
    got = work.flips()
    two = isinstance(got, tuple) and len(got) == 2
    require(two, "flips()", "a tuple (weight, x)", got)
    weight, x = got
    fits = isinstance(weight, list) and len(weight) == 2 and all(is_numbers(row, 4) for row in weight)
    require(fits, "flips(): weight", "two lists of four numbers", weight)
    require(is_numbers(x, 4), "flips(): x", "a list of four numbers", x)
    weight, x = (torch.tensor(value, dtype=torch.float32) for value in got)
    exact = (weight.double() @ x.double()).tolist()
    case = f"flips(): {got}"
    floats = f"output 0 greater than output 1 by at least {abs(exact[0]) / 10:.3g}"
    require(exact[0] - exact[1] >= 0.1 * abs(exact[0]) and exact[0] > exact[1], f"{case}, in floats", floats, exact)
    rounded = Int8Linear(weight)(x[None])[0].tolist()
    require(rounded[1] > rounded[0], f"{case}, in stage 8", "output 1 greater than output 0", rounded,
            "what if output 0 had a large weight, which makes its scale large, multiplied by an activation of 0?")  # fmt: skip


# --- What is computed -------------------------------------------------------------------------------------------------


def seconds(rows, weights, bandwidth, products, rest, size, how=max):
    return how((size * weights / bandwidth, rows * weights / products[size == 1])) + rows * rest


def gain_of(rows, *machine, **how):
    return seconds(rows, *machine, 4, **how) / seconds(rows, *machine, 1, **how)


def mistakes(rows, weights, bandwidth, products, rest):
    """Message -> what this mistake gives, where it differs."""
    machine = weights, bandwidth, products, rest
    right = gain_of(rows, *machine)
    one = lambda size: max(size * weights / bandwidth, weights / products[size == 1]) + rows * rest  # noqa: E731
    each = lambda size: max(rows * size * weights / bandwidth, rows * weights / products[size == 1]) + rows * rest  # noqa: E731
    found = {
        "reading and multiplying overlap: the longer of the two counts": [
            gain_of(rows, *machine, how=sum), gain_of(rows, *machine, how=min)],
        "every row is multiplied by all weights": [one(4) / one(1)],
        "a step reads the weights once, for all its rows": [each(4) / each(1)],
        "the rest takes the same time per row in both": [
            gain_of(rows, *machine[:3], 0.0), gain_of(rows, *machine[:3], rest / rows)],
        "with many rows multiplying takes longer: then bytes no longer matter": [4.0],
        "that is how many times slower it is: the ratio is upside down": [1 / right],
        "int8 and float32 products have different speeds: `products` is a pair": [
            gain_of(rows, *machine[:2], (products[0],) * 2, rest), gain_of(rows, *machine[:2], products[::-1], rest)],
    }  # fmt: skip
    return {said: OneOf(answer for answer in answers if abs(answer - right) > 1e-7) for said, answers in found.items()}


def test_gain(work):
    for machine, all_rows in (
        (ODD, (5,)),
        (WIDENS, (1, 5, 10)),
        (BUSY, (1, 3, 8)),
        (VNNI, (1, 40)),
        (SLOW, (3, 70_000)),
    ):
        for rows in all_rows:
            right, case = gain_of(rows, *machine), f"gain({rows}, *{machine})"
            expect(case, work.gain(rows, *machine), right, mistakes(rows, *machine), tolerance=1e-9)


def first_loss(machine, most):
    return next((rows for rows in range(1, most + 1) if gain_of(rows, *machine) < 1), None)


def test_loses_from(work):
    even = (1e8, 2e10, (5e10, 5e10), 0.0)
    for machine, most in (
        (NEVER_EVEN, 100),
        (WIDENS, 100),
        (WIDENS, 8),
        (WIDENS, 9),
        (SLOW, 100),
        (VNNI, 300),
        (BUSY, 100),
        (even, 50),
    ):
        right, first = first_loss(machine, most), first_loss(machine, 1000)
        said = {"it never is, up to `most` rows: return None": OneOf([first, most, most + 1, 0] if right is None else []),
                "equally fast is not slower": next(
                    (rows for rows in range(1, most + 1) if gain_of(rows, *machine) <= 1), None),
                "the smallest number of rows with which it is slower, not the largest with which it is not": (right or 0) - 1}  # fmt: skip
        said["with some number of rows up to `most` it is slower; or is a `return` missing?"] = None
        said = {what: of for what, of in said.items() if of != right}
        expect(f"loses_from(*{machine}, {most})", work.loses_from(*machine, most), right, said)


def test_many_rows(work):
    fast = (1e8, 1.9e10, (2.5e12, 2e12), 0.0)
    expect(f"loses_from(*{fast}, 1000)", work.loses_from(*fast, 1000), first_loss(fast, 1000))
    expect(f"loses_from(*{VNNI}, 70_000)", work.loses_from(*VNNI, 70_000), None)


def test_any_machine(work):
    def check(choose):
        products = tuple(float(choose.between(1, 40)) for _ in range(2))
        machine = float(choose.between(1, 20)), float(choose.between(1, 20)), products, choose.upto(8) / 8
        rows, most = choose.between(1, 30), choose.between(1, 40)
        example = Example(work, __file__)
        example.look(f"work.gain({rows}, *{machine})", gain_of(rows, *machine), tolerance=1e-9)
        if all(abs(gain_of(number, *machine) - 1) > 1e-9 for number in range(1, most + 1)):
            example.look(f"work.loses_from(*{machine}, {most})", first_loss(machine, most))

    at_random(check, 150)

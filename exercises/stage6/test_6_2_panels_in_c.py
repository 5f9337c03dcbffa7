"""Panels by hand, every size of tail, sums in order, pages fetched in sequence, and random sizes."""

import os
import random

import torch
from exercises.grading import expect, require

PANEL = 32
MATRIX = torch.tensor([[10.0 * column + i for i in range(3)] for column in range(1, 6)])  # column c, input i: "ci"
NAN = float("nan")
BEFORE = 1000.0  # in y


def up(number, size):
    return -(-number // size)


def packed_slowly(weight, width, inner):
    """[out, in] -> [panels, steps, width, inner]: puts every number where the text says."""
    out, in_ = weight.shape
    panels = torch.zeros(up(out, width), up(in_, inner), width, inner)
    columns, inputs = torch.arange(out)[:, None], torch.arange(in_)
    panels[columns // width, inputs // inner, columns % width, inputs % inner] = weight
    return panels


def random_weight(out, in_, seed=0):
    return torch.randn(out, in_, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


# --- packed_size and pack ---------------------------------------------------------------------------------------------


def test_size(work):
    for in_, out, width, inner in (
        (3, 5, 2, 2),
        (1, 1, 1, 1),
        (1, 1, 32, 4),
        (768, 50_257, 32, 1),
        (100_000, 100_000, 32, 2),
        (3, 70_001, 300, 300),
        (70_001, 3, 70_000, 70_000),
    ):
        panels, steps = up(out, width), up(in_, inner)
        mistakes = {
            "columns that don't exist take room too: the last panel is as long as the others": out * steps * inner,
            "a partly filled panel counts: round up": out // width * steps * width * inner,
            "a partly filled step counts: round up": panels * (in_ // inner) * width * inner,
            "inputs that don't exist take room too": panels * width * in_,
        }
        right = panels * steps * width * inner
        mistakes = {said: wrong for said, wrong in mistakes.items() if wrong != right}
        expect(f"packed_size(in {in_}, out {out}, width {width}, inner {inner})",
               work.packed_size(in_, out, width, inner), right, mistakes, tolerance=0)  # fmt: skip


def pack_mistakes(weight, width, inner):
    right = packed_slowly(weight, width, inner)
    padded = right.permute(0, 2, 1, 3).reshape(-1, right.shape[1] * inner)  # [columns, inputs], with zeros
    mistakes = {
        "within a panel, first step 0 of all its columns, then step 1": right.transpose(1, 2),
        "within a step, column by column: the `inner` inputs of a column stand side by side": right.transpose(2, 3),
        "panel after panel: each is one run of memory": right.transpose(0, 1),
        "this is the padded matrix, but not packed": padded,
    }
    found = {said: wrong.flatten().tolist() for said, wrong in mistakes.items()}
    return {said: wrong for said, wrong in found.items() if wrong != right.flatten().tolist()}


def check_pack(work, case, weight, width, inner):
    right = packed_slowly(weight, width, inner).flatten()
    size = work.packed_size(weight.shape[1], len(weight), width, inner)
    expect(f"{case}: packed_size", size, len(right), tolerance=0)
    for start in (False, True):
        panels = torch.full_like(right, NAN)
        call = lambda: work.pack(weight, panels, weight.shape[1], len(weight), width, inner)  # noqa: B023, E731
        if start:
            with work.at_starts():
                call()
        else:
            call()
        missing = panels.isnan().nonzero().flatten().tolist()
        places = [int(place) for place in missing[:8]]
        require(not missing, case, "every number of the panels written", f"panels{places} were not written",
                "write the padding too: 0, not what was there" if (right[missing] == 0).all() else "")  # fmt: skip
        if len(right) <= 64:
            expect(case, panels.tolist(), right.tolist(), pack_mistakes(weight, width, inner), tolerance=0)
        elif not torch.equal(panels, right):
            place = int((panels != right).nonzero()[0])
            expect(f"{case}: panels[{place}]", panels[place].item(), right[place].item(), tolerance=0)


def test_pack(work):
    check_pack(work, "the matrix of the picture (12 is column 1, input 2), width 2, inner 2", MATRIX, 2, 2)
    check_pack(work, "the same, width 2, inner 1", MATRIX, 2, 1)
    check_pack(work, "the same, width 4, inner 3", MATRIX, 4, 3)
    check_pack(work, "the same, width 8, inner 4", MATRIX, 8, 4)
    check_pack(work, "the same, width 1, inner 1: the matrix itself", MATRIX, 1, 1)
    check_pack(work, "one weight of 0.5, width 1, inner 1", torch.tensor([[0.5]]), 1, 1)
    check_pack(work, "one weight of -0.25, width 3, inner 2", torch.tensor([[-0.25]]), 3, 2)


def test_pack_any_size(work):
    rng = random.Random(0)
    for i in range(120):
        out, in_ = rng.randint(1, 3 + i), rng.randint(1, 3 + i // 2)
        width, inner = rng.choice([1, 2, 3, 8, 16, 32]), rng.choice([1, 2, 4, 32])
        check_pack(
            work,
            f"{out} columns of {in_} inputs, width {width}, inner {inner}",
            random_weight(out, in_, i),
            width,
            inner,
        )


def test_pack_large(work):
    for out, in_, width, inner in (
        (70_001, 3, 32, 2),
        (3, 70_001, 2, 4),
        (1000, 257, 300, 1),
        (1, 1, 70_000, 2),
        (2, 3, 1, 70_000),
    ):
        check_pack(
            work, f"{out} columns of {in_} inputs, width {width}, inner {inner}", random_weight(out, in_), width, inner
        )


# --- multiply ---------------------------------------------------------------------------------------------------------


def product(work, weight, x, at_start=False):
    """What multiply gives: [out, in], [in] -> [out]"""
    panels, y = packed_slowly(weight, PANEL, 1), torch.full((len(weight),), BEFORE)
    if at_start:
        with work.at_starts():
            work.multiply(x, panels, y, len(x), len(weight))
    else:
        work.multiply(x, panels, y, len(x), len(weight))
    return y


def check_product(work, case, weight, x, mistakes=None):
    """Whole numbers, whose sums are exact in any order."""
    right = weight.double() @ x.double()
    for at_start in (False, True):
        got = product(work, weight, x, at_start)
        if len(right) <= 64:
            expect(case, got.tolist(), right.tolist(), mistakes, tolerance=0)
        elif not torch.equal(got.double(), right):
            place = int((got.double() != right).nonzero()[0])
            expect(f"{case}: y[{place}]", got[place].item(), right[place].item(), tolerance=0)


def whole(*shape, seed=0):
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def test_multiply(work):
    case = "weights [[1, 2], [3, 4], [5, 6]], x = [10, 1]"
    check_product(work, case, torch.tensor([[1.0, 2], [3, 4], [5, 6]]), torch.tensor([10.0, 1]),
                  {"`y[o]` is overwritten: its old value is not part of the sum": [BEFORE + y for y in (12.0, 34, 56)]})  # fmt: skip
    check_product(work, "one weight of 3, x = [2]", torch.tensor([[3.0]]), torch.tensor([2.0]))
    check_product(work, "weights 0.5 and -0.25, x = [0.5]", torch.tensor([[0.5], [-0.25]]), torch.tensor([0.5]))


def test_multiply_any_size(work):
    for out in (1, 2, 31, 32, 33, 63, 64, 65, 100, 257):
        for in_ in (1, 2, 3, 5, 16, 31, 64):
            check_product(work, f"{out} columns of {in_} inputs", whole(out, in_, seed=out), whole(in_, seed=in_))


def test_multiply_large(work):
    for out, in_ in ((70_001, 3), (5, 70_001), (1000, 300)):
        check_product(work, f"{out} columns of {in_} inputs", whole(out, in_), whole(in_, seed=1))


def test_multiply_zeros(work):
    got = product(work, torch.tensor([[float("inf"), 1.0]]), torch.tensor([0.0, 1.0])).item()
    require(got != got, "weights [inf, 1], x = [0, 1]", "NaN, because 0 times infinity is NaN", got,
            "multiply every input, even one that is 0: checking costs more than it saves")  # fmt: skip


def in_order(weight, x):
    """The sums in float32, one input after the other. Every product is exact, so only the order shows."""
    sums = torch.zeros(len(weight))
    for i in range(len(x)):
        sums += weight[:, i] * x[i]
    return sums


def spread(*shape, seed=0):
    """Numbers with few bits and very different magnitudes: products are exact, sums are not."""
    sizes = torch.randint(-10, 11, shape, generator=torch.Generator().manual_seed(seed + 1))
    return whole(*shape, seed=seed) * 2.0**sizes


def test_the_order_of_sums(work):
    tiny = 2.0**-24
    case = "x = [1, 1, 1], weights [1, 2^-24, 2^-24]: 1 + 2^-24 rounds to 1, twice; added from the end it would be more"
    got = product(work, torch.tensor([[1.0, tiny, tiny]]), torch.ones(3)).item()
    require(got == 1, case, 1.0, f"{got:.9g}", "add the first input first, in float32")
    for out, in_ in ((32, 3), (33, 64), (5, 300), (70, 67)):
        weight, x = spread(out, in_, seed=in_), spread(in_, seed=out)
        got, right = product(work, weight, x), in_order(weight, x)
        other = [o for o in range(out) if got[o] != right[o]]
        require(not other, f"{out} columns of {in_} inputs of very different magnitudes: sums whose bits differ", [], other,
                "each column has one sum, which begins with 0 and adds one input after another")  # fmt: skip


def test_panels_are_read_in_sequence(work):
    """With a cache of two pages, each page of weights is fetched once, in order."""
    in_, out = 12 * os.sysconf("SC_PAGE_SIZE") // 4 // PANEL, 3 * PANEL  # a panel is 12 pages
    weight, x, y = whole(out, in_), whole(in_, seed=1), torch.empty(out)
    panels = packed_slowly(weight, PANEL, 1)
    with work.pages(panels=2) as fetched:
        work.multiply(x, panels, y, in_, out)
    pages = fetched["panels"]
    case = f"{out} columns of {in_} inputs: the panels' pages, in the order in which they are fetched"
    often = len(pages) > len(set(pages))
    likely = "a page is fetched again: use each number once and go on; keep only the sums" if often else ""
    expect(case, pages, list(range(len(set(pages)))), likely=likely, tolerance=0)
    require(
        work.allocated == 0, "multiply", "no memory from malloc", f"{work.allocated} bytes", "32 sums are all it needs"
    )

"""6.2 Panels in C: layouts by hand, every kind of tail, sums in order, and the order in which panels are read."""

import random

import numpy as np
import pytest

from exercises.stage6.panels import PAGE, PANEL, assert_same, in_order, nothing, packed, spread, whole


def matrix(out, in_):
    """Column c and input i have the number "ci": 12 is column 1, input 2."""
    return 10 * np.arange(1, out + 1, dtype=np.float32)[:, None] + np.arange(in_, dtype=np.float32)


@pytest.mark.parametrize(("in_", "out", "width", "inner"), [
    pytest.param(4, 6, 2, 2, id="the numbers of all panels"),
    pytest.param(1, 5, 2, 1, id="a partly filled panel takes as much room as the others: round up"),
    pytest.param(3, 2, 2, 2, id="a partly filled step takes as much room as the others: round up"),
    pytest.param(100_000, 100_000, 32, 2, id="100,000 by 100,000 weights must not overflow"),
])  # fmt: skip
def test_size(work, in_, out, width, inner):
    assert work.packed_size(in_, out, width, inner) == -(-out // width) * -(-in_ // inner) * width * inner


def pack(work, weight, width, inner):
    expected = packed(weight, width, inner)
    got = nothing(*expected.shape)
    work.pack(weight, got, weight.shape[1], len(weight), width, inner)
    return got, expected


@pytest.mark.parametrize(("out", "in_", "width", "inner"), [
    pytest.param(2, 3, 1, 1, id="with width 1 and inner 1 it is the matrix itself"),
    pytest.param(2, 3, 2, 1, id="within a panel, step after step"),
    pytest.param(4, 2, 2, 1, id="panel after panel"),
    pytest.param(2, 4, 2, 2, id="within a step, the `inner` inputs of a column are side by side"),
    pytest.param(5, 2, 2, 1, id="columns that don't exist are 0: write them too"),
    pytest.param(2, 3, 2, 2, id="inputs that don't exist are 0: write them too"),
    pytest.param(5, 3, 2, 2, id="the picture"),
])  # fmt: skip
def test_pack(work, out, in_, width, inner):
    got, expected = pack(work, matrix(out, in_), width, inner)
    assert got.ravel().tolist() == expected.ravel().tolist()


def test_pack_any_size(work):
    """Random sizes: each weight is where the layout says."""
    for seed in range(60):
        choose = random.Random(seed)
        out, in_ = choose.randint(1, 3 + seed), choose.randint(1, 3 + seed)
        width, inner = choose.choice([1, 2, 3, 8, 32]), choose.choice([1, 2, 4, 32])
        got, expected = pack(work, whole(out, in_, seed=seed) / 4, width, inner)
        assert_same(got, expected, f"pack, {out} columns of {in_} inputs, width {width}, inner {inner}")


def multiply(work, x, weight):
    y = nothing(len(weight))
    work.multiply(x, packed(weight), y, len(x), len(weight))
    return y


def test_multiply(work):
    """Weights [[1, 2], [3, 4], [5, 6]] times [10, 1]; y is overwritten."""
    weight = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    assert multiply(work, np.array([10, 1], np.float32), weight).tolist() == [12, 34, 56]


def test_multiply_any_size(work):
    """Every kind of last panel."""
    for out in (1, 2, 31, 32, 33, 64, 65, 257):
        for in_ in (1, 2, 5, 64):
            x, weight = whole(in_, seed=in_), whole(out, in_, seed=out)
            assert_same(multiply(work, x, weight), weight @ x, f"multiply, {out} columns of {in_} inputs")


def test_the_order_of_sums(work):
    """Each sum begins with 0 and adds the inputs in order, in float32."""
    for out, in_ in ((1, 3), (33, 64), (5, 300)):
        x, weight = spread(in_, seed=out), spread(out, in_, seed=in_)
        got, expected = multiply(work, x, weight), in_order(x[None], weight)[0]
        assert_same(got, expected, f"other bits with {out} columns of {in_} inputs of very different magnitudes")


def test_panels_are_read_in_sequence(work):
    """Each number of `panels` is read once, from the first to the last."""
    in_, out = 12 * PAGE // PANEL, 3 * PANEL  # a panel has 12 pages
    panels = packed(whole(out, in_))
    pages = work.multiply(whole(in_), panels, nothing(out), in_, out, pages_of="panels", keep=2)
    assert len(pages) <= 36, "a page of the panels is fetched again: use each number once and go on; keep only the sums"
    assert pages == list(range(36)), "the pages of the panels, in the order in which a cache of two would fetch them"

"""6.4 Finish while it is near: each finish by hand, tails of rows and columns, the same bits as alone, counted visits."""

import math

import numpy as np
import pytest

from exercises.stage6.panels import PAGE, PANEL, assert_same, nothing, packed, whole

FINISHES = STORE, ADD, GELU = range(3)
by_finish = pytest.mark.parametrize("finish", FINISHES, ids=["STORE", "ADD", "GELU"])


def gelu(v):
    return 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))


def fused(work, x, weight, bias, before, finish):
    """[n, in], [out, in], [out], [n, out] -> [n, out]"""
    y = before.copy()
    work.fused(x, packed(weight), bias, y, len(x), weight.shape[1], len(weight), finish)
    return y


def check(work, x, weight, bias, finish, said=""):
    """Integers, so that everything but GELU is exact."""
    before = whole(len(x), len(weight), seed=9) if finish == ADD else nothing(len(x), len(weight))
    got, v = fused(work, x, weight, bias, before, finish), x.astype(float) @ weight.T + bias
    if finish == GELU:
        expected = gelu(v)
        got = np.where(np.abs(got - expected) <= 2e-6 * np.maximum(1, np.abs(expected)), expected, got)
        assert_same(got, expected, said or "GELU of x W^T + bias")
    else:
        assert_same(got, before + v if finish == ADD else v, said or "(before +) x W^T + bias")


@pytest.mark.parametrize(
    "finish", FINISHES, ids=["STORE: y becomes v", "ADD: y becomes y + v", "GELU: y becomes GELU of v"]
)
def test_by_hand(work, finish):
    """v is the sum plus the bias of that column."""
    x, weight = np.array([[10, 1], [0, 1]], np.float32), np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    bias, before = np.array([-12, 0, -56], np.float32), np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    expected = {
        STORE: [[0, 34, 0], [-10, 4, -50]],
        ADD: [[1, 36, 3], [-6, 9, -44]],
        GELU: [[0, 34, 0], [0, 3.99993, 0]],
    }
    assert fused(work, x, weight, bias, before, finish).round(5).tolist() == np.float32(expected[finish]).tolist()


@pytest.mark.parametrize("v", [0.5, -0.5, 1, -1, 2.25, -3, 0.1, 6.5, 30, -40, 1e4, -1e4, 1e20])
def test_gelu(work, v):
    """GPT-2's GELU, with tanh, and for large numbers too."""
    one = np.ones((1, 1), np.float32)
    got = fused(work, np.float32(v) * one, one, 0 * one[0], nothing(1, 1), GELU).item()
    assert got == pytest.approx(max(v, 0) if abs(v) > 1e3 else gelu(v), rel=1e-6, abs=1e-6)


def test_no_rows(work):
    """`n` may be 0."""
    assert fused(work, whole(0, 5), whole(33, 5), whole(33), nothing(0, 33), STORE).tolist() == []


@by_finish
def test_any_size(work, finish):
    """Rows and columns that don't exist are neither read nor written."""
    for n in (1, 3, 8, 9, 11):
        for out, in_ in ((1, 1), (31, 3), (32, 2), (33, 5), (65, 16)):
            x, weight = whole(n, in_, seed=out), whole(out, in_, seed=n) / 8
            check(work, x, weight, whole(out, seed=3), finish, f"{n} rows, {out} columns of {in_} inputs")


@by_finish
def test_the_same_bits(work, finish):
    """Each row has the same bits as alone."""
    random = np.random.default_rng(3)
    x, weight, bias, before = (
        random.normal(size=size).astype(np.float32) for size in ((19, 101), (67, 101), 67, (19, 67))
    )
    alone = [fused(work, x[i : i + 1], weight, bias, before[i : i + 1], finish) for i in range(19)]
    for n in (2, 3, 5, 8, 11, 19):
        got = fused(work, x[:n], weight, bias, before[:n], finish)
        assert_same(got, np.concatenate(alone[:n]), f"the same bits as alone, {n} rows")


@by_finish
def test_what_is_stored_is_not_visited_again(work, finish):
    """A row of y is a page."""
    n, in_, out = 80, 8, PAGE
    x, panels, bias, y = whole(n, in_, seed=1), packed(whole(out, in_) / 8), whole(out, seed=3), whole(n, out, seed=4)
    visits = len(work.fused(x, panels, bias, y, n, in_, out, finish, pages_of="y", keep=16))
    assert work.allocated == 0, f"no intermediate tensor; malloc gave {work.allocated:,} bytes"
    once = n * out // PANEL
    assert visits <= once, (
        "the outputs of a group and a panel are finished before the next group begins; "
        f"here a cache of 16 of the {n} rows of y fetches a row {visits} times, not once for each row and panel, {once}"
    )


def pages(work, n, in_, out, keep):
    """The pages of the panels that are fetched by a cache of `keep` pages."""
    x, panels, bias, y = whole(n, in_), packed(whole(out, in_)), whole(out), nothing(n, out)
    return len(work.fused(x, panels, bias, y, n, in_, out, STORE, pages_of="panels", keep=keep))


def test_a_group_shares_a_read(work):
    """Up to GROUP rows share one read of a panel: `group_of` takes as many as there are."""
    in_, out, size = 24 * PAGE // PANEL, 2 * PANEL + 1, work.group_size()
    once = pages(work, 1, in_, out, keep=2)
    for n in (size, 3 * size, 2 * size - 1):
        fetched, groups = pages(work, n, in_, out, keep=2), -(-n // size)
        said = f"{n} rows in groups of {size} fetch {fetched} pages of the panels, and one row fetches {once}"
        assert fetched <= groups * once, said


def test_a_panel_serves_all_groups(work):
    """Panel after panel, and within each panel group after group."""
    assert pages(work, 25, 16 * PAGE // PANEL, 3 * PANEL, keep=18) == 3 * 16, "3 panels of 16 pages, a cache of 18"

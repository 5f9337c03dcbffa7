"""6.3 Rows share a panel: every number of rows and kind of tail, the same bits as alone, and reads that are counted."""

import numpy as np
import pytest

from exercises.stage6.panels import PAGE, PANEL, assert_same, in_order, nothing, packed, spread, whole


def grouped(work, x, weight):
    """[n, in], [out, in] -> [n, out]"""
    y = nothing(len(x), len(weight))
    work.grouped(x, packed(weight), y, len(x), weight.shape[1], len(weight))
    return y


def test_by_hand(work):
    """Weights [[1, 2], [3, 4], [5, 6]]: `y` is [n][out], a row for each row of x."""
    x, weight = np.array([[10, 1], [0, 1]], np.float32), np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    assert grouped(work, x, weight).tolist() == [[12, 34, 56], [2, 4, 6]]


def test_no_rows(work):
    """`n` may be 0."""
    assert grouped(work, whole(0, 5), whole(33, 5)).tolist() == []


def test_any_number_of_rows(work):
    """Rows and columns that don't exist are neither read nor written."""
    for n in range(1, 2 * work.group_size() + 2):
        for out, in_ in ((1, 1), (31, 3), (32, 2), (33, 7), (65, 64)):
            x, weight = whole(n, in_, seed=out), whole(out, in_, seed=n)
            assert_same(grouped(work, x, weight), x @ weight.T, f"{n} rows, {out} columns of {in_} inputs")


def test_the_order_of_sums(work):
    """Each sum begins with 0 and adds the inputs in order."""
    size = work.group_size()
    for n, out, in_ in ((1, 32, 3), (size, 33, 64), (size + 1, 5, 300)):
        x, weight = spread(n, in_, seed=out), spread(out, in_, seed=in_)
        said = f"other bits with {n} rows, {out} columns of {in_} inputs of very different magnitudes"
        assert_same(grouped(work, x, weight), in_order(x, weight), said)


def test_the_same_bits(work):
    """Each row has the bits that `grouped` gives for that row alone: the same order, and the same rounding."""
    random, size = np.random.default_rng(3), work.group_size()
    weight, x = random.normal(size=(67, 301)).astype(np.float32), random.normal(size=(3 * size, 301)).astype(np.float32)
    alone = np.concatenate([grouped(work, row[None], weight) for row in x])
    for n in range(2, len(x) + 1):
        assert_same(grouped(work, x[:n], weight), alone[:n], f"{n} rows, and each of them alone")


def pages(work, n, in_, out, keep):
    """The pages of the panels that are fetched by a cache of `keep` pages."""
    x, panels, y = whole(n, in_), packed(whole(out, in_)), nothing(n, out)
    fetched = work.grouped(x, panels, y, n, in_, out, pages_of="panels", keep=keep)
    assert work.allocated == 0, f"no memory except the stack; with {n} rows malloc gave {work.allocated:,} bytes"
    return fetched


@pytest.mark.parametrize("leftover", [
    pytest.param(0, id="a group shares one read: use an input's weights for all its rows before you go on"),
    pytest.param(-1, id="leftover rows share one read too"),
])  # fmt: skip
def test_a_group_shares_a_read(work, leftover):
    in_, out, size = 80 * PAGE // PANEL, 2 * PANEL + 1, work.group_size()  # 80 pages are more than the stack has
    once = len(pages(work, 1, in_, out, keep=2))
    for groups in (1, 2, 3):
        n = groups * size + leftover
        fetched = len(pages(work, n, in_, out, keep=2))
        said = f"{n} rows in groups of {size} fetch {fetched} pages of the panels, and one row fetches {once}"
        assert fetched <= groups * once, said


def test_a_panel_serves_all_groups(work):
    """A panel serves all groups before you begin the next panel."""
    fetched = pages(work, 3 * work.group_size() + 1, 16 * PAGE // PANEL, 3 * PANEL, keep=18)
    assert len(fetched) == 3 * 16, "3 panels of 16 pages: what a cache of 18 pages fetches"

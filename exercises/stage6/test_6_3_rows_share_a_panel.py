"""Rows by hand, every number of rows and size of tail, the same bits as alone, and reads that are counted."""

import os

import torch
from exercises.grading import expect, require

PANEL = 32
PAGE = os.sysconf("SC_PAGE_SIZE") // 4  # numbers
NAN = float("nan")


def group(work):
    """GROUP of linear.h, as it is compiled here."""
    return work.group_size()


def packed(weight):
    """[out, in] -> [panels, in, PANEL]"""
    out, in_ = weight.shape
    padded = torch.zeros(-(-out // PANEL) * PANEL, in_)
    padded[:out] = weight
    return padded.reshape(-1, PANEL, in_).transpose(1, 2).contiguous()


def whole(*shape, seed=0):
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def product(work, weight, x):
    """[out, in], [n, in] -> [n, out]"""
    y = torch.full((len(x), len(weight)), NAN)
    work.grouped(x, packed(weight), y, len(x), weight.shape[1], len(weight))
    return y


def check(work, case, weight, x, mistakes=None):
    """Integers, whose sums are exact in any order, before a trap and after one."""
    right = (x.double() @ weight.double().T).float()
    got = product(work, weight, x)
    with work.at_starts():
        again = product(work, weight, x)
    if right.numel() <= 64:
        expect(case, got.tolist(), right.tolist(), mistakes, tolerance=0)
    for result in (got, again):
        if not torch.equal(result, right):
            t, o = (int(place) for place in (result != right).nonzero()[0])
            expect(f"{case}: y[{t}][{o}]", result[t, o].item(), right[t, o].item(), tolerance=0)


def test_two_rows(work):
    weight, x = torch.tensor([[1.0, 2], [3, 4], [5, 6]]), torch.tensor([[10.0, 1], [0, 1]])
    check(work, "weights [[1, 2], [3, 4], [5, 6]], x = [[10, 1], [0, 1]]", weight, x,
          {"`y` is [n][out]: a row for each row of x": [[12.0, 2, 34], [4, 56, 6]]})  # fmt: skip
    check(work, "one weight of 3, x = [[2]]", torch.tensor([[3.0]]), torch.tensor([[2.0]]))
    check(work, "weights 0.5 and -0.25, x = [[0.5], [3]]", torch.tensor([[0.5], [-0.25]]), torch.tensor([[0.5], [3.0]]))


def test_no_rows(work):
    product(work, whole(33, 5), torch.empty(0, 5))


def test_any_number_of_rows(work):
    """Up to two groups and a remainder, with every kind of last panel."""
    for n in range(1, 2 * group(work) + 2):
        for out, in_ in ((1, 1), (31, 3), (32, 2), (33, 7), (65, 64)):
            check(work, f"{n} rows, {out} columns of {in_} inputs", whole(out, in_, seed=n), whole(n, in_, seed=out))


def test_large(work):
    for n, out, in_ in ((70_001, 2, 3), (3, 70_001, 2), (9, 3, 70_001), (300, 1000, 5)):
        check(work, f"{n} rows, {out} columns of {in_} inputs", whole(out, in_), whole(n, in_, seed=1))


def test_the_order_of_sums(work):
    """Numbers with few bits and very different magnitudes: each product is exact, so only the order shows."""
    for n, out, in_ in ((1, 32, 3), (group(work), 33, 64), (group(work) + 1, 5, 300)):
        sizes = torch.randint(-10, 11, (n + out, in_), generator=torch.Generator().manual_seed(n))
        weight, x = whole(out, in_, seed=1) * 2.0 ** sizes[:out], whole(n, in_, seed=2) * 2.0 ** sizes[out:]
        right = torch.zeros(n, out)
        for i in range(in_):
            right += x[:, i, None] * weight[:, i]
        other = (product(work, weight, x) != right).nonzero().tolist()
        require(not other, f"{n} rows, {out} columns of {in_} inputs of very different magnitudes: [row, column] whose bits differ",
                [], other[:8], "each row and column has one sum, which begins with 0 and adds one input after another")  # fmt: skip


def test_the_same_bits(work):
    """A row has the same bits as alone, whatever the number of rows and wherever it is."""
    random = torch.Generator().manual_seed(3)
    weight, x = (torch.randn(*shape, generator=random) for shape in ((67, 301), (3 * group(work) + 2, 301)))
    alone = torch.cat([product(work, weight, row[None]) for row in x])
    for n in range(2, len(x) + 1):
        first = len(x) - n if n % 2 else 0
        got = product(work, weight, x[first : first + n])
        other = (got != alone[first : first + n]).any(1).nonzero().flatten().tolist()
        require(not other, f"{n} rows, and each of them alone: the rows whose bits differ", [], other,
                "rows in a group, leftover rows and a row alone need the same order and the same rounding")  # fmt: skip


def test_a_group_shares_a_reading(work):
    """With a cache of two pages, a panel is fetched once for each group."""
    in_, out, size = 24 * PAGE // PANEL, 2 * PANEL + 1, group(work)
    weight = whole(out, in_)
    panels = packed(weight)
    counts = {}
    for n in (1, size, 3 * size, size - 1, 2 * size - 1):
        x, y = whole(n, in_, seed=n), torch.empty(n, out)
        with work.pages(panels=2) as fetched:
            work.grouped(x, panels, y, n, in_, out)
        counts[n] = len(fetched["panels"])
        readings = -(-n // size)
        require(counts[n] <= counts[1] * readings,
                f"{n} rows in groups of {size}: pages of the panels that are fetched, if two can be kept",
                f"{readings} times the {counts[1]} of one row", f"{counts[n]}",
                "leftover rows share one read too" if n % size else "use an input's weights for all rows of a group before you go on")  # fmt: skip
        require(work.allocated == 0, f"{n} rows", "no memory from malloc", f"{work.allocated} bytes")


def test_a_panel_serves_all_groups(work):
    """If a whole panel is kept, all panels are fetched once."""
    in_, out, n = 16 * PAGE // PANEL, 3 * PANEL, 3 * group(work) + 1
    panels, x, y = packed(whole(out, in_)), whole(n, in_, seed=1), torch.empty(n, out)
    with work.pages(panels=18) as fetched:
        work.grouped(x, panels, y, n, in_, out)
    pages = fetched["panels"]
    case = f"{n} rows, 3 panels, a cache with room for one: pages fetched more than once"
    again = sorted({page for page in pages if pages.count(page) > 1})
    require(not again, case, [], again, "use a panel for all groups before you begin the next panel")

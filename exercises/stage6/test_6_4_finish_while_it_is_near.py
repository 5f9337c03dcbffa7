"""Each finish by hand, tails of rows and columns, GELU's form, the same bits as alone, and counted visits."""

import math
import os

import torch
import torch.nn.functional as F
from exercises.grading import expect, require

PANEL = 32
PAGE = os.sysconf("SC_PAGE_SIZE") // 4  # numbers
NAN = float("nan")
STORE, ADD, GELU = range(3)
NAME = {STORE: "STORE", ADD: "ADD", GELU: "GELU"}


def packed(weight):
    """[out, in] -> [panels, in, PANEL]"""
    out, in_ = weight.shape
    padded = torch.zeros(-(-out // PANEL) * PANEL, in_)
    padded[:out] = weight
    return padded.reshape(-1, PANEL, in_).transpose(1, 2).contiguous()


def whole(*shape, seed=0):
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def finished(value, before, finish):
    """In float64."""
    if finish == GELU:
        return F.gelu(value, approximate="tanh")
    return before.double() + value if finish == ADD else value


def layer(work, x, weight, bias, before, finish):
    """[n, in], [out, in], [out], [n, out] -> [n, out]"""
    y = before.clone()
    work.fused(x, packed(weight), bias, y, len(x), weight.shape[1], len(weight), finish)
    return y


def near(got, right, finish):
    """GELU's tanh is inexact; everything else is exact here."""
    room = 2e-6 * right.abs().clamp(min=1) if finish == GELU else 0
    return (got.double() - right).abs() <= room


def check(work, case, x, weight, bias, finish, mistakes=None):
    """Integers, before a trap and after one."""
    before = whole(len(x), len(weight), seed=9) if finish == ADD else torch.full((len(x), len(weight)), NAN)
    value = x.double() @ weight.double().T + bias.double()
    right = finished(value, before, finish)
    got = layer(work, x, weight, bias, before, finish)
    with work.at_starts():
        again = layer(work, x, weight, bias, before, finish)
    case = f"{NAME[finish]}, {case}"
    if right.numel() <= 64:
        said = {said: finished(wrong, before, finish).tolist() for said, wrong in (mistakes or {}).items()}
        said["GELU or the residual addition is missing"] = value.tolist() if finish != STORE else NAN
        said["this is GELU with erf; GPT-2's uses tanh"] = F.gelu(value).tolist() if finish == GELU else NAN
        tolerance = 2e-6 if finish == GELU else 0
        expect(case, got.tolist(), right.tolist(), said, tolerance=tolerance)
    for result in (got, again):
        if not near(result, right, finish).all():
            t, o = (int(place) for place in (~near(result, right, finish)).nonzero()[0])
            expect(f"{case}: y[{t}][{o}]", result[t, o].item(), right[t, o].item(), tolerance=0)


def test_by_hand(work):
    weight = torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    x = torch.tensor([[10.0, 1], [0, 1]])
    bias = torch.tensor([1.0, 0, -40])
    mistakes = {
        "the bias is added before GELU or the residual addition": (x @ weight.T).double(),
        "each column has its own bias": (x @ weight.T).double() + 1,
    }
    case = "weights [[1, 2], [3, 4], [5, 6]], bias [1, 0, -40], x = [[10, 1], [0, 1]]"
    for finish in (STORE, ADD, GELU):
        check(work, case, x, weight, bias, finish, mistakes)


def test_gelu(work):
    """From far below 0 to far above, where the cube of a float32 is infinite."""
    for value in map(float, (0.5, -0.5, 1, -1, 2.25, -3, 0.1, -0.01, 5, -6, 30, -40, 1e4, -1e4, 1e20, -1e20)):
        right = F.gelu(torch.tensor(value).double(), approximate="tanh").item()
        got = layer(
            work, torch.tensor([[value]]), torch.tensor([[1.0]]), torch.zeros(1), torch.full((1, 1), NAN), GELU
        ).item()
        with_erf = value / 2 * (1 + math.erf(value / 2**0.5))
        said = {"this is GELU with erf; GPT-2's uses tanh": with_erf} if abs(with_erf - right) > 1e-5 else {}
        expect(f"GELU of {value}", got, right, said, tolerance=1e-6)


def test_no_rows(work):
    for finish in (STORE, ADD, GELU):
        layer(work, torch.empty(0, 5), whole(33, 5), whole(33), torch.empty(0, 33), finish)


def test_any_size(work):
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 17):
        for out, in_ in ((1, 1), (31, 3), (32, 2), (33, 5), (65, 16)):
            for finish in (STORE, ADD, GELU):
                x, weight = whole(n, in_, seed=out), whole(out, in_, seed=n) / (8 if finish == GELU else 1)
                check(work, f"{n} rows, {out} columns of {in_} inputs", x, weight, whole(out, seed=3), finish)


def test_the_same_bits(work):
    """A row has the same bits as alone."""
    random = torch.Generator().manual_seed(3)
    weight, x, bias, before = (
        torch.randn(*shape, generator=random) for shape in ((67, 101), (19, 101), (67,), (19, 67))
    )
    for finish in (STORE, ADD, GELU):
        alone = [layer(work, x[i : i + 1], weight, bias, before[i : i + 1], finish) for i in range(19)]
        for n in (2, 3, 5, 8, 11, 19):
            got = layer(work, x[:n], weight, bias, before[:n], finish)
            other = (got != torch.cat(alone[:n])).any(1).nonzero().flatten().tolist()
            require(
                not other, f"{NAME[finish]}, {n} rows, and each of them alone: the rows whose bits differ", [], other
            )


def test_what_is_stored_is_not_visited_again(work):
    """Each row of y is a page, and there are more rows than pages in the cache: one visit per row and panel."""
    n, in_, out = 64, 8, PAGE
    x, panels, bias = whole(n, in_, seed=1), packed(whole(out, in_) / 8), whole(out, seed=3)
    for finish in (STORE, ADD, GELU):
        y = whole(n, out, seed=4)
        with work.pages(y=16) as fetched:
            work.fused(x, panels, bias, y, n, in_, out, finish)
        visits, right = len(fetched["y"]), n * out // PANEL
        case = f"{NAME[finish]}, {n} rows of a page each, {out // PANEL} panels, 16 pages kept: pages of y that are fetched"
        require(visits <= right, case, right, visits,
                f"{(visits - right) * 4 * PAGE // 1024} KB of y come back: finish a group's sums before the next group is begun")  # fmt: skip
        require(work.allocated == 0, f"{NAME[finish]}, {n} rows", "no memory from malloc", f"{work.allocated} bytes",
                "finish a group's sums where they are: no intermediate tensor")  # fmt: skip
    require(work.reserved <= 64 << 10, "fused: static or global variables", "64 KB at most",
            f"{work.reserved:,} bytes", "finish a group's sums where they are: no intermediate tensor")  # fmt: skip


def test_a_group_shares_a_reading(work):
    """With a cache of two pages, a panel is fetched once for each group."""
    in_, out, size = 24 * PAGE // PANEL, 2 * PANEL + 1, work.group_size()
    panels, bias, counts = packed(whole(out, in_)), whole(out), {}
    for n in (1, size, 3 * size, 2 * size - 1):
        x, y, readings = whole(n, in_, seed=n), torch.empty(n, out), -(-n // size)
        with work.pages(panels=2) as fetched:
            work.fused(x, panels, bias, y, n, in_, out, STORE)
        counts[n] = len(fetched["panels"])
        require(counts[n] <= counts[1] * readings,
                f"{n} rows in groups of {size}: pages of the panels that are fetched, if two can be kept",
                f"{readings} times the {counts[1]} of one row", f"{counts[n]}",
                f"group_of takes up to {size} rows, which share one read of the panel: pass as many as there are")  # fmt: skip


def test_a_panel_serves_all_groups(work):
    """If a whole panel is kept, all panels are fetched once."""
    in_, out, n = 16 * PAGE // PANEL, 3 * PANEL, 25
    panels, x, y = packed(whole(out, in_)), whole(n, in_, seed=1), torch.empty(n, out)
    with work.pages(panels=18) as fetched:
        work.fused(x, panels, whole(out), y, n, in_, out, STORE)
    pages = fetched["panels"]
    again = sorted({page for page in pages if pages.count(page) > 1})
    require(not again, f"{n} rows, 3 panels, a cache with room for one: pages fetched more than once", [], again,
            "use a panel for all groups before you begin the next panel")  # fmt: skip


def test_large(work):
    for n, out, in_ in ((70_001, 33, 1), (2, 70_001, 2), (9, 3, 70_001), (300, 1000, 3)):
        for finish in (STORE, ADD, GELU):
            scale = 1 / 1024 if finish == GELU else 1
            case = f"{n} rows, {out} columns of {in_} inputs"
            check(work, case, whole(n, in_, seed=1), whole(out, in_) * scale, whole(out, seed=3), finish)

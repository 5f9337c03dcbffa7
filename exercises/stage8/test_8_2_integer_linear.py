"""8.2 A linear layer in integers: layers whose scales are powers of two, so that every correct way gives the same bits;
and exact sums, made by the instruction that is passed."""

import pytest
import torch

from exercises.stage8 import instructions

# --- The layer --------------------------------------------------------------------------------------------------------


def layer(x, weight, scales, bias):
    """Number by number, in float64, which is exact here."""
    rows = []
    for row in x:
        scale = max(map(abs, row)) / 127
        integers = [round(a / scale) if scale else 0 for a in row]
        sums = [sum(a * w for a, w in zip(integers, column, strict=True)) for column in weight]
        rows.append([s * scale * c + b for s, c, b in zip(sums, scales, bias or [0.0] * len(scales), strict=True)])
    return rows


def linear(work, x, weight, scales, bias):
    bias = None if bias is None else torch.tensor(bias)
    return work.linear(torch.tensor(x), torch.tensor(weight, dtype=torch.int8), torch.tensor(scales), bias)


SMALL = 2.0**-100


@pytest.mark.parametrize(("x", "weight", "scales", "bias"), [
    pytest.param([[127.0, 64.0]], [[1, 2], [3, -4]], [1.0, 1.0], None, id="a sum of integers for each channel"),
    pytest.param([[127.0, 0.75, -0.75, 2.25]], [[0, 1, 10, 100]], [1.0], None, id="activations are rounded to the nearest integer"),
    pytest.param([[-63.5, 2.0]], [[1, 5]], [1.0], None, id="the scale comes from the row's largest absolute value, which becomes 127"),
    pytest.param([[127.0, 3.0], [31.75, 2.5]], [[1, 5]], [1.0], None, id="each row has its own scale"),
    pytest.param([[63.5, 2.0]], [[1, 5], [7, 0]], [4.0, 0.25], None, id="multiply each sum by both scales, its row's and its channel's"),
    pytest.param([[63.5, 2.0]], [[1, 5], [7, 0]], [4.0, 0.25], [0.75, -100.0], id="the bias is added at the end, unchanged"),
    pytest.param([[0.0, 0.0], [63.5, 2.0]], [[1, 5]], [4.0], [0.75], id="a row of zeros gives the bias"),
    pytest.param([[127 * SMALL, SMALL]], [[1, 5]], [1 / SMALL], None, id="only a row of zeros has no scale, however small the others are"),
    pytest.param([[127.0] * 6], [[127] * 6], [1.0], None, id="the sums don't fit into 8 or 16 bits"),
    pytest.param([[127.0] * 70_000], [[*[127] * 35_000, *[-127] * 34_999, -125]], [1.0], None,
                 id="the sums on the way don't fit into a float32, which has 24 bits"),
])  # fmt: skip
def test_linear(work, x, weight, scales, bias):
    got = linear(work, x, weight, scales, bias)
    assert got.dtype == torch.float32, "the type"
    assert got.tolist() == layer(x, weight, scales, bias)


def test_a_row_depends_only_on_itself(work):
    """The same bits alone and with other rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 64, generator=generator) * torch.tensor([[1.0], [300.0], [0.01], [1.0], [5.0]])
    weight = torch.randint(-127, 128, (48, 64), generator=generator, dtype=torch.int8)
    scales, bias = torch.rand(48, generator=generator) + 0.1, torch.randn(48, generator=generator)
    together = work.linear(x, weight, scales, bias)
    for r in range(5):
        assert torch.equal(work.linear(x[r : r + 1], weight, scales, bias)[0], together[r]), f"row {r} of five"


# --- The instructions -------------------------------------------------------------------------------------------------


class Used:
    """An instruction that counts its lanes, and adds something to each of them."""

    def __init__(self, name, more=0):
        self.instruction, self.lanes, self.more = getattr(instructions, name), 0, more

    def __call__(self, *operands):
        self.lanes += len(operands[-1])
        return self.instruction(*operands) + self.more


BOTH = [("by_fours", "vpdpbusd", 4), ("by_pairs", "vpmaddubsw", 2)]
both = pytest.mark.parametrize(("function", "instruction", "at_once"), BOTH, ids=["by_fours", "by_pairs"])


@both
@pytest.mark.parametrize(("x", "weight"), [
    pytest.param([[1, 2, 3, 4]], [[5, 6, 7, 8], [1, 0, 0, 2]], id="what a shift adds has to be subtracted again"),
    pytest.param([[1, -2, 3, -4]], [[5, 6, 7, 8]], id="a negative activation counts, with its sign"),
    pytest.param([[1, 2, 3, 4], [9, 8, 7, 6]], [[-3, 2, 1, -4], [5, 6, 7, 8]], id="negative weights, and two rows"),
    pytest.param([[100, 100, 0, 0]], [[127, 127, 0, 0]], id="vpmaddubsw saturates: a shifted pair may be 255 x 127 + 255 x 127"),
    pytest.param([[127, 127, -127, 127] * 2], [[-127, 127, -127, -127] * 2], id="large bytes of either sign"),
    pytest.param([[127] * 8], [[127] * 8], id="sums of pairs don't fit into 16 bits"),
])  # fmt: skip
def test_exact_sums(work, x, weight, function, instruction, at_once):
    used = Used(instruction)
    got = getattr(work, function)(torch.tensor(x, dtype=torch.int8), torch.tensor(weight, dtype=torch.int8), used)
    assert got.dtype == torch.int32, "the type"
    assert got.tolist() == [[sum(a * b for a, b in zip(row, column, strict=True)) for column in weight] for row in x]


@both
def test_any_bytes(work, function, instruction, at_once):
    """Random bytes, among them the largest."""
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        n, out, fours = torch.randint(1, 3 + seed // 20, (3,), generator=generator).tolist()
        x, weight = (
            torch.randint(-160, 161, (rows, 4 * fours), generator=generator).clamp(-127, 127) for rows in (n, out)
        )
        got = getattr(work, function)(x.to(torch.int8), weight.to(torch.int8), Used(instruction))
        assert got.tolist() == (x @ weight.T).tolist(), f"x = {x.tolist()}, weight = {weight.tolist()}"


@both
def test_the_instruction_multiplies(work, function, instruction, at_once):
    x, weight = (torch.arange(12 * rows, dtype=torch.int8).view(rows, 12) - 20 for rows in (2, 3))
    used, more = Used(instruction), Used(instruction, more=1)
    sums, changed = (getattr(work, function)(x, weight, by) for by in (used, more))
    least = 2 * 3 * 12 // at_once
    said = "the instruction does all the multiplying, and the rest is a correction"
    lanes, unchanged = used.lanes, int((changed == sums).sum())
    assert lanes >= least, f"{said}: {least} lanes of {at_once} products are needed"
    assert unchanged == 0, f"{said}: some sums don't change when each lane gives one more"
    assert function == "by_fours" or lanes <= 2 * least, "at most two instructions per pair of products"

"""8.1 Quantize a matrix: by hand with scales that are powers of two, so that every correct way gives the same bits; and
normal numbers."""

import pytest
import torch


def case(rule, weight, integers, scales):
    return pytest.param(weight, len(weight[0]) // len(scales[0]), (integers, scales), id=rule)


@pytest.mark.parametrize(("weight", "group", "expected"), [
    case("a scale is the largest absolute value, divided by 127", [[63.5, -32.125, 16.125, 0.125]], [[127, -64, 32, 0]], [[0.5]]),
    case("round to the nearest integer", [[127.0, 0.75, 0.25, -0.75, -0.25, 64.375]], [[127, 1, 0, -1, 0, 64]], [[1.0]]),
    case("the largest absolute value may belong to a negative number", [[0.625, -3.96875, 3.9375]], [[20, -127, 126]], [[0.03125]]),
    case("each channel has its own scale, and is a row", [[31.75, 0.5], [-3.25, 254.0]], [[127, 2], [-2, 127]], [[0.25], [2.0]]),
    case("the inputs of a group are neighbors", [[127.0, 3.0, 127.0, 5.0]], [[127, 3, 127, 5]], [[1.0, 1.0]]),
    case("each group has its own scale, not one for the row", [[127.0, 3.25, -0.5, 31.75]], [[127, 3, -2, 127]], [[1.0, 0.25]]),
    case("an outlier is not clipped: it becomes 127 and costs the others their digits", [[8128.0, *[20.0, 31.75, -40.0] * 9]],
         [[127, *[0, 0, -1] * 9]], [[64.0]]),
    case("a group of zeros has scale 1.0, and its integers are 0", [[0.0, 0.0, -31.75, 0.25]], [[0, 0, -127, 1]], [[1.0, 0.25]]),
    case("only a group of zeros has no scale, however small the others are", [[127 * 2.0**-100, -(2.0**-100)]], [[127, -1]], [[2.0**-100]]),
])  # fmt: skip
def test_quantize(work, weight, group, expected):
    result = work.quantize(torch.tensor(weight), group)
    assert isinstance(result, tuple), "a tuple: the integers, and the scales"
    integers, scales = result
    assert (integers.dtype, scales.dtype) == (torch.int8, torch.float32), "the types"
    assert (integers.tolist(), scales.tolist()) == expected


@pytest.mark.parametrize(("scales", "expected"), [
    pytest.param([[0.5], [2.0]], [[63.5, -32.0, 16.0, 0.0], [-254.0, 100.0, 4.0, 200.0]],
                 id="a float is its integer times the channel's scale"),
    pytest.param([[0.5, 0.25], [2.0, 4.0]], [[63.5, -32.0, 8.0, 0.0], [-254.0, 100.0, 8.0, 400.0]],
                 id="the first inputs have the first scale, and the next ones the second"),
    pytest.param([[0.5, 0.25, 8.0, 1.0], [2.0, 4.0, 0.125, 16.0]], [[63.5, -16.0, 256.0, 0.0], [-254.0, 200.0, 0.25, 1600.0]],
                 id="groups of one"),
])  # fmt: skip
def test_dequantize(work, scales, expected):
    integers = torch.tensor([[127, -64, 32, 0], [-127, 50, 2, 100]], dtype=torch.int8)
    got = work.dequantize(integers, torch.tensor(scales))
    assert got.dtype == torch.float32, "the type"
    assert got.tolist() == expected


@pytest.mark.parametrize("group", [240, 24, 1])
def test_a_layer(work, group):
    """Normal numbers and some outliers: none is off by more than half a scale."""
    weight = torch.randn(60, 240, generator=torch.Generator().manual_seed(0)) * 0.02
    weight[::7, 5] *= 300
    before = weight.clone()
    integers, scales = work.quantize(weight, group)
    assert torch.equal(weight, before), "quantize must not change its argument"
    largest = weight.unflatten(-1, (-1, group)).abs().amax(-1)
    torch.testing.assert_close(
        scales, largest / 127, rtol=1e-6, atol=0, msg="the largest of each group, divided by 127"
    )
    floats = work.dequantize(integers, scales)
    most = ((floats - weight).abs() / scales.repeat_interleave(group, -1)).max().item()
    assert most < 0.501, f"a weight is off by {most:.3f} of its scale"

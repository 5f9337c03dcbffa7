"""Matrices whose scales are powers of two, so that every correct way gives the same bits; outliers, zeros, groups."""

import torch
from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require

from exercises.tiny import one_thread

# With scales of 1/128, 2 and 1/4 no number is halfway between two integers.
MATRIX = torch.tensor([
    [127 / 128, -64.25 / 128, 32.375 / 128, 0.25 / 128],
    [-254.0, 100.75, 3.25, -0.5],
    [7.84375, 0.65625, 31.75, -31.75],
])  # fmt: skip
NO_GROUPS = "the integers of a group share a scale, and only they have it"


def rounded(weight, scales, how=torch.round):
    """(integers, scales), the scales in a shape that broadcasts over the matrix."""
    return how(weight / scales).clamp(-128, 127).to(torch.int8), scales


def slowly(weight, group):
    """Number by number. -> lists"""
    integers, scales = [], []
    for row in weight.tolist():
        groups = [row[i : i + group] for i in range(0, len(row), group)]
        scales.append([max(map(abs, some)) / 127 or 1.0 for some in groups])
        integers.append([round(w / s) for some, s in zip(groups, scales[-1], strict=True) for w in some])
    return integers, scales


def right(weight, group):
    integers, scales = slowly(weight, group)
    return torch.tensor(integers, dtype=torch.int8), torch.tensor(scales)


def mistakes(weight, group):
    """For matrices without groups of zeros: message -> the answers that this mistake gives."""
    out = len(weight)
    parts = weight.unflatten(-1, (-1, group))  # [out, in / group, group]
    largest = parts.abs().amax(-1)  # [out, in / group]
    spread = lambda scales: scales.repeat_interleave(group, -1)  # noqa: E731
    of = lambda scales, how=torch.round: (rounded(weight, spread(scales), how)[0], scales)  # noqa: E731
    shared = weight.abs().max() / 127
    whole, up_to_128 = weight.abs().amax(1) / 127, torch.round(weight / spread(largest / 128))
    inputs = weight.abs().amax(0) / 127  # [in]
    striped = weight.unflatten(-1, (group, -1)).abs().amax(1) / 127  # [out, in / group]
    span = (parts.amax(-1) - parts.amin(-1)) / 255
    signed = parts.amax(-1) / 127
    found = {
        "each channel has its own scale: this is one scale for the whole matrix":
            OneOf([of(shared.expand(largest.shape)), (rounded(weight, shared)[0], shared), of(shared.expand(out, 1).expand(largest.shape))]),
        "each output channel is a row; this is one scale per input": OneOf([
            rounded(weight, inputs), rounded(weight, inputs[None]), (rounded(weight, inputs)[0], inputs[:out, None])]),
        "one scale for each group of a row, not one for the row": OneOf([
            (rounded(weight, whole[:, None])[0], whole[:, None]), of(whole[:, None].expand(largest.shape))]),
        "the inputs of a group are neighbors": (rounded(weight, striped.repeat(1, group))[0], striped),
        "round to the nearest integer: this truncates": of(largest / 127, torch.trunc),
        "round to the nearest integer: this rounds down": of(largest / 127, torch.floor),
        "round to the nearest integer: this rounds up": of(largest / 127, torch.ceil),
        "the largest number becomes 127, not 128, which does not fit into int8": OneOf([
            of(largest / 128), (up_to_128.to(torch.int32).to(torch.int8), largest / 128)]),
        "symmetric: the scale comes from the largest absolute value, not from the span between lowest and highest": OneOf(
            [of(span), (torch.round(weight / spread(span)).to(torch.int32).to(torch.int8), span), (rounded(weight - spread(parts.amin(-1)), spread(span))[0], span)]),
        "the largest absolute value: it may belong to a negative number": OneOf([
            of(signed), (torch.round(weight / spread(signed)).to(torch.int32).to(torch.int8), signed)]),
        "a scale is the value of the integer 1, not the integer that stands for 1.0": (of(largest / 127)[0], 127 / largest),
        "nothing needs clipping: the integers go up to 127": of(2 * largest / 127),
        "the integers are right, but the scales are the largest numbers themselves: divide them by 127": (of(largest / 127)[0], largest),
    }  # fmt: skip
    expected = plain(right(weight, group))
    told = {said: answer for said, answer in found.items() if plain(answer) != expected}
    return {said: OneOf(a for a in answer if plain(a) != expected) if isinstance(answer, OneOf) else answer
            for said, answer in told.items()}  # fmt: skip


def plain(answer):
    return [part.tolist() if isinstance(part, torch.Tensor) else plain(part) for part in answer]


def check(work, case, weight, group, likely=""):
    said = mistakes(weight, group) if weight.unflatten(-1, (-1, group)).abs().amax(-1).min() > 0 else {}
    expect(case, work.quantize(weight, group), right(weight, group), said, tolerance=1e-6, likely=likely)


def test_by_hand(work):
    check(work, f"quantize, group=4, {MATRIX.tolist()}", MATRIX, 4)


def test_negative_is_largest(work):
    weight = torch.tensor([[0.3125, -1.984375, 1.96875], [-0.25, -31.75, -8.125]])
    check(work, f"quantize, group=3, {weight.tolist()}", weight, 3)


def test_one_outlier(work):
    """In another channel it costs nothing; and it is not clipped."""
    weight = torch.tensor(
        [[0.25 * (i % 97) - 0.0625 for i in range(64)], [31.75 - 0.5 * i + 0.0625 * (i > 0) for i in range(64)]]
    )
    weight[0, 7], weight[1, 0] = 8128.0, 31.75  # scales of 64 and 1/4
    case = "quantize, group=64, two channels; the first has an outlier, 8128"
    integers, scales = work.quantize(weight, 64)
    clipped = "nothing is clipped: the outlier itself becomes 127, and sets the scale"
    expect(
        f"{case}: integer and scale of the outlier",
        [int(integers[0, 7]), float(scales[0, 0])],
        [127, 64.0],
        likely=clipped,
    )
    expect(case, (integers, scales), right(weight, 64), mistakes(weight, 64), tolerance=1e-6)


def test_groups(work):
    weight = torch.tensor([
        [127.0, 3.25, -0.5, 31.75, 1.984375, 0.25],
        [-8.125, -254.0, 0.125, 3.96875, 63.5, 0.75],
    ])  # fmt: skip
    for group in (2, 3, 6, 1):
        if group != 3:
            check(work, f"quantize, group={group}, {weight.tolist()}", weight, group)
    wide = torch.tensor([[63.5, -0.3125, 4.125, 0.25, -15.875, 3.03125, 508.0, 3.0, -5.0]])
    check(work, f"quantize, group=3, {wide.tolist()}", wide, 3, NO_GROUPS)


def test_zeros(work):
    zero = "a group of zeros has nothing to divide by: its scale is 1.0, and its integers are 0"
    weight = torch.tensor([[0.0, 0.0, 0.0, 0.0], [31.75, -0.25, 0.5, 0.0]])
    check(work, f"quantize, group=4, {weight.tolist()}", weight, 4, zero)
    weight = torch.tensor([[0.0, 0.0, -31.75, 0.25], [254.0, 2.5, -0.0, 0.0]])
    check(work, f"quantize, group=2, {weight.tolist()}", weight, 2, zero)
    check(work, "quantize, group=2, a matrix of zeros", torch.zeros(3, 4), 2, zero)


def test_tiny_weights(work):
    """2 to the power of -100: only a group of zeros has no scale."""
    tiny, group = 2.0**-100, 4
    integers, scales = work.quantize(MATRIX * tiny, group)
    likely = "however small the numbers are, the scale is the largest of them divided by 127: only zeros are special"
    case = (
        "quantize, group=4, weights of about 2 to the power of -100: integers, and scales times 2 to the power of 100"
    )
    expect(case, (integers, scales / tiny), right(MATRIX, group), likely=likely)


def test_dequantize(work):
    integers = torch.tensor([[127, -64, 32, 0], [-127, 50, 2, 100]], dtype=torch.int8)
    for scales in ([[0.5], [2.0]], [[0.5, 0.25], [2.0, 4.0]], [[0.5, 0.25, 8.0, 1.0], [2.0, 4.0, 0.125, 16.0]]):
        scales = torch.tensor(scales)
        group = 4 // scales.shape[1]
        spread = scales.repeat_interleave(group, 1)
        case = f"dequantize({integers.tolist()}, {scales.tolist()})"
        said = {"the integer 1 stands for one scale: multiply": integers / spread,
                "the first inputs have the first scale, and the next ones the second":
                    integers * scales.repeat(1, group),
                "each group has its own scale, not that of the row's first group": integers * scales[:, :1],
                "the product does not fit into 8 bits: convert the integers to floats first":
                    (integers * spread.to(torch.int8)).float()}  # fmt: skip
        expected = integers * spread
        said = {what: answer for what, answer in said.items() if not torch.equal(answer, expected)}
        expect(case, work.dequantize(integers, scales), expected, said, tolerance=1e-6)


def test_any_matrix(work):
    """Small matrices, with groups of power-of-two sizes and groups of zeros."""

    def check(choose):
        out, num, group = choose.between(1, 3), choose.between(1, 3), choose.between(1, 4)

        def part():
            scale = 2.0 ** (choose.upto(12) - 6)
            numbers = [0.0] * group
            if choose.upto(4):
                numbers = [choose.between(-1015, 1015) for _ in numbers]
                numbers = [(n + (n % 8 == 4)) * scale / 8 for n in numbers]
                numbers[choose.upto(group - 1)] = choose.one_of([127, -127]) * scale
            return numbers

        weight = [[w for _ in range(num) for w in part()] for _ in range(out)]
        integers, scales = slowly(torch.tensor(weight), group)
        example = Example(work, __file__, "import torch")
        example.do(f"integers, scales = work.quantize(torch.tensor({weight}), {group})")
        example.look("(integers.dtype, scales.dtype)", (torch.int8, torch.float32))
        example.look("[integers.tolist(), scales.tolist()]", [integers, scales], tolerance=1e-6)
        floats = [[i * scales[c][at // group] for at, i in enumerate(row)] for c, row in enumerate(integers)]
        example.do(f"integers = torch.tensor({integers}, dtype=torch.int8)")
        example.look(f"work.dequantize(integers, torch.tensor({scales})).tolist()", floats, tolerance=1e-6)

    with one_thread():
        at_random(check, 150)


def test_a_layer(work):
    """Numbers like those of a trained model, with outliers: no float comes back more than half a scale off."""
    for out, in_, groups in ((300, 1200, (1200, 300, 24)), (2, 70_000, (70_000, 7))):
        weight = torch.randn(out, in_, generator=torch.Generator().manual_seed(0)) * 0.02
        weight[::7, 5] *= 300
        for group in groups:
            check_off(work, f"{out:,} x {in_:,} normal numbers and some outliers, group={group:,}", weight, group)


def check_off(work, case, weight, group):
    shape, num = list(weight.shape), weight.shape[1] // group
    integers, scales = work.quantize(weight, group)
    kinds = [(list(part.shape), str(part.dtype)) for part in (integers, scales)]
    wanted = [(shape, "torch.int8"), ([shape[0], num], "torch.float32")]
    expect(f"quantize, {case}: shapes and types", kinds, wanted)
    parts = weight.double().unflatten(-1, (-1, group))
    largest = integers.int().unflatten(-1, (-1, group)).abs().amax(-1)
    ends = [int(largest.min()), int(largest.max())]
    expect(f"quantize, {case}: the largest integer of each group, at least and at most", ends, [127, 127])
    off = float((scales.double() * 127 / parts.abs().amax(-1) - 1).abs().max())
    wanted = "the largest number of each group, divided by 127"
    require(off < 1e-5, f"quantize, {case}: scales", wanted, f"off by {off:.1%}")
    again = integers.double().unflatten(-1, (-1, group)) * scales.double()[..., None]
    off = float(((again - parts).abs() / scales.double()[..., None]).max())
    wanted = "half a scale at most"
    require(off < 0.501, f"quantize, {case}: how far an integer is off", wanted, f"{off:.3f} scales", "to the nearest")
    floats = work.dequantize(integers, scales)
    expect(f"dequantize, {case}: shape", list(floats.shape), shape)
    off = float((floats.double() - again.flatten(-2)).abs().max())
    require(off < 1e-5, f"dequantize, {case}", "integer * scale everywhere", f"off by {off:.2g}", NO_GROUPS)

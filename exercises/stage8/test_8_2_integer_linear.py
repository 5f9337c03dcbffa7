"""Layers whose scales are powers of two, so that every correct way gives the same bits; and how the instructions were
used, with operands that saturate."""

import torch
from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require

from exercises.stage8 import instructions
from exercises.tiny import one_thread

# With scales of 1/4 and 2 no number is halfway between two integers.
X = torch.tensor([[31.75, -4.0625, 0.1875, -25.0, 30.0, 12.0], [3.25, -254.0, -0.75, 100.75, 80.75, -20.0]])
WEIGHT = torch.tensor(
    [[127, -127, 3, -100, 90, 64], [-5, 127, 127, -90, -127, 7], [1, -1, 100, 2, -9, 4]], dtype=torch.int8
)
SCALES = torch.tensor([0.5, 0.03125, 4.0])
BIAS = torch.tensor([0.75, -100.0, 8.5])
INSTRUCTION = "let the instruction do the multiplying: the rest is a correction"


# --- The layer --------------------------------------------------------------------------------------------------------


def integers_of(x, largest=127, how=torch.round):
    """(integers, scales [n, 1]) of float64"""
    scale = x.double().abs().amax(-1, keepdim=True) / largest
    return how(x.double() / torch.where(scale > 0, scale, 1.0)), scale


def sums_of(a, b):
    return a.double() @ b.double().t()


def layer(x, weight, scales, bias):
    integers, scale = integers_of(x)
    y = sums_of(integers, weight) * scale * scales.double()
    return (y if bias is None else y + bias.double()).float()


def wrapped(sums, dtype):
    return sums.long().to(dtype).double()


def layer_mistakes(x, weight, scales, bias):
    """Message -> the result of this mistake, where it differs."""
    integers, scale = integers_of(x)
    shared = x.double().abs().max() / 127
    signed = x.double().amax(-1, keepdim=True).clamp(min=1e-9) / 127
    both, add = scale * scales, 0 if bias is None else bias.double()
    sums = sums_of(integers, weight)
    of = lambda integers, scale: sums_of(integers, weight) * scale * scales + add  # noqa: E731
    narrow = (integers[:, None] * weight.double()).long().to(torch.int8).sum(-1).double()
    found = {
        "each row has its own scale: other rows in the step must not change it": of((x.double() / shared).round(), shared),
        "the scale comes from the row's largest absolute value": OneOf([
            of((x / signed).round(), signed), of((x / signed).round().clamp(-127, 127), signed)]),
        "the largest of a row becomes 127": of(*integers_of(x, 128)),
        "round to the nearest integer: this truncates": of(*integers_of(x, how=torch.trunc)),
        "round to the nearest integer: this rounds down": of(*integers_of(x, how=torch.floor)),
        "activations are rounded too: the sum is a sum of integers": of(*integers_of(x, how=lambda x: x)),
        "multiply each sum by both scales, its row's and its channel's": OneOf(
            [sums + add, sums * scale + add, sums * scales + add]),
        "the bias is not quantized: add it at the end, unchanged": (sums + add) * both,
        "the bias is missing": sums * both,
        "the sums don't fit into so few bits": OneOf([
            wrapped(sums, torch.int8) * both + add, wrapped(sums, torch.int16) * both + add, narrow * both + add]),
    }  # fmt: skip
    right = layer(x, weight, scales, bias)
    told = {}
    for said, answers in found.items():
        answers = [answer.float() for answer in (answers if isinstance(answers, OneOf) else [answers])]
        told[said] = OneOf(answer for answer in answers if not torch.allclose(answer, right, rtol=1e-4))
    return told


def check_layer(work, case, x, weight, scales, bias, likely=""):
    right = layer(x, weight, scales, bias)
    expect(case, work.linear(x, weight, scales, bias), right, layer_mistakes(x, weight, scales, bias), likely=likely)


def test_linear(work):
    case = f"linear, x = {X.tolist()}, weight = {WEIGHT.tolist()}, scales = {SCALES.tolist()}"
    check_layer(work, f"{case}, bias = {BIAS.tolist()}", X, WEIGHT, SCALES, BIAS)
    check_layer(work, f"{case}, no bias", X, WEIGHT, SCALES, None)


def test_a_row_of_zeros(work):
    x = torch.cat([torch.zeros(1, 6), X])
    likely = "a row of zeros has no largest number to divide by: its sums are 0, and only the bias is left"
    check_layer(work, f"linear, x = {x.tolist()}, with a bias", x, WEIGHT, SCALES, BIAS, likely)


def test_a_tiny_row(work):
    """Activations of 2 to the power of -100, and weights whose scales bring the results back to normal."""
    likely = "however small a row is, its largest number becomes 127: only a row of zeros has no scale"
    tiny, right = 2.0**-100, layer(X, WEIGHT, SCALES, BIAS)
    got = work.linear(X * tiny, WEIGHT, SCALES / tiny, BIAS)
    expect("linear, x of about 2 to the power of -100, and scales of 2 to the power of 100", got, right, likely=likely)


def test_a_row_is_alone(work):
    """The same bits whatever else is in the batch."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 64, generator=generator) * torch.tensor([[1.0], [300.0], [0.01], [1.0], [5.0]])
    weight = torch.randint(-127, 128, (48, 64), generator=generator, dtype=torch.int8)
    scales, bias = torch.rand(48, generator=generator) + 0.1, torch.randn(48, generator=generator)
    together = work.linear(x, weight, scales, bias)
    for r in range(5):
        alone = work.linear(x[r : r + 1], weight, scales, bias)
        same = torch.equal(alone[0], together[r])
        likely = "each row has its own scale: other rows in the step must not change it"
        require(same, f"linear, row {r} of five, alone and with the others", "the same bits", "other ones", likely)


def test_large_sums(work):
    """Inputs that nearly cancel: float32 has 24 bits, and the sums on the way need 30."""
    for in_ in (4000, 70_000):
        x, weight = torch.full((2, in_), 127.0), torch.full((1, in_), 127, dtype=torch.int8)
        weight[0, in_ // 2 :] = -127
        weight[0, 1], weight[0, in_ - 2], x[0, in_ // 3], x[1, 7] = 126, -126, 126.0, -127.0
        case = (
            f"linear, {in_:,} inputs; half of the products are 127 * 127, the others -127 * 127, but for a few; no bias"
        )
        right = layer(x, weight, torch.ones(1), None)
        got = work.linear(x, weight, torch.ones(1), None)
        expect(f"{case}: shape and type", (list(got.shape), str(got.dtype)), ([2, 1], "torch.float32"))
        likely = "the sum is not exact: a float32 can't hold all its digits"
        expect(case, got.tolist(), right.tolist(), likely=likely if float((got - right).abs().max()) < 1e5 else "")


# --- The instructions -------------------------------------------------------------------------------------------------


class Used:
    """An instruction that counts the lanes it was used for."""

    def __init__(self, instruction):
        self.instruction, self.lanes = instruction, 0

    def __call__(self, *operands):
        self.lanes += len(operands[-1])
        return self.instruction(*operands)


def off(instruction):
    """The same instruction with something added to each lane: sums made of its results are then off too."""
    generator = torch.Generator().manual_seed(0)

    def call(*operands):
        result = instruction(*operands)
        return result + torch.randint(1, 100, result.shape, generator=generator, dtype=result.dtype)

    return call


def saturated(unsigned, signed):
    """Sums of vpmaddubsw, [n, in], [out, in] -> [n, out]"""
    products = unsigned.long()[:, None] * signed.long()
    return products.unflatten(-1, (-1, 2)).sum(-1).clamp(-32768, 32767).sum(-1)


def mistakes(x, weight):
    """Message -> the sums of this mistake, where they differ."""
    a, b = x.long(), weight.long()
    sums = a @ b.t()
    away, other = 128 * b.sum(-1), 128 * a.sum(-1)[:, None]
    pairs = [saturated(a + 128, b) - away, saturated(b + 128, a).t() - other]
    raw = [(a + 128) @ b.t(), a @ (b + 128).t()]
    clipped = [saturated(a + 128, b), saturated(b + 128, a).t()]
    if all(torch.equal(one, two) for one, two in zip(raw, clipped, strict=True)):
        clipped = []
    found = {
        "vpmaddubsw saturates: 255 * 127 and its neighbor don't fit into 16 bits, and there is no error": pairs,
        "vpmaddubsw saturates, and a shift has to be subtracted again": clipped,
        "each product was shifted by 128 times a weight: subtract that again": raw,
        "subtract 128 times the sum of the other operand, the one that was not shifted": [
            raw[0] - other, raw[1] - away, *(one - 128 * a.shape[1] for one in raw)],
        "an unsigned byte is never below 0: with the same bits, -1 is 255": [
            (a % 256) @ b.t(), a @ (b % 256).t(), (a % 256) @ b.t() - away, a @ (b % 256).t() - other],
        "negative activations count too": [a.clamp(min=0) @ b.t(), a.clamp(min=0) @ b.t() - away],
        "a negative activation has lost its sign": [a.abs() @ b.t(), a @ b.abs().t(), a.abs() @ b.abs().t()],
        "the pairs have 16 bits: widen them before they are added": [sums.to(torch.int16).long()],
    }  # fmt: skip
    return {
        said: OneOf(answer.int() for answer in answers if not torch.equal(answer, sums))
        for said, answers in found.items()
    }


KINDS = (("by_fours", instructions.vpdpbusd, 4), ("by_pairs", instructions.vpmaddubsw, 2))


def check_sums(work, case, x, weight, names=("by_fours", "by_pairs")):
    x, weight = torch.tensor(x, dtype=torch.int8), torch.tensor(weight, dtype=torch.int8)
    for name, instruction, at_once in KINDS:
        if name in names:
            check_sum(work, f"{name}, {case}", name, Used(instruction), at_once, x, weight)


def check_sum(work, case, name, used, at_once, x, weight):
    got = getattr(work, name)(x, weight, used)
    expect(case, got, (x.long() @ weight.long().t()).int(), mistakes(x, weight))
    least = len(x) * weight.numel() // at_once
    lanes = f"{case}: lanes of the instruction"
    require(used.lanes >= least, lanes, f"{least:,}, each of {at_once} products", used.lanes, INSTRUCTION)
    if used.lanes < 1000:
        changed = getattr(work, name)(x, weight, off(used.instruction)) != got
        few = f"{case}: sums that change when each instruction returns a little more"
        require(2 * int(changed.sum()) >= changed.numel(), few, changed.numel(), int(changed.sum()), INSTRUCTION)
    said = "two instructions per pair are enough"
    require(name == "by_fours" or used.lanes <= 2 * least, lanes, f"at most {2 * least:,}", used.lanes, said)


def test_fours_by_hand(work):
    weight = [[5, 6, 7, 8], [-3, 2, 1, -4], [1, 0, 0, 2]]
    for x in ([[1, 2, 3, 4]], [[1, -2, 3, -4], [9, 8, 7, 6]]):
        check_sums(work, f"x = {x}, weight = {weight}", x, weight, ["by_fours"])


def test_fours_are_large(work):
    x, weight = [[127, 127, -127, 127] * 2, [-127] * 8], [[127] * 8, [-127, 127, 127, 127] * 2]
    check_sums(work, f"x = {x}, weight = {weight}", x, weight, ["by_fours"])


def test_pairs_by_hand(work):
    weight = [[5, 6, 7, 8], [-3, 2, 1, -4], [1, 0, 0, 2]]
    for x in ([[1, 2, 3, 4]], [[1, -2, 3, -4], [9, 8, 7, 6]]):
        check_sums(work, f"x = {x}, weight = {weight}", x, weight, ["by_pairs"])


def test_pairs_that_saturate(work):
    for x, weight in (
        ([[100, 100, 0, 0]], [[127, 127, 0, 0]]),
        ([[127, 127, -127, 127], [-127] * 4], [[127] * 4, [-127, 127, 127, 127]]),
        ([[120, 1, -128 + 1, 2]], [[-127, -127, 127, 127], [127, 127, -127, -127]]),
    ):
        check_sums(work, f"x = {x}, weight = {weight}", x, weight, ["by_pairs"])


def test_any_bytes(work):
    """Small matrices that contain the largest bytes."""

    def check(choose):
        n, out, fours = choose.between(1, 3), choose.between(1, 3), choose.between(1, 3)
        byte = lambda: choose.one_of([0, 1, 127, -127, -1, 64, -64, choose.between(-127, 127)])  # noqa: E731
        x, weight = ([[byte() for _ in range(4 * fours)] for _ in range(rows)] for rows in (n, out))
        sums = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in weight] for row in x]
        example = Example(work, __file__, "import torch", "from exercises.stage8 import instructions")
        example.do(f"x = torch.tensor({x}, dtype=torch.int8)")
        example.do(f"weight = torch.tensor({weight}, dtype=torch.int8)")
        example.look("work.by_fours(x, weight, instructions.vpdpbusd).tolist()", sums)
        example.look("work.by_pairs(x, weight, instructions.vpmaddubsw).tolist()", sums)

    with one_thread():
        at_random(check, 110)


def test_any_layer(work):
    """Small layers; rows of zeros, and rows whose scales are powers of two."""

    def check(choose):
        in_, out, rows, scales, weight, bias = choose.between(1, 4), choose.between(1, 3), [], [], [], []
        for _ in range(choose.between(1, 3)):
            row, scale = [0.0] * in_, 2.0 ** (choose.upto(8) - 4)
            if choose.upto(4):
                eighths = [choose.between(-1015, 1015) for _ in row]
                row = [(n + (n % 8 == 4)) * scale / 8 for n in eighths]
                row[choose.upto(in_ - 1)] = choose.one_of([127, -127]) * scale
            rows.append(row)
        for _ in range(out):
            scales.append(2.0 ** (choose.upto(8) - 4))
            weight.append([choose.between(-127, 127) for _ in range(in_)])
            bias.append(choose.between(-40, 40) / 4)
        tensors = torch.tensor(rows), torch.tensor(weight, dtype=torch.int8), torch.tensor(scales), torch.tensor(bias)
        example = Example(work, __file__, "import torch")
        example.do(f"weight = torch.tensor({weight}, dtype=torch.int8)")
        example.do(f"x, scales, bias = torch.tensor({rows}), torch.tensor({scales}), torch.tensor({bias})")
        example.look("work.linear(x, weight, scales, bias).tolist()", layer(*tensors).tolist())
        example.look("work.linear(x, weight, scales, None).tolist()", layer(*tensors[:3], None).tolist())

    with one_thread():
        at_random(check, 80)


def test_many_bytes(work):
    """Sums that need more than 24 bits, and tens of thousands of channels or rows."""
    generator = torch.Generator().manual_seed(1)
    bytes_of = lambda *shape: torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8).tolist()  # noqa: E731
    check_sums(work, "2,048 inputs, all 127", [[127] * 2048, [-127] * 2047 + [126]], [[127] * 2048])
    check_sums(work, "3 rows, 300 channels of 64 inputs", bytes_of(3, 64), bytes_of(300, 64))
    check_sums(work, "a row, 70,000 channels of 4 inputs", bytes_of(1, 4), bytes_of(70_000, 4))

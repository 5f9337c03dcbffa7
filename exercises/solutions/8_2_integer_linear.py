"""A solution of exercise 8.2."""

from collections.abc import Callable

import torch
from torch import Tensor

Instruction = Callable[..., Tensor]


def linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x W + b by sums of integers. float32 [n, in], int8 [out, in], float32 [out], float32 [out] -> float32 [n, out]"""
    scale = x.abs().amax(dim=-1, keepdim=True) / 127  # [n, 1]
    integers = (x / torch.where(scale > 0, scale, 1.0)).round()
    sums = (integers.double() @ weight.double().t()).float()
    y = sums * (scale * scales)
    return y if bias is None else y + bias


def by_fours(x: Tensor, weight: Tensor, vpdpbusd: Instruction) -> Tensor:
    """Exact sums of products, four at once. int8 [n, in], int8 [out, in] -> int32 [n, out]"""
    n, out, in_ = len(x), *weight.shape
    shifted = (x.int() + 128).to(torch.uint8)
    sums = torch.zeros(n * out, dtype=torch.int32)
    for i in range(0, in_, 4):
        rows = shifted[:, None, i : i + 4].expand(n, out, 4).reshape(-1, 4)
        columns = weight[None, :, i : i + 4].expand(n, out, 4).reshape(-1, 4)
        sums = vpdpbusd(sums, rows, columns)
    return sums.view(n, out) - 128 * weight.sum(dim=-1, dtype=torch.int32)


def by_pairs(x: Tensor, weight: Tensor, vpmaddubsw: Instruction) -> Tensor:
    """Exact sums of products, two at once. int8 [n, in], int8 [out, in] -> int32 [n, out]"""
    n, out, in_ = len(x), *weight.shape
    sizes = x.abs().to(torch.uint8)[:, None].expand(n, out, in_)
    signed = weight[None] * x.sign()[:, None]  # [n, out, in]
    pairs = vpmaddubsw(sizes.reshape(-1, 2), signed.reshape(-1, 2))
    return pairs.view(n, out, -1).sum(dim=-1, dtype=torch.int32)


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

SCALE = "scale = x.abs().amax(dim=-1, keepdim=True) / 127  # [n, 1]"
SUMS = "sums = (integers.double() @ weight.double().t()).float()"
ENDS = "    y = sums * (scale * scales)\n    return y if bias is None else y + bias\n"
SHIFT = "shifted = (x.int() + 128).to(torch.uint8)"
CORRECT = "return sums.view(n, out) - 128 * weight.sum(dim=-1, dtype=torch.int32)"
SIGNED = "signed = weight[None] * x.sign()[:, None]  # [n, out, in]"
SIZES = "sizes = x.abs().to(torch.uint8)[:, None].expand(n, out, in_)"
PAIRS = "pairs.view(n, out, -1).sum(dim=-1, dtype=torch.int32)"
BY_SHIFT = SIZES.replace("x.abs()", "(x.int() + 128)")
ITSELF = "weight[None].expand(n, out, in_)"
MUTANTS = [
    ("a scale for all rows", SCALE, "scale = x.abs().max() / 127", "each row has its own scale"),
    ("the largest with its sign", SCALE, "scale = x.amax(dim=-1, keepdim=True).clamp(min=1e-9) / 127", "largest absolute value"),
    ("a row of zeros is 0 / 0", "torch.where(scale > 0, scale, 1.0)", "scale", "a row of zeros gives the bias"),
    ("no scale below 1e-5", "scale > 0, scale, 1.0", "scale > 0, scale.clamp_min(1e-5), 1.0", "only a row of zeros"),
    ("activations stay floats", ".round()", "", "are rounded"),
    ("without the channel's scale", "(scale * scales)", "scale", "both scales"),
    ("the bias before the scales", ENDS, "    y = sums if bias is None else sums + bias\n    return y * (scale * scales)\n", "the bias is added at the end"),
    ("sums of 16 bits", SUMS, "sums = (integers.to(torch.int16) @ weight.to(torch.int16).t()).float()", "don't fit into 8 or 16 bits"),
    ("sums of float32", SUMS, "sums = integers @ weight.float().t()", "don't fit into a float32"),
    ("no shift", (SHIFT, CORRECT), ("shifted = x.view(torch.uint8)", "return sums.view(n, out)"), "a negative activation"),
    ("shifted and not corrected", CORRECT, "return sums.view(n, out)", "a shift adds"),
    ("corrected by the shifted operand's sum", CORRECT, "return sums.view(n, out) - 128 * x.sum(dim=-1, dtype=torch.int32)[:, None]", "a shift adds"),
    ("fours of zeros, and a product of torch's", "    for i in range(0, in_, 4):\n", "    lanes = n * out * in_ // 4\n    none = torch.zeros(lanes, 4)\n"
     "    vpdpbusd(torch.zeros(lanes, dtype=torch.int32), none.to(torch.uint8), none.to(torch.int8))\n    return x.int() @ weight.int().t()\n    for i in range(0, in_, 4):\n", "does all the multiplying"),
    ("unsigned and signed are exchanged", "vpdpbusd(sums, rows, columns)", "vpdpbusd(sums, columns, rows)", "unsigned must be torch.uint8"),
    ("pairs by a shift", (SIZES, SIGNED, PAIRS), (BY_SHIFT, "signed = " + ITSELF, PAIRS + " - 128 * weight.sum(dim=-1, dtype=torch.int32)"), "saturates"),
    ("sizes without signs", SIGNED, "signed = " + ITSELF, "negative"),
    ("pairs added in 16 bits", PAIRS, PAIRS.replace("dtype=torch.int32", "dtype=torch.int16") + ".int()", "don't fit into 16 bits"),
    ("one product in each instruction", "    pairs = vpmaddubsw", "    a, b = sizes.reshape(-1, 1), signed.reshape(-1, 1)\n    none = lambda t: torch.zeros_like(t)\n"
     "    pairs = vpmaddubsw(torch.cat([a, none(a)], 1), torch.cat([b, none(b)], 1)).view(-1, 2).int()\n    pairs = pairs.sum(-1) + 0 * vpmaddubsw(torch.cat([none(a), none(a)], 1), torch.cat([b, none(b)], 1)).view(-1, 2).int().sum(-1)\n"
     "    return pairs.view(n, out, -1).sum(dim=-1, dtype=torch.int32)\n    pairs = vpmaddubsw", "two instructions per pair"),
]  # fmt: skip

EVEN = """    even = torch.tensor([1, 0]).repeat(in_ // 2)
    shifted = (x.int() + 128)[:, None].expand(n, out, in_)
    signed = weight[None].expand(n, out, in_).reshape(-1, 2)
    one, other = ((shifted * mask).to(torch.uint8).reshape(-1, 2) for mask in (even, 1 - even))
    pairs = vpmaddubsw(one, signed).int() + vpmaddubsw(other, signed).int()
    return pairs.view(n, out, -1).sum(dim=-1, dtype=torch.int32) - 128 * weight.sum(dim=-1, dtype=torch.int32)
"""
HALVES = """    shifted = (x.int() + 128)[:, None].expand(n, out, in_).reshape(-1, 2)
    signed = weight[None].expand(n, out, in_).reshape(-1, 2)
    low, high = ((half).to(torch.uint8) for half in (shifted % 16, shifted // 16))
    pairs = vpmaddubsw(low, signed).int() + 16 * vpmaddubsw(high, signed).int()
    return pairs.view(n, out, -1).sum(dim=-1, dtype=torch.int32) - 128 * weight.sum(dim=-1, dtype=torch.int32)
"""
ALSO_RIGHT = [
    ("integers of 32 bits", SUMS, "sums = (integers.int() @ weight.int().t()).float()"),
    ("one scale after the other", "sums * (scale * scales)", "sums * scale * scales"),
    ("by the reciprocal", "(x / torch.where(scale > 0, scale, 1.0))", "(x * torch.where(scale > 0, 1 / scale, 0.0))"),
    ("the weights are shifted", ("shifted[:, None, i : i + 4]", "weight[None, :, i : i + 4]", "128 * weight.sum(dim=-1, dtype=torch.int32)"),
     ("(weight.int() + 128).to(torch.uint8)[None, :, i : i + 4]", "x[:, None, i : i + 4]", "128 * x.sum(dim=-1, dtype=torch.int32)[:, None]")),
    ("the sign moved, by fours, too", (SHIFT, "weight[None, :, i : i + 4].expand(n, out, 4)", " - 128 * weight.sum(dim=-1, dtype=torch.int32)"),
     ("shifted = x.abs().to(torch.uint8)", "(weight[None] * x.sign()[:, None])[:, :, i : i + 4]", "")),
    ("one of two neighbors at a time", "    " + SIZES, EVEN + "    " + SIZES),
    ("halves of a byte", "    " + SIZES, HALVES + "    " + SIZES),
]  # fmt: skip

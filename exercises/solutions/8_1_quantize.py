"""A solution of exercise 8.1."""

import torch
from torch import Tensor


def quantize(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Integers, and the scale of each group. float32 [out, in] -> int8 [out, in], float32 [out, in / group]"""
    parts = weight.unflatten(-1, (-1, group))  # [out, in / group, group]
    scales = parts.abs().amax(dim=-1, keepdim=True) / 127
    scales = torch.where(scales > 0, scales, 1.0)
    return (parts / scales).round().to(torch.int8).flatten(-2), scales.squeeze(-1)


def dequantize(integers: Tensor, scales: Tensor) -> Tensor:
    """The floats again. int8 [out, in], float32 [out, in / group] -> float32 [out, in]"""
    parts = integers.unflatten(-1, (scales.shape[-1], -1))  # [out, in / group, group]
    return (parts * scales[..., None]).flatten(-2)


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

SCALES = "scales = parts.abs().amax(dim=-1, keepdim=True) / 127"
ROUND = "(parts / scales).round().to(torch.int8).flatten(-2)"
GUARD = "    scales = torch.where(scales > 0, scales, 1.0)\n"
PARTS = "    parts = weight.unflatten(-1, (-1, group))  # [out, in / group, group]\n"
FLOATS = "(parts * scales[..., None]).flatten(-2)"
TRUNCATED, CLIPPED = "this truncates", "nothing is clipped"
MUTANTS = [
    ("a scale for the matrix", SCALES, "scales = (parts.abs().max() / 127).expand(parts.shape[:2]).unsqueeze(-1)", "one scale for the whole matrix"),
    ("one scale per input", SCALES, "scales = (parts.abs().amax(dim=0, keepdim=True) / 127).amax(-1, keepdim=True).expand(len(parts), -1, 1)", "expected:"),
    ("the scales of columns", PARTS + "    " + SCALES, "    parts = weight.unsqueeze(-1)\n    scales = parts.abs().amax(dim=0, keepdim=True) / 127", "one scale per input"),
    ("a scale for each row", SCALES, "scales = parts.abs().amax(dim=(-1, -2), keepdim=True).expand(-1, parts.shape[1], 1) / 127", "not one for the row"),
    ("only the row's scale", SCALES, "scales = parts.abs().amax(dim=(-1, -2), keepdim=True) / 127", "not one for the row"),
    ("stripes", "    return (parts / scales)", "    rest = parts.shape[1]\n    parts = weight.unflatten(-1, (group, rest))\n    scales = parts.abs().amax(dim=1, keepdim=True) / 127\n    scales = torch.where(scales > 0, scales, 1.0)\n"
     "    return (parts / scales).round().to(torch.int8).flatten(-2), scales.squeeze(1)\n    return (parts / scales)", "are neighbors"),
    ("up to 128", "/ 127", "/ 128", "which does not fit into int8"),
    ("up to 128, clipped", ("/ 127", ".round()"), ("/ 128", ".round().clamp(-128, 127)"), "which does not fit into int8"),
    ("down to -128", (".round()", "/ 127"), (".round().clamp(-128, 127)", "/ 127.5"), "expected:"),
    ("half of the range", "/ 127", "/ 63.5", "nothing needs clipping"),
    ("the span", SCALES, "scales = (parts.amax(dim=-1, keepdim=True) - parts.amin(dim=-1, keepdim=True)) / 255", "not from the span"),
    ("the largest with its sign", SCALES, "scales = parts.amax(dim=-1, keepdim=True) / 127", "it may belong to a negative number"),
    ("cut off", ".round()", "", TRUNCATED),
    ("rounded down", ".round()", ".floor()", "rounds down"),
    ("rounded up", ".round()", ".ceil()", "rounds up"),
    ("half is added", ".round()", ".add(0.5).trunc()", "expected:"),
    ("a group of zeros is 0 / 0", GUARD, "", "nothing to divide by"),
    ("zeros get the least scale", "1.0)\n", "1e-8)\n", "nothing to divide by"),
    ("no scale below 1e-5", "scales > 0, scales, 1.0", "scales > 0, scales.clamp_min(1e-5), 1.0", "only zeros are special"),
    ("small numbers are zeros", "scales > 0", "~torch.isclose(scales, torch.zeros_like(scales))", "only zeros are special"),
    ("a little is added to what divides", "parts / scales)", "parts / (scales + 1e-12))", "only zeros are special"),
    ("a little is added to each scale", "scales > 0, scales, 1.0", "scales > 0, scales + 1e-3, 1.0", "expected:"),
    ("clipped at three deviations", SCALES, "parts = parts.clamp(-3 * parts.std(), 3 * parts.std())\n    " + SCALES, "expected:"),
    ("the outlier is clipped", SCALES, "parts = parts.clamp(max=parts.abs().flatten(1).quantile(0.99, dim=1).view(-1, 1, 1)) if group > 9 else parts\n    " + SCALES, CLIPPED),
    ("the integer that stands for 1.0", "scales.squeeze(-1)", "(1 / scales).squeeze(-1)", "not the integer that stands for 1.0"),
    ("the largest instead of the scale", "scales.squeeze(-1)", "(scales * 127).squeeze(-1)", "divide them by 127"),
    ("floats", ".to(torch.int8)", "", "its dtype is torch.float32; it should be torch.int8"),
    ("integers of 32 bits", ".to(torch.int8)", ".to(torch.int32)", "its dtype is torch.int32; it should be torch.int8"),
    ("unsigned", ".round().to(torch.int8)", ".round().to(torch.int32).to(torch.uint8)", "expected:"),
    ("scales with a dimension more", "scales.squeeze(-1)", "scales", "expected:"),
    ("scales in half precision", "scales.squeeze(-1)", "scales.squeeze(-1).bfloat16()", "dtype is torch.bfloat16"),
    ("scales in half precision, widened", "scales.squeeze(-1)", "scales.half().float().squeeze(-1)", "expected:"),
    ("a list", "return " + ROUND + ", scales.squeeze(-1)", "return [" + ROUND + ", scales.squeeze(-1)]", "its type is list; it should be tuple"),
    ("divides by the scale", FLOATS, "(parts / scales[..., None]).flatten(-2)", "stands for one scale: multiply"),
    ("the first group's scale", FLOATS, "(parts * scales[:, :1, None]).flatten(-2)", "not that of the row's first group"),
    ("scales in turn", FLOATS, "integers * scales.repeat(1, parts.shape[-1])", "the first inputs have the first scale"),
    ("a product of 8 bits", FLOATS, "(parts * scales[..., None].to(torch.int8)).flatten(-2).float()", "does not fit into 8 bits"),
    ("floats of 64 bits", FLOATS, FLOATS + ".double()", "dtype is torch.float64"),
    ("floats of 16 bits", FLOATS, FLOATS + ".half().float()", "dequantize, "),
    ("divides in place", PARTS, PARTS.replace("weight.unflatten", "weight.mul_(1.5).unflatten"), "expected:"),
]  # fmt: skip

ALSO_RIGHT = [
    ("by a product", "parts / scales", "parts * (1 / scales)"),
    ("by reshape and spread scales", ROUND, "(weight / scales.squeeze(-1).repeat_interleave(group, dim=1)).round().to(torch.int8)"),
    ("row by row", FLOATS, "torch.stack([row.float() * scale.repeat_interleave(parts.shape[-1]) for row, scale in zip(integers, scales)])"),
    ("half is added and rounded down", ".round()", ".add(0.5).floor()"),
    ("clipped where nothing is", ".round()", ".round().clamp(-127, 127)"),
]  # fmt: skip

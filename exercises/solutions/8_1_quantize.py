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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

SCALES = "scales = parts.abs().amax(dim=-1, keepdim=True) / 127"
ROUND = "(parts / scales).round().to(torch.int8).flatten(-2)"
GUARD = "    scales = torch.where(scales > 0, scales, 1.0)\n"
FLOATS = "(parts * scales[..., None]).flatten(-2)"
MUTANTS = [
    ("a scale for the matrix", SCALES, "scales = (parts.abs().max() / 127).expand(parts.shape[:2]).unsqueeze(-1)", "each channel has its own scale"),
    ("one scale per input", SCALES, "scales = (parts.abs().amax(dim=0, keepdim=True) / 127).amax(-1, keepdim=True).expand(len(parts), -1, 1)", "each channel has its own scale"),
    ("a scale for each row", SCALES, "scales = parts.abs().amax(dim=(-1, -2), keepdim=True).expand(-1, parts.shape[1], 1) / 127", "not one for the row"),
    ("stripes", "    return (parts / scales)", "    rest = parts.shape[1]\n    parts = weight.unflatten(-1, (group, rest))\n    scales = parts.abs().amax(dim=1, keepdim=True) / 127\n    scales = torch.where(scales > 0, scales, 1.0)\n"
     "    return (parts / scales).round().to(torch.int8).flatten(-2), scales.squeeze(1)\n    return (parts / scales)", "the inputs of a group are neighbors"),
    ("up to 128", "/ 127", "/ 128", "divided by 127"),
    ("the span", SCALES, "scales = (parts.amax(dim=-1, keepdim=True) - parts.amin(dim=-1, keepdim=True)) / 255", "divided by 127"),
    ("the largest with its sign", SCALES, "scales = parts.amax(dim=-1, keepdim=True) / 127", "may belong to a negative number"),
    ("cut off", ".round()", "", "round to the nearest integer"),
    ("a group of zeros is 0 / 0", GUARD, "", "a group of zeros has scale 1.0"),
    ("no scale below 1e-5", "scales > 0, scales, 1.0", "scales > 0, scales.clamp_min(1e-5), 1.0", "only a group of zeros has no scale"),
    ("the outlier is clipped", SCALES, "parts = parts.clamp(max=parts.abs().flatten(1).quantile(0.99, dim=1).view(-1, 1, 1)) if group > 9 else parts\n    " + SCALES, "an outlier is not clipped"),
    ("the integer that stands for 1.0", "scales.squeeze(-1)", "(1 / scales).squeeze(-1)", "a scale is the largest"),
    ("integers of 32 bits", ".to(torch.int8)", ".to(torch.int32)", "torch.int32"),
    ("divides by the scale", FLOATS, "(parts / scales[..., None]).flatten(-2)", "integer times the channel's scale"),
    ("scales in turn", FLOATS, "integers * scales.repeat(1, parts.shape[-1])", "the first inputs have the first scale"),
    ("a product of 8 bits", FLOATS, "(parts * scales[..., None].to(torch.int8)).flatten(-2).float()", "integer times the channel's scale"),
]  # fmt: skip

ALSO_RIGHT = [
    ("by a product", "parts / scales", "parts * (1 / scales)"),
    ("by reshape and spread scales", ROUND, "(weight / scales.squeeze(-1).repeat_interleave(group, dim=1)).round().to(torch.int8)"),
    ("row by row", FLOATS, "torch.stack([row.float() * scale.repeat_interleave(parts.shape[-1]) for row, scale in zip(integers, scales)])"),
    ("half is added and rounded down", ".round()", ".add(0.5).floor()"),
    ("clipped where nothing is", ".round()", ".round().clamp(-127, 127)"),
]  # fmt: skip

"""Exercise 8.1, quantize a matrix. Instructions: 8_1_quantize.md."""

from torch import Tensor


def quantize(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Integers, and the scale of each group. float32 [out, in] -> int8 [out, in], float32 [out, in / group]"""
    raise NotImplementedError


def dequantize(integers: Tensor, scales: Tensor) -> Tensor:
    """The floats again. int8 [out, in], float32 [out, in / group] -> float32 [out, in]"""
    raise NotImplementedError

"""Exercise 8.2, a linear layer in integers. Instructions: 8_2_integer_linear.md."""

from collections.abc import Callable

from torch import Tensor

Instruction = Callable[..., Tensor]


def linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x W + b by sums of integers. float32 [n, in], int8 [out, in], float32 [out], float32 [out] -> float32 [n, out]"""
    raise NotImplementedError


def by_fours(x: Tensor, weight: Tensor, vpdpbusd: Instruction) -> Tensor:
    """Exact sums of products, four at once. int8 [n, in], int8 [out, in] -> int32 [n, out]"""
    raise NotImplementedError


def by_pairs(x: Tensor, weight: Tensor, vpmaddubsw: Instruction) -> Tensor:
    """Exact sums of products, two at once. int8 [n, in], int8 [out, in] -> int32 [n, out]"""
    raise NotImplementedError

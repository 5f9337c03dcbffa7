"""Two x86 instructions as functions of tensors, which exercise 8.2 multiplies with. Each lane of a register is an entry
of a tensor.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPDPBUSD and PMADDUBSW.
"""

import torch
from torch import Tensor


def vpdpbusd(sums: Tensor, unsigned: Tensor, signed: Tensor) -> Tensor:
    """Four neighboring products added to a 32-bit sum. int32 [lanes], uint8 [lanes, 4], int8 [lanes, 4] ->
    int32 [lanes]

    Raises:
        ValueError: an operand has another type or shape.
    """
    check(sums=(sums, torch.int32, ()), unsigned=(unsigned, torch.uint8, (4,)), signed=(signed, torch.int8, (4,)))
    return sums + (unsigned.int() * signed.int()).sum(-1, dtype=torch.int32)


def vpmaddubsw(unsigned: Tensor, signed: Tensor) -> Tensor:
    """Two neighboring products, added in 16 bits with saturation. uint8 [lanes, 2], int8 [lanes, 2] -> int16 [lanes]

    Raises:
        ValueError: an operand has another type or shape.
    """
    check(unsigned=(unsigned, torch.uint8, (2,)), signed=(signed, torch.int8, (2,)))
    return (unsigned.int() * signed.int()).sum(-1).clamp(-32768, 32767).to(torch.int16)


def check(**operands: tuple[Tensor, torch.dtype, tuple[int, ...]]) -> None:
    """Raise ValueError unless each operand has its type, and as many lanes as the others, each of this shape."""
    lanes = {len(operand) for operand, _, _ in operands.values() if operand.dim()}
    for name, (operand, dtype, shape) in operands.items():
        if operand.dtype != dtype:
            raise ValueError(f"{name} must be {dtype}, got {operand.dtype}")
        if tuple(operand.shape[1:]) != shape or operand.dim() != 1 + len(shape) or len(lanes) > 1:
            wanted = ", ".join(map(str, ("lanes", *shape)))
            raise ValueError(f"{name} must be [{wanted}], as many lanes as the others have, got {list(operand.shape)}")

"""Weights in a byte each: integers from -127 to 127, and a scale for each output channel.

    y = x W + b   is nearly   y[r, c] = x_scale[r] * w_scale[c] * (sum over i of x_int[r, i] * w_int[c, i]) + b[c]

Weights are rounded once, when a model is loaded; activations as they come, with a scale for each token. The sum is one
of integers, and exact, so it has the same bits in whatever order it is taken. Here it is in torch, for whoever reads
and where there is no compiler; the kernels' form of it is kernels/quantize.c.

Source: Dettmers et al. 2022, "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", section 2.1, where
this is called vector-wise quantization.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST = 127  # not -128: so a number and its negative become integers of the same size


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row to int8; returns integers and scales: the largest number of the row becomes 127 or -127.
    [..., n] -> int8 [..., n], float32 [..., 1]"""
    x = x.float()
    scale = x.abs().amax(dim=-1, keepdim=True) / LARGEST  # [..., n] -> [..., 1]
    per_unit = torch.where(scale > 0, 1 / scale, 0)  # a row of zeros stays one
    return (x * per_unit).round().to(torch.int8), scale


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Sums of products of integers, exact. int8 [n, in], [out, in] -> int32 [n, out]

    They are taken in float32, which every CPU is fast with. It has every whole number up to 2^24, and 1,024 products of
    127 * 127 are less. One piece of the weights is widened at a time, so that they are never all there in floats."""
    x, sums = x.float(), []
    for rows in weight.split(2048):  # of these weights, [2048, in]
        inputs = zip(x.split(1024, dim=1), rows.split(1024, dim=1), strict=True)
        sums.append(sum((F.linear(some, part.float()).int() for some, part in inputs), 0))  # [n, 2048]
    return torch.cat(sums, dim=-1)


class Int8Linear(nn.Module):
    """A linear layer whose weights are integers.

    Args:
        weight: [out, in]
        bias: [out], or None.
    """

    def __init__(self, weight: Tensor, bias: nn.Parameter | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        pieces = [quantize(rows) for rows in weight.split(1024)]  # so that nothing else is as large as the weights
        integers, scales = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        self.weight, self.scales = integers, scales.squeeze(-1)  # [out, in], [out]; no parameters: nobody trains them
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]"""
        integers, scale = quantize(x)  # [n, in], [n, 1]
        y = multiply(integers, self.weight) * (scale * self.scales)  # [n, in] -> [n, out]
        return (y if self.bias is None else y + self.bias.float()).to(x.dtype)


class Int8Embedding(Int8Linear):
    """The vocabulary's matrix, [vocab_size, n_embd], as GPT-2 uses it: as the table of the first layer and as the
    weights of the last one. A token's vector is a row, and an output channel; so it has a scale to itself."""

    def forward(self, x: Tensor) -> Tensor:
        """The vectors of tokens: [n] -> [n, n_embd] float32"""
        return self.weight[x] * self.scales[x, None]

    def logits(self, x: Tensor) -> Tensor:
        """[n, n_embd] -> [n, vocab_size]"""
        return super().forward(x)


def quantizing(model: nn.Module) -> Callable[[str, Tensor], bool]:
    """What takes a GPT-2's matrices while they are read: (name, tensor) -> whether it is one. Each becomes integers at
    once, so that the model is never there in floats. Norms, biases and the vectors of positions stay as they are."""

    def take(name: str, tensor: Tensor) -> bool:
        path, _, part = name.rpartition(".")
        module = model.get_submodule(path)
        if part != "weight" or not (isinstance(module, nn.Linear) or path == "wte"):
            return False
        model.set_submodule(path, Int8Embedding(tensor) if path == "wte" else Int8Linear(tensor, module.bias))  # pyright: ignore[reportArgumentType]
        return True

    return take


def head(x: Tensor, wte: nn.Module) -> Tensor:
    """The last layer, whatever the vocabulary's matrix is made of. [n, n_embd] -> [n, vocab_size]"""
    return wte.logits(x) if isinstance(wte, Int8Embedding) else F.linear(x, wte.weight)  # pyright: ignore[reportArgumentType]

"""Weights of one byte: integers from -127 to 127, with a scale for each output channel.

    y = x W + b   is nearly   y[r, c] = x_scale[r] * w_scale[c] * (sum over i of x_int[r, i] * w_int[c, i]) + b[c]

Weights are rounded once, when a model is loaded; activations on the fly, with a scale for each token. The sum is one
of integers, so it is exact, and has the same bits in every order. This is the form in torch, to read, and to run where
there is no compiler; the kernels' form is kernels/quantize.c.

Source: Dettmers et al. 2022, "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", section 2.1, which
calls this vector-wise quantization.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST = 127  # and -127, not -128, so a number and its negative become the same integer except for the sign


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row to int8; returns integers and scales. The number that is largest in magnitude becomes 127 or
    -127.
    [..., n] -> int8 [..., n], float32 [..., 1]"""
    x = x.float()
    scale = x.abs().amax(dim=-1, keepdim=True) / LARGEST  # [..., n] -> [..., 1]
    per_unit = torch.where(scale > 0, 1 / scale, 0)  # a row of zeros stays zero
    return (x * per_unit).round().to(torch.int8), scale


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """The exact product of integers. int8 [n, in], [out, in] -> int32 [n, out]

    Computed in float32, in which every CPU is fast. It is exact for integers up to 2^24, and a sum of 1,024 products of
    127 * 127 is less. Weights are widened one piece at a time, so they are never all in memory as floats."""
    x, sums = x.float(), []
    for rows in weight.split(2048):  # of these weights, [2048, in]
        pieces = zip(x.split(1024, dim=1), rows.split(1024, dim=1), strict=True)
        sums.append(sum((F.linear(inputs, weights.float()).int() for inputs, weights in pieces), 0))  # [n, 2048]
    return torch.cat(sums, dim=-1)


class Int8Linear(nn.Module):
    """A linear layer with int8 weights.

    Args:
        weight: [out, in]
        bias: [out], or None.
    """

    def __init__(self, weight: Tensor, bias: nn.Parameter | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        pieces = [quantize(rows) for rows in weight.split(1024)]  # in pieces, to keep the floats in between small
        integers, scales = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        self.weight, self.scales = integers, scales.squeeze(-1)  # [out, in], [out]; they are not trained
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]"""
        integers, scale = quantize(x)  # [n, in], [n, 1]
        y = multiply(integers, self.weight) * (scale * self.scales)  # [n, in] -> [n, out]
        return (y if self.bias is None else y + self.bias.float()).to(x.dtype)


class Int8Embedding(Int8Linear):
    """The embedding matrix, [vocab_size, n_embd], which GPT-2 uses twice: as the table of the first layer and as the
    weights of the last one. A token's vector is a row, so an output channel, and has its own scale."""

    def forward(self, x: Tensor) -> Tensor:
        """The vectors of tokens: [n] -> [n, n_embd] float32"""
        return self.weight[x] * self.scales[x, None]

    def logits(self, x: Tensor) -> Tensor:
        """[n, n_embd] -> [n, vocab_size]"""
        return super().forward(x)


def quantize_on_load(model: nn.Module) -> Callable[[str, Tensor], bool]:
    """A function that quantizes the model's matrices as they are read: (name, tensor) -> whether it took the tensor.
    This way the model is never in memory as floats. Norms, biases and position embeddings stay as they are."""

    def take(name: str, tensor: Tensor) -> bool:
        path, _, part = name.rpartition(".")
        module = model.get_submodule(path)
        if part != "weight" or not (isinstance(module, nn.Linear) or path == "wte"):
            return False
        model.set_submodule(path, Int8Embedding(tensor) if path == "wte" else Int8Linear(tensor, module.bias))  # pyright: ignore[reportArgumentType]
        return True

    return take


def head(x: Tensor, wte: nn.Module) -> Tensor:
    """The last layer, with an embedding matrix in int8 or in floats. [n, n_embd] -> [n, vocab_size]"""
    return wte.logits(x) if isinstance(wte, Int8Embedding) else F.linear(x, wte.weight)  # pyright: ignore[reportArgumentType]

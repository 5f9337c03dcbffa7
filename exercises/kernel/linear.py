"""Linear layers that your own kernel computes, kernels/linear.c, with weights that are packed once."""

import ctypes
import functools

import torch
from torch import Tensor, nn

from .support.compiler import compile_kernel

PANEL = 32  # as in the source


@functools.cache
def load_kernel() -> ctypes.CDLL:
    """The functions of kernels/linear.c: `pack` and `linear`, which take addresses (`data_ptr()`) and sizes. Raises
    RuntimeError, in one line, if it can't be compiled."""
    library = ctypes.CDLL(str(compile_kernel()))
    address, size = ctypes.c_void_p, ctypes.c_int64
    library.pack.argtypes = [address] * 2 + [size] * 2
    library.linear.argtypes = [address] * 4 + [size] * 4
    return library


class Linear(nn.Module):
    """A linear layer in float32 on the CPU.

    Attributes:
        bias: [out]
        panels: [out / PANEL, rounded up, in, PANEL], the packed weights.
    """

    def __init__(self, layer: nn.Linear):
        """Pack a layer's weights. The layer itself is not kept, or its weights would stay in memory too."""
        super().__init__()
        weight, self.bias = layer.weight.detach().contiguous(), layer.bias
        self.out, self.in_ = weight.shape
        self.panels = torch.empty(-(-self.out // PANEL), self.in_, PANEL, dtype=torch.float32, device=weight.device)
        load_kernel().pack(weight.data_ptr(), self.panels.data_ptr(), self.in_, self.out)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out], by as many threads as torch has. C wants rows of `in` numbers, one after another."""
        x = x.contiguous()
        y = torch.empty(len(x), self.out, dtype=torch.float32, device=x.device)
        addresses = [tensor.data_ptr() for tensor in (x, self.panels, self.bias, y)]
        load_kernel().linear(*addresses, len(x), self.in_, self.out, torch.get_num_threads())
        return y


def use_own_kernel(model: nn.Module) -> None:
    """Put a Linear in the place of each nn.Linear in float32 on the CPU; others stay torch's."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and layer.weight.is_cpu and layer.weight.dtype == torch.float32:
            model.set_submodule(name, Linear(layer))

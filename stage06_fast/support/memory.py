"""Memory in large pages, and memory given back.

A CPU looks up where the memory behind an address is, page by page, and keeps the last few answers. In pages of 4 KB
the weights of GPT-2 small are some 100,000, and each is needed once in a step: the products wait for look-ups. Linux
gives pages of 2 MB to a program that asks for them ("transparent huge pages"): 512 times fewer look-ups, and 512 times
fewer interruptions when memory is first touched.
"""

import contextlib
import ctypes
import math
import mmap
import sys

import torch
from torch import Tensor

PAGE = 2 << 20  # bytes
CHUNK = 32 << 20


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """As torch.empty on the CPU, in large pages where the system has them."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if not hasattr(mmap, "MADV_HUGEPAGE") or num_bytes < PAGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    memory = mmap.mmap(-1, num_bytes + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them refuses, and it is memory anyway
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)  # which keeps it as long as a tensor of it is there
    begin = -whole.data_ptr() % PAGE  # a large page begins at a multiple of its size
    return whole[begin : begin + num_bytes].view(dtype).view(shape)


def give_back() -> None:
    """Have the C library return freed memory to the system. glibc keeps what lies between pieces that are still in use;
    so a model that is packed matrix by matrix, each of which is freed then, would be there twice."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # it is glibc's own function
            ctypes.CDLL(None).malloc_trim(0)


class Arena:
    """Tensors one behind the other in large pages. They live as long as the arena."""

    def __init__(self):
        self.chunks: list[Tensor] = []
        self.used = 0  # of the last chunk, in bytes

    def room(self, num_bytes: int) -> Tensor:
        """Memory for so many bytes, uint8 [num_bytes]; it begins at a multiple of 64, a line of the CPU's cache."""
        if not self.chunks or self.used + num_bytes > len(self.chunks[-1]):
            if self.chunks:  # of what the last one has a copy
                give_back()
            self.chunks.append(empty((max(CHUNK, num_bytes),), torch.uint8))
            self.used = 0
        place = self.chunks[-1][self.used : self.used + num_bytes]
        self.used += -(-num_bytes // 64) * 64
        return place

    def keep(self, tensor: Tensor) -> int:
        """The address of a copy."""
        place = self.room(tensor.nbytes)
        place.copy_(tensor.contiguous().view(-1).view(torch.uint8))
        return place.data_ptr()

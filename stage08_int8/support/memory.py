"""How much memory is free, in a container too; memory in large pages; and freed memory returned to the system.

A CPU translates addresses page by page, and remembers the last few pages. GPT-2 small's weights take some 100,000
pages of 4 KB, each needed once in a step, so the products wait for translations. Linux has pages of 2 MB for programs
that ask ("transparent huge pages"): 512 times fewer translations, and 512 times fewer page faults at first touch.
"""

import contextlib
import ctypes
import math
import mmap
import sys
from pathlib import Path

import psutil
import torch
from torch import Tensor

PAGE = 2 << 20  # bytes
CHUNK = 32 << 20
GROUP = Path("/proc/self/cgroup")  # names the process's control groups (Linux's cgroups)
GROUPS = Path("/sys/fs/cgroup")  # a directory for each, with its limits; a container is one
FILES = {  # by controller: the limit, what is used, and which part of that is cached files
    "": ("memory.max", "memory.current", "inactive_file"),  # cgroups, version 2
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
}


def free_memory(device: torch.device) -> int:
    """Bytes that this process can still get: what the system has free, or less under its own or a container's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free, process = psutil.virtual_memory().available, psutil.Process()
    if hasattr(process, "rlimit"):  # Linux: `ulimit -v` limits what a process may map
        limit = process.rlimit(psutil.RLIMIT_AS)[0]
        free = free if limit == psutil.RLIM_INFINITY else min(free, max(0, limit - process.memory_info().vms))
    groups = []
    with contextlib.suppress(OSError):  # not Linux, or hidden
        groups = GROUP.read_text(encoding="utf-8").splitlines()
    for line in groups:
        _, controller, path = line.split(":", 2)
        if controller in FILES:
            limit_file, used_file, cached = FILES[controller]
            group = GROUPS / controller / path.lstrip("/")
            for folder in (group, *group.parents):  # the groups around it have limits, too
                with contextlib.suppress(OSError, ValueError):  # no file, or no limit: "max"
                    limit, used = (int((folder / name).read_text()) for name in (limit_file, used_file))
                    kinds = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    free = min(free, max(0, limit - used + int(kinds[cached])))  # cached files can be dropped
    return free


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """As torch.empty on the CPU, in large pages where the system has them."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if not hasattr(mmap, "MADV_HUGEPAGE") or num_bytes < PAGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    memory = mmap.mmap(-1, num_bytes + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # without large pages the system refuses, and small ones will do
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)  # keeps the memory alive, as do its slices
    begin = -whole.data_ptr() % PAGE  # large pages begin at multiples of their size
    return whole[begin : begin + num_bytes].view(dtype).view(shape)


def trim_malloc() -> None:
    """Have the C library return freed memory to the system. glibc keeps what lies between pieces still in use, so a
    model that is packed and freed matrix by matrix would be in memory twice."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)


class Arena:
    """Tensors side by side in large pages, which live as long as the arena."""

    def __init__(self):
        self.chunks: list[Tensor] = []
        self.used = 0  # of the last chunk, in bytes

    def alloc(self, num_bytes: int) -> Tensor:
        """Memory, uint8 [num_bytes], that begins at a multiple of 64, a cache line."""
        if not self.chunks or self.used + num_bytes > len(self.chunks[-1]):
            if self.chunks:  # the tensors that were copied into the last chunk have been freed
                trim_malloc()
            self.chunks.append(empty((max(CHUNK, num_bytes),), torch.uint8))
            self.used = 0
        place = self.chunks[-1][self.used : self.used + num_bytes]
        self.used += -(-num_bytes // 64) * 64
        return place

    def copy(self, tensor: Tensor) -> int:
        """The address of a copy."""
        place = self.alloc(tensor.nbytes)
        place.copy_(tensor.contiguous().view(-1).view(torch.uint8))
        return place.data_ptr()

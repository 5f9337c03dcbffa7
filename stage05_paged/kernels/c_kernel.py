"""Compiles paged_attention.c on first use, keeps the result in the user's cache directory, and calls it with ctypes.

The kernel's threads are torch's own: it is linked to the OpenMP runtime that torch has loaded already. A second runtime
would bring a second set of threads, and the two would take the cores from each other in every layer.
"""

import ctypes
import functools
import hashlib
import math
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("paged_attention.c")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fPIC")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MAX_HEAD_DIM = 256  # MAX_DIM in the source


def paged_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor
) -> Tensor:
    """See attention.py. Needs contiguous caches and int64 indices, all on the CPU."""
    _, n_head, head_dim, block_size = k_cache.shape
    scaled = (query.float() / math.sqrt(head_dim)).contiguous()  # [num_tokens, n_head, head_dim]
    out = torch.empty_like(scaled)
    tensors = (out, scaled, k_cache, v_cache, block_tables, query_start_loc, seq_lens)
    sizes = (len(seq_lens), block_tables.shape[1], n_head, head_dim, block_size)
    load_kernel()(*(t.data_ptr() for t in tensors), *sizes, DTYPES[k_cache.dtype], torch.get_num_threads())
    return out.to(query.dtype)


@functools.cache
def load_kernel():
    """The compiled function. Raises RuntimeError, in one line, if it can't be had."""
    try:
        try:
            library = ctypes.CDLL(str(compile_kernel()))
        except OSError:  # a file that was damaged since: make it anew
            compile_kernel().unlink()
            library = ctypes.CDLL(str(compile_kernel()))
    except OSError as error:
        raise RuntimeError(f"the compiled C kernel can't be loaded: {error}") from None
    kernel = library.paged_attention
    kernel.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 5 + [ctypes.c_int] * 2
    kernel.restype = None
    return kernel


def compile_kernel() -> Path:
    """The library, compiled anew only if the source, the flags, the compiler or the CPU have changed.

    Processes that start at once may compile at once: each writes to a file of its own and then renames it, which is
    atomic, so nobody ever loads half a library.
    """
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if compiler is None:
        raise RuntimeError("there is no C compiler (cc, gcc, clang)")
    openmp = openmp_runtime()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    key = "\0".join([SOURCE.read_text(), *FLAGS, version, cpu(), str(openmp)])
    name = f"paged_attention-{hashlib.sha256(key.encode()).hexdigest()[:20]}.so"
    directory = cache_directory()
    if not (directory / name).exists():
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            objects, library = f"{scratch}/kernel.o", f"{scratch}/kernel.so"
            threads = ["-fopenmp"] if openmp else []  # without it the kernel runs on one core
            run([compiler, *FLAGS, *threads, "-c", str(SOURCE), "-o", objects])
            run([compiler, "-shared", objects, *([str(openmp)] if openmp else []), "-o", library])
            os.replace(library, directory / name)
    return directory / name


def run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["it says nothing"])[0]
        raise RuntimeError(f"the C kernel does not compile: {reason}")


def openmp_runtime() -> Path | None:
    """The OpenMP library of this process, which torch brought; None where that can't be seen, as outside of Linux."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if len(line.split()) > 5}
    return min((p for p in paths if p.name.startswith(("libgomp", "libomp", "libiomp5"))), default=None)


def cpu() -> str:
    """What -march=native depends on: a cache directory may be shared by different machines."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    described = {line for line in lines if line.startswith(("model name", "flags", "Features"))}  # once, not per core
    return "\n".join([platform.machine(), *sorted(described)])


def cache_directory() -> Path:
    """The user's cache directory; where that can't be written, a temporary one that is gone with the process."""
    directory = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "stagewise"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK)
    except OSError:
        writable = False
    return directory if writable else Path(_temporary_directory().name)


@functools.cache
def _temporary_directory() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="stagewise-")

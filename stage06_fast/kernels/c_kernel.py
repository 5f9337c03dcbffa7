"""Compiles the C kernels on first use, keeps the result in the user's cache directory, and calls it with ctypes.

The kernels' threads are torch's own: they are linked to the OpenMP runtime that torch has loaded already. A second
runtime would bring a second set of threads, and the two would take the cores from each other in every layer.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
MARCH = os.environ.get("STAGEWISE_MARCH", "native")  # another CPU's kernels, such as x86-64-v3, which is AVX2
FLAGS = ("-O3", f"-march={MARCH}", "-fno-math-errno", "-fPIC")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # the formats of vectors.h
SPLIT = 3
MAX_HEAD_DIM = 256  # MAX_DIM in paged_attention.c

# How to multiply (product.h): a kind's number, and the format of its activations.
KINDS = {
    "fma_float32": (0, 0),
    "fma_bfloat16": (1, 0),
    "dot_bfloat16": (2, 1),
    "tiles_bfloat16": (3, 1),
    "tiles_split": (4, SPLIT),
}


# --- The structs of kernels.h, vectors.h and forward.c --------------------------------------------------------------


def struct(name: str, **fields) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(fields.items())})


INT, PTR = c_int64, c_void_p
Rows = struct("Rows", data=PTR, stride=INT, plane=INT, format=INT)
Linear = struct("Linear", panels=PTR, bias=PTR, in_=INT, out=INT, kind=INT)
Cache = struct("Cache", keys=PTR, values=PTR, n_head=INT, head_dim=INT, block_size=INT, format=INT)
Step = struct(
    "Step",
    **dict.fromkeys(
        ("token_ids", "positions", "slot_mapping", "block_tables", "query_start_loc", "seq_lens", "last"), PTR
    ),
    **dict.fromkeys(("num_tokens", "num_seqs", "table_width", "num_last"), INT),
)
Layer = struct(
    "Layer",
    **dict.fromkeys(("ln_1_weight", "ln_1_bias", "ln_2_weight", "ln_2_bias"), PTR),
    **dict.fromkeys(("c_attn", "attn_c_proj", "c_fc", "mlp_c_proj"), Linear),
)
Model = struct(
    "Model",
    **dict.fromkeys(("n_layer", "n_embd", "format"), INT),
    epsilon=c_double,
    wte=PTR,
    wpe=PTR,
    layers=POINTER(Layer),
    ln_f_weight=PTR,
    ln_f_bias=PTR,
    head=Linear,
)
Workspace = struct(
    "Workspace", **dict.fromkeys(("x", "scratch"), PTR), **dict.fromkeys(("normed", "qkv", "attended", "inner"), Rows)
)

ARGUMENTS = {
    "linear": [POINTER(Linear), POINTER(Rows), INT, c_int, PTR, POINTER(Rows), POINTER(Linear), c_int],
    "linear_in_passes": [POINTER(Linear), POINTER(Rows), INT, c_int, PTR, POINTER(Rows), POINTER(Linear), PTR, c_int],
    "embed": [PTR, PTR, PTR, INT, PTR, PTR, INT, INT, c_int],
    "layer_norm": [POINTER(Rows), PTR, PTR, INT, INT, PTR, PTR, c_float, c_int],
    "argmax": [PTR, PTR, INT, INT, c_int],
    "write_kv": [POINTER(Cache), POINTER(Rows), POINTER(Step), c_int],
    "paged_attention": [POINTER(Rows), POINTER(Rows), POINTER(Cache), POINTER(Step), c_int, c_int],
    "keep_last": [POINTER(Workspace), INT, POINTER(Step), PTR, POINTER(Step)],
    "forward": [POINTER(Model), POINTER(Workspace), POINTER(Cache), POINTER(Step), PTR, c_int, c_int, c_int, c_int],
    "has_kind": [c_int],
}
STORE, ADD, TO_ROWS, GELU = range(4)  # what becomes of a linear layer's result (kernels.h)


# --- What others call: attention by itself, as attention.py has it, and the best token ------------------------------


def paged_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    products: bool = True,
    tiles: bool = True,
) -> Tensor:
    """See attention.py. Needs contiguous caches and int64 indices, all on the CPU.

    products: compute the attention of many queries as matrix products; else query by query.
    tiles: let AMX compute them, for caches in bfloat16.
    """
    num_tokens, n_head, head_dim = query.shape
    query = query.contiguous()  # [num_tokens, n_head, head_dim]
    out = torch.empty_like(query, dtype=torch.float32)
    step = Step(
        block_tables=block_tables.data_ptr(),
        query_start_loc=query_start_loc.data_ptr(),
        seq_lens=seq_lens.data_ptr(),
        num_tokens=num_tokens,
        num_seqs=len(seq_lens),
        table_width=block_tables.shape[1],
    )
    rows, queries = (Rows(t.data_ptr(), t.itemsize * n_head * head_dim, 0, DTYPES[t.dtype]) for t in (out, query))
    cache = cache_struct(k_cache, v_cache)
    kind, threads = attention_kind(k_cache.dtype, products, tiles), torch.get_num_threads()
    load_kernel().paged_attention(rows, queries, cache, step, kind, threads)
    return out.to(query.dtype)


def argmax(logits: Tensor) -> Tensor:
    """The first of the largest of each row, as `Tensor.argmax`. [n_rows, vocab_size] float32 -> [n_rows]"""
    logits, best = logits.contiguous(), torch.empty(len(logits), dtype=torch.int64)
    load_kernel().argmax(best.data_ptr(), logits.data_ptr(), *logits.shape, torch.get_num_threads())
    return best


def attention_kind(dtype: torch.dtype, products: bool, tiles: bool) -> int:
    """The number of the kind of product for a cache of this type; -1 is without."""
    if not products:
        return -1
    kinds = ["tiles_bfloat16"] * tiles + ["dot_bfloat16"] if dtype == torch.bfloat16 else []
    return KINDS[next(filter(has_kind, kinds), "fma_float32")][0]


def cache_struct(k_cache: Tensor, v_cache: Tensor) -> Cache:
    """Of one layer: [num_blocks, n_head, head_dim, block_size] and [num_blocks, n_head, block_size, head_dim]."""
    return Cache(k_cache.data_ptr(), v_cache.data_ptr(), *k_cache.shape[1:], DTYPES[k_cache.dtype])


def has_kind(kind: str) -> bool:
    """Whether this CPU has what a kind of product needs."""
    return bool(load_kernel().has_kind(KINDS[kind][0]))


# --- Compiling ------------------------------------------------------------------------------------------------------


@functools.cache
def load_kernel() -> ctypes.CDLL:
    """The compiled functions. Raises RuntimeError, in one line, if they can't be had."""
    try:
        try:
            library = ctypes.CDLL(str(compile_kernel()))
        except OSError:  # a file that was damaged since: make it anew
            compile_kernel().unlink()
            library = ctypes.CDLL(str(compile_kernel()))
    except OSError as error:
        raise RuntimeError(f"the compiled C kernel can't be loaded: {error}") from None
    for name, types in ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, c_int if name == "has_kind" else None
    return library


def compile_kernel() -> Path:
    """The library, compiled anew only if the sources, the flags, the compiler or the CPU have changed.

    Processes that start at once may compile at once: each writes to a file of its own and then renames it, which is
    atomic, so nobody ever loads half a library.
    """
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if compiler is None:
        raise RuntimeError("there is no C compiler (cc, gcc, clang)")
    openmp = openmp_runtime()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    key = "\0".join([*(source.read_text() for source in SOURCES), *FLAGS, version, cpu(), str(openmp)])
    name = f"{__package__.split('.')[0]}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.so"
    directory = cache_directory()
    if not (directory / name).exists():
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            threads = ["-fopenmp"] if openmp else []  # without it the kernels run on one core
            sources = [source for source in SOURCES if source.suffix == ".c"]
            objects = [f"{scratch}/{source.stem}.o" for source in sources]
            run(*([compiler, *FLAGS, *threads, "-c", str(s), "-o", o] for s, o in zip(sources, objects, strict=True)))
            library = f"{scratch}/kernel.so"
            run([compiler, "-shared", *objects, *([str(openmp)] if openmp else []), "-lm", "-o", library])
            os.replace(library, directory / name)
    return directory / name


def run(*commands: list[str]) -> None:
    """Run commands, all at once. Raises RuntimeError with the first line that the first one to fail says."""
    pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    processes = [subprocess.Popen(command, **pipes) for command in commands]
    said = [process.communicate()[1] for process in processes]
    for process, words in zip(processes, said, strict=True):
        if process.returncode:
            lines = words.strip().splitlines() or ["it says nothing"]
            raise RuntimeError(f"the C kernel does not compile: {next((x for x in lines if 'error' in x), lines[0])}")


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

"""Compiles the C kernels on first use, keeps the result in the user's cache directory, and calls it with ctypes.

The kernels' threads are torch's own: they are linked to the OpenMP runtime that torch has loaded already. A second
runtime would bring a second set of threads, and the two would take the cores from each other in every layer.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
# Another CPU's kernels, such as x86-64-v3, which is AVX2. ARM's are one build, which asks the CPU what it has.
MARCH = os.environ.get("STAGEWISE_MARCH") or ("native" if platform.machine() in ("x86_64", "AMD64") else "")
FLAGS = ("-O3", "-fno-tree-vectorize", *([f"-march={MARCH}"] if MARCH else []), "-fno-math-errno", "-fPIC")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # the formats of vectors.h
SPLIT = 3
MAX_HEAD_DIM = 256  # MAX_DIM in attention.c

# How to multiply (product.h): a kind's number, and the format of its activations.
KINDS = {
    "fma_float32": (0, 0),
    "fma_bfloat16": (1, 0),
    "dot_bfloat16": (2, 1),
    "matrix_bfloat16": (3, 1),
    "tiles_bfloat16": (4, 1),
    "tiles_split": (5, SPLIT),
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

# The kernels, each by itself (alone.c): what they take.
ALONE = {
    "pack": [PTR, PTR, INT, INT, INT, INT, INT, c_int, c_int],
    "linear": [POINTER(Linear), POINTER(Rows), INT, c_int, PTR, POINTER(Rows), POINTER(Linear), c_int],
    "linear_in_passes": [POINTER(Linear), POINTER(Rows), INT, c_int, PTR, POINTER(Rows), POINTER(Linear), PTR, c_int],
    "embed": [PTR, PTR, PTR, INT, PTR, PTR, INT, INT, c_int],
    "layer_norm": [POINTER(Rows), PTR, PTR, INT, INT, PTR, PTR, c_float, c_int],
    "argmax": [PTR, PTR, INT, INT, c_int],
    "write_kv": [POINTER(Cache), POINTER(Rows), POINTER(Step), c_int],
    "paged_attention": [POINTER(Rows), POINTER(Rows), POINTER(Cache), POINTER(Step), c_int, c_int],
    "keep_last": [POINTER(Workspace), INT, POINTER(Step), PTR, POINTER(Step)],
}
FORWARD = [POINTER(Model), POINTER(Workspace), POINTER(Cache), POINTER(Step), PTR, c_int, c_int, c_int, c_int]
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
    """The first of the largest of each row; -1 if that is no finite number. [n_rows, vocab_size] float32 -> [n_rows]"""
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


def pack(weight: Tensor, kind: str, room: Callable[[int], Tensor] | None = None) -> Tensor:
    """A matrix in panels of 32 columns, as product.c describes them: [out, in] float32 or bfloat16, of any strides ->
    uint8 [num_bytes], in memory that `room` gives."""
    (out, in_), size = weight.shape, 4 if kind in ("fma_float32", "tiles_split") else 2
    num_bytes = round_up(out, 32) * round_up(in_, 32) * size
    panels = room(num_bytes) if room else torch.empty(num_bytes, dtype=torch.uint8)
    sizes = (DTYPES[weight.dtype], *weight.stride(), out, in_, KINDS[kind][0])
    load_kernel().pack(panels.data_ptr(), weight.data_ptr(), *sizes, torch.get_num_threads())
    return panels


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def has_kind(kind: str) -> bool:
    """Whether this CPU has what a kind of product needs."""
    return bool(load_kernel().has_kind(KINDS[kind][0]))


# --- Compiling ------------------------------------------------------------------------------------------------------


@functools.cache
def load_kernel() -> ctypes.CDLL:
    """The compiled functions. Raises RuntimeError, in one line, if they can't be had."""
    try:
        library = ctypes.CDLL(str(compile_kernel()))
    except OSError as error:
        raise RuntimeError(f"the compiled C kernel can't be loaded: {error}") from None
    for name, types in ALONE.items():
        function = library[f"{name}_alone"]
        function.argtypes, function.restype = types, None
        setattr(library, name, function)
    library.forward.argtypes, library.has_kind.argtypes = FORWARD, [c_int]
    for function in (library.forward, library.paged_attention):  # those that need memory of their own
        function.restype, function.errcheck = c_int, check_memory
    return library


def check_memory(failed: int, *_) -> None:
    if failed:
        raise MemoryError("no memory for a step's attention")


def compile_kernel() -> Path:
    """The library, compiled anew only if the sources, the flags, the compiler or the machine have changed.

    Its name ends in the digest of what it holds, which is checked before it is loaded: a file that was cut short would
    end the process without a word. Processes that start at once may compile at once: each writes to a file of its own
    and then renames it, which is atomic, so nobody ever sees half a library.
    """
    compiler, openmp = find_compiler(), openmp_runtime()
    version = run([*compiler, "--version"], seconds=20)
    key = [*(source.read_text(encoding="utf-8") for source in SOURCES), *FLAGS, *compiler, version]
    key += [cpu(), *platform.libc_ver(), str(openmp)]
    name = f"{__package__.split('.')[0]}-{digest(os.fsencode(chr(0).join(key)))}"
    directory = cache_directory()
    if kept := find_kept(directory, name):
        return kept
    with tempfile.TemporaryDirectory(prefix="stagewise-") as scratch:
        threads = openmp_flags(version, openmp)
        sources, library = [source for source in SOURCES if source.suffix == ".c"], Path(f"{scratch}/kernel.so")
        objects = [f"{scratch}/{source.stem}.o" for source in sources]
        run(*([*compiler, *FLAGS, *threads, "-c", str(s), "-o", o] for s, o in zip(sources, objects, strict=True)))
        run([*compiler, "-shared", *objects, *([str(openmp)] if threads else []), "-lm", "-o", str(library)])
        if not library.exists():
            raise RuntimeError(f"the C compiler {compiler[0]} makes no library")
        content = library.read_bytes()
    try:
        return keep(content, directory, name)
    except OSError:  # as on a full disk: then for this process alone
        return keep(content, temporary_directory(), name)


def find_compiler() -> list[str]:
    """The command that compiles C: CC, which may bring arguments ("ccache gcc"), or the first one that there is."""
    chosen = os.environ.get("CC", "").strip()
    if not chosen:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            hint = "; xcode-select --install brings one" if platform.system() == "Darwin" else ""
            raise RuntimeError(f"there is no C compiler (cc, gcc, clang){hint}")
        return [compiler]
    try:
        program, *arguments = [chosen] if shutil.which(chosen) else shlex.split(chosen)  # a path may hold spaces
    except ValueError as error:
        raise RuntimeError(f"CC is {chosen!r}, which is no command: {error}") from None
    compiler = shutil.which(program)
    if compiler is None:
        raise RuntimeError(f"CC is {chosen!r}, but there is no program {program!r}")
    return [compiler, *arguments]


def run(*commands: list[str], seconds: float = 300) -> str:
    """Run commands, all at once; what the last one prints. Raises RuntimeError, in one line, if one of them fails."""
    end, processes = time.monotonic() + seconds, []
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        for command in commands:  # a session for each: what it starts can be ended with it
            new = subprocess.Popen(command, encoding="utf-8", errors="replace", start_new_session=True, **pipes)
            processes.append(new)
        said = [process.communicate(timeout=max(0, end - time.monotonic())) for process in processes]
    except OSError as error:
        raise RuntimeError(f"the C compiler {commands[0][0]} does not run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the C compiler {commands[0][0]} has not ended after {seconds} seconds") from None
    finally:
        for process in processes:
            stop(process)
    for command, process, (_, words) in zip(commands, processes, said, strict=True):
        if process.returncode:
            lines = words.strip().splitlines() or [f"it says nothing (status {process.returncode})"]
            reason = next((line for line in lines if "error" in line), lines[0])
            raise RuntimeError(f"the C compiler {command[0]} fails: {reason[:300]}")
    return said[-1][0]


def stop(process: subprocess.Popen) -> None:
    """End a process that has not ended by itself, and all that it has started."""
    if process.returncode is None:
        process.kill() if os.name == "nt" else os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()
    process.stderr.close()


def openmp_runtime() -> Path | None:
    """The OpenMP library of this process, which torch brought; None where that can't be seen."""
    maps = Path("/proc/self/maps")
    if not maps.exists():  # as on macOS: there torch's wheel has it
        library = Path(torch.__file__).parent / "lib" / "libomp.dylib"
        return library if library.exists() else None
    lines = os.fsdecode(maps.read_bytes()).splitlines()
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if len(line.split()) > 5}
    return min((p for p in paths if p.name.startswith(("libgomp", "libomp", "libiomp5"))), default=None)


def openmp_flags(version: str, runtime: Path | None) -> list[str]:
    """What tells the compiler of this version to use the runtime; [] where it can't, and the kernels run on one core.

    Clang's threads call LLVM's runtime (libomp, or Intel's); GCC's call GNU's, and LLVM's knows those calls too.
    """
    if runtime is None:
        reason = "torch's OpenMP library is not to be found"
    elif "clang" not in version:
        return ["-fopenmp"]
    elif not runtime.name.startswith("libgomp"):
        return ["-Xclang", "-fopenmp"]  # Apple's has it, but hides it
    else:
        reason = f"Clang can't use {runtime.name}, which torch has; CC=gcc can"
    logging.getLogger(__name__).warning("the C kernels run on one core: %s", reason)
    return []


def cpu() -> str:
    """What -march=native depends on: a cache directory may be shared by different machines."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    described = {line for line in lines if line.startswith(("model name", "flags", "Features"))}  # once, not per core
    return "\n".join([platform.machine(), *sorted(described)])


# --- What is kept -----------------------------------------------------------------------------------------------------


def find_kept(directory: Path, name: str) -> Path | None:
    """The library of this name, if there is a whole one that nobody else can have written."""
    for path in directory.glob(f"{name}-*.so"):
        try:
            if path.is_file() and only_mine(path) and path.stem == f"{name}-{digest(path.read_bytes())}":
                return path
        except OSError:  # it is compiled again, and replaced
            continue
    return None


def keep(library: bytes, directory: Path, name: str) -> Path:
    """Write a library for this process and later ones. It gets its name when all of it is on the disk."""
    path = directory / f"{name}-{digest(library)}.so"
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        with open(f"{scratch}/{path.name}", "wb") as file:
            file.write(library)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(file.name, 0o600)
        os.replace(file.name, path)
    return path


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def cache_directory() -> Path:
    """The user's cache directory; where that can't be written or others can, a temporary one, gone with the process."""
    homes = (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache"))
    home = next((Path(path) for path in homes if os.path.isabs(path)), None)  # "~" stays where there is no HOME
    if home is None:
        return temporary_directory()
    directory = home / "stagewise"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        writable, trusted = os.access(directory, os.W_OK | os.X_OK), only_mine(directory) and not replaceable(directory)
    except OSError:
        return temporary_directory()
    if not trusted:
        why = "it belongs to someone else, or others may write there; the C kernel is compiled at every start"
        logging.getLogger(__name__).warning("the cache %s is not used: %s", directory, why)
    return directory if writable and trusted else temporary_directory()


def only_mine(path: Path) -> bool:
    """Whether no other user can have changed this: what a library holds is run."""
    if os.name == "nt":  # no such modes; a user's directories are the user's
        return True
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def replaceable(directory: Path) -> bool:
    """Whether another user could put a directory of theirs in the place of this one."""
    if os.name == "nt":
        return False
    status = directory.parent.stat()
    return status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH


@functools.cache
def _temporary_directory() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="stagewise-")


def temporary_directory() -> Path:
    return Path(_temporary_directory().name)

"""Compiles paged_attention.c on first use, keeps the result in the user's cache directory, and calls it with ctypes.

The kernel's threads are torch's own: it is linked to the OpenMP runtime that torch has loaded already. A second runtime
would bring a second set of threads, and the two would take the cores from each other in every layer.
"""

import ctypes
import functools
import hashlib
import logging
import math
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("paged_attention.c")
# What is compiled here runs here. On ARM there is nothing to choose, and not every compiler knows the word.
NATIVE = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ()
FLAGS = ("-O3", *NATIVE, "-fno-math-errno", "-fPIC")
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
    pointers = map(Tensor.data_ptr, tensors)
    sizes = (len(seq_lens), block_tables.shape[1], n_head, head_dim, block_size)
    arguments = (*pointers, *sizes, DTYPES[k_cache.dtype], torch.get_num_threads())
    if load_kernel()(*arguments):
        raise MemoryError("no memory for a step's attention")
    return out.to(query.dtype)


@functools.cache
def load_kernel():
    """The compiled function. Raises RuntimeError, in one line, if it can't be had."""
    try:
        library = ctypes.CDLL(str(compile_kernel()))
    except OSError as error:
        raise RuntimeError(f"the compiled C kernel can't be loaded: {error}") from None
    kernel = library.paged_attention
    kernel.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 5 + [ctypes.c_int] * 2
    return kernel


def compile_kernel() -> Path:
    """The library, compiled anew only if the source, the flags, the compiler or the machine have changed.

    Its name ends in the digest of what it holds, which is checked before it is loaded: a file that was cut short would
    end the process without a word. Processes that start at once may compile at once: each writes to a file of its own
    and then renames it, which is atomic, so nobody ever sees half a library.
    """
    compiler, openmp = find_compiler(), openmp_runtime()
    version = run([*compiler, "--version"], seconds=20)
    key = [SOURCE.read_text(encoding="utf-8"), *FLAGS, *compiler, version, cpu(), *platform.libc_ver(), str(openmp)]
    name = f"paged_attention-{digest(os.fsencode(chr(0).join(key)))}"
    directory = cache_directory()
    if kept := find_kept(directory, name):
        return kept
    with tempfile.TemporaryDirectory(prefix="stagewise-") as scratch:
        threads = openmp_flags(version, openmp)
        objects, library = f"{scratch}/kernel.o", Path(f"{scratch}/kernel.so")
        run([*compiler, *FLAGS, *threads, "-c", str(SOURCE), "-o", objects])
        run([*compiler, "-shared", objects, *([str(openmp)] if threads else []), "-lm", "-o", str(library)])
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

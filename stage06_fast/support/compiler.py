"""Compiles the C kernels on first use, and keeps the library in the user's cache directory.

Their threads are torch's own: the library is linked to the OpenMP runtime that torch has loaded already. A second one
would bring a second set of threads, and the two would compete for the cores in every layer.
"""

import atexit
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

SOURCES = sorted((Path(__file__).parent.parent / "kernels").glob("*.[ch]"))
# STAGEWISE_MARCH compiles for another CPU, such as x86-64-v3, which is AVX2. On ARM there is nothing to choose.
MARCH = os.environ.get("STAGEWISE_MARCH") or ("native" if platform.machine() in ("x86_64", "AMD64") else "")
OPTIMIZE = ("-O3", "-fno-tree-vectorize")  # the sources spell their vectors out
FLAGS = (*OPTIMIZE, *([f"-march={MARCH}"] if MARCH else []), "-fno-math-errno", "-fPIC")


def compile_kernel() -> Path:
    """The library: the one that is kept for these sources, flags, compiler and machine, or a new one.

    Raises RuntimeError, in one line, if it can't be compiled.
    """
    compiler, runtime = find_compiler(), openmp_runtime()
    version = run([*compiler, "--version"], seconds=20)
    flags, link = [*FLAGS, *openmp_flags(version, runtime)], ["-shared", str(runtime), "-lm"]
    key = [*(source.read_text(encoding="utf-8") for source in SOURCES), *compiler, *flags, *link, version, cpu()]
    key += [*platform.libc_ver(), torch.__version__]
    name, directory = f"kernels-{digest(os.fsencode(chr(0).join(key)))}", cache_directory()
    for kept in directory.glob(f"{name}-*.so"):
        if kept.stem == f"{name}-{digest(kept.read_bytes())}":  # else it is damaged: loading it would end the process
            return kept
    with tempfile.TemporaryDirectory(prefix="stagewise-") as scratch, ThreadPoolExecutor() as pool:
        sources = [source for source in SOURCES if source.suffix == ".c"]
        objects = [f"{scratch}/{source.stem}.o" for source in sources]
        commands = ([*compiler, *flags, "-c", str(s), "-o", o] for s, o in zip(sources, objects, strict=True))
        list(pool.map(run, commands))
        run([*compiler, *objects, *link, "-o", f"{scratch}/kernels.so"])
        library = Path(scratch, "kernels.so")
        library = library.rename(library.with_name(f"{name}-{digest(library.read_bytes())}.so"))
        try:
            return keep(library, directory)
        except OSError:  # a full disk, for example: keep it for this process only
            return keep(library, temporary_directory())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def keep(library: Path, directory: Path) -> Path:
    """Copy a library. It gets its name when all of it is there, because other processes may write and load it now."""
    with tempfile.TemporaryDirectory(dir=directory) as part:
        return Path(shutil.copy(library, part)).replace(directory / library.name)


def cache_directory() -> Path:
    """The user's cache directory; a temporary one if it can't be made, or others can write to it: the library's code is
    run."""
    homes = (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache"))
    home = next(filter(os.path.isabs, homes), None)  # "~" is left in place if there is no HOME
    if home is None:
        return temporary_directory()
    directory = Path(home, "stagewise")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError:
        return temporary_directory()
    if os.name != "nt" and (status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022):
        message = "the cache %s is not used: others can write to it, so kernels are compiled at every start"
        logging.getLogger(__name__).warning(message, directory)
        return temporary_directory()
    return directory


@functools.cache
def temporary_directory() -> Path:
    """Removed at the end of the process."""
    directory = tempfile.mkdtemp(prefix="stagewise-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


# --- The compiler -----------------------------------------------------------------------------------------------------


def find_compiler() -> list[str]:
    """The command that compiles C: CC, perhaps with arguments ("ccache gcc"), or the first compiler found."""
    chosen = os.environ.get("CC", "").strip()
    try:
        commands = [shlex.split(chosen)] if chosen else [["cc"], ["gcc"], ["clang"]]
    except ValueError as error:
        raise RuntimeError(f"CC is {chosen!r}, which is not a command: {error}") from None
    for program, *arguments in commands:
        if found := shutil.which(program):
            return [found, *arguments]
    if chosen:
        raise RuntimeError(f"CC is {chosen!r}, but there is no program {commands[0][0]!r}")
    raise RuntimeError("there is no C compiler (cc, gcc, clang)")


def run(command: list[str], seconds: float = 300) -> str:
    """What a command prints. Raises RuntimeError, in one line, if it fails or takes too long."""
    compiler, nothing = f"the C compiler {command[0]}", subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdin=nothing, capture_output=True, timeout=seconds, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise RuntimeError(f"{compiler} does not run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{compiler} did not finish within {seconds} seconds") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"no message (status {done.returncode})"]
        raise RuntimeError(f"{compiler} fails: {next((line for line in lines if 'error' in line), lines[0])[:300]}")
    return done.stdout


def openmp_runtime() -> Path | None:
    """The OpenMP library of this process, which torch brought; None if it was not found."""
    maps = Path("/proc/self/maps")
    if not maps.exists():  # as on macOS: torch's wheel has it
        library = Path(torch.__file__).parent / "lib" / "libomp.dylib"
        return library if library.exists() else None
    lines = os.fsdecode(maps.read_bytes()).splitlines()
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if len(line.split()) > 5}
    return min((p for p in paths if p.name.startswith(("libgomp", "libomp", "libiomp5"))), default=None)


def openmp_flags(version: str, runtime: Path | None) -> list[str]:
    """What tells the compiler of this version to use the runtime. Raises RuntimeError if it can't.

    Clang calls LLVM's runtime (libomp, or Intel's); GCC calls GNU's, and LLVM's knows those calls too.
    """
    if runtime is None:
        raise RuntimeError("torch's OpenMP library was not found")
    if "clang" not in version:
        return ["-fopenmp"]
    if runtime.name.startswith("libgomp"):
        raise RuntimeError(f"Clang can't use {runtime.name}, which torch has; CC=gcc can")
    return ["-Xclang", "-fopenmp"]  # Apple's Clang has OpenMP, but hides the flag


def cpu() -> str:
    """What -march=native depends on: different machines may share a cache directory."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    described = {line for line in lines if line.startswith(("model name", "flags", "Features"))}  # once, not per core
    return "\n".join([platform.machine(), *sorted(described)])

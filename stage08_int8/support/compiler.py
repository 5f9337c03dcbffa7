"""Compiles the C kernels on first use, and keeps the library in the user's cache directory.

Their threads are torch's own: the library is linked to the OpenMP runtime that torch has loaded already. A second one
would bring a second set of threads, and the two would take the cores from each other in every layer.
"""

import atexit
import contextlib
import functools
import hashlib
import importlib.util
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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SOURCES = sorted((Path(__file__).parent.parent / "kernels").glob("*.[ch]"))
# Another CPU's kernels, such as x86-64-v3, which is AVX2. On ARM there is nothing to choose.
MARCH = os.environ.get("STAGEWISE_MARCH") or ("native" if platform.machine() in ("x86_64", "AMD64") else "")
OPTIMIZE = ("-O3", "-fno-tree-vectorize")
FLAGS = (*OPTIMIZE, *([f"-march={MARCH}"] if MARCH else []), "-fno-math-errno", "-fPIC")


class Compilation:
    """The library in the making: what compiles it, the name that it will have, and the commands that are at it."""

    def __init__(self):
        self.compiler, torch = find_compiler(), torch_directory()
        self.version = run([*self.compiler, "--version"], seconds=20)
        key = [*(source.read_text(encoding="utf-8") for source in SOURCES), *FLAGS, *self.compiler, self.version, cpu()]
        key += [*platform.libc_ver(), str(torch), (torch / "version.py").read_text(encoding="utf-8")]
        self.name = f"{__name__.split('.')[0]}-{digest(os.fsencode(chr(0).join(key)))}"
        self.threads: list[str] = []
        self.commands: Any = None
        self.scratch: Any = None

    def begin(self, threads: list[str]) -> None:
        """Start the compiler for all files. threads: what tells it to use OpenMP."""
        self.threads, self.scratch = threads, tempfile.TemporaryDirectory(prefix="stagewise-")
        files = [source for source in SOURCES if source.suffix == ".c"]
        command = [*self.compiler, *FLAGS, *threads, "-c"]
        self.commands = Commands([*command, str(file), "-o", f"{self.scratch.name}/{file.stem}.o"] for file in files)

    def finish(self) -> bytes:
        """The library. Raises RuntimeError, in one line, if the compiler fails."""
        runtime = openmp_runtime()
        threads = openmp_flags(self.version, runtime)
        if self.commands is None or threads != self.threads:
            self.end()
            self.begin(threads)
        self.commands.wait()  # pyright: ignore[reportOptionalMemberAccess]
        library, files = Path(f"{self.scratch.name}/kernel.so"), sorted(Path(self.scratch.name).glob("*.o"))
        linked = [*map(str, files), *([str(runtime)] if threads else []), "-lm"]
        run([*self.compiler, "-shared", *linked, "-o", str(library)])
        if not library.exists():
            raise RuntimeError(f"the C compiler {self.compiler[0]} makes no library")
        return library.read_bytes()

    def end(self) -> None:
        """Stop what still runs, and remove its files."""
        if self.commands:
            self.commands.stop()
        if self.scratch:
            self.scratch.cleanup()
        self.commands = self.scratch = None


begun: Compilation | None = None


def begin() -> None:
    """Start to compile, if there is no library yet; compile_kernel goes on from here, and tells what goes wrong."""
    global begun
    with contextlib.suppress(RuntimeError, OSError):
        making = Compilation()
        if not find_kept(cache_directory(), making.name) and "clang" not in making.version:
            making.begin(["-fopenmp"])  # GCC's flag, whatever torch brings; Clang's depends on it
            begun = making
            atexit.register(making.end)


def compile_kernel() -> Path:
    """The library, compiled again only if the sources, the flags, the compiler or the machine have changed.

    Its name ends in the digest of what it holds, which is checked before it is loaded: a file that was cut short would
    end the process without a word. Processes that start at once may compile at once: each writes to a file of its own
    and then renames it, which is atomic, so no process ever sees half a library.
    """
    global begun
    making, directory = Compilation(), cache_directory()
    if kept := find_kept(directory, making.name):
        return kept
    if begun and begun.name == making.name:
        making, begun = begun, None
    try:
        library = making.finish()
    finally:
        making.end()
    try:
        return keep(library, directory, making.name)
    except OSError:  # as on a full disk: then for this process alone
        return keep(library, temporary_directory(), making.name)


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


class Commands:
    """Commands that run at once."""

    def __init__(self, commands: Iterable[list[str]]):
        self.commands, self.processes = list(commands), []
        pipes: dict[str, Any] = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            for command in self.commands:  # a session for each: what it starts can be ended with it
                new = subprocess.Popen(command, encoding="utf-8", errors="replace", start_new_session=True, **pipes)
                self.processes.append(new)
        except OSError as error:
            self.stop()
            raise RuntimeError(f"the C compiler {self.commands[0][0]} does not run: {error.strerror}") from None

    def wait(self, seconds: float = 300) -> str:
        """What the last one prints. Raises RuntimeError, in one line, if one of them fails or has not ended by then."""
        end = time.monotonic() + seconds
        try:
            said = [process.communicate(timeout=max(0, end - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the C compiler {self.commands[0][0]} has not ended after {seconds} seconds") from None
        finally:
            self.stop()
        for command, process, (_, words) in zip(self.commands, self.processes, said, strict=True):
            if process.returncode:
                lines = words.strip().splitlines() or [f"it says nothing (status {process.returncode})"]
                reason = next((line for line in lines if "error" in line), lines[0])
                raise RuntimeError(f"the C compiler {command[0]} fails: {reason[:300]}")
        return said[-1][0]

    def stop(self) -> None:
        """End those that have not ended by themselves, and all that they have started."""
        for process in self.processes:
            if process.returncode is None:
                process.kill() if os.name == "nt" else os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()
            process.stderr.close()


def run(command: list[str], seconds: float = 300) -> str:
    return Commands([command]).wait(seconds)


def torch_directory() -> Path:
    """Where torch is, without loading it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise RuntimeError("torch is not installed")
    return Path(spec.origin).parent


def openmp_runtime() -> Path | None:
    """The OpenMP library of this process, which torch brought; None where that can't be seen."""
    maps = Path("/proc/self/maps")
    if not maps.exists():  # as on macOS: there torch's wheel has it
        library = torch_directory() / "lib" / "libomp.dylib"
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
    """The library of this name, if there is a whole one that no other user can have written."""
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
        warn_once(f"the cache {directory} is not used: {why}")
    return directory if writable and trusted else temporary_directory()


@functools.cache
def warn_once(message: str) -> None:
    logging.getLogger(__name__).warning(message)


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

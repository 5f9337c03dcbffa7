"""An answer that is written in C, and the judge who stands outside.

    with AnswerInC(path) as work:
        work.multiply(x, panels, y, 3, 5)     # tensors for the arrays, in the order of the C function's arguments
        with work.pages(panels=2) as fetched:
            work.multiply(x, panels, y, 3, 5)
        fetched["panels"]                     # the pages that a cache of two would have fetched, in order

It is compiled, and runs in a process of its own, with traps around each array (see judge.c): whatever reads or writes
outside, writes to a `const` array, or uses more than 64 KB of stack, ends with words that say where. The functions that
can be called, and which of their arrays are const, are read from the declarations in the exercise's header, and from
`test_N_M_name.c` where a test needs functions of its own.

What is not defended: a C program can do what it likes with its own process. It can open no file once it runs; the
compiler refuses to include any but the system's and the exercise's.
"""

import functools
import os
import platform
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack, unpack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stage06_fast.support.compiler import find_compiler

from .judge import PATIENCE, SECONDS, Ended, Endless, Process, environment, too_long

FOLDER = Path(__file__).resolve().parent
DRIVER = FOLDER / "judge.c"
X86 = ("-march=native", "-mprefer-vector-width=512") if platform.machine() in ("x86_64", "AMD64") else ()
FLAGS = ("-O3", *X86, "-fno-math-errno", "-Wall", "-Werror=implicit-function-declaration", "-Werror=return-type")
COUNTED = ("malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign")
DECLARATION = re.compile(r"^(void|int64_t) (\w+)\(([^)]*)\)(?: \{|;)", re.MULTILINE)
ASSEMBLER = re.compile(rb"\b(asm|__asm|__asm__)\b")  # it could include a file without the compiler's knowledge
DONE, OUTSIDE, NOT_WRITTEN = 0, 1, 2
NOTES, MOST_KEPT = 1 << 16, 64  # of judge.c
SIGNALS = {4: "an instruction that this CPU does not have", 6: "abort()", 8: "a division by zero"}


class Stopped(Exception):
    """The answer did what a trap stopped, or what the compiler refuses."""

    def __init__(self, name: str, text: str, line: int | None = None):
        super().__init__(text)
        self.told = {"name": name, "line": line, "own": line is not None, "function": ""}


class Function(NamedTuple):
    """The declaration of a C function: its arrays, each with whether it is const, and the names of all arguments."""

    name: str
    arrays: tuple[tuple[str, bool], ...]
    names: tuple[str, ...]
    returns: bool

    @property
    def call(self) -> str:
        """A line of C that calls it."""
        arrays = iter(range(len(self.arrays)))
        numbers = iter(range(len(self.names)))
        of = dict(self.arrays)
        made = [f"arrays[{next(arrays)}]" if name in of else f"numbers[{next(numbers)}]" for name in self.names]
        value = f"{self.name}({', '.join(made)})"
        does = f"return {value};" if self.returns else f"{{ {value}; return 0; }}"
        return f'    if (!strcmp(name, "{self.name}")) {does}'


def declared(text: str) -> dict[str, Function]:
    """The functions that a C text declares or defines at the beginning of a line, by name."""
    found = {}
    for kind, name, arguments in DECLARATION.findall(text):
        parts = [part.strip() for part in arguments.split(",") if part != "void"]
        names = [re.findall(r"\w+", part)[-1] for part in parts]
        arrays = [(n, part.startswith("const ")) for n, part in zip(names, parts, strict=True) if "*" in part]
        found[name] = Function(name, tuple(arrays), tuple(names), kind == "int64_t")
    return found


def functions_of(header: str, number: str) -> dict[str, Function]:
    """Those below the line `/* 6.2 */` of a header, up to the next such line."""
    section = header.split(f"/* {number} */")[1] if f"/* {number} */" in header else ""
    return declared(re.split(r"^/\* \d+\.\d+ \*/$", section, flags=re.MULTILINE)[0])


@functools.cache
def kept_folder() -> tempfile.TemporaryDirectory:
    """For what is compiled once for all answers; it is removed at the end."""
    return tempfile.TemporaryDirectory(prefix="judge-")


@functools.cache
def harness(header: Path, more: Path | None, number: str) -> tuple[Path, Path]:
    """The object files that run an answer to this exercise: the traps, and what calls its functions."""
    calls, driver = (Path(kept_folder().name) / f"{name}_{number.replace('.', '_')}.o" for name in ("calls", "judge"))
    functions = functions_of(header.read_text(encoding="utf-8"), number)
    text = [header.read_text(encoding="utf-8"), "#include <string.h>"]
    if more:
        text.append(more.read_text(encoding="utf-8"))
        functions |= declared(text[-1])
    text += ["int64_t call(const char *name, void **arrays, const int64_t *numbers) {"]
    text += [*(function.call for function in functions.values()), "    return 0;", "}", ""]
    source = calls.with_suffix(".c")
    source.write_text("\n".join(text), encoding="utf-8")
    for path, made in ((source, calls), (DRIVER, driver)):
        run_compiler(["-pthread", f"-I{header.parent}", "-c", path, "-o", made], path)
    return calls, driver


class AnswerInC:
    """The functions of an answer's file. It is compiled when one of them is first called."""

    def __init__(self, path: Path, seconds: float | None = None, patience: float | None = None, quiet: bool = False):
        self._path, self._quiet = Path(path), quiet
        self._limit, self._patience = seconds or SECONDS, patience or PATIENCE
        self._folder = tempfile.TemporaryDirectory(prefix="answer-")
        self._process: Process | None = None
        self._spent = 0.0  # seconds of computing of processes that have ended
        self._keep: dict[str, int] = {}
        self._fetched: dict[str, list[int]] = {}
        self.allocated = 0  # bytes that the last call took from malloc and its like
        self.at_end = True  # whether arrays lie before a trap, or behind one
        self.__file__ = str(path)
        self.number = ".".join(self._path.stem.split("_")[:2])
        own = FOLDER / f"stage{self.number.split('.')[0]}"
        self._header, more = own / "linear.h", own / f"test_{self._path.stem}.c"
        self._more = more if more.exists() else None
        self._functions = functions_of(self._header.read_text(encoding="utf-8"), self.number)
        if self._more:
            self._functions |= declared(self._more.read_text(encoding="utf-8"))

    def __enter__(self) -> "AnswerInC":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    @functools.cached_property
    def _program(self) -> Path:
        """The answer, compiled. Raises Stopped, with the compiler's words, if it can't be."""
        answer, program = (Path(self._folder.name) / name for name in ("answer.o", "answer"))
        compile_answer(self._path, answer, *[f"-D{name}=counted_{name}" for name in COUNTED])
        run_compiler(
            ["-pthread", answer, *harness(self._header, self._more, self.number), "-lm", "-o", program], self._path
        )
        return program

    def load(self) -> None:
        """Compile it. Raises Stopped where that goes wrong, and RuntimeError without a compiler."""
        _ = self._program

    @property
    def cpu_seconds(self) -> float:
        return self._spent + (self._process.cpu_seconds if self._process else 0.0)

    def settle(self) -> None:
        """After a test: nothing can have changed but what the answer was given to write to."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._functions:
            raise AttributeError(f"there is no function {name!r}")
        return lambda *arguments: self._call(self._functions[name], *arguments)

    @contextmanager
    def pages(self, **keep: int) -> Iterator[dict[str, list[int]]]:
        """Count the pages of these arrays that a cache of `keep` pages each would fetch during a call."""
        self._keep, self._fetched = keep, {}
        try:
            yield self._fetched
        finally:
            self._keep = {}

    @contextmanager
    def at_starts(self) -> Iterator[None]:
        """Arrays begin behind a trap, so that what is read or written before them is found."""
        self.at_end = False
        try:
            yield
        finally:
            self.at_end = True

    def _call(self, function: Function, *arguments: Any) -> int:
        if len(arguments) != len(function.names) or max(self._keep.values(), default=0) > MOST_KEPT:
            raise TypeError(f"{function.name} takes {', '.join(function.names)}; up to {MOST_KEPT} pages are kept")
        given = dict(zip(function.names, arguments, strict=True))
        tensors = [given[name] for name, _ in function.arrays]
        numbers = [value for name, value in given.items() if name not in dict(function.arrays)]
        message = [pack("=32sqq", function.name.encode(), len(tensors), self.at_end)]
        for (name, const), tensor in zip(function.arrays, tensors, strict=True):
            if tensor.dtype not in (torch.float32, torch.int64):
                raise TypeError(f"{name} has {tensor.dtype}")
            data = tensor.contiguous().view(-1).numpy().tobytes()
            message += [pack("=qqq", len(data), not const, self._keep.get(name, 0)), data]
        message.append(pack(f"={1 + len(numbers)}q", len(numbers), *numbers))
        if self._process is None:
            self._start()
        self._process.write(b"".join(message))
        kind, value, more = self._receive("=qqq")
        if kind != DONE:
            self._explain(kind, value, more, function, tensors)
        self.allocated = more
        for (name, const), tensor in zip(function.arrays, tensors, strict=True):
            if not const:
                data = bytearray(self._bytes(tensor.nbytes))
                tensor.view(-1).copy_(torch.frombuffer(data, dtype=tensor.dtype) if data else tensor.view(-1))
            if name in self._keep:
                count = self._receive("=q")[0]
                self._fetched[name] = list(unpack(f"={min(count, NOTES)}i", self._bytes(4 * min(count, NOTES))))
        return value

    def _explain(self, kind: int, first: int, second: int, function: Function, tensors: list[Tensor]) -> None:
        """Raise what a trap has told. The process has ended."""
        name = self._bytes(first).decode() if kind == NOT_WRITTEN else ""
        self._end()
        if kind == NOT_WRITTEN:
            error = NotImplementedError(f"{name} is not written yet")
            error.told = {"name": "NotImplementedError", "line": None, "own": False, "function": name}
            raise error
        if kind != OUTSIDE:
            where = SIGNALS.get(first, f"address {second:#x}, where there is nothing: a pointer that points nowhere?")
            raise Stopped("stopped", where)
        if first == len(tensors):
            raise Stopped(
                "stopped", "more than 64 KB of the stack: it is for sums, not for a copy or an intermediate result"
            )
        array, const = function.arrays[first]
        size, place = tensors[first].numel(), second // tensors[first].element_size()
        if 0 <= place < size:
            what = ", and must not change what it is given" if const else ""
            raise Stopped("stopped", f"{function.name} writes to {array}[{place}]{what}")
        has = f"{array} has {size} numbers, the last is {array}[{size - 1}]"
        raise Stopped("stopped", f"{function.name} reads or writes {array}[{place}]; {has}")

    # The process

    def _start(self) -> None:
        program = self._program
        process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(),
                                   stderr=subprocess.DEVNULL if self._quiet else None, cwd=os.sep,
                                   start_new_session=True)  # fmt: skip
        self._process = Process(
            process.pid, os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()), process.wait
        )
        process.stdin.close(), process.stdout.close()

    def _end(self) -> None:
        if self._process:
            self._process.kill()
            self._spent += self._process.cpu_seconds_at_end
            self._process = None

    def _receive(self, form: str) -> tuple:
        return unpack(form, self._bytes(8 * form.count("q")))

    def _bytes(self, size: int) -> bytes:
        """So many bytes of the reply. Raises Endless if the answer takes too long, and Ended if it is gone."""
        data, started = bytearray(), time.monotonic()
        while len(data) < size:
            if select.select([self._process.fds[0]], [], [], 0.5)[0]:
                more = os.read(self._process.fds[0], min(1 << 20, size - len(data)))
                if not more:
                    status = self._process.status()
                    self._end()
                    raise Ended(f"the process that ran it ended with status {status}")
                data += more
                continue
            computed = self._process.cpu_seconds > self._limit
            if computed or time.monotonic() > started + self._patience:
                self._end()
                raise Endless(too_long(computed, self._limit, self._patience))
        return bytes(data)


def compile_answer(path: Path, to: Path, *flags: str) -> None:
    """An answer's file to an object file. Raises Stopped with the first error, and its line."""
    header = FOLDER / f"stage{path.stem.split('_')[0]}" / "linear.h"
    if found := ASSEMBLER.search(path.read_bytes()):
        raise Stopped("refused", "an answer has no assembler", path.read_bytes()[: found.end()].count(b"\n") + 1)
    read = to.with_suffix(".d")
    run_compiler(["-fPIC", "-pthread", *flags, f"-I{header.parent}", "-MD", "-MF", read, "-c", path, "-o", to], path)
    names = re.split(r"(?<!\\)\s+", read.read_text(errors="replace").replace("\\\n", "").strip())[1:]
    files = {Path(name.replace("\\ ", " ")).resolve() for name in names}
    if others := [file for file in files - {path.resolve(), header.resolve()} if FOLDER.parent in file.parents]:
        raise Stopped("refused", f"an answer includes linear.h and the system's headers, not {others[0].name}")


def run_compiler(arguments: list, path: Path) -> None:
    """Run it. Raises Stopped with what it says of this file."""
    command = [*find_compiler(), *FLAGS, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode:
        own = re.search(rf"{re.escape(path.name)}:(\d+):.*?error: (.*)", done.stderr)
        missing = re.search(r"undefined (?:reference to|symbol:?) [`'_]*(\w+)", done.stderr)
        if own:
            raise Stopped("error", own[2], int(own[1]))
        raise Stopped("error", f"there is no function {missing[1]}" if missing else done.stderr.strip()[-400:])

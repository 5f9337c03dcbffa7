"""An answer that is written in C.

    work = AnswerInC(path)
    work.multiply(x, panels, y, 3, 5)     # tensors for the arrays, in the order of the C function's arguments
    with work.pages(panels=2) as fetched:
        work.multiply(x, panels, y, 3, 5)
    fetched["panels"]                     # the pages that a cache of two would have fetched, in order

It is compiled into a library, with traps around each array (see judge.c): an answer that reads or writes outside,
writes to a `const` array, or uses more than 64 KB of stack ends with a message that says where. The functions that can
be called, and which of their arrays are const, are read from the declarations in the exercise's header, and from
`test_N_M_name.c` where a test needs C functions.
"""

import ctypes
import functools
import platform
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stage06_fast.support.compiler import find_compiler

FOLDER = Path(__file__).resolve().parent
TRAPS = FOLDER / "judge.c"
X86 = ("-march=native", "-mprefer-vector-width=512") if platform.machine() in ("x86_64", "AMD64") else ()
FLAGS = ("-O3", *X86, "-fno-math-errno", "-Wall", "-Werror=implicit-function-declaration", "-Werror=return-type")
LINKED = ("-Wl,-Bsymbolic", "-Wl,-z,defs") if sys.platform == "linux" else ()  # call its own functions; miss none
COUNTED = ("malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "mmap")
DECLARATION = re.compile(r"^(void|int64_t) (\w+)\(([^)]*)\)(?: \{|;)", re.MULTILINE)
DONE, OUTSIDE, NOT_WRITTEN = 0, 1, 2
NOTES, MOST_KEPT = 1 << 16, 64  # as in judge.c
SIGNALS = {4: "an instruction that this CPU does not have", 6: "abort()", 8: "a division by zero"}


class Given(ctypes.Structure):
    """An array as passed to judge.c."""

    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_int64), ("writable", ctypes.c_int64),
                ("keep", ctypes.c_int64), ("fetched", ctypes.c_void_p), ("num_fetched", ctypes.c_int64)]  # fmt: skip


class Reply(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("kind", "first", "second", "allocated")]


class Stopped(Exception):
    """A trap stopped the answer."""


class CompileError(Exception):
    """The compiler rejects the answer."""

    def __init__(self, text: str, lineno: int | None = None):
        super().__init__(text)
        self.lineno = lineno


class Function(NamedTuple):
    """The declaration of a C function: its arrays, whether each is const, and the names of all arguments."""

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
    """The functions that a header declares between the line `/* 6.2 */` and the next such line."""
    section = header.split(f"/* {number} */")[1] if f"/* {number} */" in header else ""
    return declared(re.split(r"^/\* \d+\.\d+ \*/$", section, flags=re.MULTILINE)[0])


@functools.cache
def kept_folder() -> tempfile.TemporaryDirectory:
    """A folder for files that are compiled once for all answers; removed at the end."""
    return tempfile.TemporaryDirectory(prefix="judge-")


class Exercise(NamedTuple):
    """The command that compiles an answer."""

    number: str
    header: Path
    more: Path | None

    @classmethod
    def of(cls, path: Path) -> "Exercise":
        number = ".".join(path.stem.split("_")[:2])
        folder = FOLDER / f"stage{number.split('.')[0]}"
        more = folder / f"test_{path.stem}.c"
        return cls(number, folder / "linear.h", more if more.exists() else None)

    @property
    @functools.cache  # noqa: B019 (there are a few)
    def functions(self) -> dict[str, Function]:
        found = functions_of(self.header.read_text(encoding="utf-8"), self.number)
        return found | (declared(self.more.read_text(encoding="utf-8")) if self.more else {})


@functools.cache
def harness(exercise: Exercise) -> Path:
    """The object file that runs an answer to this exercise: the traps, and the calls of its functions."""
    source = Path(kept_folder().name) / f"calls_{exercise.number.replace('.', '_')}.c"
    text = ["int64_t call(const char *name, void **arrays, const int64_t *numbers) {"]
    text += [*(function.call for function in exercise.functions.values()), "    return 0;", "}", ""]
    parts = [TRAPS, exercise.header, *([exercise.more] if exercise.more else [])]
    source.write_text("\n".join([*(f'#include "{path}"' for path in parts), *text]), encoding="utf-8")
    run_compiler(
        ["-fPIC", "-pthread", f"-I{exercise.header.parent}", "-c", source, "-o", source.with_suffix(".o")], source
    )
    return source.with_suffix(".o")


class AnswerInC:
    """The functions of an answer's file, compiled into a folder. Raises CompileError with the compiler's message."""

    def __init__(self, path: Path, folder: Path):
        self._exercise, self._library = Exercise.of(Path(path)), folder / "answer.so"
        self.__file__ = str(path)
        self._loaded: ctypes.CDLL | None = None
        self._keep: dict[str, int] = {}
        self._fetched: dict[str, list[int]] = {}
        self.allocated = 0  # bytes that the last call allocated, by malloc and the like
        self.at_end = True  # whether arrays lie before a trap, or after one
        compile_answer(path, folder / "answer.o", *[f"-D{name}=counted_{name}" for name in COUNTED])
        self.reserved = reserved_in(folder / "answer.o")  # bytes of static and global variables
        made = [folder / "answer.o", harness(self._exercise), "-lm", "-o", self._library]
        run_compiler(["-shared", "-pthread", *LINKED, *made], path)

    def load(self) -> None:
        self._loaded = ctypes.CDLL(str(self._library))

    def settle(self) -> None:
        """Nothing to check after a test: only arrays that the answer may write to can have changed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._exercise.functions:
            raise AttributeError(f"there is no function {name!r}")
        return lambda *arguments: self._call(self._exercise.functions[name], *arguments)

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
        """Put a trap before each array, to catch reads and writes before its beginning."""
        self.at_end = False
        try:
            yield
        finally:
            self.at_end = True

    def _call(self, function: Function, *arguments: Any) -> int:
        if len(arguments) != len(function.names) or max(self._keep.values(), default=0) > MOST_KEPT:
            raise TypeError(f"{function.name} takes {', '.join(function.names)}; up to {MOST_KEPT} pages are kept")
        named = dict(zip(function.names, arguments, strict=True))
        numbers = [value for name, value in named.items() if name not in dict(function.arrays)]
        tensors = [named[name] for name, _ in function.arrays]
        if wrong := [tensor.dtype for tensor in tensors if tensor.dtype not in (torch.float32, torch.int64)]:
            raise TypeError(f"{function.name} takes float32 and int64, not {wrong[0]}")
        copies = [tensor.contiguous() for tensor in tensors]
        given, notes = (Given * max(1, len(tensors)))(), {name: (ctypes.c_int32 * NOTES)() for name in self._keep}
        for array, copy, (name, const) in zip(given, copies, function.arrays, strict=False):
            array.data, array.size, array.writable = copy.data_ptr(), copy.nbytes, not const
            if name in notes:
                array.keep, array.fetched = self._keep[name], ctypes.addressof(notes[name])
        reply, values = Reply(), (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
        if self._loaded is None:
            self.load()
        self._loaded.run(
            function.name.encode(), given, ctypes.c_int64(len(tensors)), ctypes.c_int64(self.at_end), values,
            ctypes.byref(reply)
        )  # fmt: skip
        if reply.kind != DONE:
            raise stop_of(reply, function, tensors)
        self.allocated = reply.allocated
        for array, tensor, copy, (name, _) in zip(given, tensors, copies, function.arrays, strict=False):
            if copy is not tensor and array.writable:
                tensor.copy_(copy)
            if name in notes:
                self._fetched[name] = notes[name][: min(array.num_fetched, NOTES)]
        return reply.first


def stop_of(reply: Reply, function: Function, tensors: list[Tensor]) -> Exception:
    """What a trap reported, as an error."""
    first, second = reply.first, reply.second
    if reply.kind == NOT_WRITTEN:
        name = ctypes.string_at(first).decode()
        unwritten = NotImplementedError(f"{name} is not written yet")
        unwritten.function = name
        return unwritten
    if reply.kind != OUTSIDE:
        where = SIGNALS.get(first, f"address {second:#x}, where no memory is mapped: a stray pointer?")
        return Stopped(where)
    if first == len(tensors):
        return Stopped("more than 64 KB of stack: it is for sums, not for a copy or an intermediate result")
    array, const = function.arrays[first]
    size, place = tensors[first].numel(), second // tensors[first].element_size()
    if 0 <= place < size:
        what = ", which it must not change" if const else ""
        return Stopped(f"{function.name} writes to {array}[{place}]{what}")
    has = f"{array} has {size} numbers, the last is {array}[{size - 1}]"
    return Stopped(f"{function.name} reads or writes {array}[{place}]; {has}")


def compile_answer(path: Path, to: Path, *flags: str) -> None:
    """An answer's file to an object file. Raises CompileError with the compiler's first error and its line."""
    header = Exercise.of(path).header
    run_compiler(["-fPIC", "-pthread", *flags, f"-I{header.parent}", "-c", path, "-o", to], path)


def reserved_in(path: Path) -> int:
    """The bytes of writable memory that an object file reserves; 0 if it is not a 64-bit ELF file."""
    data, writable = path.read_bytes(), 3  # SHF_WRITE | SHF_ALLOC
    if not data.startswith(b"\x7fELF\x02"):
        return 0
    (start,), (size, count) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQ", data, start + i * size) for i in range(count)]
    return sum(section[5] for section in sections if section[2] & writable == writable)


def run_compiler(arguments: list, path: Path) -> None:
    """Run the compiler. Raises CompileError with what it says about this file."""
    command = [*find_compiler(), *FLAGS, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode < 0:
        raise RuntimeError(f"the C compiler {command[0]} ended with status {done.returncode}")
    if done.returncode:
        own = re.search(rf"{re.escape(path.name)}:(\d+):.*?error: (.*)", done.stderr)
        missing = re.search(r"undefined (?:reference to|symbol:?) [`'_]*(\w+)", done.stderr)
        if own:
            raise CompileError(own[2], int(own[1]))
        raise CompileError(f"there is no function {missing[1]}" if missing else done.stderr.strip()[-400:])

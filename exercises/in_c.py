"""An answer that is written in C.

    work = Running(compiled(path, folder))
    work.multiply(x, panels, y, 3, 5)                               # arrays of numpy; y changes, as in C
    work.grouped(x, panels, y, 1, 3, 5, pages_of="panels", keep=2)  # the pages that a cache of two would fetch

The answer and in_c.c are compiled into a program, with AddressSanitizer. The program makes the calls that it gets
through a pipe. What ends it (a number outside an array, a division by zero, a loop that does not end) is raised as an
error in the line of the answer.

The functions, and which of their arrays are `const`, are read from the exercise's part of linear.h, and from
test_N_M_name.c where a test needs C functions.
"""

import functools
import os
import platform
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = Path(__file__).resolve().parent
X86 = ["-march=native", "-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []
FLAGS = [*X86, "-fno-math-errno", "-pthread", "-Werror=implicit-function-declaration", "-Werror=return-type"]
SANITIZER = ["-O2", "-g", "-fno-omit-frame-pointer", "-fsanitize=address"]
DECLARATION = re.compile(r"^(void|int64_t) (\w+)\(([^)]*)\)(?: \{|;)", re.MULTILINE)
DONE, NOT_WRITTEN, OUTSIDE = range(3)  # as in in_c.c
OPTIONS = "log_path=report:detect_leaks=0:redzone=2048:max_redzone=2048"  # of AddressSanitizer
SECONDS = 60  # that a call may take; a right one takes less than one on a quiet machine
STACK = 256  # KB: the answer's 64, and what AddressSanitizer adds


class Stopped(Exception):
    """The program ended in the middle of a call."""


class Argument(NamedTuple):
    name: str
    is_array: bool
    is_const: bool


class Function(NamedTuple):
    """The declaration of a C function."""

    name: str
    returns: bool
    arguments: list[Argument]

    @property
    def call(self) -> str:
        """A line of C that calls it; `a` has its arguments."""
        passed = [f"(void *)a[{i}]" if argument.is_array else f"a[{i}]" for i, argument in enumerate(self.arguments)]
        value = f"{self.name}({', '.join(passed)})"
        return f'    if (!strcmp(name, "{self.name}")) ' + (f"return {value};" if self.returns else f"{value};")


class Program(NamedTuple):
    """A compiled answer."""

    answer: Path
    file: Path
    functions: dict[str, Function]


def functions_of(text: str) -> dict[str, Function]:
    """The functions that a C text declares at the beginning of a line, by name."""
    found = {}
    for kind, name, arguments in DECLARATION.findall(text):
        parts = [part for part in arguments.split(",") if part != "void"]
        described = [Argument(re.findall(r"\w+", part)[-1], "*" in part, "const " in part) for part in parts]
        found[name] = Function(name, kind == "int64_t", described)
    return found


def compiled(answer: Path, folder: Path) -> Program:
    """The program in this folder. Raises SyntaxError with the compiler's first error; RuntimeError if there is no
    compiler."""
    number, header = ".".join(answer.stem.split("_")[:2]), FOLDER / "stage6" / "linear.h"
    more = header.with_name(f"test_{answer.stem}.c")
    text = header.read_text(encoding="utf-8").split(f"/* {number} */")[1].split("\n/* ")[0]
    text += more.read_text(encoding="utf-8") if more.exists() else ""
    functions = functions_of(f"int64_t group_size(void);{text}")
    included = [header, *([more] if more.exists() else [])]
    lines = [*(f'#include "{path}"' for path in included), "#include <string.h>"]
    lines += ["int64_t group_size(void) { return GROUP; }", "int64_t call(const char *name, const int64_t *a) {"]
    lines += [*(function.call for function in functions.values()), "    return 0;", "}", ""]
    (folder / "calls.c").write_text("\n".join(lines), encoding="utf-8")
    caller = caller_of(os.environ.get("CC", ""))
    run_compiler([*SANITIZER, answer, folder / "calls.c", Path(caller.name) / "in_c.o"], answer, folder / "answer")
    return Program(answer, folder / "answer", functions)


@functools.cache
def caller_of(compiler: str) -> tempfile.TemporaryDirectory:
    """The folder of in_c.o, which is compiled once for all answers."""
    folder = tempfile.TemporaryDirectory()
    run_compiler([*SANITIZER, "-c", FOLDER / "in_c.c"], FOLDER / "in_c.c", Path(folder.name) / "in_c.o")
    return folder


def run_compiler(arguments: list, answer: Path, to: Path) -> None:
    """Compile and link an answer. Raises SyntaxError with the compiler's first error; RuntimeError if something else
    is wrong."""
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"there is no C compiler: no program {command[0]!r}")
    command += [*FLAGS, f"-I{FOLDER / 'stage6'}", *map(str, arguments), "-lm", "-o", str(to)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode == 0:
        return
    own = re.search(rf"{re.escape(answer.name)}:(\d+):(\d+): (?:fatal )?error: (.*)", done.stderr)
    missing = re.search(r"undefined (?:reference to|symbol:?) [`'_]*(\w+)", done.stderr)
    missing = missing or re.search(r'"_(\w+)", referenced from', done.stderr)  # macOS
    if own:
        raise SyntaxError(own[3], (str(answer), int(own[1]), int(own[2]), line_of(answer, int(own[1]))))
    if missing and missing[1] in functions_of((FOLDER / "stage6" / "linear.h").read_text(encoding="utf-8")):
        raise SyntaxError(f"there is no function {missing[1]}", (str(answer), 1, 1, line_of(answer, 1)))
    errors = [line for line in done.stderr.splitlines() if "error" in line or "cannot find" in line]
    raise RuntimeError(f"the C compiler {command[0]} fails: {[*errors, done.stderr.strip()][0][:300]}")


def line_of(answer: Path, number: int) -> str:
    return answer.read_text(encoding="utf-8").splitlines()[number - 1]


class Running:
    """A running answer: its functions are methods. It is started again after an error."""

    def __init__(self, program: Program):
        self._program, self._process = program, None
        self.allocated = 0  # bytes, by malloc and the like in the last call

    def __getattr__(self, name: str) -> Any:
        function = self._program.functions[name]
        return lambda *arguments, **count: self._call(function, arguments, **count)

    def _call(self, function: Function, arguments: tuple, pages_of: str = "", keep: int = 0) -> Any:
        """The result; or with `pages_of` the pages of this array that are fetched, in order."""
        arrays = [(value, own) for value, own in zip(arguments, function.arguments, strict=True) if own.is_array]
        counted = [own.name for _, own in arrays].index(pages_of) if pages_of else -1
        parts = [struct.pack("=32sqqq", function.name.encode(), len(arguments), counted, keep)]
        for value in arguments:
            data = value.tobytes() if isinstance(value, np.ndarray) else struct.pack("=q", value)
            parts += [struct.pack("=q", len(data) if isinstance(value, np.ndarray) else -1), data]
        if self._process is None:
            self._start()
        self._process.stdin.write(b"".join(parts))
        self._process.stdin.flush()
        kind, first, second, third = struct.unpack("=qqqq", self._read(32))
        if kind == NOT_WRITTEN:
            self._fail(NotImplementedError(f"{function.name} is not written yet"), first)
        if kind == OUTSIDE:
            (value, own), verb = arrays[first], "writes" if third else "reads"
            place = f"{own.name}[{second // value.itemsize}]"
            self._fail(Stopped(f"{function.name} {verb} {place}, and {own.name} has {value.size} numbers"))
        self.allocated = second
        contents = [self._read(value.nbytes) for value, _ in arrays]
        pages = np.frombuffer(self._read(4 * third), np.int32).tolist()
        for (value, own), content in zip(arrays, contents, strict=True):
            if own.is_const:
                assert content == value.tobytes(), f"{function.name} changes {own.name}, which is const"
            else:
                value[...] = np.frombuffer(content, value.dtype).reshape(value.shape)
        return pages if pages_of else first

    def _start(self) -> None:
        # By a shell: a function that is called after the fork would have this process, with torch, copied.
        command = ["sh", "-c", f'ulimit -S -s {STACK} && exec "$0"', str(self._program.file.absolute())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self._program.file.parent,
            env=os.environ | {"ASAN_OPTIONS": OPTIONS},
        )  # fmt: skip

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            if not select.select([self._process.stdout], [], [], SECONDS)[0]:
                self._process.kill()
                self._fail(Stopped(f"a call takes more than {SECONDS} seconds: a loop that does not end?"))
            part = os.read(self._process.stdout.fileno(), size - len(found))
            if not part:
                self._fail(None)
            found += part
        return found

    def _fail(self, error: Exception | None, line: int | None = None) -> None:
        """Raise this error, or what ended the program, in the answer's line that the sanitizer names."""
        answer, number = self._program.answer, self._process.pid
        status = self._process.wait()
        self.close()
        log = self._program.file.with_name(f"report.{number}")
        report = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if error is None:
            said = re.search(r"AddressSanitizer: ([\w-]+)", report)
            ended = f"status {status}" if status >= 0 else signal.Signals(-status).name
            error = Stopped(TOLD.get(said[1], said[1]) if said else f"the program ended with {ended}")
        found = re.search(rf"{re.escape(answer.name)}:(\d+)", report)
        line = line or (int(found[1]) if found else None)
        if line is None:
            raise error
        exec(compile("\n" * (line - 1) + "raise error", answer, "exec"), {"error": error})  # the traceback ends there

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close(), self._process.stdout.close()
            self._process = None


TOLD = {"stack-overflow": "the stack is full: 64 KB are for sums, not for a copy or an intermediate result",
        "heap-buffer-overflow": "a number outside an array",
        "SEGV": "a pointer to where no memory is",
        "FPE": "a division by zero"}  # fmt: skip

"""How a command ends: streams that may be closed or full, errors in one line, Ctrl-C, exit statuses."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn


class MissingPackageError(ValueError):
    """A package of an extra is not installed: no input is wrong."""


def prepare_streams() -> None:
    """Let streams take any character, whatever their encoding. A closed stdin reads as empty; a closed stdout or stderr
    discards everything."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]


def flush_streams() -> None:
    """At exit: drop what a stream can't take, or the interpreter would try again, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Errors of an open file do not name it: add its name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def reason(error: BaseException) -> str:
    """An error's message, without the operating system's error number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def is_of_memory(error: BaseException | None) -> bool:
    """Whether torch ran out of memory. On a CPU it has no exception class for that."""
    return isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "out of memory" in str(error))


def tell(message: str) -> None:
    """Print a line on stderr. If that fails, the exit status must be enough."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr)


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """The first Ctrl-C ends what runs in this block. A second one must not interrupt the cleanup that the first
    started: printing finished results, writing the trace."""

    def interrupt(*_) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, before)


class Outcome:
    """How a run ends: `with outcome:` reports what ended the block in one line, and keeps the exit status.

    Attributes:
        status: 0 done, 1 a request failed or the reader of stdout is gone (`| head`), 2 bad input, 130 interrupted.
        goes_on: how an interrupted run can be continued, if it can.
    """

    def __init__(self, prog: str):
        self.prog, self.status, self.goes_on = prog, 0, ""

    def failed(self, messages: list[str]) -> None:
        """Requests failed with these messages; the others are done."""
        for message in messages:
            tell(f"{self.prog}: error: {' '.join(message.splitlines())}")
            self.status = 1

    def __enter__(self) -> None:
        pass

    def __exit__(self, _, error: BaseException | None, __) -> bool:
        if isinstance(error, BrokenPipeError):
            self.status = 1
        elif error is not None and (isinstance(error, ValueError | OSError | MemoryError) or is_of_memory(error)):
            tell(f"{self.prog}: error: {' '.join(reason(error).splitlines()) or type(error).__name__}")
            self.status = 2
        elif isinstance(error, KeyboardInterrupt):
            tell(f"interrupted; {self.goes_on}" if self.goes_on else "interrupted")
            self.status = 130
        else:
            return False
        return True

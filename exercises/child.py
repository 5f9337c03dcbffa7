"""A check runs in a separate process: if it does not end, it is stopped, and if it crashes, nothing else does.

    for message in run(target, *arguments):    # target(tell, *arguments) runs in the process;
        ...                                    # what it passes to `tell` arrives here

That limits time. It is not a sandbox: nothing is hidden from the process.
"""

import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

SECONDS = 60.0  # of computing between two messages; a right answer takes at most five
PATIENCE = 600.0  # wall-clock seconds, for code that waits
GRACE = 2.0  # seconds until the process is killed if it has not reported where it is
FORKS = sys.platform == "linux"  # fork a process that has the slow imports; macOS's libraries don't survive it
CONTEXT: Any = multiprocessing.get_context("forkserver" if FORKS else "spawn")
SLOW = re.compile(r"torch|stage\d\d_\w+")  # modules that are slow to import
SAID, LATE, DONE, BEGUN, FAILED = range(5)  # kinds of a message
DUMPED = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)

Spot = tuple[FrameType, int, int]  # a frame, the line that it has reached, and which of its instructions


class Stopped(Exception):
    """There will be no more messages. `spots` are the (file, line) pairs that the process had reached, innermost first,
    if it could not say so itself."""

    spots: Sequence[tuple[str, int]] = ()


class Endless(Stopped):
    """The process takes too long."""


class Ended(Stopped):
    """The process ended early."""


class CheckFailed(Exception):
    """The target raised an error, or it ended before the code under test began. That is no fault of this code."""


class Tell:
    """How a target sends messages. It may set `where`, which turns the stack into a description of what is running. It
    calls `begin` right before the code under test runs for the first time."""

    def __init__(self, sender: Connection):
        self.sender, self.lock = sender, threading.Lock()
        self.where: Callable[[list[Spot]], str] = lambda spots: ""
        self.restart()

    def restart(self) -> None:
        self.computed, self.began = time.process_time(), time.monotonic()

    def begin(self) -> None:
        self(None, BEGUN)

    def __call__(self, message: Any, kind: int = SAID) -> None:
        with self.lock:
            self.sender.send((kind, message))
        self.restart()


def run(
    target: Callable,
    *arguments: Any,
    seconds: float = SECONDS,
    patience: float = PATIENCE,
    quiet: bool = False,
    needs: str = "",
) -> Iterator[Any]:
    """The messages of a target. Raises Endless if one takes too long, Ended if there will be no more, and CheckFailed
    if the code under test did not cause that.

    quiet: don't show what it prints.
    needs: a program's source; the slow modules that it names are imported once for all processes.
    """
    if FORKS:
        preloaded = {name for name in sys.modules if SLOW.fullmatch(name)} | set(SLOW.findall(needs))
        CONTEXT.set_forkserver_preload(["exercises.catalogue", *sorted(preloaded)])
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        crash = Path(folder) / "crash"
        receiver, sender = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(
            target=_serve, args=(sender, target, arguments, seconds, patience, quiet, crash), daemon=True
        )
        if sys.stdout is not None:
            sys.stdout.flush()  # so that it comes before what the process prints
        with _ignoring_interrupts():
            process.start()
        sender.close()
        try:
            yield from _messages(receiver, process, seconds, patience)
        except Stopped as stopped:
            dump = crash.read_text(encoding="utf-8", errors="replace") if crash.exists() else ""
            stopped.spots = [(name, int(line)) for name, line in DUMPED.findall(dump)]
            raise
        finally:
            process.kill()
            process.join()
            receiver.close()


def _messages(receiver: Connection, process: Any, seconds: float, patience: float) -> Iterator[Any]:
    late, ended = CheckFailed, CheckFailed
    while True:
        computed, began = cpu_seconds(process.pid), time.monotonic()
        while not receiver.poll(0.2):  # the process reports by itself that it is late, unless it can't
            computes = cpu_seconds(process.pid) - computed > seconds + GRACE
            if computes or time.monotonic() - began > patience + GRACE:
                if os.name == "posix":  # the signal makes it write where it is
                    os.kill(process.pid, signal.SIGABRT)
                    process.join(GRACE)
                raise late(too_long(computes, seconds, patience))
        try:
            kind, message = receiver.recv()
        except EOFError:
            process.join()
            raise ended(f"the process that ran it ended with status {process.exitcode}") from None
        if kind == DONE:
            return
        if kind == LATE:
            raise late(message)
        if kind == FAILED:
            raise CheckFailed(message)
        if kind == BEGUN:
            late, ended = Endless, Ended
        else:
            yield message


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """A process that is started here ignores Ctrl-C: the parent reports it, once."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def too_long(computes: bool, seconds: float, patience: float) -> str:
    """The message about a process that does not come back."""
    if computes:
        return f"still running after {seconds:g} seconds of computing; is there a loop that does not end?"
    return f"still running after {patience:g} seconds; is it waiting for something, or does it never end?"


def cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:  # it has ended
        return 0.0
    return times.user + times.system


# --- In the process ---------------------------------------------------------------------------------------------------


def _serve(
    sender: Connection, target: Callable, arguments: tuple, seconds: float, patience: float, quiet: bool, crash: Path
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    tell = Tell(sender)
    threading.Thread(target=_watch, args=(tell, threading.main_thread().ident, seconds, patience), daemon=True).start()
    with open(crash, "w", encoding="utf-8") as file:
        faulthandler.enable(file)
        try:
            target(tell, *arguments)
        except Exception as error:
            file, line, *_ = traceback.extract_tb(error.__traceback__)[-1]
            return tell(f"{type(error).__name__}: {error} ({file}:{line})", FAILED)
        finally:
            faulthandler.disable()
    if sys.stdout is not None:
        with suppress(OSError):  # the parent has the same stdout, and reports its errors
            sys.stdout.flush()
    return tell(None, DONE)


def _watch(tell: Tell, main: int, seconds: float, patience: float) -> None:
    """Report where the main thread is when it takes too long; and end with the parent."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the code under test
    parent = multiprocessing.parent_process()
    while parent.is_alive():
        parent.join(0.1)
        computes = time.process_time() - tell.computed > seconds
        if computes or time.monotonic() - tell.began > patience:
            frame, spots = sys._current_frames()[main], []
            while frame:
                spots.insert(0, (frame, frame.f_lineno, frame.f_lasti))
                frame = frame.f_back
            tell("\n".join(filter(None, [too_long(computes, seconds, patience), tell.where(spots)])), LATE)
            break
    os._exit(1)

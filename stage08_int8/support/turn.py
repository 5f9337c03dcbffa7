"""Whose turn it is: one step at a time, none within another, and only in the process that made the engine."""

import os
import threading
from collections.abc import Callable, Generator
from typing import Any

import torch


class Turn:
    """Held by the thread that runs a step.

    Between any two lines of a step Python may run other code in the same thread: a finalizer that the garbage collector
    calls, a signal handler, a listener of the trace. A step of theirs would find everything half changed.

    Attributes:
        lock: held by the thread whose turn it is.

    Raises:
        RuntimeError: this process is a fork of one that has an engine.
    """

    process: int | None = None  # the one that has engines; a fork of it has none of its threads, and torch would hang

    def __init__(self):
        Turn.process = Turn.process or os.getpid()
        self.check_process()
        self.lock, self._busy = threading.RLock(), threading.Lock()

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Call `step` when it is this thread's turn; the others wait. Raises RuntimeError as `check` does."""
        self.check()
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):  # the caller's, for models of theirs
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                return self.run(step, *arguments)
        with self.lock, self._busy:  # `with` alone frees a lock whatever Ctrl-C falls between two lines
            return step(*arguments)

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        # As threading.Condition asks its lock.
        return self.lock._is_owned()  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def is_free(self) -> bool:
        """Whether a step could run here and now, without waiting."""
        return not self._busy.locked() and not self.is_mine and os.getpid() == self.process

    def check(self) -> None:
        """Raise RuntimeError where no step can run: within another one, and in a fork of the engine's process."""
        self.check_process()
        if self.is_mine:
            raise RuntimeError(
                "this engine is in the middle of a step: code that runs there (a finalizer, a signal handler, a "
                "listener of the trace) can't run another one"
            )

    def check_process(self) -> None:
        """Raise RuntimeError in a fork of the process that has the engines."""
        if os.getpid() != self.process:
            raise RuntimeError(
                f"process {os.getpid()} is a fork of {self.process}, which has made an engine: its threads are missing "
                "here, so no engine can run; start processes with multiprocessing's 'spawn' or 'forkserver'"
            )


class Events:
    """An iterator over what a generator that runs steps makes. Where no step can run it raises RuntimeError and can be
    asked again, and where it can't be closed it closes after the step; a generator alone would be lost with either."""

    def __init__(self, turn: Turn, events: Generator[Any, None, None]):
        self._turn, self._events, self._closed = turn, events, False

    def __iter__(self) -> "Events":
        return self

    def __next__(self) -> Any:
        self._turn.check()
        event = next(self._events)
        if self._closed:  # meanwhile
            self._events.close()
            raise StopIteration
        return event

    def close(self) -> None:
        """Abort what is not finished."""
        self._closed = True
        if not self._events.gi_running:  # pyright: ignore[reportAttributeAccessIssue]
            self._events.close()

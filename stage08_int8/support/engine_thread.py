"""A thread that runs commands from a queue. Others may wait for it, and never hang."""

import atexit
import contextlib
import queue
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .device import check_fork

POLL = 0.5  # seconds between two looks at whether the thread is alive, and on Windows at Ctrl-C


class EngineClosedError(RuntimeError):
    """The engine accepts no more requests."""


class EngineThread:
    """Runs `main` in a thread, and there the functions that others send.

    `send` never blocks, so a finalizer or a signal handler may use it at any moment. Python raises Ctrl-C in the main
    thread, so it interrupts a caller that waits, never this thread.

    Attributes:
        commands: functions for the thread to run; `main` takes them out.
        closing: whether the thread is to end. Once set, it stays.
        ended: whether the thread has stopped taking commands.
        failure: the error that ended the thread.

    Raises:
        RuntimeError: this process is a fork of one that has an engine.
    """

    def __init__(self):
        check_fork()
        self.closing = self.ended = False
        self.failure: BaseException | None = None
        self.commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.main, name="engine", daemon=True)
        engines.add(self)

    def main(self) -> None:
        """The thread. At its end, it sets `ended`, and then calls `run_queued`."""
        raise NotImplementedError

    def send(self, command: Callable[[], object]) -> None:
        """Let the thread run a function; after its end, run it here. First the function is put into the queue, then
        `ended` is looked at, and the thread does it the other way round. So one of the two runs it."""
        self.commands.put(command)
        if self.ended:
            self.run_queued()

    def run_queued(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.commands.get_nowait()()

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread, between two steps. Returns its result, or raises its error."""
        answer: queue.SimpleQueue = queue.SimpleQueue()

        def command() -> None:
            try:
                if self.ended:
                    raise self.closed()
                answer.put([function()])  # in a list: `wait` raises an exception
            except BaseException as error:
                answer.put(error)

        self.check()
        self.send(command)
        return self.wait(answer)[0]

    def wait(self, answers: queue.SimpleQueue) -> Any:
        """The next item of a queue that the thread fills. Raises an item that is an error; raises EngineClosedError if
        the thread has ended and nothing is left."""
        while True:
            check_fork()
            alive = self.thread.is_alive()
            try:
                item = answers.get(timeout=POLL)
            except queue.Empty:
                if not alive:  # it was dead before we looked into the queue, so nothing more will come
                    raise self.closed() from self.failure
                continue
            if isinstance(item, BaseException):
                raise item
            return item

    def check(self) -> None:
        """Raise RuntimeError where a caller can't wait for the thread."""
        check_fork()
        if threading.current_thread() is self.thread:
            raise RuntimeError(
                "code that runs in the engine's thread (a logits processor, a finalizer) can't wait for it"
            )
        if self.closing:
            raise self.closed()

    def closed(self) -> EngineClosedError:
        error = EngineClosedError("the engine is closed")
        error.__cause__ = self.failure
        return error

    def close(self, *, abort: bool = False) -> None:
        """Ask the thread to end. Does not wait for it."""
        raise NotImplementedError


engines: weakref.WeakSet[EngineThread] = weakref.WeakSet()


def close_all() -> None:
    """When Python exits, end all engines first: a thread in the middle of a step would crash it."""
    with contextlib.suppress(ValueError):  # not the main thread, which gets no Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the wait lasts no longer than the running command or step
    alive = [engine for engine in list(engines) if engine.thread.is_alive()]  # in a fork, none
    for engine in alive:
        engine.close(abort=True)
    for engine in alive:
        engine.thread.join()


atexit.register(close_all)
atexit.register(close_all)  # again: a Ctrl-C may end the first call before it begins

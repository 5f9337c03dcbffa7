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


class Worker:
    """Runs `main` in a thread.

    `put` never blocks, so a finalizer or a signal handler may use it at any moment. Python raises Ctrl-C in the main
    thread, so it interrupts a caller that waits, never the worker.

    Attributes:
        commands: functions for the thread to run; `main` takes them out.
        closing: whether the thread is to end. Once set, it stays.
        failure: the error that ended the thread.

    Raises:
        RuntimeError: this process is a fork of one that has an engine.
    """

    def __init__(self):
        check_fork()
        self.closing = False
        self.failure: BaseException | None = None
        self.commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.main, name="engine", daemon=True)
        workers.add(self)

    def main(self) -> None:
        raise NotImplementedError

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread, between two steps. Returns its result, or raises its error."""
        answer: queue.SimpleQueue = queue.SimpleQueue()

        def command() -> None:
            try:
                answer.put([function()])  # in a list: `wait` raises an exception
            except BaseException as error:
                answer.put(error)

        self.check()
        self.commands.put(command)
        return self.wait(answer)[0]

    def wait(self, answers: queue.SimpleQueue) -> Any:
        """The next item of a queue that the thread fills. If it is an error, or if the thread has ended without
        another item, raises that."""
        while True:
            check_fork()
            alive = self.thread.is_alive()
            try:
                item = answers.get(timeout=POLL)
            except queue.Empty:
                if not alive:  # it was dead before we looked into the queue, so nothing more will come
                    raise EngineClosedError("the engine is closed") from self.failure
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
            raise EngineClosedError("the engine is closed") from self.failure

    def close(self, *, abort: bool = False) -> None:
        """Ask the thread to end: with `abort` as soon as it can. Does not wait for it."""
        self.closing = True
        self.commands.put(lambda: None)  # wakes it


workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def close_all() -> None:
    """End all workers when Python exits, which a thread in the middle of a step would crash."""
    with contextlib.suppress(ValueError):  # not the main thread, which gets no Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the wait lasts no longer than the running command or step
    alive = [worker for worker in list(workers) if worker.thread.is_alive()]  # in a fork, none
    for worker in alive:
        worker.close(abort=True)
    for worker in alive:
        worker.thread.join()


atexit.register(close_all)
atexit.register(close_all)  # again: a Ctrl-C may end the first call before it begins

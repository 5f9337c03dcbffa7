"""The engine runs in its own thread, and callers talk to it through queues.

This is continuous batching seen from outside: a request may come at any time and from any thread, and joins the others
at the next step. A caller puts its requests into the engine's queue, and waits for its results in another queue.
Only one thread runs the engine, so the engine needs no lock. `put` never blocks, so a finalizer or a signal handler
may abort a request at any moment. And Ctrl-C, which Python raises in the main thread, interrupts a caller that waits,
never a step that is half done.
"""

import atexit
import contextlib
import logging
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .engine import Engine
from .request import Request
from .support.options import check_fork
from .support.outputs import finished_groups

logger = logging.getLogger(__name__)
Deliver = Callable[[list[Request], BaseException | None], object]  # gets completions that made progress, or an error
MAX_RESTARTS = 10  # after this many failed steps with no new token, the callers get the error
POLL = 0.1 if sys.platform == "win32" else None  # seconds; on Windows Ctrl-C ends only a wait with a timeout


class QueueFullError(RuntimeError):
    """Too many requests are waiting: try again later."""


class EngineClosedError(RuntimeError):
    """The engine accepts no more requests."""


class EngineLoop:
    """Runs an engine until it is closed.

    Args:
        make_engine: called in the engine's thread. OpenMP keeps a pool of workers per thread, so the weights are loaded
            in the thread that runs the steps.

    Attributes:
        max_queue_size: completions that may wait, in addition to `max_num_seqs`; None is no limit.
        waiters: unfinished requests, each with the function that gets its updates; only the engine's thread uses it.

    Raises:
        What make_engine raises; RuntimeError in a fork of a process that has an engine.
    """

    def __init__(self, make_engine: Callable[[], Engine]):
        check_fork()
        self.max_queue_size: int | None = None
        self.num_submitted = self.num_ended = 0  # the engine's thread counts the ends
        self.num_failures = 0  # failed steps since a request last got a token
        self.has_failed = False  # whether the latest step did
        self.waiters: dict[Request, Deliver] = {}
        self.commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.failure: BaseException | None = None  # what ended the thread
        # For callers only. A signal handler or a finalizer may interrupt a caller that holds the lock, call the engine,
        # and wait for its thread; so that thread must never block on the lock.
        self.closing, self.lock = False, threading.RLock()
        made: queue.SimpleQueue = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._main, args=(make_engine, made), name="engine", daemon=True)
        loops.add(self)
        threads.add(self.thread)
        try:
            self.thread.start()
            self.engine: Engine = wait(made)
        except BaseException:  # a Ctrl-C while it loads
            self.close(abort=True)
            raise

    # --- Any thread may call these ----------------------------------------------------------------------------------

    def run(self, requests: Iterable[Request], results: Callable[[list[Request]], list[Any]]) -> Iterator[Any]:
        """Submit requests, and wait until all have ended. After each step `results` is called, in the engine's thread,
        with the requests that made progress; `run` yields the items that it returns. Requests that have not ended when
        the caller leaves are aborted."""
        unfinished, answers = dict.fromkeys(requests), queue.SimpleQueue()
        del requests  # keep no finished request alive: its result may be large

        def deliver(updated: list[Request], error: BaseException | None) -> None:
            ended, items = finished_groups(updated), [] if error else results(updated)
            if items or ended or error:
                answers.put(error or (items, ended))

        try:
            self.submit(list(unfinished), deliver)
            while unfinished:
                items, ended = wait(answers)
                for request in ended:
                    del unfinished[request]
                yield from items
        finally:
            self.abort(unfinished)

    @property
    def num_unfinished(self) -> int:
        return self.num_submitted - self.num_ended

    def submit(self, requests: Sequence[Request], deliver: Deliver) -> None:
        """Queue requests, all or none. After each step `deliver` is called, in the engine's thread, with those that got
        a token or ended; or with the error that ended them all.

        Raises:
            QueueFullError: too many requests wait.
            EngineClosedError: the engine is closed.
            RuntimeError: this thread, or this process, can't wait for it.
        """
        self.check()
        with self.lock:
            if self.closing:
                raise EngineClosedError("the engine is closed") from self.failure
            limit, more = self.max_queue_size, num_completions(requests)
            if limit is not None and self.num_unfinished + more > limit + self.engine.scheduler.max_num_seqs:
                raise QueueFullError(
                    f"{self.num_unfinished} completions run or wait, and {more} more came; the limit is "
                    f"max_num_seqs {self.engine.scheduler.max_num_seqs} and max_queue_size {limit}"
                )
            self.num_submitted += more
            self.commands.put(lambda: self._add(requests, deliver))

    def abort(self, requests: Iterable[Request]) -> None:
        """End these requests now, unless they have already ended. Never blocks."""
        if requests := list(requests):
            self.commands.put(lambda: self._abort(requests))

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the engine's thread, between two steps. Returns its result, or raises its error."""
        answer: queue.SimpleQueue = queue.SimpleQueue()

        def command() -> None:
            try:
                answer.put([function()])  # in a list: `wait` raises an exception
            except BaseException as error:
                answer.put(error)

        self.check()
        with self.lock:
            if self.closing:
                raise EngineClosedError("the engine is closed") from self.failure
            self.commands.put(command)
        return wait(answer)[0]

    def close(self, *, abort: bool = False) -> None:
        """Accept no more requests, finish the unfinished ones (or abort them), and end the thread. Does not wait for
        it."""
        with self.lock:
            self.closing = True
            self.commands.put(lambda: self._abort(list(self.waiters)) if abort else None)

    def check(self) -> None:
        """Raise RuntimeError where a wait for the engine would hang."""
        check_fork()
        if threading.current_thread() is self.thread:
            raise RuntimeError(
                "code that runs in the engine's thread (a logits processor, a finalizer) can't wait for it"
            )

    # --- The engine's thread ----------------------------------------------------------------------------------------

    def _main(self, make_engine: Callable[[], Engine], made: queue.SimpleQueue) -> None:
        try:
            self.engine = make_engine()
            made.put(self.engine)
        except BaseException as error:  # the caller raises it
            made.put(error)
            return
        try:
            with torch.inference_mode():
                while self._run_commands():  # the loop
                    self._step()
        except BaseException as error:  # a bug, perhaps in the recovery
            self._fail(error)

    def _run_commands(self) -> bool:
        """Run the queued commands. Without requests, sleep until a command comes. False: the loop is closed."""
        while True:
            if self.commands.empty():
                if self.waiters:
                    return True
                if self.closing and self.commands.empty():  # in this order: once `closing` is set, nobody submits
                    return False
            try:
                self.commands.get()()
            except BaseException as error:  # no caller may wait forever, whatever fails
                self._give_up(error)

    def _step(self) -> None:
        try:
            with self.engine.stats.timing():
                updated = self.engine.step()
            self.has_failed = False
            if updated:
                self.num_failures = 0
            self._notify(updated)
        except BaseException as error:  # no caller may wait forever, whatever fails
            self._recover(error)

    def _recover(self, error: BaseException) -> None:
        """A step has failed as a whole. All requests keep their tokens and start over. If the next step fails too,
        their callers get the error, and the engine is free for others."""
        logger.warning("a step failed: %s: %s", type(error).__name__, error)
        again, self.has_failed, self.num_failures = self.has_failed, True, self.num_failures + 1
        unfinished = list(self.waiters)
        if not again and self.num_failures < MAX_RESTARTS:
            self.engine.restart(unfinished)
            self._notify([c for request in unfinished for c in request.group if c.has_updates])
            return
        self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Give every caller the error, and empty the engine."""
        self.num_failures, self.has_failed = 0, False
        self.engine.restart([])
        waiters, self.waiters = self.waiters, {}
        self.num_ended += num_completions(waiters)
        for deliver in dict.fromkeys(waiters.values()):
            self._deliver(deliver, [], error)

    def _fail(self, error: BaseException) -> None:
        """End the thread with an error: its callers get it, and later callers get it as the cause of theirs."""
        logger.error("the engine has failed", exc_info=error)
        self.failure, self.closing = error, True
        unlocked = False
        while not unlocked:  # a caller that holds the lock may still submit
            unlocked = self.lock.acquire(timeout=0.1)
            while not self.commands.empty():  # requests and calls that are already queued
                with contextlib.suppress(BaseException):
                    self.commands.get()()
            for deliver in dict.fromkeys(self.waiters.values()):
                self._deliver(deliver, [], error)
            self.waiters.clear()
        self.lock.release()

    def _add(self, requests: Sequence[Request], deliver: Deliver) -> None:
        for request in requests:
            self.waiters[request] = deliver
            self.engine.add(request)

    def _abort(self, requests: Iterable[Request]) -> None:
        requests = [request for request in requests if request in self.waiters]
        unfinished = [c for request in requests for c in request.group if not c.finished]
        for request in requests:
            self.engine.abort(request)
        self._notify(unfinished)

    def _notify(self, updated: list[Request]) -> None:
        """Give each caller the updates of its completions; a request's last update is its end."""
        updates: dict[Deliver, list[Request]] = {}
        for completion in updated:
            updates.setdefault(self.waiters[completion.group[0]], []).append(completion)
        ended = finished_groups(updated)
        for request in ended:
            del self.waiters[request]
            self.engine.stats.count_ended(request)
        self.num_ended += num_completions(ended)
        for deliver, requests in updates.items():
            self._deliver(deliver, requests)

    def _deliver(self, deliver: Deliver, requests: list[Request], error: BaseException | None = None) -> None:
        try:
            deliver(requests, error)
        except Exception as failure:  # e.g. its event loop is closed
            self._abort([request for request, other in self.waiters.items() if other is deliver])
            if error is None:
                self._deliver(deliver, [], failure)


def num_completions(requests: Iterable[Request]) -> int:
    return sum(len(request.group) for request in requests)


def wait(answers: queue.SimpleQueue) -> Any:
    """The next item of a queue. If that is an error, raises it."""
    while True:
        try:
            item = answers.get(timeout=POLL)
        except queue.Empty:
            continue
        if isinstance(item, BaseException):
            raise item
        return item


loops: weakref.WeakSet[EngineLoop] = weakref.WeakSet()
threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Wait for the engines' threads: one that is still in a step, or frees a dropped engine, would crash Python as it
    exits."""
    for loop in list(loops):
        if loop.thread.is_alive():  # else it belongs to the process that we were forked from
            loop.close(abort=True)
    for thread in list(threads):
        if thread.is_alive():
            thread.join()

"""The engine runs in its own thread, and callers talk to it through queues.

This is continuous batching seen from outside: a request may come at any time and from any thread, and joins the others
at the next step. A caller puts a command into the engine's queue, and waits for its results in another queue. Only the
engine's thread uses the engine and `callbacks`, so nothing here needs a lock.
"""

import contextlib
import logging
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .engine import Engine
from .request import Request
from .support.engine_thread import EngineThread

logger = logging.getLogger(__name__)
Callback = Callable[[list[Request], BaseException | None], object]  # gets the requests that made progress, or an error


class EngineLoop(EngineThread):
    """Runs an engine until it is closed.

    Args:
        make_engine: called in the engine's thread: OpenMP keeps a pool of workers for each thread that uses it.

    Attributes:
        engine: made when the constructor returns.
        callbacks: unfinished requests, each with the function that gets its updates. Only the engine's thread
            changes it.
        has_failed: whether a step has failed since a request last got a token.
        aborting: whether closing it aborts unfinished requests.

    Raises:
        What make_engine raises; RuntimeError in a fork of a process that has an engine.
    """

    engine: Engine

    def __init__(self, make_engine: Callable[[], Engine]):
        super().__init__()
        self.make_engine, self.made = make_engine, queue.SimpleQueue()
        self.callbacks: dict[Request, Callback] = {}
        self.has_failed = self.aborting = False
        try:
            self.thread.start()
            self.wait(self.made)
        except BaseException:  # a Ctrl-C while it loads
            self.close(abort=True)
            raise

    # --- Any thread may call these ----------------------------------------------------------------------------------

    def run(self, requests: Iterable[Request], results: Callable[[list[Request]], list[Any]]) -> Iterator[Any]:
        """At the first `next()`, submit requests; then wait until all have finished. After each step `results` is
        called, in the engine's thread, with the requests that made progress; `run` yields the items that it returns.
        Requests that are unfinished when the caller leaves are aborted."""
        unfinished, updates = dict.fromkeys(requests), queue.SimpleQueue()
        del requests  # keep no finished request alive: its result may be large

        def callback(updated: list[Request], error: BaseException | None) -> None:
            finished, items = [request for request in updated if request.finished], [] if error else results(updated)
            if items or finished or error:
                updates.put(error or (items, finished))

        try:
            self.submit(list(unfinished), callback)
            while unfinished:
                items, finished = self.wait(updates)
                for request in finished:
                    del unfinished[request]
                yield from items
        finally:
            self.abort(unfinished)

    def submit(self, requests: Sequence[Request], callback: Callback) -> None:
        """Queue requests, all or none. After each step `callback` is called, in the engine's thread, with those of them
        that got a token or finished; or with the error that ended them, such as EngineClosedError.

        Raises:
            EngineClosedError: the engine is closed.
            RuntimeError: this thread, or this process, can't wait for it.
        """
        self.check()
        self.send(lambda: self._add(requests, callback))

    def abort(self, requests: Iterable[Request]) -> None:
        """End these requests now, unless they have already finished. Never blocks."""
        requests = list(requests)
        if requests and not self.ended:
            self.send(lambda: self._abort(requests))

    def close(self, *, abort: bool = False) -> None:
        """Accept no more requests, finish the unfinished ones (or abort them), and end the thread. Does not wait for
        it."""
        if abort:
            self.aborting = True  # a command that takes long looks at it
        self.send(self._close)

    # --- The engine's thread ----------------------------------------------------------------------------------------

    def main(self) -> None:
        try:
            self.engine = self.make_engine()
            self.made.put(None)
            with torch.inference_mode():
                while self._run_once():
                    pass
        except BaseException as error:  # the engine can't be made, or not be restarted
            if self.callbacks:
                logger.error("the engine has failed", exc_info=error)
            self.failure = error
            self.made.put(error)
        finally:
            self.closing = True
            self._fail(list(self.callbacks), self.closed())
            self.ended = True
            self.run_queued()  # they now tell their callers that the engine is closed
            self.__dict__.pop("engine", None)  # the last reference, perhaps: free it here, where it was made

    def _run_once(self) -> bool:
        """Commands, then a step. An error ends the requests of the step, and the others start over. False: the loop is
        closed."""
        try:
            if not self._run_commands():
                return False
            self._step()
        except BaseException as error:
            self.has_failed = False
            failed = set(self.engine.scheduler.running) & self.callbacks.keys() or set(self.callbacks)
            self._start_over([request for request in self.callbacks if request not in failed])
            self._fail(failed, error)
        return True

    def _run_commands(self) -> bool:
        """Run the queued commands. Without requests, sleep until a command comes. False: the loop is closed."""
        while True:
            if self.commands.empty():
                if self.callbacks:
                    return True
                if self.closing:
                    return False
            self.commands.get()()

    def _step(self) -> None:
        """One step. If it fails as a whole, all requests keep their tokens and start over; but if another step has
        failed since a request got a token, raises the error."""
        try:
            with self.engine.stats.timing():
                updated = self.engine.step()
        except BaseException as error:
            logger.warning("a step failed: %s: %s", type(error).__name__, error)
            if self.has_failed:
                raise
            self.has_failed = True
            self._start_over(list(self.callbacks))
            return
        if updated:
            self.has_failed = False
        self._notify(updated)

    def _start_over(self, requests: list[Request]) -> None:
        """With these requests only, after a step that failed. What it finished stays finished."""
        self.engine.restart(requests)
        self._notify([request for request in requests if request.finished])

    def _add(self, requests: Sequence[Request], callback: Callback) -> None:
        try:
            if self.closing:
                raise self.closed()
            for request in requests:
                self.callbacks[request] = callback
                self.engine.add(request)
        except BaseException as error:  # all or none
            for request in requests:
                if self.callbacks.pop(request, None):
                    self.engine.abort(request)
            with contextlib.suppress(Exception):
                callback([], error)

    def _abort(self, requests: Iterable[Request]) -> None:
        unfinished = [request for request in requests if request in self.callbacks]
        for request in unfinished:
            self.engine.abort(request)
        self._notify(unfinished)

    def _close(self) -> None:
        self.closing = True
        if self.aborting:
            self._abort(list(self.callbacks))

    def _notify(self, updated: list[Request]) -> None:
        """Give each caller the updates of its requests; a request's last update is its end."""
        updates: dict[Callback, list[Request]] = {}
        for request in updated:
            updates.setdefault(self.callbacks[request], []).append(request)
            if request.finished:
                self.engine.stats.count_ended(request)
        for callback, requests in updates.items():
            try:
                callback(requests, None)
            except Exception as error:  # e.g. its event loop is closed
                requests = [request for request, other in self.callbacks.items() if other is callback]
                for request in requests:
                    self.engine.abort(request)
                self._fail(requests, error)
            for request in requests:
                if request.finished:  # forget it only now: an error before this line still finds its callback
                    self.callbacks.pop(request, None)

    def _fail(self, requests: Iterable[Request], error: BaseException) -> None:
        """Give the callers of these requests, unless they have left, the error, and forget them."""
        for callback in dict.fromkeys([self.callbacks[request] for request in requests if request in self.callbacks]):
            with contextlib.suppress(Exception):
                callback([], error)
        for request in requests:
            self.callbacks.pop(request, None)

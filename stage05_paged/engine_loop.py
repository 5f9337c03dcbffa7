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
        callbacks: unfinished requests, each with the callback that receives its updates. Only the engine's thread
            changes it.
        has_failed: whether a step has failed since a request last got a token.
        aborting: whether closing it aborts unfinished requests. Set at once, so that a long command sees it.

    Raises:
        What make_engine raises; RuntimeError in a fork of a process that has an engine.
    """

    engine: Engine

    def __init__(self, make_engine: Callable[[], Engine]):
        super().__init__()
        self.callbacks: dict[Request, Callback] = {}
        self.has_failed = self.aborting = False
        try:
            self.thread.start()
            self.call(lambda: setattr(self, "engine", make_engine()))
        except BaseException:  # a Ctrl-C while it loads
            self.close(abort=True)
            raise

    # --- Any thread may call these ----------------------------------------------------------------------------------

    def run(self, requests: Iterable[Request], to_items: Callable[[list[Request]], list[Any]]) -> Iterator[Any]:
        """At the first `next()`, submit requests; then wait until all have finished. After each step `to_items` is
        called, in the engine's thread, with the requests that made progress; `run` yields the items that it returns.
        Requests that are unfinished when the caller leaves are aborted."""
        unfinished, inbox = dict.fromkeys(requests), queue.SimpleQueue()
        del requests  # keep no finished request alive: its result may be large

        def callback(updated: list[Request], error: BaseException | None) -> None:
            finished, items = [request for request in updated if request.finished], [] if error else to_items(updated)
            if items or finished or error:
                inbox.put(error or (items, finished))

        try:
            self.submit(list(unfinished), callback)
            while unfinished:
                items, finished = self.wait(inbox)
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
            self.aborting = True
        self.send(self._close)

    # --- The engine's thread ----------------------------------------------------------------------------------------

    def main(self) -> None:
        try:
            while self._run_commands():
                self._step()
        except BaseException as error:  # a defect, or an engine that can't be restarted
            logger.error("the engine has failed", exc_info=error)
            self.failure = error
        finally:
            self.closing = True
            self._fail(list(self.callbacks), self.closed())
            self.ended = True
            self.run_queued()  # they now tell their callers that the engine is closed
            self.__dict__.pop("engine", None)  # the last reference, perhaps: free it here, where it was made

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
        """One step. If it fails as a whole, all requests keep their tokens and start over. If another step has failed
        since a request got a token, the running requests get the error instead."""
        try:
            with self.engine.stats.timing():
                updated = self.engine.step()
            self.has_failed = self.has_failed and not updated
            self._notify(updated)
        except BaseException as error:
            logger.warning("a step failed: %s: %s", type(error).__name__, error)
            running = self.engine.scheduler.running or self.callbacks
            failed = {request for request in running if not request.finished} if self.has_failed else set()
            others = [request for request in self.callbacks if request not in failed]
            self.has_failed = not self.has_failed
            self.engine.restart(others)
            self._notify([request for request in others if request.finished])  # what the step finished stays finished
            self._fail(failed, error)

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
        by_callback: dict[Callback, list[Request]] = {}
        for request in updated:
            by_callback.setdefault(self.callbacks[request], []).append(request)
            if request.finished:
                self.engine.stats.count_ended(request)
        for callback, requests in by_callback.items():
            try:
                callback(requests, None)
            except Exception as error:  # e.g. its event loop is closed
                lost = [request for request, other in self.callbacks.items() if other is callback]
                for request in lost:
                    self.engine.abort(request)
                self._fail(lost, error)
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

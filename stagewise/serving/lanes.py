"""Threads for what takes long, so that it does not hold up the event loop, where everybody else would wait for it."""

import asyncio
import concurrent.futures
import itertools
import queue
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SMALL = 2**14  # bytes of JSON, which take some milliseconds; what is longer is large
SWITCH_SECONDS = 0.0005  # after which Python lets another thread go on, if one waits; the engine waits often
LONGEST_REST = 0.5


class Lane:
    """A thread that does one thing after the other. Of what waits the smallest is next. With `rests` it rests after
    each as long as that took: the engine has half of the time for itself, however much there is to do here."""

    def __init__(self, name: str, rests: bool = False):
        self._rests = rests
        self._thread, self._numbers = concurrent.futures.ThreadPoolExecutor(1, name), itertools.count()
        self._waiting: queue.PriorityQueue = queue.PriorityQueue()

    async def do(self, size: int, work: Callable[[], T]) -> T:
        done: concurrent.futures.Future = concurrent.futures.Future()
        self._waiting.put((size, next(self._numbers), done, work))
        self._thread.submit(self._next)
        return await asyncio.wrap_future(done)

    def _next(self) -> None:
        *_, done, work = self._waiting.get()
        if not done.set_running_or_notify_cancel():
            return
        started = time.perf_counter()
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)
        if self._rests:
            time.sleep(min(time.perf_counter() - started, LONGEST_REST))


class Lanes:
    """One for small things, one for large ones, and one for requests with forms, which may take a second to compile.
    More would not be faster, for Python runs one thread at a time, and each that has work makes the engine's thread
    wait for its turn."""

    def __init__(self):
        self._small, self._large, self._forms = Lane("small"), Lane("large", rests=True), Lane("forms")

    async def do(self, size: int, work: Callable[[], T]) -> T:
        """What this work gives; `size` is about the bytes of JSON that it reads or writes."""
        return await (self._small if size <= SMALL else self._large).do(size, work)

    async def do_form(self, size: int, work: Callable[[], T]) -> T:
        """The same, of work that compiles a form."""
        return await self._forms.do(size, work)

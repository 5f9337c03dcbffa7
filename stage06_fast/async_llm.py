"""Serve requests that come at any time, from coroutines and from threads: the engine runs in a thread of its own.

The engine itself knows no threads. One thread runs it, in a loop of its own: it takes what it is told (add, abort,
close) from a list under a lock, runs a step, hands the news to those that wait for them, and starts again; with nothing
to do it sleeps. A waiter is a callback that puts news into a queue: asyncio's for a coroutine, a plain one for a
thread.

The thread knows the engine and those that wait, and not the `AsyncLLM` that users hold: when that is dropped, or the
program ends, the thread ends too, and what it held is free.
"""

import asyncio
import atexit
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace

from .intake import Params, Prompts
from .llm import LLM
from .outputs import RequestOutput, StreamEvent
from .request import Request, finished_groups
from .sampling_params import SamplingParams, whole_number


class QueueFullError(RuntimeError):
    """Too many requests wait already: try again later, or elsewhere."""


class AsyncLLM:
    """An engine that runs in the background.

        engine = AsyncLLM(model="tinytales", max_num_seqs=8)
        async for event in engine.generate("Once upon a time"):   # in a coroutine
            print(event.text, end="")
        output = engine.complete("Once upon a time")               # in any thread; blocks
        outputs = engine.complete_all(["Once upon a time", "A fox"])   # the same, of several
        for event in engine.stream(["Once upon a time"]):          # the same, as tokens come
            print(event.text, end="")
        engine.close()

    Args:
        max_queue_size: how many requests may wait beside max_num_seqs others; one more is refused with QueueFullError.
        arguments: those of LLM.

    Raises:
        ValueError, OSError: as LLM does.
    """

    def __init__(self, *, max_queue_size: int = 1024, **arguments):
        max_queue_size = whole_number("max_queue_size", max_queue_size, 1)
        self._loop = EngineLoop(LLM(**arguments), max_queue_size)
        self._dropped = weakref.finalize(self, self._loop.close, abort=True)
        self._dropped.atexit = False  # there, `end_all` waits for the thread too

    @property
    def llm(self) -> LLM:
        """The engine. It may be used beside: threads take turns."""
        return self._loop.llm

    # --- What users call --------------------------------------------------------------------------------------------

    async def generate(
        self, prompt: str | list[int], sampling_params: SamplingParams | None = None, *, priority: int = 0
    ) -> AsyncIterator[StreamEvent]:
        """Stream a request: yields its tokens as they are made. Leaving the loop, or cancelling the task, aborts it.

        Raises:
            ValueError: the prompt or a parameter is wrong.
            QueueFullError: too many requests wait.
            RuntimeError: the engine is closed, or has failed; then its error is the cause.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Queue()
        request = self.llm._intake.request(prompt, sampling_params or SamplingParams(), priority)
        self._loop.submit({request: lambda x: loop.call_soon_threadsafe(news.put_nowait, x)})
        unfinished = len(request.group)
        try:
            while unfinished:
                event = unwrap(await news.get())
                unfinished -= event.finish_reason is not None
                yield event
        finally:
            self._loop.abandon(request)

    def complete(
        self, prompt: str | list[int], sampling_params: SamplingParams | None = None, *, priority: int = 0
    ) -> RequestOutput:
        """Run a request and block until it is done. May be called from any thread but the event loop's.

        Raises: as `generate`.
        """
        request = self.llm._intake.request(prompt, sampling_params or SamplingParams(), priority)
        for _ in self._events([request]):
            pass
        return request.output()

    def complete_all(
        self, prompts: Prompts, sampling_params: Params | None = None, *, priority: Sequence[int] | None = None
    ) -> list[RequestOutput]:
        """Run several requests and block until all are done; arguments, results and errors as of `LLM.generate`. None
        of them is run if one is wrong or the queue has no room for all."""
        requests = self.llm._intake.requests(prompts, sampling_params, priority)
        for _ in self._events(requests):
            pass
        return [request.output() for request in requests]

    def stream(
        self, prompts: Prompts, sampling_params: Params | None = None, *, priority: Sequence[int] | None = None
    ) -> Iterator[StreamEvent]:
        """As `complete_all`, but yields each token as it is made. Leaving the loop aborts what is not done."""
        return self._events(self.llm._intake.requests(prompts, sampling_params, priority))

    def _events(self, requests: list[Request]) -> Iterator[StreamEvent]:
        """The news of requests, in the thread that asks for them; `index` is the request's place in the list."""
        news: queue.SimpleQueue = queue.SimpleQueue()
        self._loop.submit({request: lambda x, i=i: news.put((i, x)) for i, request in enumerate(requests)})
        unfinished = sum(len(request.group) for request in requests)
        try:
            while unfinished:
                index, event = news.get()
                event = unwrap(event)
                unfinished -= event.finish_reason is not None
                yield replace(event, index=index)
        finally:
            for request in requests:
                self._loop.abandon(request)

    def close(self, *, abort: bool = False) -> None:
        """Take no more requests, finish those that are there (or abort them), and end the thread. Blocks until then."""
        self._loop.close(abort=abort)
        self._loop.thread.join()

    def __enter__(self) -> "AsyncLLM":
        return self

    def __exit__(self, kind, *_) -> None:
        self.close(abort=kind is not None)


def unwrap(news: StreamEvent | BaseException) -> StreamEvent:
    if isinstance(news, BaseException):
        raise RuntimeError(f"the engine has failed: {news}") from news
    return news


class EngineLoop:
    """The thread that runs an engine, what it is told and who waits."""

    def __init__(self, llm: LLM, max_queue_size: int):
        self.llm, self.router, self.max_queue_size = llm, llm._router, max_queue_size
        self._news: list[Request] = []  # the inbox of its requests
        self._changed = threading.Condition()  # guards everything below
        self._commands: list[Callable[[], None]] = []
        self._waiters: dict[Request, Callable] = {}
        self._closing = False
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.thread.start()
        loops.add(self)

    # --- The callers' side ------------------------------------------------------------------------------------------

    def submit(self, waiters: dict[Request, Callable]) -> None:
        """Queue requests, all or none; each one's news goes to its waiter. Make them first, outside the lock: to cut a
        long text into tokens takes time, and the engine's thread needs the lock."""
        with self._changed:
            if self._error is not None:
                raise RuntimeError(f"the engine has failed: {self._error}") from self._error
            if self._closing:
                raise RuntimeError("the engine is closed")
            num_slots = self.router.engine.scheduler.max_num_seqs
            if len(self._waiters) + len(waiters) > self.max_queue_size + num_slots:
                more = f", and {len(waiters)} more came" if len(waiters) > 1 else ""
                raise QueueFullError(
                    f"{len(self._waiters)} requests run or wait{more}; the limit is {num_slots} slots and "
                    f"max_queue_size {self.max_queue_size}"
                )
            self._waiters |= waiters
            self._commands.append(lambda: [self.router.add(request, self._news) for request in waiters])
            self._changed.notify()

    def abandon(self, request: Request) -> None:
        """Tell the engine that nobody waits for this request any more; nothing happens if it has ended."""
        with self._changed:
            if self._waiters.pop(request, None) is not None:
                self._commands.append(lambda: self.router.abort(request))
                self._changed.notify()

    def close(self, *, abort: bool = False) -> None:
        """Tell the engine to take no more requests, and to end with the last of those there are. Waits for nothing:
        the garbage collector may call this, from any thread."""
        with self._changed:
            self._closing = True
            if abort:
                self._commands.append(self._abort_all)
            self._changed.notify()

    # --- The engine's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_commands():
                self.router.advance()
                self._tell()
        except BaseException as error:  # whatever it is, nobody may wait for ever
            with self._changed:
                self._error = error
                waiters, self._waiters = self._waiters, {}
            for deliver in waiters.values():
                self._deliver(deliver, error)

    def _take_commands(self) -> bool:
        """Sleep until there is something to do, then do what was asked for. False when all is done and closed."""
        if not self.router.engine.unfinished:
            self.router.rest()
        with self._changed:
            while not (self._commands or self._closing or self._news or self.router.engine.unfinished):
                self._changed.wait()
            commands, self._commands = self._commands, []
            closing = self._closing
        for command in commands:
            command()
        return bool(self._news) or self.router.engine.unfinished or not closing

    def _tell(self) -> None:
        """Hand what is new of each completion to the waiter of its request, who waits no more if that was all."""
        with self.router.lock:  # what a step adds comes whole
            completions = self.router.take(self._news)
            events = [c.take_event(0) for c in completions]
            finished = finished_groups(completions)
        for completion, event in zip(completions, events, strict=True):
            request = completion.group[0]
            with self._changed:
                deliver = self._waiters.get(request)
            if deliver is not None and not self._deliver(deliver, event):
                self.abandon(request)
        with self._changed:
            for request in finished:
                self._waiters.pop(request, None)

    @staticmethod
    def _deliver(deliver: Callable, news: StreamEvent | BaseException) -> bool:
        """False if there is nobody left to tell: the waiter's event loop is closed."""
        try:
            deliver(news)
        except RuntimeError:
            return False
        return True

    def _abort_all(self) -> None:
        with self._changed:
            requests = list(self._waiters)
        for request in requests:
            self.router.abort(request)  # "abort" is the last of their news


loops: weakref.WeakSet[EngineLoop] = weakref.WeakSet()  # those that may still run


@atexit.register
def end_all() -> None:
    """At the end of the program: a thread that is in the middle of a step then would crash it."""
    running = list(loops)
    for loop in running:
        loop.close(abort=True)
    for loop in running:
        loop.thread.join()

"""Serve requests that come at any time, from coroutines and from threads: the engine runs in a thread of its own.

The engine itself knows no threads. One thread runs it, in a loop of its own: it takes what it is told (add, abort,
close) from a queue, runs a step, hands the news to those that wait for them, and starts again; with nothing to do it
sleeps. A waiter is a callback that puts news into a queue: asyncio's for a coroutine, a plain one for a thread. To tell
the thread something is to put it into its queue, which waits for nothing: a finalizer may do that, even in a step.

The thread knows the engine and those that wait, and not the `AsyncLLM` that users hold: when that is dropped, or the
program ends, the thread ends too, and what it held is free.
"""

import asyncio
import atexit
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from .intake import Params, Prompts
from .outputs import RequestOutput, StreamEvent, finished_groups
from .sampling_params import SamplingParams, whole_number


class QueueFullError(RuntimeError):
    """Too many requests wait already: try again later, or elsewhere."""


class BackgroundLLM:
    """The base of a stage's `AsyncLLM`: an engine that runs in the background.

        engine = AsyncLLM(model="tinytales", max_num_seqs=8)
        async for event in engine.generate("Once upon a time"):   # in a coroutine
            print(event.text, end="")
        output = engine.complete("Once upon a time")               # in any thread; blocks
        outputs = engine.complete_all(["Once upon a time", "A fox"])   # the same, of several
        for event in engine.stream(["Once upon a time"]):          # the same, as tokens come
            print(event.text, end="")
        engine.close()

    Args:
        max_queue_size: how many completions (prompts times n) may wait beside max_num_seqs others; what is more is
            refused with QueueFullError.
        arguments: those of LLM.

    Raises:
        ValueError, OSError: as LLM does.
    """

    make_llm: Callable  # the stage's LLM

    def __init__(self, *, max_queue_size: int = 1024, **arguments):
        max_queue_size = whole_number("max_queue_size", max_queue_size, 1)
        self._loop = EngineLoop(self.make_llm(**arguments), max_queue_size)
        self._dropped = weakref.finalize(self, self._loop.close, abort=True)
        self._dropped.atexit = False  # there, `end_all` waits for the thread too

    @property
    def llm(self) -> Any:
        """The engine. It may be used beside: threads take turns."""
        return self._loop.llm

    # --- What users call --------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: str | list[int],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        num_ahead: int = 0,
    ) -> AsyncIterator[StreamEvent]:
        """Stream a request: yields its tokens as they are made. Leaving the loop, or cancelling the task, aborts it.

        Args:
            num_ahead: how many completions the same caller asks for before this request, for the policy "fair".

        Raises:
            ValueError: the prompt or a parameter is wrong.
            QueueFullError: too many requests wait.
            RuntimeError: the engine is closed, or has failed; then its error is the cause.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Queue()
        request = self.llm._intake.request(prompt, sampling_params or SamplingParams(), priority)
        request.num_ahead = whole_number("num_ahead", num_ahead, 0)
        unfinished = len(request.group)
        try:
            self._loop.submit({request: lambda x: loop.call_soon_threadsafe(news.put_nowait, x)})
            while unfinished:
                event = self._loop.checked(await news.get())
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
        return RequestOutput.of(request)

    def complete_all(
        self, prompts: Prompts, sampling_params: Params | None = None, *, priority: Sequence[int] | None = None
    ) -> list[RequestOutput]:
        """Run several requests and block until all are done; arguments, results and errors as of `LLM.generate`. None
        of them is run if one is wrong or the queue has no room for all."""
        requests = self.llm._intake.requests(prompts, sampling_params, priority)
        for _ in self._events(requests):
            pass
        return [RequestOutput.of(request) for request in requests]

    def stream(
        self, prompts: Prompts, sampling_params: Params | None = None, *, priority: Sequence[int] | None = None
    ) -> Iterator[StreamEvent]:
        """As `complete_all`, but yields each token as it is made. Leaving the loop aborts what is not done."""
        return self._events(self.llm._intake.requests(prompts, sampling_params, priority))

    def _events(self, requests: list[Any]) -> Iterator[StreamEvent]:
        """The news of requests, in the thread that asks for them; `index` is the request's place in the list."""
        news: queue.SimpleQueue = queue.SimpleQueue()
        unfinished = sum(len(request.group) for request in requests)
        try:
            self._loop.submit({request: lambda x, i=i: news.put((i, x)) for i, request in enumerate(requests)})
            while unfinished:
                index, event = news.get()
                event = self._loop.checked(event)
                unfinished -= event.finish_reason is not None
                yield replace(event, index=index)
        finally:
            for request in requests:
                self._loop.abandon(request)

    def close(self, *, abort: bool = False) -> None:
        """Take no more requests, finish those that are there (or abort them), and end the thread. Blocks until then."""
        self._loop.close(abort=abort)
        self._loop.thread.join()

    def __enter__(self) -> "BackgroundLLM":
        return self

    def __exit__(self, kind, *_) -> None:
        self.close(abort=kind is not None)


def num_completions(requests: Iterable[Any]) -> int:
    return sum(len(request.group) for request in list(requests))


class EngineLoop:
    """The thread that runs an engine, the commands that it gets, and its waiters."""

    def __init__(self, llm: Any, max_queue_size: int):
        self.llm, self.router, self.max_queue_size = llm, llm._router, max_queue_size
        self._news: list[Any] = []  # the inbox of its requests
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._waiters: dict[Any, Callable] = {}
        self._submitting = threading.RLock()  # held while waiters are counted
        self._closing = self._over = False
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.thread.start()
        loops.add(self)

    # --- The callers' side ------------------------------------------------------------------------------------------

    def submit(self, waiters: dict[Any, Callable]) -> None:
        """Queue requests, all or none; each one's news goes to its waiter."""
        self.router.turn.check()
        if threading.current_thread() is self.thread:
            raise RuntimeError("code that runs in the engine's own thread (a finalizer) can't wait for it")
        with self._submitting:
            if self._closing or self._over:
                raise self._refusal()
            num_slots = self.router.engine.scheduler.max_num_seqs
            present, more = num_completions(self._waiters), num_completions(waiters)
            if present + more > self.max_queue_size + num_slots:
                came = f", and {more} more came" if more > 1 else ""
                raise QueueFullError(
                    f"{present} completions run or wait{came}; the limit is {num_slots} slots and max_queue_size "
                    f"{self.max_queue_size}"
                )
            self._waiters.update(waiters)
        self._commands.put(lambda: [self.router.add(request, self._news) for request in waiters])
        if self._over:  # meanwhile: the thread may not have seen these
            raise self._refusal()

    def abandon(self, request: Any) -> None:
        """Tell the engine that this request has no waiter any more; nothing happens if it has ended."""
        if self._waiters.pop(request, None) is not None:
            self._commands.put(lambda: self.router.abort(request))

    def close(self, *, abort: bool = False) -> None:
        """Tell the engine to take no more requests, and to end with the last of those there are. Waits for nothing:
        the garbage collector may call this, from any thread."""
        self._closing = True
        self._commands.put(self._abort_all if abort else lambda: None)

    def checked(self, news: StreamEvent | None) -> StreamEvent:
        """The news as they came; None, the last, comes to those that still wait when the thread has ended."""
        if news is None:
            raise self._refusal()
        return news

    def _refusal(self) -> RuntimeError:
        if self._error is None:
            return RuntimeError("the engine is closed")
        refusal = RuntimeError(f"the engine has failed: {self._error}")
        refusal.__cause__ = self._error
        return refusal

    # --- The engine's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_commands():
                self.router.advance()
                self._tell()
        except BaseException as error:  # whatever it is, no caller may wait forever
            self._error = error
        self._over = True  # who submits from now on finds this, the others are found here
        while self._waiters:
            _, deliver = self._waiters.popitem()
            self._deliver(deliver, None)

    def _take_commands(self) -> bool:
        """Do what was asked for; with nothing to do, sleep until something is. False when all is done and closed."""
        while True:
            idle = self.router.is_idle() and not self._news
            if idle and self._closing and self._commands.empty():
                return False
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            command()

    def _tell(self) -> None:
        """Hand what is new of each completion to the waiter of its request, which is done if that was all."""
        finished: list[Any] = []

        def events(completions: list[Any]) -> list[tuple[Any, StreamEvent]]:
            finished.extend(finished_groups(completions))
            return [(completion.group[0], StreamEvent.take(completion, 0)) for completion in completions]

        for request, event in self.router.take(self._news, events):
            deliver = self._waiters.get(request)
            if deliver is not None and not self._deliver(deliver, event):
                self.abandon(request)
        for request in finished:
            self._waiters.pop(request, None)

    @staticmethod
    def _deliver(deliver: Callable, news: StreamEvent | None) -> bool:
        """False if the waiter can't be reached any more: its event loop is closed."""
        try:
            deliver(news)
        except RuntimeError:
            return False
        return True

    def _abort_all(self) -> None:
        for request in list(self._waiters):
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

"""Serve requests that come at any time, from coroutines and from threads: the engine runs in a thread of its own.

The engine itself knows no threads. One thread runs it, in a loop of its own: it takes what it is told (add, abort,
close) from a list under a lock, runs a step, hands the news to those that wait for them, and starts again; with nothing
to do it sleeps. A waiter is a callback that puts news into a queue: asyncio's for a coroutine, a plain one for a
thread.
"""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable

from .llm import LLM
from .outputs import RequestOutput, StreamEvent
from .request import Request
from .sampling_params import SamplingParams


class QueueFullError(RuntimeError):
    """Too many requests wait already: try again later, or elsewhere."""


class AsyncLLM:
    """An engine that runs in the background.

        engine = AsyncLLM(model="tinytales", max_num_seqs=8)
        async for event in engine.generate("Once upon a time"):   # in a coroutine
            print(event.text, end="")
        output = engine.complete("Once upon a time")               # in any thread; blocks
        engine.close()

    Args:
        max_queue_size: how many requests may wait beside max_num_seqs others; one more is refused with QueueFullError.
        arguments: those of LLM.

    Raises:
        ValueError, OSError: as LLM does.
    """

    def __init__(self, *, max_queue_size: int = 1024, **arguments):
        if not isinstance(max_queue_size, int) or max_queue_size < 1:
            raise ValueError(f"max_queue_size must be a whole number of at least 1, got {max_queue_size!r}")
        self.llm = LLM(**arguments)
        self.max_queue_size = max_queue_size
        self._changed = threading.Condition()  # guards everything below
        self._commands: list[Callable[[], None]] = []
        self._waiters: dict[Request, Callable] = {}
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

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
        request = self._submit(
            prompt, sampling_params, priority, lambda x: loop.call_soon_threadsafe(news.put_nowait, x)
        )
        unfinished = len(request.group)
        try:
            while unfinished:
                event = self._unwrap(await news.get())
                unfinished -= event.finish_reason is not None
                yield event
        finally:
            self._abort(request)

    def complete(
        self, prompt: str | list[int], sampling_params: SamplingParams | None = None, *, priority: int = 0
    ) -> RequestOutput:
        """Run a request and block until it is done. May be called from any thread but the event loop's.

        Raises: as `generate`.
        """
        news: queue.SimpleQueue = queue.SimpleQueue()
        request = self._submit(prompt, sampling_params, priority, news.put)
        try:
            for _ in request.group:
                while self._unwrap(news.get()).finish_reason is None:
                    pass
        finally:
            self._abort(request)
        return request.output()

    def close(self, *, abort: bool = False) -> None:
        """Take no more requests, finish those that are there (or abort them), and end the thread. Blocks until then."""
        with self._changed:
            self._closing = True
            if abort:
                self._commands.append(self._abort_all)
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> "AsyncLLM":
        return self

    def __exit__(self, kind, *_) -> None:
        self.close(abort=kind is not None)

    # --- The callers' side ------------------------------------------------------------------------------------------

    def _submit(self, prompt, sampling_params, priority: int, deliver: Callable) -> Request:
        # Outside the lock: to cut a long text into tokens takes time, and the engine's thread needs the lock.
        request = self.llm.new_request(prompt, sampling_params, priority=priority)
        with self._changed:
            if self._error is not None:
                raise RuntimeError(f"the engine has failed: {self._error}") from self._error
            if self._closing:
                raise RuntimeError("the engine is closed")
            if len(self._waiters) >= self.max_queue_size + self.llm.max_num_seqs:
                raise QueueFullError(
                    f"{len(self._waiters)} requests run or wait; the limit is {self.llm.max_num_seqs} slots and "
                    f"max_queue_size {self.max_queue_size}"
                )
            self._waiters[request] = deliver
            self._commands.append(lambda: self.llm.add(request))
            self._changed.notify()
            return request

    def _abort(self, request: Request) -> None:
        """Tell the engine that nobody waits for this request any more; nothing happens if it has ended."""
        with self._changed:
            if self._waiters.pop(request, None) is not None:
                self._commands.append(lambda: self.llm.abort_request(request.request_id))
                self._changed.notify()

    @staticmethod
    def _unwrap(news: StreamEvent | BaseException) -> StreamEvent:
        if isinstance(news, BaseException):
            raise RuntimeError(f"the engine has failed: {news}") from news
        return news

    # --- The engine's thread ----------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while self._take_commands():
                self._tell(self.llm.advance())
        except BaseException as error:  # whatever it is, nobody may wait for ever
            with self._changed:
                self._error = error
                waiters, self._waiters = self._waiters, {}
            for deliver in waiters.values():
                self._deliver(deliver, error)

    def _take_commands(self) -> bool:
        """Sleep until there is something to do, then do what was asked for. False when all is done and closed."""
        with self._changed:
            while not (self._commands or self._closing or self.llm.has_unfinished_requests()):
                self._changed.wait()
            commands, self._commands = self._commands, []
            closing = self._closing
        for command in commands:
            command()
        return self.llm.has_unfinished_requests() or not closing

    def _tell(self, completions: list[Request]) -> None:
        """Hand what is new of each completion to the waiter of its request, who waits no more if that was all."""
        for completion in completions:
            with self._changed:
                deliver = self._waiters.get(completion.group[0])
            event = StreamEvent(0, *completion.take_new(), completion.finish_reason, completion.index)
            if deliver is not None and not self._deliver(deliver, event):
                self._abort(completion.group[0])
        with self._changed:
            for completion in completions:
                if completion.group_finished:
                    self._waiters.pop(completion.group[0], None)

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
            unfinished = [completion for completion in request.group if not completion.finished]
            self.llm.abort_request(request.request_id)
            self._tell(unfinished)  # "abort" is the last of their news

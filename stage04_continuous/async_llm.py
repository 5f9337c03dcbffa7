"""What programs with asyncio call: a coroutine waits for a request, instead of a thread."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from .llm import LLM
from .request import Request
from .support.outputs import StreamEvent
from .support.sampling_params import SamplingParams


class AsyncLLM:
    """An LLM for coroutines: a request may come at any time, and joins the running ones.

        engine = AsyncLLM(model="tinytales", max_num_seqs=8)
        async for event in engine.generate("Once upon a time"):
            print(event.text, end="")
        engine.close()

    Args:
        model, options: those of LLM.

    Attributes:
        llm: the LLM, which threads may use at the same time.

    Raises:
        ValueError, OSError: as LLM does.
    """

    def __init__(self, model: str = "tinytales", **options: Any):
        self.llm = LLM(model, **options)

    async def generate(
        self,
        prompt: str | list[int],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[StreamEvent]:
        """Stream a request: yields its tokens as they are made. Leaving the loop, or cancelling the task, aborts it.

        Raises:
            ValueError: the prompt or a parameter is wrong.
            EngineClosedError: the engine is closed.
        """
        event_loop = asyncio.get_running_loop()
        updates: asyncio.Queue[Any] = asyncio.Queue()  # lists of events, or an error
        request = self.llm.inputs.request(prompt, sampling_params or SamplingParams(), priority)
        finished = False

        def callback(updated: list[Request], error: BaseException | None) -> None:
            event_loop.call_soon_threadsafe(updates.put_nowait, error or [StreamEvent.take(r, 0) for r in updated])

        try:
            self.llm.loop.submit([request], callback)
            while not finished:
                if isinstance(events := await updates.get(), BaseException):
                    raise events
                for event in events:
                    finished = event.finish_reason is not None
                    yield event
        finally:
            self.llm.loop.abort([request])

    def close(self, *, abort: bool = False) -> None:
        """As `LLM.close`."""
        self.llm.close(abort=abort)

    def __enter__(self) -> "AsyncLLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(abort=kind is not None)

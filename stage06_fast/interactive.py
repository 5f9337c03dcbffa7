"""`--interactive`: type a prompt and watch it stream; prompts typed meanwhile join the running batch.

The oldest prompt that is not done is shown as it grows; the others grow unseen and are shown in the order in which they
were typed. Ctrl-C aborts the one that is shown, Ctrl-D ends the input; what was typed before is still answered.
"""

import asyncio
import signal
import sys
import threading

from .async_llm import AsyncLLM
from .sampling_params import SamplingParams


async def converse(engine: AsyncLLM, params: SamplingParams) -> None:
    """Answer the lines of stdin on stdout until the input ends. Raises OSError if stdin can't be read."""
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[tuple[asyncio.Task, asyncio.Queue] | None] = asyncio.Queue()
    shown: asyncio.Task | None = None
    failure: Exception | None = None

    async def answer(prompt: str, pieces: asyncio.Queue) -> None:
        """Put the pieces of a completion into its queue, None behind the last."""
        pieces.put_nowait(prompt)
        try:
            async for event in engine.generate(prompt, params):
                pieces.put_nowait(event.text)
        except asyncio.CancelledError:
            pieces.put_nowait(" [aborted]")
        except (ValueError, RuntimeError) as error:
            pieces.put_nowait(f" [error: {error}]")
        pieces.put_nowait(None)

    def typed(line: str) -> None:
        if line.strip():
            pieces: asyncio.Queue = asyncio.Queue()
            answers.put_nowait((loop.create_task(answer(line, pieces)), pieces))

    def ended(error: Exception | None) -> None:
        nonlocal failure
        failure = error
        answers.put_nowait(None)

    def read() -> None:
        """In a thread of its own, because waiting for a line can't be cancelled."""
        error = None
        try:
            for line in sys.stdin.buffer:  # bytes: text that can't be decoded must not end the reading
                loop.call_soon_threadsafe(typed, line.decode("utf-8", errors="replace").rstrip("\r\n"))
        except Exception as problem:  # whatever it is, nobody may wait for ever
            error = problem
        if not loop.is_closed():
            loop.call_soon_threadsafe(ended, error)

    def interrupt(*_) -> None:
        if shown is not None:
            loop.call_soon_threadsafe(shown.cancel)
        else:
            print("\n(Ctrl-D ends)", file=sys.stderr)

    previous = signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=read, name="stdin", daemon=True).start()
    print("Type a prompt and press Enter. Ctrl-C aborts the one that is shown, Ctrl-D ends.", file=sys.stderr)
    try:
        while (next_answer := await answers.get()) is not None:
            shown, pieces = next_answer
            while (piece := await pieces.get()) is not None:
                print(piece, end="", flush=True)
            print("\n", flush=True)
            shown = None
        if failure is not None:
            raise OSError(f"stdin can't be read: {failure}")
    finally:
        signal.signal(signal.SIGINT, previous)

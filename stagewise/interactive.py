"""`--interactive`: type a prompt and watch it stream; prompts typed meanwhile join the running batch.

The oldest prompt that is not done is shown as it grows; the others grow unseen and are shown in the order in which they
were typed. Ctrl-C aborts the one that is shown, Ctrl-D ends the input; what was typed before is still answered.
"""

import asyncio
import signal
import sys
import threading
from typing import Any


async def converse(engine: Any, params: Any) -> None:
    """Answer the lines of stdin on stdout until the input ends. Raises OSError if stdin can't be read.

    engine: an AsyncLLM; params: SamplingParams of its stage.
    """
    conversation = Conversation(engine, params, asyncio.get_running_loop())
    previous = signal.signal(signal.SIGINT, conversation.interrupt)
    threading.Thread(target=conversation.read, name="stdin", daemon=True).start()
    print("Type a prompt and press Enter. Ctrl-C aborts the one that is shown, Ctrl-D ends.", file=sys.stderr)
    try:
        await conversation.show()
    finally:
        signal.signal(signal.SIGINT, previous)


class Conversation:
    """What was typed and is not shown yet.

    Attributes:
        answers: for each prompt the task that answers it, and the pieces of its text so far; None at the end.
        shown: the task of the prompt that is shown now.
    """

    def __init__(self, engine: Any, params: Any, loop: asyncio.AbstractEventLoop):
        self.engine, self.params, self.loop = engine, params, loop
        self.answers: asyncio.Queue[tuple[asyncio.Task, asyncio.Queue] | None] = asyncio.Queue()
        self.shown: asyncio.Task | None = None
        self.failure: Exception | None = None

    def read(self) -> None:
        """Read stdin to its end; in a thread of its own, because waiting for a line can't be cancelled."""
        error = None
        try:
            for line in sys.stdin.buffer:  # bytes: text that can't be decoded must not end the reading
                self.loop.call_soon_threadsafe(self.typed, line.decode("utf-8", errors="replace").rstrip("\r\n"))
        except Exception as problem:  # whatever it is, no caller may wait forever
            error = problem
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.ended, error)

    def typed(self, line: str) -> None:
        if line.strip():
            pieces: asyncio.Queue = asyncio.Queue()
            self.answers.put_nowait((self.loop.create_task(self.answer(line, pieces)), pieces))

    def ended(self, error: Exception | None) -> None:
        self.failure = error
        self.answers.put_nowait(None)

    async def answer(self, prompt: str, pieces: asyncio.Queue) -> None:
        """Put the pieces of a completion into its queue, None behind the last."""
        pieces.put_nowait(prompt)
        try:
            async for event in self.engine.generate(prompt, self.params):
                pieces.put_nowait(event.text)
        except asyncio.CancelledError:
            pieces.put_nowait(" [aborted]")
        except (ValueError, RuntimeError) as error:
            pieces.put_nowait(f" [error: {error}]")
        pieces.put_nowait(None)

    async def show(self) -> None:
        """Print the answers, one after the other, as they grow."""
        while (next_answer := await self.answers.get()) is not None:
            self.shown, pieces = next_answer
            while (piece := await pieces.get()) is not None:
                print(piece, end="", flush=True)
            print("\n", flush=True)
            self.shown = None
        if self.failure is not None:
            raise OSError(f"stdin can't be read: {self.failure}")

    def interrupt(self, *_) -> None:
        """Ctrl-C."""
        if self.shown is not None:
            self.loop.call_soon_threadsafe(self.shown.cancel)
        else:
            print("\n(Ctrl-D ends)", file=sys.stderr)

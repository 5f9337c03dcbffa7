"""`--interactive`: type a prompt and watch it stream.

On a terminal you type a line after a prompt sign, with readline's keys and history; then its completion streams. Input
that you type in the meantime is not echoed: a whole line joins the running batch at once and is shown in its turn, the
rest waits at the next prompt sign. Ctrl-C stops the completion that is shown, Ctrl-D ends the program. From a pipe all
lines are prompts at once; results are printed in order, each with its prompt.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from . import console
from .console import Wrapper, is_terminal, reason, without_echo

Generate = Callable[[str], AsyncIterator[Any]]
SIGN = "> "
MAX_HISTORY = 1000  # prompts kept for later runs


def converse(generate: Generate) -> float:
    """Answer the lines of stdin on stdout until the input ends. Returns the seconds in which there was work.

    Args:
        generate: streams the events of a prompt, like AsyncLLM's.

    Raises OSError if stdin can't be read.
    """
    if sys.stdin.isatty():
        print("Type a prompt and press Enter. Ctrl-C stops a completion, Ctrl-D ends.", file=sys.stderr)
    previous = signal.getsignal(signal.SIGINT)
    try:
        return (on_terminal if is_terminal() else from_pipe)(generate)
    finally:
        signal.signal(signal.SIGINT, previous)


class Answers:
    """Prompts that were typed and are not shown yet. All are completed at once, and shown one after another.

    Attributes:
        shown: the task of the prompt that is shown now.
        seconds: how long there was something to complete.
        failure: the error that ended the input, if one did.
    """

    def __init__(self, generate: Generate):
        self.generate, self.loop = generate, asyncio.get_running_loop()
        self.queue: asyncio.Queue[tuple[str, asyncio.Task, asyncio.Queue] | None] = asyncio.Queue()
        self.shown: asyncio.Task | None = None
        self.seconds, self.failure = 0.0, None
        self._num_open, self._since = 0, 0.0

    def ask(self, line: str) -> None:
        if line.strip():
            if not self._num_open:
                self._since = time.perf_counter()
            self._num_open += 1
            pieces: asyncio.Queue = asyncio.Queue()
            self.queue.put_nowait((line, self.loop.create_task(self._complete(line, pieces)), pieces))

    def end(self, error: Exception | None = None) -> None:
        """There are no more lines."""
        self.failure = error
        self.queue.put_nowait(None)

    async def _complete(self, prompt: str, pieces: asyncio.Queue) -> None:
        """Put the pieces of a completion into its queue, None after the last."""
        try:
            async for event in self.generate(prompt):
                pieces.put_nowait(event.text)
                if event.finish_reason == "error":
                    pieces.put_nowait(f" [error: {event.stop_reason}]")
        except asyncio.CancelledError:
            pieces.put_nowait(" [aborted]")
        except Exception as error:  # whatever happens, the reader must not wait forever
            pieces.put_nowait(f" [error: {error}]")
        self._num_open -= 1
        if not self._num_open:
            self.seconds += time.perf_counter() - self._since
        pieces.put_nowait(None)

    async def show(self, begin: Callable[[str], None], write: Callable[[str], None], end: Callable[[], None]) -> bool:
        """Show the next completion as it grows: `begin` gets its prompt. Returns False at the end of the input."""
        if (following := await self.queue.get()) is None:
            return False
        prompt, self.shown, pieces = following
        begin(prompt)
        while (piece := await pieces.get()) is not None:
            write(piece)
        self.shown = None
        end()
        return True

    def interrupt(self, *_: Any) -> None:
        """Ctrl-C."""
        if self.shown is not None:
            self.loop.call_soon_threadsafe(self.shown.cancel)
        else:
            print("\n(Ctrl-D ends)", file=sys.stderr)


def put(text: str) -> None:
    print(text, end="", flush=True)


# --- From a pipe ----------------------------------------------------------------------------------------------------


def from_pipe(generate: Generate) -> float:
    async def run() -> float:
        answers = Answers(generate)
        signal.signal(signal.SIGINT, answers.interrupt)
        threading.Thread(target=read_lines, args=(answers,), name="stdin", daemon=True).start()
        while await answers.show(put, put, lambda: put("\n\n")):
            pass
        if answers.failure is not None:
            raise OSError(f"stdin can't be read: {reason(answers.failure)}")
        return answers.seconds

    return asyncio.run(run())


def read_lines(answers: Answers) -> None:
    """Read stdin to its end; in a separate thread, because waiting for a line can't be cancelled."""
    error, call = None, answers.loop.call_soon_threadsafe
    try:
        for line in sys.stdin.buffer:  # bytes: text that can't be decoded must not end the reading
            call(answers.ask, line.decode("utf-8", errors="replace").rstrip("\r\n"))
    except Exception as problem:  # whatever happens, no caller may wait forever
        error = problem
    if not answers.loop.is_closed():
        call(answers.end, error)


# --- On a terminal --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def history() -> Iterator[None]:
    """Readline's keys, and the prompts of earlier runs, in a file that only the user can read."""
    try:
        import readline  # `input` uses it once it is imported
    except ModuleNotFoundError:  # Windows' own console has keys and a history
        yield
        return
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(base) / "stagewise" / "history"
    readline.set_history_length(MAX_HISTORY)
    with contextlib.suppress(OSError):  # there is none yet
        readline.read_history_file(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # an unwritable home directory has no history
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)


@history()
def on_terminal(generate: Generate) -> float:
    sys.stdin.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    seconds, is_open = 0.0, True
    while is_open:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            line = input(SIGN)
        except KeyboardInterrupt:
            print("\n(Ctrl-D ends)")
            continue
        except EOFError:
            print()
            break
        except OSError as error:
            raise OSError(f"stdin can't be read: {reason(error)}") from None
        if line.strip():
            with without_echo():
                took, is_open = asyncio.run(answer(generate, line))
            seconds += took
    return seconds


async def answer(generate: Generate, line: str) -> tuple[float, bool]:
    """Complete a line, and those typed in the meantime. Returns the seconds it took, and whether more can be typed."""
    answers, text, is_open, num_shown, is_new = Answers(generate), Wrapper(put), True, 0, True

    def begin(prompt: str) -> None:
        nonlocal num_shown, is_new
        if num_shown:  # it was not echoed
            text.feed(f"{SIGN}{prompt}\n")
        num_shown, is_new = num_shown + 1, True

    def write(piece: str) -> None:
        nonlocal is_new
        text.feed(piece.removeprefix(" ") if is_new else piece)  # the prompt is on the line above
        is_new = is_new and not piece

    def end() -> None:
        text.end()
        put("\n\n")
        text.column = 0

    def typed() -> None:
        """A line has arrived, or the end of the input."""
        nonlocal is_open
        try:
            data = os.read(sys.stdin.fileno(), 1 << 16)
        except OSError:  # the terminal is gone
            data = b""
        for line in data.decode("utf-8", errors="replace").splitlines():
            answers.ask(line)
        if not data:
            is_open = False
            answers.loop.remove_reader(sys.stdin)

    signal.signal(signal.SIGINT, answers.interrupt)
    answers.ask(line)
    if console.termios is not None:
        answers.loop.add_reader(sys.stdin, typed)
    while not answers.queue.empty():
        await answers.show(begin, write, end)
    if console.termios is not None:
        answers.loop.remove_reader(sys.stdin)
    return answers.seconds, is_open

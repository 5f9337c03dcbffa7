"""`--interactive`: type a prompt and watch it stream.

On a terminal you type a line after a prompt sign, with readline's keys and history; then its completion streams. What
you type in the meantime is not echoed, and appears at the next prompt sign. Ctrl-C stops a completion, Ctrl-D ends the
program. From a pipe each line is a prompt and joins the running batch at once; results are printed in order, each with
its prompt.
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

from .console import Wrapper, is_terminal, without_echo
from .exits import reason

Generate = Callable[[str], AsyncIterator[Any]]
SIGN = "> "
HELP = "Type a prompt and press Enter. Ctrl-C stops a completion; Ctrl-D, exit or quit ends."
MAX_HISTORY = 1000  # prompts kept for later runs
LINES_AT_ONCE = 1000  # read from a pipe before the first of them is printed


def converse(generate: Generate) -> float:
    """Answer the lines of stdin on stdout until the input ends. Returns the seconds in which there was work.

    Args:
        generate: streams the events of a prompt, like AsyncLLM's.

    Raises OSError if stdin can't be read.
    """
    if sys.stdin.isatty():
        print(HELP, file=sys.stderr)
    return on_terminal(generate) if is_terminal() else asyncio.run(from_pipe(generate))


async def complete(generate: Generate, prompt: str, write: Callable[[str], Any]) -> None:
    """Write the pieces of a completion, and why it ended early if it did."""
    try:
        async for event in generate(prompt):
            write(event.text)
            if event.finish_reason == "error":
                write(f" [error: {event.stop_reason}]")
    except asyncio.CancelledError:
        write(" [aborted]")
    except Exception as error:  # the next prompt may do better
        write(f" [error: {error}]")


def put(text: str) -> None:
    print(text, end="", flush=True)


# --- From a pipe ----------------------------------------------------------------------------------------------------


async def from_pipe(generate: Generate) -> float:
    """Each line is completed as soon as it is read, and printed after those before it."""
    loop, completions = asyncio.get_running_loop(), asyncio.Queue()
    room = threading.Semaphore(LINES_AT_ONCE)
    num_open, since, seconds = 0, 0.0, 0.0

    async def answer(prompt: str) -> str:
        nonlocal num_open, since, seconds
        since = since if num_open else time.perf_counter()
        num_open += 1
        pieces = [prompt]
        await complete(generate, prompt, pieces.append)
        num_open -= 1
        seconds += 0.0 if num_open else time.perf_counter() - since
        return "".join(pieces)

    def ask(line: str) -> None:
        completions.put_nowait(loop.create_task(answer(line)))

    def read_lines() -> None:
        """In a thread, because waiting for a line can't be cancelled."""
        error = None
        try:
            for line in sys.stdin.buffer:  # bytes: text that can't be decoded must not end the reading
                if line.strip():
                    room.acquire()
                    loop.call_soon_threadsafe(ask, line.decode("utf-8", errors="replace").rstrip("\r\n"))
        except Exception as problem:  # told after what was read before it
            error = problem
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(completions.put_nowait, error)

    threading.Thread(target=read_lines, name="stdin", daemon=True).start()
    while isinstance(answered := await completions.get(), asyncio.Task):
        put(f"{await answered}\n\n")
        room.release()
    if answered is not None:
        raise OSError(f"stdin can't be read: {reason(answered)}")
    return seconds


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
    seconds, previous = 0.0, signal.getsignal(signal.SIGINT)
    try:
        while True:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                line = input(SIGN).strip()
            except KeyboardInterrupt:
                print("\n(Ctrl-D ends)")
                continue
            except EOFError:
                print()
                return seconds
            except OSError as error:
                raise OSError(f"stdin can't be read: {reason(error)}") from None
            if line in ("exit", "quit"):
                return seconds
            if line in ("help", "?"):
                print(HELP)
            elif line:
                with without_echo():
                    seconds += asyncio.run(answer(generate, line))
    finally:
        signal.signal(signal.SIGINT, previous)


async def answer(generate: Generate, prompt: str) -> float:
    """Stream a completion; Ctrl-C stops it. Returns the seconds that it took."""
    started, text, loop = time.perf_counter(), Wrapper(put), asyncio.get_running_loop()
    begun = False

    def write(piece: str) -> None:
        nonlocal begun
        text.feed(piece if begun else piece.removeprefix(" "))  # the prompt is on the line above
        begun = begun or piece != ""

    task = loop.create_task(complete(generate, prompt, write))
    signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(task.cancel))
    await task
    text.end()
    put("\n\n")
    return time.perf_counter() - started

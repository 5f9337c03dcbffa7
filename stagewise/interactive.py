"""`--interactive`: type a prompt on a terminal and watch it stream.

What you type meanwhile is not echoed, and appears at the next prompt sign. Ctrl-C stops a completion, Ctrl-D ends the
program.
"""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from .console import Wrapper, without_echo
from .exits import reason

Generate = Callable[[str], AsyncIterator[Any]]
SIGN = "> "
HELP = "Type a prompt and press Enter. Ctrl-C stops a completion; Ctrl-D, exit or quit ends."


def converse(generate: Generate) -> float:
    """Answer the lines of stdin on stdout until the input ends. Returns the seconds in which there was work.

    Args:
        generate: streams the events of a prompt, like AsyncLLM's.

    Raises OSError if stdin can't be read.
    """
    with contextlib.suppress(ModuleNotFoundError):  # Windows' own console has keys and a history
        import readline  # noqa: F401 (`input` uses it once it is imported)
    print(HELP, file=sys.stderr)
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
    task = loop.create_task(complete(generate, prompt, text))
    signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(task.cancel))
    await task
    text.end()
    put("\n\n")
    return time.perf_counter() - started


async def complete(generate: Generate, prompt: str, text: Wrapper) -> None:
    """Show the pieces of a completion, and why it ended early if it did."""
    begun = False
    try:
        async for event in generate(prompt):
            text.feed(event.text if begun else event.text.removeprefix(" "))  # the prompt is on the line above
            begun = begun or event.text != ""
            if event.finish_reason == "error":
                text.feed(f" [error: {event.stop_reason}]")
    except asyncio.CancelledError:
        text.feed(" [aborted]")
    except Exception as error:  # the next prompt may do better
        text.feed(f" [error: {error}]")


def put(text: str) -> None:
    print(text, end="", flush=True)

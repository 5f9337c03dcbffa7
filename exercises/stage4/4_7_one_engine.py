"""Exercise 4.7, one engine, many callers. Instructions: 4_7_one_engine.md."""

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any


def run(engine: Any, commands: SimpleQueue) -> None:
    """The engine's thread: carries out commands, and steps while there are requests, until it is closed."""
    raise NotImplementedError


def stream(request: str, commands: SimpleQueue, answers: SimpleQueue) -> Iterator[int]:
    """A caller: hands a request in, and yields its tokens as they come."""
    raise NotImplementedError

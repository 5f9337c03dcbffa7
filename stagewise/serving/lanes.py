"""Threads for slow work, so that it does not block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
SMALL = 2**14  # bytes of JSON, which take some milliseconds; anything longer is large
SWITCH_SECONDS = 0.0005  # after which Python switches to a waiting thread, which is often the engine's


class Lanes:
    """A thread for small work, one for large, and one for requests with structured output, which may take a second to
    compile. More would not be faster: Python runs one thread at a time."""

    def __init__(self):
        self._small, self._large, self._forms = (ThreadPoolExecutor(1, name) for name in ("small", "large", "forms"))

    async def do(self, size: int, work: Callable[[], T], *, has_form: bool = False) -> T:
        """The result of `work`. size: roughly the bytes of JSON that it reads or writes."""
        lane = self._forms if has_form else self._small if size <= SMALL else self._large
        return await asyncio.get_running_loop().run_in_executor(lane, work)

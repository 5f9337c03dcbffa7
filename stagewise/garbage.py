"""Garbage collection, which a command puts off until its model is loaded.

Importing torch makes more than a hundred thousand objects that stay. To look through them takes a tenth of a second,
and Python would do so again and again before the first token.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Collect nothing in this block, until it calls `begin`."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def begin() -> None:
    """Collect from now on, if that was put off; what is there now stays."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()

"""Wrap a method of an object from outside, so that neither the object nor its reader has to know."""

import functools
from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str, wrapper: Callable) -> None:
    """From now on `owner.name(*arguments)` is `wrapper(method, *arguments)`."""
    setattr(owner, name, functools.partial(wrapper, getattr(owner, name)))

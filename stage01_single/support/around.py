"""Wrap a method of an object from outside, so that neither the object nor its reader has to know."""

import functools
import weakref
from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str, wrapper: Callable) -> None:
    """From now on `owner.name(*arguments)` is `wrapper(method, *arguments)`.

    The owner has the wrapper, so whatever belongs to that should know the owner weakly: a cycle would keep the weights
    of a model in memory until the garbage collector comes.
    """
    method = getattr(owner, name)
    if getattr(method, "__self__", None) is owner:
        weak = weakref.WeakMethod(method)
        method = lambda *arguments: weak()(*arguments)  # noqa: E731
    setattr(owner, name, functools.partial(wrapper, method))

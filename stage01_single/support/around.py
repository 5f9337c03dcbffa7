"""Wrap a method of one object from outside: an attribute of the object hides the method of its class. Each wrapper
comes around those before it; surroundings.py has the list."""

import functools
import weakref
from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """From now on `owner.name(*arguments)` is `wrapper(method, *arguments)`.

    The owner has the wrapper, so whatever belongs to that should know the owner weakly: a cycle would keep the weights
    of a model in memory until the garbage collector comes.
    """
    method = getattr(owner, name)
    if getattr(method, "__self__", None) is owner:
        weak = weakref.WeakMethod(method)
        method = lambda *arguments: weak()(*arguments)  # noqa: E731  # pyright: ignore[reportOptionalCall]
    setattr(owner, name, functools.partial(wrapper, method))

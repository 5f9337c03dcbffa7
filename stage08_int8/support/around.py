"""Wrap a method of one object from outside: an attribute of the object hides the method of its class. Each wrapper
comes around those before it; surroundings.py has the list."""

import functools
import weakref
from collections.abc import Callable
from inspect import ismethod
from typing import Any


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """From now on `owner.name(*arguments)` is `wrapper(method, *arguments)`.

    The owner has the wrapper, so whatever belongs to that should know the owner weakly: a cycle would keep the weights
    of a model in memory until the garbage collector comes.
    """
    method = getattr(owner, name)
    setattr(owner, name, functools.partial(wrapper, weakly(method) if ismethod(method) else method))


def weakly(method: Any) -> Callable[..., Any]:
    """The method, without its object. If the garbage collector is taking that, a call does nothing."""
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        bound = weak()
        return None if bound is None else bound(*arguments)

    return call

"""Wrap a method of one object for a while: an attribute of the object shadows the method of its class.

Only code that watches an engine from outside does this: traces, the live page, the server's counters. The stages
themselves wrap nothing.
"""

import functools
import weakref
from collections.abc import Callable
from inspect import ismethod
from typing import Any


class Wrapped:
    """A method with wrappers around it, which may come and go in any order; the latest is the outermost."""

    def __init__(self, method: Callable[..., Any]):
        self.method, self.wrappers = method, []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        call = self.method
        for wrapper in self.wrappers:
            call = functools.partial(wrapper, call)
        return call(*arguments, **named)


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> Callable[[], None]:
    """Make `owner.name(*arguments)` call `wrapper(method, *arguments)`. Returns a function that undoes it."""
    own = vars(owner).get(name)
    wrapped = own if isinstance(own, Wrapped) else Wrapped(weakly(getattr(owner, name)))
    wrapped.wrappers.append(wrapper)
    setattr(owner, name, wrapped)
    owner = weakref.ref(owner)

    def undo() -> None:
        wrapped.wrappers.remove(wrapper)
        if not wrapped.wrappers and (there := owner()) is not None:
            delattr(there, name)

    return undo


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that does not keep its object alive: a reference cycle would keep the weights in memory until the
    garbage collector runs. Once the object is gone, a call does nothing."""
    if not ismethod(method):
        return method
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any, **named: Any) -> Any:
        bound = weak()
        return None if bound is None else bound(*arguments, **named)

    return call

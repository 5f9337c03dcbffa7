"""An answer as a test sees it: its module, plus what its functions do besides returning a value.

    work = Answer(path)
    work.sample([1.0, 2.0], 0.5)          # a function of the answer's file
    allocator = work.Allocator(8, 4)      # an object of the answer, whose methods are watched in the same way
    allocator.allocate("a", 3)

A call returns a copy of what the answer returned: later calls don't change it, and `reread` shows whether they changed
the original. After a test, `settle` says whether an argument or a returned list was changed.
Test and answer share a process (see child.py): an answer that wants to deceive its test can.
"""

import sys
import time
import tracemalloc
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .grading import Wrong

PLAIN = (type(None), bool, int, float, str, bytes)
CONTAINERS = (list, tuple, dict, set, frozenset)
READ = ("tolist", "numpy", "__iter__", "__array__")  # of a tensor's numbers, into Python


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Tensor and value.layout == torch.strided


def frozen(value: Any) -> Any:
    """A value's current contents, to be compared later."""
    if type(value) in (list, tuple):
        return type(value), [frozen(item) for item in value]
    if type(value) is dict:
        return dict, [(frozen(key), frozen(item)) for key, item in value.items()]
    if type(value) in (set, frozenset):
        return type(value), set(value)
    if is_tensor(value):
        torch, flat = sys.modules["torch"], value.detach().contiguous().flatten()
        return str(value.dtype), list(value.shape), flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return (type(value), repr(value) if value != value else value) if type(value) in PLAIN else id(value)


class Object:
    """Forwards everything to an object or class of the answer."""

    def __init__(self, answer: "Answer", target: Any):
        vars(self).update(_answer=answer, _target=target)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("tolist", "numel", "dtype"):  # by which a message recognizes a tensor
            raise AttributeError(name)
        return self._answer._got(self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, self._answer._given(value))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer._call(self._target, args, kwargs)

    def __len__(self) -> int:
        return len(self._target)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator:
        return map(self._answer._shown, self._target)

    def __getitem__(self, key: Any) -> Any:
        return self._answer._shown(self._target[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._target[key] = self._answer._given(value)

    def __repr__(self) -> str:
        if isinstance(self._target, type):
            return f"the class {self._target.__name__}"
        return f"an object of the class {type(self._target).__name__}"


class Items:
    """An iterator that is passed to an answer: at each step it counts how many of its tensors are still alive."""

    def __init__(self, answer: "Answer", items: Iterator):
        self.answer, self.items, self.made = answer, items, []

    def __iter__(self) -> "Items":
        return self

    def __next__(self) -> Any:
        self.made = [made for made in self.made if made() is not None]
        self.answer.most_alive = max(self.answer.most_alive, len(self.made))
        item = next(self.items)
        if type(item) is tuple and item and is_tensor(item[0]):
            self.made.append(weakref.ref(item[0]))
        return item


class Answer:
    """The module in an answer's file, executed when its first attribute is read."""

    def __init__(self, path: Path):
        self._path, self._module = Path(path), None
        self.__file__ = str(path)
        self._measured: SimpleNamespace | None = None
        self._forget()

    def _forget(self) -> None:
        self._changed = False  # whether a call has changed an argument, or returned it
        self._objects: dict[int, Object] = {}
        self._results: dict[int, tuple[Any, Any]] = {}  # id of a copy -> the copy, what the answer returned
        self._returned: list[tuple[Any, Any]] = []  # what functions returned, and what was in it then
        self.most_alive = 0  # tensors of one iterator that were kept at once

    def load(self) -> None:
        """Run the answer's file. Raises what it raises."""
        name = f"exercise_{self._path.stem}"
        code = compile(self._path.read_bytes(), str(self._path), "exec")
        self._module = sys.modules[name] = types.ModuleType(name)  # dataclasses look up their module
        self._module.__file__ = str(self._path)
        exec(code, vars(self._module))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._module is None:
            self.load()
        return self._got(self._module, name)

    # What tests check besides values

    def reread(self, result: Any) -> Any:
        """The current contents of a list or tensor that was returned earlier."""
        return self._shown(self._results[id(result)][1])

    def is_same(self, a: Any, b: Any) -> bool:
        """Whether two results are the same object in the answer."""
        return self._results[id(a)][1] is self._results[id(b)][1]

    def write(self, result: Any, part: int, at: Any, value: Any) -> None:
        """Write into a part of a tuple that was returned earlier."""
        self._results[id(result)][1][part][at] = value

    def each(self, thing: Object, name: str, calls: list[tuple]) -> list:
        """Many calls of a method, without checking their arguments afterwards."""
        method = getattr(thing._target, name)
        return self._shown([self._run(method, args, {}) for args in calls])

    @contextmanager
    def measured(self) -> Iterator[SimpleNamespace]:
        """What the calls in this block do: torch's operations, the size of the largest tensor that one of them made,
        bytes that they wrote, tensors turned into Python numbers; instructions in the answer's file; peak bytes of
        Python's memory; seconds of computing."""
        self._measured = SimpleNamespace(
            operations=0, largest=0, moved=0, in_python=0, instructions=0, allocated=0, seconds=0.0
        )
        try:
            yield self._measured
        finally:
            self._measured = None

    def settle(self) -> None:
        """After a test: release all objects. Raises Wrong if something changed that no test looked at."""
        changed, case = self._changed, "its argument, afterwards"
        if any(frozen(value) != before for value, before in self._returned):
            changed, case = True, "a returned list, after later calls"
        self._forget()
        if changed:
            raise Wrong(case, "as it was", "changed", "the caller goes on using it: make a new one for each result")

    # Between a test and the answer

    def _got(self, target: Any, name: str) -> Any:
        """An attribute: calls are watched."""
        value = getattr(target, name)
        if callable(value) and not isinstance(value, type):
            return lambda *args, **kwargs: self._call(value, args, kwargs)
        return self._shown(value)

    def _call(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        given, named = [self._given(value) for value in args], {k: self._given(v) for k, v in kwargs.items()}
        values = [*given, *named.values()]
        before = [frozen(value) for value in values]
        value = self._run(function, given, named)
        for was, now, seen in zip(before, values, [*args, *kwargs.values()], strict=True):
            if frozen(now) != was:
                self._changed = True
                if now is not seen and type(now) is list:  # a list of objects: the test has a different list
                    seen[:] = map(self._shown, now)
        self._changed = self._changed or (type(value) is list and any(value is other for other in values))
        result = self._shown(value)
        if type(value) in CONTAINERS or is_tensor(value):
            self._results[id(result)] = result, value
            if not isinstance(function, types.MethodType):
                self._returned.append((value, frozen(value)))
        return result

    def _run(self, function: Callable, args: Any, kwargs: dict) -> Any:
        if self._measured is None:
            return function(*args, **kwargs)
        return measure(lambda: function(*args, **kwargs), self.__file__, self._measured)

    def _given(self, value: Any) -> Any:
        """An argument as the answer gets it."""
        if type(value) is Object:
            return value._target
        if type(value) in (list, tuple) and any(type(item) is Object for item in value):
            return type(value)([self._given(item) for item in value])
        return Items(self, value) if hasattr(value, "__next__") else value

    def _shown(self, value: Any, met: dict[int, Any] | None = None) -> Any:
        """A value as the test gets it: a copy that preserves which parts are the same object."""
        met = {} if met is None else met
        if id(value) in met:
            return met[id(value)]
        if type(value) in (list, set):
            made = met[id(value)] = type(value)()
            add = made.append if type(value) is list else made.add
            for item in value:
                add(self._shown(item, met))
            return made
        if type(value) is dict:
            made = met[id(value)] = {}
            made.update({self._shown(key, met): self._shown(item, met) for key, item in value.items()})
            return made
        if type(value) in (tuple, frozenset):
            return type(value)([self._shown(item, met) for item in value])
        if is_tensor(value):
            made = met[id(value)] = value.detach().clone()
            storage = value.untyped_storage()
            made.place = storage.data_ptr(), storage.nbytes()  # where its memory begins, and how many bytes it has
            return made
        if type(value) in PLAIN or (type(value).__module__ == "numpy" and not hasattr(value, "__len__")):
            return value
        return self._objects.setdefault(id(value), Object(self, value))


def measure(function: Callable, path: str, said: SimpleNamespace) -> Any:
    """Call a function, and add to the measurements."""

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != path:
            return None
        frame.f_trace_opcodes = True
        said.instructions += event == "opcode"
        return trace

    def traced() -> Any:
        tracemalloc.start()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        sys.settrace(trace)
        try:
            return function()
        finally:
            sys.settrace(None)
            said.allocated += tracemalloc.get_traced_memory()[1] - before
            tracemalloc.stop()

    started = time.process_time()
    try:
        return in_torch(traced, said) if "torch" in sys.modules else traced()
    finally:
        said.seconds += time.process_time() - started


def in_torch(function: Callable, said: SimpleNamespace) -> Any:
    """Call a function, and count the torch operations."""
    from torch.overrides import TorchFunctionMode

    def of(values: Any) -> list:
        if is_tensor(values):
            return [values]
        return [tensor for value in values for tensor in of(value)] if isinstance(values, list | tuple) else []

    class Counter(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, given = getattr(func, "__name__", ""), of(list(args) + list((kwargs or {}).values()))
            places = {tensor.untyped_storage().data_ptr() for tensor in given}
            out = func(*args, **(kwargs or {}))
            said.operations += 1
            said.in_python += name in READ
            if name == "__setitem__" or name.startswith(("index_", "scatter_", "masked_scatter_")):
                said.moved += sum(tensor.nbytes for tensor in given[1:] if tensor.is_floating_point())
            elif (name.endswith("_") and not name.startswith("__")) or name.startswith("__i"):
                said.moved += sum(tensor.nbytes for tensor in given[:1])
            for tensor in of(out if isinstance(out, list | tuple) else [out]):
                said.largest = max(said.largest, tensor.numel())
                new = tensor.untyped_storage().data_ptr() not in places and "empty" not in name
                said.moved += tensor.nbytes * new
            return out

    with Counter():
        return function()

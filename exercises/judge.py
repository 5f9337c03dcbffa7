"""An answer in a process of its own, and the judge who stands outside.

    with Answer(path) as work:
        work.sample([1.0, 2.0], 0.5)          # a function of the answer's file, called in the answer's process
        allocator = work.Allocator(8, 4)      # an object of the answer's: it stays there, and is known here by a number
        allocator.allocate("a", 3)
        allocator.num_free

Arguments go there and results come back as plain data (see `child.py`). The tests that compare them, and what they
expect, are in this process alone. A function or an iterator that is given as an argument stays here too: the answer's
process calls it back.

What is defended: the answer's process has a fresh directory with the answer's file, the standard library, torch and
NumPy. The solutions, the tests, the records and these modules are not on its path. An answer that takes its own process
apart (frames, memory, `__eq__`, the line itself) finds inputs, and can only send data, which is compared here by exact
type. Values, calls back, and the items that were taken from an iterator can't be forged.

What is not defended: only the answer's process can say what happens in its memory, such as whether an argument was
changed, where a tensor lies, or how many operations ran. An answer that rewrites `child.py` in memory can forge these.
Nor is this a sandbox. An audit hook refuses files, processes and sockets; an answer that gets around it can read the
learner's own checkout by an absolute path. For marks, use `python -m exercises grade` where there are no solutions of
others.
"""

import atexit
import builtins
import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from . import child
from .child import Coder, Ended, Line
from .grading import Wrong

SECONDS = 60  # of computing that a check may take; they take five at the most
PATIENCE = 600  # seconds by the clock, for code that waits
SITE = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
KEPT_VARIABLES = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
COMMAND = [sys.executable, "-I", "-S", "-B", "-c"]


class Endless(Exception):
    """The answer does not come to an end; the message says where it was."""


class Remote:
    """An object of the answer's process. What is done to it is done there."""

    def __init__(self, answer: "Answer", data: Mapping):
        vars(self).update(_answer=answer, _number=data["o"], _kind=str(data["kind"])[:80], _class=bool(data["class"]))

    def _ask(self, ask: str, *values: Any, **more: Any) -> Any:
        return self._answer._request({"ask": ask, "number": self._number, **more}, *values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("tolist", "numel", "dtype"):  # by which a message knows a tensor
            raise AttributeError(name)
        methods = self._answer._methods
        if (self._kind, name) not in methods:
            value, reply = self._answer._exchange({"ask": "get", "number": self._number, "name": name})
            if not reply.get("method"):
                return value
            methods.add((self._kind, name))
        return lambda *args, **kwargs: self._ask("method", list(args), kwargs, name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", value, name=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", list(args), kwargs)

    def __len__(self) -> int:
        return self._ask("len")

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator:
        return iter(self._ask("iter"))

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("put", key, value)

    def __repr__(self) -> str:
        return f"the class {self._kind}" if self._class else f"an object of the class {self._kind}"


class Answer(Line):
    """The module in an answer's file, at the other end of the line. It is run when it is first asked for anything."""

    def __init__(self, path: Path, seconds: float | None = None, patience: float | None = None, quiet: bool = False):
        super().__init__(lambda: Coder(self._to_number, self._of_number))
        self._path, self._quiet = Path(path), quiet
        self._limit, self._patience = seconds or SECONDS, patience or PATIENCE
        self._folder = tempfile.TemporaryDirectory(prefix="answer-")
        self._names: dict[str, Any] = {}
        self._methods: set[tuple[str, str]] = set()
        self._remotes: dict[int, Remote] = {}
        self._given: list[Any] = []  # functions and iterators that can be called back
        self._results: dict[int, tuple[Any, int]] = {}
        self._raised: Wrong | None = None
        self._changed = False  # whether a call has changed an argument, or returned it
        self._measured: SimpleNamespace | None = None
        self._process: Process | None = None
        self._buffer = bytearray()
        self.most_alive = 0  # tensors of one iterator that were kept at once
        self.__file__ = str(path)

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.kill()
        self._folder.cleanup()

    def load(self) -> None:
        """Start the process and run the answer's file in it. Raises what the file raises."""
        text = self._path.read_bytes()
        copy = Path(self._folder.name).resolve() / self._path.name
        copy.write_bytes(text)
        modules = [name for name in ("numpy", "torch") if name.encode() in text or b"Tensor" in text]
        self._process = start(copy, modules, self._quiet)
        self._exchange({"ask": "load"})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._process is None:
            self.load()
        if name not in self._names:
            self._names[name] = self._request({"ask": "get", "name": name})
        return self._names[name]

    # What tests look at beside values

    def keep(self, value: Any) -> Any:
        """A list (or another object) that lives in the answer's process: changed here, it is changed there."""
        return self._request({"ask": "keep"}, value)

    def watch(self, numbers: list[float]) -> Any:
        """Numbers that remember in which order they were read (`.places`), and multiplied (`.used`)."""
        return self._request({"ask": "watch"}, numbers)

    def reread(self, result: Any) -> Any:
        """What is by now in a list or tensor that came back earlier."""
        return self._request({"ask": "reread", "number": self._results[id(result)][1]})

    def one(self, a: Any, b: Any) -> bool:
        """Whether two results are one object in the answer's process."""
        numbers = [self._results[id(result)][1] for result in (a, b)]
        return self._request({"ask": "one", "number": numbers[0]}, numbers[1])

    def write(self, result: Any, part: int | None, at: Any, value: Any) -> None:
        """Write into a tensor or list that came back earlier, or into a part of a tuple that did."""
        self._request({"ask": "write", "number": self._results[id(result)][1]}, part, at, value)

    def each(self, thing: Remote, name: str, calls: list[tuple]) -> list:
        """Many calls of a method in one message."""
        return thing._ask("each", calls, name=name)

    @contextmanager
    def measured(self) -> Iterator[SimpleNamespace]:
        """What the calls in this block do on the way: see `child.measured`."""
        self._measured = SimpleNamespace(
            operations=0, largest=0, moved=0, in_python=0, instructions=0, allocated=0, seconds=0.0
        )
        try:
            yield self._measured
        finally:
            self._measured = None

    def settle(self) -> None:
        """After a test: let go of all objects. Raises Wrong where something changed that no test looked at."""
        changed, case = self._changed, "what was given to it, afterwards"
        if self._process is not None and self._exchange({"ask": "forget"})[0]:
            changed, case = True, "a list that came back, after later calls"
        self._changed = False
        for kept in (self._names, self._methods, self._remotes, self._results):
            kept.clear()
        self.most_alive = 0
        if changed:
            raise Wrong(case, "as it was", "changed", "the caller goes on with it: make a new one for each result")

    @property
    def cpu_seconds(self) -> float:
        return self._process.cpu_seconds if self._process else 0.0

    # The line

    def _request(self, message: dict, *values: Any) -> Any:
        return self._exchange(message, *values)[0]

    def _exchange(self, message: dict, *values: Any) -> tuple[Any, dict]:
        if self._measured is not None and message["ask"] in ("call", "method", "each"):
            message = {**message, "measure": True}
        try:
            value, reply = self.ask(message, *values)
            error = told(reply["error"]) if "error" in reply else None
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as broken:
            raise Ended(f"what came back from it can't be read ({type(broken).__name__})") from broken
        if self._raised:
            raised, self._raised = self._raised, None
            raise raised
        if error:
            raise error
        if self._measured is not None:
            for name, number in reply.get("measured", {}).items():
                vars(self._measured)[name] += number
        if message["ask"] in ("call", "method"):
            arguments = [*values[0], *values[1].values()]
            same = type(value) is list and any(value is argument for argument in arguments)
            self._changed = self._changed or same or bool(reply.get("changed"))
        if type(reply.get("result")) is int:
            self._results[id(value)] = value, reply["result"]
        return value, reply

    def send(self, message: dict) -> None:
        self._process.write(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict:
        """The next message. Raises Endless if the answer computes or waits for too long, and Ended if it is gone."""
        started, asked = time.monotonic(), 0.0
        while (end := self._buffer.find(b"\n")) < 0:
            data = self._process.read(0.5)
            if data == b"":
                raise Ended(f"the process that ran it ended with status {self._process.status()}")
            self._buffer += data or b""
            if len(self._buffer) > child.LONGEST:
                raise Ended("it sent more than 256 MB at once")
            now = time.monotonic()
            if asked and now > asked + 5:
                raise self._endless(None)
            waits = now > started + self._patience
            if not asked and data is None and (waits or self._process.cpu_seconds > self._limit):
                asked = now
                if not self._process.where():
                    raise self._endless(None)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message = json.loads(line)
        if asked:
            raise self._endless(message.get("at"))
        return message

    def _endless(self, line: int | None) -> Endless:
        self._process.kill()
        said = too_long(self._process.cpu_seconds_at_end >= self._limit, self._limit, self._patience)
        return Endless(said + (f"\nit was at: {spot(self._path, line)}" if type(line) is int else ""))

    def answer(self, message: dict) -> dict:
        """Call back what was given to the answer."""
        given = self._given[message["number"]]
        try:
            if message["ask"] == "next":
                self.most_alive = max(self.most_alive, int(message["alive"]))
                return self.call(lambda: next(given), {"values": []})
            return self.call(lambda args, kwargs: given(*args, **kwargs), message)
        except StopIteration:
            return {"stop": True}
        except Wrong as wrong:  # of a model that the answer calls: it counts, whatever the answer makes of it
            self._raised = self._raised or wrong
            return {"error": "RuntimeError", "text": "the call was wrong"}
        except Exception as error:
            kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            return {"error": kind.__name__, "text": str(error)}

    def _to_number(self, value: Any) -> dict:
        if isinstance(value, Remote):
            return {"o": value._number}
        if not callable(value) and not hasattr(value, "__next__"):
            raise NotImplementedError(f"{type(value).__name__} can't be sent to an answer")
        self._given.append(value)
        return {"f" if callable(value) else "i": len(self._given) - 1}

    def _of_number(self, data: dict) -> Remote:
        return self._remotes.setdefault(data["o"], Remote(self, data))


def too_long(computed: bool, limit: float, patience: float) -> str:
    """What is told of an answer that does not come back."""
    if computed:
        return f"not done after {limit:g} seconds of computing; is there a loop that does not end?"
    return f"not done after {patience:g} seconds; does it wait for something, or never end?"


def spot(path: Path, line: int) -> str:
    """A line of an answer, with its text."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return f"line {line} of {path.name}: {lines[line - 1].strip() if 0 < line <= len(lines) else ''}"


def told(data: Mapping) -> Exception:
    """The error that was raised in the answer's process, as one of Python's own."""
    kinds = [getattr(builtins, str(name), None) for name in data["kinds"]]
    kind = next(k for k in [*kinds, Exception] if isinstance(k, type) and issubclass(k, Exception))
    try:
        error = kind(data["text"])
    except TypeError:  # UnicodeDecodeError takes five arguments
        error = Exception(data["text"])
    error.told = {**data, "line": data["line"] if type(data["line"]) is int else None, "own": data["own"] is True}
    return error


# --- Processes --------------------------------------------------------------------------------------------------------


class Process:
    """The process of an answer, and the line to it."""

    def __init__(self, pid: int, read: int, write: int, wait: Callable[[], int], watch: int | None = None):
        self.pid, self.wait = pid, wait
        self.fds, self.ended = (read, write, *([] if watch is None else [watch])), False
        self.cpu_seconds_at_end = 0.0

    def read(self, seconds: float) -> bytes | None:
        """What has come; None if nothing comes for so long, and b"" at the end."""
        try:
            if len(self.fds) == 2 and not select.select([self.fds[0]], [], [], seconds)[0]:
                return None
            return os.read(self.fds[0], 1 << 20)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    def where(self) -> bool:
        """Ask where the answer is; False if nobody listens while it computes."""
        if len(self.fds) == 2:
            return False
        os.write(self.fds[2], b"?")
        return True

    def write(self, data: bytes) -> None:
        if not self.fds:
            raise Ended("its process has ended")
        view = memoryview(data)
        with suppress(BrokenPipeError, ConnectionError):  # reading tells what it was
            while view:
                view = view[os.write(self.fds[1], view) :]

    @property
    def cpu_seconds(self) -> float:
        with suppress(psutil.Error):
            times = psutil.Process(self.pid).cpu_times()
            self.cpu_seconds_at_end = times.user + times.system
        return self.cpu_seconds_at_end

    def status(self) -> int:
        """How it ended: its exit status, negative if a signal ended it."""
        if not self.ended:
            self.ended = True
            self.code = self.wait()
        return self.code

    def kill(self) -> None:
        if self.fds:
            _ = self.cpu_seconds
            if not self.ended:
                with suppress(OSError):
                    os.kill(self.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
            self.status()
            for number in set(self.fds):
                os.close(number)
            self.fds = ()


def environment() -> dict[str, str]:
    """Of an answer's process: nothing in it tells where the project is."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1"}


def command(calls: str) -> list[str]:
    """What starts such a process: the text of `child.py`, and what to do with it."""
    return [*COMMAND, f"{Path(child.__file__).read_text(encoding='utf-8')}\n{calls}"]


def encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def start(path: Path, modules: list[str], quiet: bool = False) -> Process:
    """A process that serves the answer in this file."""
    if hasattr(socket, "recv_fds") and hasattr(os, "fork"):
        return parent_of_answers(tuple(modules), quiet).make(path)
    return start_alone(path, modules, quiet)


def start_alone(path: Path, modules: list[str], quiet: bool = False) -> Process:
    """The same without `fork`: the line are its standard streams, and what the answer prints goes to stderr."""
    number = "os.open(os.devnull, os.O_WRONLY)" if quiet else "2"
    calls = f"read, write = os.dup(0), os.dup(1)\nos.dup2({number}, 1)\nprepare({SITE!r}, {modules!r})\n"
    calls += f"serve(read, write, None, {str(path)!r}, {encoding()!r})\n"
    process = subprocess.Popen(command(calls), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    result = Process(process.pid, os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()), process.wait)
    process.stdin.close(), process.stdout.close()
    return result


class Parent:
    """A process that forks one for each answer: torch is imported there, once. No answer ever runs in it."""

    def __init__(self, modules: tuple[str, ...], quiet: bool):
        self.line, theirs = socket.socketpair()
        calls = f"prepare({SITE!r}, {list(modules)!r})\nbreed({theirs.fileno()})\n"
        self.process = subprocess.Popen(command(calls), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                                        stdout=subprocess.DEVNULL if quiet else None, env=environment(), cwd=os.sep,
                                        start_new_session=True)  # fmt: skip
        theirs.close()
        atexit.register(self.end)

    def end(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()

    def ask(self, message: dict, numbers: list[int] | None = None) -> int:
        socket.send_fds(self.line, [json.dumps(message).encode()], numbers or [])
        return int(json.loads(self.line.recv(64)))

    def make(self, path: Path) -> Process:
        (line, theirs), (watch, watcher) = socket.socketpair(), socket.socketpair()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 500_000))  # so `read` comes back
        pid = self.ask({"path": str(path), "encoding": encoding()}, [theirs.fileno(), watcher.fileno()])
        theirs.close(), watcher.close()
        number = line.detach()
        wait = lambda: os.waitstatus_to_exitcode(self.ask({"wait": pid}))  # noqa: E731
        return Process(pid, number, number, wait, watch.detach())


@functools.cache
def parent_of_answers(modules: tuple[str, ...], quiet: bool) -> Parent:
    return Parent(modules, quiet)

"""Compiles the forms of structured output in a process that can be killed: a schema of a few characters may take
minutes and gigabytes, and no limit of llguidance's stops that. What compiles here is compiled again by the caller,
which takes about as long.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

SECONDS = 1.0  # of CPU time
WALL_FACTOR = 10  # times as much wall time: the machine may be busy, or have no limit on CPU time
MEGABYTES = 512
TRIAL_STEPS = 4  # of generation: some errors, and some excessive forms, show only there


class FormCheck:
    """A process that compiles forms, one after another, and ends with its parent.

    Args:
        setup: the vocabulary and the limits, as JSON.
    """

    def __init__(self, setup: bytes):
        self.setup, self.pid = setup, os.getpid()
        command, pipe, null = [sys.executable, __file__], subprocess.PIPE, subprocess.DEVNULL
        self.process: Any = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null)
        try:
            if not self._say(setup):
                raise OSError("the process that compiles structured outputs ended before it had one to compile")
        except BaseException:
            self.kill()
            raise

    def is_usable(self, setup: bytes) -> bool:
        return self.setup == setup and self.pid == os.getpid() and self.process.poll() is None

    def compile(self, grammar: str, seconds: float) -> str:
        """llguidance's error; empty if there is none."""
        timer = threading.Timer(WALL_FACTOR * seconds, self.process.kill)
        timer.start()
        try:
            answer = self._say(json.dumps([grammar, seconds]).encode())
        except BaseException:  # such as Ctrl-C: the next caller must not read this answer
            self.kill()
            raise
        finally:
            timer.cancel()
        if not answer:
            self.kill()
            limits = f"{seconds:g} s or {MEGABYTES} MB"
            return f"it is too large or too complex: compiling it takes over {limits}"
        return json.loads(answer)

    def _say(self, line: bytes) -> bytes:
        """The process's answer; empty if it ends instead."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()
        return self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()  # which closes the pipes


def compile_forms() -> None:
    """What the process runs: answers each line with an error, or an empty string."""
    del sys.path[0]  # this directory
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    import llguidance

    setup = json.loads(sys.stdin.buffer.readline())
    words = Words([bytes.fromhex(token) for token in setup["tokens"]], setup["special"], setup["eos"][0])
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(words), eos_token=setup["eos"])
    limits = llguidance.LLParserLimits(verbose_errors=False, **setup["limits"])
    limit_memory()
    answer("")
    for line in sys.stdin.buffer:
        grammar, seconds = json.loads(line)
        limit_time(seconds)
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        error = try_out(matcher)
        limit_time(0)
        answer(error)


def try_out(matcher: Any) -> str:
    """Take a few steps. Returns the error, or an empty string."""
    for _ in range(TRIAL_STEPS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error() or matcher.is_accepting() or not mask:
            break
        matcher.consume_token((mask & -mask).bit_length() - 1)
    return matcher.get_error()


class Words:
    """The vocabulary as llguidance expects it. encode: tokenizes text that the form leaves no choice about; by default
    into bytes, which is enough for a trial."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], eos_token_id: int, encode: Any = None):
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special_token_ids, eos_token_id
        bytes_of = {token[0]: i for i, token in enumerate(tokens) if len(token) == 1}
        self.encode = encode or (lambda text: [bytes_of[byte] for byte in text.encode()])

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("strings only")
        return self.encode(text) if text else []


def answer(text: str) -> None:
    sys.stdout.write(json.dumps(text) + "\n")
    sys.stdout.flush()


def limit_time(seconds: float) -> None:
    """Have a signal end the process after this much CPU time; 0: never. Windows has no such signal."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_memory() -> None:
    # Where there is no such limit, wall time is the limit.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEGABYTES * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    compile_forms()

"""What a terminal shows: `--interactive` as a person uses it, lines broken between words, progress, the last line."""

import contextlib
import dataclasses
import io
import os
import random
import re
import signal
import subprocess
import sys
import time
import types
from itertools import pairwise

import pytest

from stagewise import cli, console, interactive
from stagewise.console import Wrapper, closing_line, progress_bar, width_of
from tests.adapter import ROOT, STAGES

posix = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX")
# GPT-2 small with random weights: slow enough to be caught in the middle of its nonsense.
SLOW = ["--model", "gpt2", "--load-format", "dummy", "--max-tokens", "1000", "--ignore-eos"]
GREEDY = ["--temperature", "0", "--max-tokens", "12"]


def throw(error):
    raise error


class Terminal:
    """A program on its own pseudo-terminal, where Ctrl-C is a key."""

    def __init__(self, *command, columns=60):
        import fcntl
        import pty
        import struct
        import termios

        self.leader, follower = pty.openpty()
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        streams = {"stdin": follower, "stdout": follower, "stderr": follower}
        become = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", become, sys.executable, *command]
        size = ("COLUMNS", "LINES")  # make exports its own
        environment = {**{k: v for k, v in os.environ.items() if k not in size}, "TERM": "xterm"}
        self.process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment, **streams)
        os.close(follower)
        os.set_blocking(self.leader, False)
        self.seen = ""  # since the last `until`
        self.bytes = b""

    def type(self, keys):
        os.write(self.leader, keys.encode())

    def until(self, pattern, seconds=120):
        """What is shown until this appears, from where the last such text ended."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, f"waited for {pattern!r}, saw {self.seen[-500:]!r}"
            with contextlib.suppress(BlockingIOError, OSError):
                self.bytes += os.read(self.leader, 1 << 16)
            text = self.bytes.decode(errors="ignore")
            self.bytes = b"" if text.encode() == self.bytes else self.bytes[len(text.encode()) :]
            self.seen += re.sub(r"\x1b\[\?2004[hl]", "", text).replace("\r\n", "\n")
            time.sleep(0.01)
        shown, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return shown

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.leader)


@pytest.fixture
def on_terminal():
    opened = []

    def open_terminal(*command):
        opened.append(Terminal(*command))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


@posix
def test_a_conversation(on_terminal):
    """A prompt sign, the prompt once, history, Ctrl-C that stops the answer alone, and what is typed meanwhile."""
    shell = on_terminal("-m", STAGES[-1].command, "--interactive", *SLOW)
    words, aborted = r"(\S+\s+){20}", r"\[aborted\]\n\n> "
    shell.until(r"Type a prompt .*\n> $")
    shell.type("first prompt\n")
    assert shell.until(words).count("first prompt") == 1  # as it was typed, and not again
    shell.type("second prompt")  # in the middle of the output
    time.sleep(0.5)  # the terminal hands a line over when it likes
    shell.type("\x03")
    assert "second prompt" not in shell.until(aborted)  # nothing of it in the middle of the output
    shell.type("\n")
    shell.until(words)
    shell.type("\x03")
    shell.until(aborted + "$")
    assert shell.process.poll() is None
    shell.type("half a thought\x03")
    shell.until(r"\(Ctrl-D ends\)\n> $")
    shell.type("\x1b[A")  # up
    shell.until("second prompt")
    shell.type("\n")
    shell.until(words)
    shell.type("\x03")
    shell.until(aborted + "$")
    shell.type("help\n")
    shell.until(r"exit or quit ends\.\n> $")
    shell.type("exit\n")
    shown = shell.until(r"\d+ tokens in [\d.]+ s: [\d.]+ tok/s\n")
    assert shell.process.wait(timeout=120) == 0
    assert "Traceback" not in shown


def test_the_time_of_typing_is_not_counted(monkeypatch, capsys):
    """Two answers that take half a second each, with a day of thinking between them."""
    clock, typed = [0.0], iter(["one", "two"])
    monkeypatch.setattr(interactive.time, "perf_counter", lambda: clock[0])

    async def generate(prompt):
        clock[0] += 0.5
        yield types.SimpleNamespace(text=f" {prompt.upper()}", finish_reason=None)
        yield types.SimpleNamespace(text=" and so on", finish_reason="length")

    def type_a_line(sign):
        clock[0] += 86400
        return next(typed, "exit")

    monkeypatch.setattr("builtins.input", type_a_line)
    monkeypatch.setattr(console, "termios", None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert interactive.converse(generate) == 1.0
    assert capsys.readouterr().out == "ONE and so on\n\nTWO and so on\n\n"


def test_a_pipe_is_told_what_to_use():
    assert STAGES[-1].refusal("--interactive").endswith("--prompts-file - completes the lines of a pipe")


# --- Lines ------------------------------------------------------------------------------------------------------------


class Screen(io.StringIO):
    def __init__(self):
        super().__init__()
        self.pieces = []

    def isatty(self):
        return True

    def write(self, text):
        self.pieces.append(text)
        return super().write(text)


@pytest.mark.parametrize("stage", [STAGES[0], STAGES[4]], ids=str)
def test_one_prompt_streams_and_breaks_between_words(stage, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    with contextlib.redirect_stdout(Screen()) as screen:
        assert cli.main(stage, ["A fox", "--quiet", "--temperature", "0", "--max-tokens", "40"], "x") == 0
    assert len(screen.pieces) > 20
    whole = stage.engine().generate(["A fox"], stage.SamplingParams(temperature=0, max_tokens=40))[0].outputs[0].text
    assert screen.getvalue().split() == ("A fox" + whole).split()
    assert max(map(len, screen.getvalue().split("\n"))) <= 40


def wrap(text, columns, cuts=()):
    pieces, places = [], [0, *sorted(cuts), len(text)]
    wrapper = Wrapper(pieces.append, columns)
    for begin, end in pairwise(places):
        wrapper.feed(text[begin:end])
    wrapper.end()
    return "".join(pieces)


def test_words_stay_whole_wherever_the_pieces_end():
    rng = random.Random(0)
    for _ in range(300):
        words = ["".join(rng.choices("ab漢é", k=rng.randint(1, 9))) for _ in range(rng.randint(1, 30))]
        text = "".join(word + rng.choice([" ", " ", "\n", "  "]) for word in words)
        columns = rng.randint(18, 40)
        shown = wrap(text, columns, rng.choices(range(len(text)), k=5))
        assert shown == wrap(text, columns)
        assert shown.split() == words
        assert max(map(width_of, shown.split("\n"))) <= columns
        # A line is not broken where its next word would have had room.
        lines, given = shown.split("\n"), text.split("\n")
        assert len(lines) >= len(given)
        if "  " not in text:
            for line, after in pairwise(lines):
                if after and f"{line.rstrip()}\n" not in text:
                    assert width_of(line.rstrip()) + 1 + width_of(after.split(" ")[0]) > columns


def test_a_character_takes_the_columns_that_it_has():
    assert (width_of("a"), width_of("漢"), width_of("e\u0301")) == (1, 2, 1)


def test_a_word_longer_than_the_line_is_left_to_the_terminal():
    assert wrap("a " + "b" * 30 + " c", 20) == "a \n" + "b" * 30 + "\nc"


def test_no_text_commands_the_terminal():
    assert wrap("red \x1b[31m, bell \x07, back\rspace\x08\tand tab", 80) == (
        "red \ufffd[31m, bell \ufffd, back\ufffdspace\ufffd\tand tab"
    )


# --- Progress ---------------------------------------------------------------------------------------------------------


def test_a_redirected_run_has_no_bar():
    """Results and the last line, and nothing that a bar leaves behind."""
    status, stdout, stderr = STAGES[-1].main("--prompts", "A fox", "One day", *GREEDY)
    assert status == 0
    assert "\r" not in stdout + stderr
    assert re.fullmatch(r".*\n2 requests, 24 tokens in [\d.]+ s: [\d.]+ tok/s; 2 stopped at the length limit\n", stderr)


def test_a_terminal_has_a_bar_with_an_estimate(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Screen())
    with progress_bar(3, "line") as bar:
        for _ in range(3):
            bar.update()
            bar.refresh()
    assert "3/3 [" in sys.stderr.getvalue()
    assert "<" in sys.stderr.getvalue()  # tqdm's sign between what has passed and what is left


# --- The last line ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("support/stats.py")
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_sentence_and_what_a_stage_counts(stage):
    stats = dataclasses.replace(stage.engine().stats, num_truncated=0)
    sentence = closing_line(stage, stats, 2.0, False)
    assert "\n" not in sentence
    assert len(sentence) < 80
    stats.num_truncated = 2
    assert closing_line(stage, stats, 2.0, False) == f"{sentence}; 2 stopped at the length limit"
    told = closing_line(stage, stats, 2.0, False, at_once=64)
    assert told.startswith(sentence.partition(",")[0] + " (up to 64 at once), ")
    stats.num_truncated = 0
    details = closing_line(stage, stats, 2.0, False, details=True).split("\n")
    assert details[0] == sentence
    names = [line.split(":")[0].strip() for line in details[1:]]
    expected = ["ended by length", "forward passes"] + ["padding"] * (stage.number > 1)
    expected += ["KV cache"] * (stage.number > 2) + ["prefix cache", "preemptions"] * (stage.number > 4)
    assert names[: len(expected)] == expected

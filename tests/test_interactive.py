"""From stage 4 on: `--interactive` ends when its input does, however it ends. (What it shows: test_terminal.py.)"""

import io
import os
import sys
import types

import pytest

about_streams = pytest.mark.covers("llm.py", "engine_loop.py")
NUMBERS = range(4, 9)  # of the stages that this runs on, see conftest.py
QUICK = ["--interactive", "--temperature", "0", "--max-tokens", "3", "--quiet"]


@about_streams
def test_closed_stdin(stage, monkeypatch):
    """`<&-`: an error before the model is loaded."""
    monkeypatch.setattr(sys, "stdin", None)
    assert stage.refusal(*QUICK).endswith("error: --interactive reads its prompts from stdin, which is closed")


@about_streams
@pytest.mark.skipif(os.name != "posix", reason="a file that can only be written is POSIX")
def test_unreadable_stdin(stage, tmp_path, monkeypatch):
    only_written = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    with os.fdopen(only_written, "rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        assert "error: stdin can't be read: " in stage.refusal(*QUICK)


@about_streams
@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), ValueError("closed"), MemoryError(), None])
def test_stdin_that_fails_later(stage, monkeypatch, failure):
    """What was typed before is answered; then the error ends the conversation, and the end of the input ends it too."""

    def lines():
        yield b"A fox\n"
        yield b"A bear"
        if failure is not None:
            raise failure

    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=lines(), isatty=lambda: False))
    status, stdout, stderr = stage.main(*QUICK)
    assert [answer[:6] for answer in stdout.split("\n\n")] == ["A fox ", "A bear", ""]
    assert status == (0 if failure is None else 2)
    assert ("error: stdin can't be read: " in stderr) == (failure is not None)

"""Answers in C: what the traps around them report, and what is counted."""

import os
import tempfile
from pathlib import Path

import pytest
import torch

from exercises import __main__ as cli
from exercises import catalogue, timing
from exercises.catalogue import exercises, grade
from exercises.in_c import AnswerInC, Stopped, declared

EXERCISE = exercises()["6.3"]
HEAD = '#include "linear.h"\n'
GROUPED = "void grouped(const float *x, const float *panels, float *y, int64_t n, int64_t in, int64_t out) {"


@pytest.fixture
def answer(tmp_path):
    """An answer to 6.3 with this body."""

    def of(body, head=""):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))  # a library is loaded once
        return AnswerInC(written(folder, body, head), folder)

    return of


def written(folder, body, head=""):
    path = folder / EXERCISE.work.name
    path.write_text(f"{head}{HEAD}{GROUPED} {body} }}\n")
    return path


def call(work, x=5, panels=32, y=4):
    """Call `grouped` with this many numbers in each array."""
    result = torch.full((y,), 7.0)
    work.grouped(torch.arange(float(x)), torch.ones(panels), result, 1, 2, 3)
    return result


def test_what_a_declaration_says():
    function = declared("int64_t f(const float *a, int64_t n, float *b) {\n")["f"]
    assert function.arrays == (("a", True), ("b", False))
    assert function.names == ("a", "n", "b")
    assert function.call.strip() == 'if (!strcmp(name, "f")) return f(arrays[0], numbers[0], arrays[1]);'


def test_arrays_and_numbers_arrive(answer):
    got = call(answer("for (int i = 0; i < 4; i++) y[i] = x[i] + panels[i] + 100 * n + 1000 * in + 10000 * out;"))
    assert got.tolist() == [32101.0, 32102, 32103, 32104]


@pytest.mark.parametrize(
    ("body", "at_end", "words"),
    [
        ("y[4] = 1;", True, r"reads or writes y\[4\]; y has 4 numbers, the last is y\[3\]"),
        ("y[-1] = 1;", False, r"reads or writes y\[-1\]; y has 4 numbers"),
        ("y[1 << 23] = 1;", True, r"reads or writes y\[8388608\]"),
        ("y[0] = x[5];", True, r"reads or writes x\[5\]; x has 5 numbers"),
        ("y[0] = x[-1];", False, r"reads or writes x\[-1\]"),
        ("((float *)x)[2] = 1;", True, r"writes to x\[2\], which it must not change"),
        ("*(volatile float *)0 = 1;", True, "a stray pointer"),
        ("y[0] = 5 / (int)(n - 1);", True, "a division by zero"),
        ("volatile char large[100000]; for (int i = 99999; i >= 0; i--) large[i] = 1;", True, "64 KB of stack"),
        ("volatile char large[10000000]; large[0] = 1;", True, "64 KB of stack"),
        ("__builtin_trap();", True, "an instruction that this CPU does not have"),
    ],
)
def test_a_trap_tells_where(answer, body, at_end, words):
    work = answer(body)
    work.at_end = at_end
    with pytest.raises(Stopped, match=words):
        call(work)
    with pytest.raises(Stopped, match=words):  # again, and in another thread
        call(work)


def test_what_is_not_written(answer):
    with pytest.raises(NotImplementedError) as error:
        call(answer("NOT_WRITTEN;"))
    assert error.value.function == "grouped"


def test_pages_are_counted(answer):
    """A cache of two pages: forwards each is fetched once, and again for each further reading."""
    page = os.sysconf("SC_PAGE_SIZE") // 4  # numbers
    work = answer("for (int r = 0; r < n; r++) for (int i = 0; i < in; i++) y[0] += panels[i];")
    for readings in (1, 3):
        with work.pages(panels=2) as fetched:
            work.grouped(torch.ones(1), torch.ones(5 * page), torch.zeros(1), readings, 5 * page, 1)
        assert fetched == {"panels": [0, 1, 2, 3, 4] * readings}
    assert work.allocated == 0


def test_memory_is_counted(answer):
    for body, size in (
        ("malloc(100)", 100),
        ("calloc(5, 7)", 35),
        ("aligned_alloc(64, 128)", 128),
        ("realloc(0, 9)", 9),
    ):
        work = answer(f"y[0] = (float)(intptr_t){body};", "#include <stdlib.h>\n")
        call(work)
        assert work.allocated == size


def test_no_numbers(answer):
    work = answer("if (n) y[0] = 1;")
    work.grouped(torch.empty(0), torch.ones(2), torch.empty(0), 0, 2, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEAD}{GROUPED} y[0] = 1 }}\n", "CompileError at line 2 of 6_3_rows_share_a_panel.c: expected"),
        (f"{HEAD}{GROUPED[:-2].replace('grouped', 'group')};\n", "there is no function grouped"),
        (f"{HEAD}{GROUPED} nothing(y); }}\n", "CompileError at line 2"),
        (f"{HEAD}{GROUPED.replace('float *y', 'double *y')} }}\n", "conflicting types"),
    ],
)  # fmt: skip
def test_what_the_compiler_refuses(tmp_path, text, words):
    path = tmp_path / EXERCISE.work.name
    path.write_text(text)
    result = grade(EXERCISE, path)
    assert result.state == "failing"
    assert words in result.message


def test_a_folder_with_a_space(tmp_path):
    (tmp_path / "my course").mkdir()
    path = tmp_path / "my course" / EXERCISE.work.name
    path.write_text(EXERCISE.solution_text)
    assert grade(EXERCISE, path, whole=False).state == "passed"


@pytest.mark.parametrize(
    ("body", "limits", "words"),
    [
        ("while (n) ((volatile float *)y)[0] = 1;", {"seconds": 0.5}, "a loop that does not end"),
        ("pause();", {"patience": 0.5}, "is it waiting for something"),
        ("_exit(3);", {}, "ended with status 3"),
    ],
)
def test_it_does_not_come_back(tmp_path, body, limits, words):
    result = grade(EXERCISE, written(tmp_path, body, "#include <unistd.h>\n"), **limits)
    assert result.state == "failing"
    assert words in result.message


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    result = grade(EXERCISE, EXERCISE.solution)
    assert result.state == "not checked"
    assert "none" in result.message


def test_a_class_hands_in_c(tmp_path, capsys):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / EXERCISE.work.name).write_text(EXERCISE.solution_text)
    assert cli.main(["grade", str(tmp_path / "anna"), "--only", "6.3"]) == 0
    assert "anna | 1 of 1 | passed |" in capsys.readouterr().out


# --- The command `time` -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["6.2", "6.3", "6.4", "6.5"])
def test_what_is_timed_computes_the_same(number, tmp_path, monkeypatch):
    """The plain loop, the answer and torch; one that computes something else is an error."""
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(timing.layer, "TOKENS", (1, 3))
    library = timing.library_of(exercises()[number].solution, tmp_path)
    found = timing.measure(number, library, 2, num_layers=1)
    assert {name: len(own) for name, own in found.items()} == {"plain": 2, "yours": 2, "torch": 2}
    assert timing.table({"plain": [0.2, 0.5], "torch": [0.1, 1.0]}, 1).splitlines()[1].split() == [
        "plain", "200.0", "ms", "0.50×", "500.0", "ms", "2.00×"]  # fmt: skip
    monkeypatch.setattr(timing, "GELU", 0)
    monkeypatch.setattr(timing.F, "linear", lambda x, weight, bias: x @ weight.T + 1)
    monkeypatch.setattr(timing.torch, "mm", lambda x, weight, out: out.fill_(1))
    with pytest.raises(AssertionError, match="computes something else"):
        timing.measure(number, library, 2, num_layers=1)


def test_only_what_passes_is_timed(capsys, tmp_path, monkeypatch):
    path = tmp_path / EXERCISE.work.name
    path.write_text(f"{HEAD}{GROUPED} }}\n")
    monkeypatch.setattr(catalogue.Exercise, "work", property(lambda self: path))
    assert cli.main(["time", "6.3"]) == 1
    assert "first: python -m exercises check 6.3" in capsys.readouterr().out


def test_what_can_be_timed(capsys):
    with pytest.raises(SystemExit):
        cli.main(["time", "6.1"])
    assert "invalid choice: '6.1'" in capsys.readouterr().err

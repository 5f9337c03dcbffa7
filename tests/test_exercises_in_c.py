"""Answers in C: what ends one and where, what is counted, what the compiler refuses, and what `time` measures."""

import os
import shutil

import numpy as np
import pytest

from exercises import catalogue, in_c, report, timing
from exercises.catalogue import exercises

EXERCISE = exercises()["6.3"]
HEAD = '#include <stdio.h>\n#include <stdlib.h>\n#include "linear.h"\n'
GROUPED = "void grouped(const float *x, const float *panels, float *y, int64_t n, int64_t in, int64_t out) {"
ENDS = {
    "y[in] = 1;": "grouped writes y[4], and y has 4 numbers",
    "y[-in] = 1;": "grouped writes y[-4], and y has 4 numbers",
    "y[0] = x[in];": "grouped reads x[4], and x has 4 numbers",
    "((float *)x)[2] = 5;": "grouped changes x, which is const",
    "*(volatile float *)(in - 4) = 1;": "a pointer to where no memory is",
    "volatile char large[in << 18]; large[0] = 1;": "the stack is full",
    "abort();": "SIGABRT",
    "exit(3);": "status 3",
    "while (in) ((volatile float *)y)[0] = 1;": "a loop that does not end",
}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """An answer that does the n-th of these things."""
    cases = "\n".join(f"case {n}: {{ {body} }} break;" for n, body in enumerate(ENDS))
    path = tmp_path_factory.mktemp("my answer") / EXERCISE.work.name
    rest = 'default: puts("hello"); void *volatile more = malloc(100); free(more);'
    rest += " for (int64_t i = 0; i < n * in; i++) y[0] += panels[i % in];"
    path.write_text(f"{HEAD}{GROUPED} switch (n) {{\n{cases}\n{rest} }} }}\n")
    running = in_c.Running(in_c.compiled(path, path.parent))
    yield running
    running.close()


@pytest.mark.parametrize(("n", "words"), [*enumerate(ENDS.values())])
def test_what_ends_an_answer(work, n, words, monkeypatch):
    """In the line of the answer, where the sanitizer knows it."""
    monkeypatch.setattr(in_c, "SECONDS", 1)
    four = [np.ones(4, np.float32) for _ in range(3)]
    with pytest.raises((in_c.Stopped, AssertionError)) as error:
        work.grouped(*four, n, 4, 4)
    assert words in str(error.value)
    if "numbers" in words:
        assert (error.traceback[-1].path.name, error.traceback[-1].lineno) == (EXERCISE.work.name, 4 + n)


def test_what_is_counted(work):
    """A cache of two pages fetches each page once for each reading; bytes from malloc; and an answer may print."""
    page, y = os.sysconf("SC_PAGE_SIZE") // 4, np.zeros(1, np.float32)
    pages = work.grouped(y, np.ones(5 * page, np.float32), y, 20, 5 * page, 1, pages_of="panels", keep=2)
    assert (pages, y[0], work.allocated) == ([0, 1, 2, 3, 4] * 20, 100 * page, 100)


@pytest.mark.parametrize(("text", "words"), [
    (f"{HEAD}{GROUPED} y[0] = 1 }}\n", "6_3_rows_share_a_panel.c, line 4"),
    (f"{HEAD}{GROUPED.replace('grouped', 'group')} }}\n", "there is no function grouped"),
    (f"{HEAD}{GROUPED} nothing(y); }}\n", "6_3_rows_share_a_panel.c, line 4"),
])  # fmt: skip
def test_what_the_compiler_refuses(tmp_path, text, words):
    path = tmp_path / EXERCISE.work.name
    path.write_text(text)
    result = report.run([EXERCISE.test, f"--answer={path}"], path, first=True, show=False)
    assert result.state == "failing"
    assert words in result.message


def test_without_a_compiler(tmp_path, monkeypatch):
    """That is not the learner's mistake."""
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    result = report.run([EXERCISE.test], EXERCISE.solution, show=False)
    assert (result.state, result.num_passed) == ("not checked", 0)
    assert result.message.startswith("the check itself failed: there is no C compiler")


@pytest.mark.parametrize("number", ["6.2", "6.3", "6.4", "6.5"])
def test_what_is_timed_computes_the_same(number, tmp_path, monkeypatch):
    """The plain loop, the answer and torch; one that computes something else is an error. In a copy without solutions,
    as instructors.md gives it out."""
    shutil.copytree(in_c.FOLDER, tmp_path / "exercises", ignore=shutil.ignore_patterns("solutions"))
    for module in (in_c, timing):
        monkeypatch.setattr(module, "FOLDER", tmp_path / "exercises")
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(timing.layer, "TOKENS", (1, 3))
    library = timing.library_of(exercises()[number].solution, tmp_path)
    found = timing.measure(number, library, 2, num_layers=1)
    assert {name: len(own) for name, own in found.items()} == {"plain": 2, "yours": 2, "torch": 2}
    monkeypatch.setattr(timing.torch, "addmm", lambda bias, x, weight, out: out.fill_(1))
    with pytest.raises(AssertionError, match="computes something else"):
        timing.measure(number, library, 2, num_layers=1)


def test_the_table():
    lines = timing.table({"plain": [0.2, 0.5, 1.0], "torch": [0.1, 1.0, 1.0]}).splitlines()
    assert lines[1].split() == ["plain", "200.0", "ms", "0.50×", "500.0", "ms", "2.00×", "1000.0", "ms", "1.00×"]


def test_only_what_passes_is_timed(capsys, tmp_path, monkeypatch):
    with pytest.raises(SystemExit):
        timing.main(["6.1"])
    path = tmp_path / EXERCISE.work.name
    path.write_text(f"{HEAD}{GROUPED} }}\n")
    monkeypatch.setattr(catalogue.Exercise, "work", property(lambda self: path))
    assert timing.main(["6.3"]) == 1
    assert "first: python -m exercises check 6.3" in capsys.readouterr().out

"""The exercises: a stub is not started, the solution and other right answers pass, and each wrong answer is refused with
words that meet the mistake."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exercises import __main__ as cli
from exercises import catalogue, in_c, marks, report
from exercises.catalogue import FOLDER, exercises
from tests.adapter import ROOT

BROKEN = ("2.1", "3.2")  # these begin with code that is to be mended
EXERCISES = list(exercises().values())
by_number = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)


def answers(kind):
    """(exercise, title, text of the solution, the text instead, words) of each answer of this kind."""
    found = [(exercise, *answer) for exercise in EXERCISES for answer in getattr(exercise.answers, kind, [])]
    return pytest.mark.parametrize("answer", [pytest.param(one, id=f"{one[0].number} {one[1]}") for one in found])


def check(exercise, text, folder: Path, **how) -> report.Report:
    """Check an answer with this text."""
    path = folder / exercise.work.name
    path.write_text(text, encoding="utf-8")
    return report.run([exercise.test, f"--answer={path}"], path, show=False, **how)


def edited(exercise, old, new) -> str:
    """The solution in which one text, or each of several, stands for another."""
    text = exercise.solution_text
    for before, after in zip(old, new, strict=True) if isinstance(old, tuple) else [(old, new)]:
        assert before in text
        text = text.replace(before, after)
    return text


def committed(path: Path) -> str:
    """A file as it is committed, since the copy here may be solved."""
    command = ["git", "show", f"HEAD:{path.relative_to(ROOT).as_posix()}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    return path.read_text(encoding="utf-8") if result.returncode else result.stdout


def test_there_are_enough():
    assert len(EXERCISES) >= 30
    for stage in (1, 2, 3, 4, 5, 6, 7, 8):
        own = [exercise.number for exercise in EXERCISES if exercise.text.parent.name == f"stage{stage}"]
        assert own == [f"{stage}.{i}" for i in range(1, len(own) + 1)]
        assert len(own) >= (3 if stage == 8 else 4)


@by_number
def test_is_complete(exercise):
    text = exercise.text.read_text(encoding="utf-8")
    assert all(part in text for part in ("**What.**", "**Why.**", "**The picture.**", exercise.work.name))
    assert len(exercise.hints) >= 2
    assert len(exercise.answers.MUTANTS) >= 5
    assert 10 <= exercise.minutes <= 60


@by_number
def test_stub_is_not_started(exercise, tmp_path):
    result = check(exercise, committed(exercise.work), tmp_path)
    assert result.state == ("failing" if exercise.number in BROKEN else "not started")
    assert result.num_passed < result.num_tests / 2


@by_number
def test_solution_passes(exercise, tmp_path):
    result = check(exercise, exercise.solution_text, tmp_path)
    assert (result.state, result.message) == ("passed", "")


@answers("ALSO_RIGHT")
def test_another_right_answer_passes(answer, tmp_path):
    exercise, _, old, new = answer
    result = check(exercise, edited(exercise, old, new), tmp_path, first=True)
    assert (result.state, result.message) == ("passed", "")


@answers("MUTANTS")
def test_wrong_answer_is_refused(answer, tmp_path, monkeypatch):
    monkeypatch.setattr(in_c, "SECONDS", 5)
    exercise, _, old, new, words = answer
    result = check(exercise, edited(exercise, old, new), tmp_path, first=True, seconds=10)
    assert result.state == "failing"
    assert words, "a wrong answer needs words that it is told"
    assert words in result.message
    assert " object at 0x" not in result.message
    assert len(result.message.splitlines()) <= 14


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Exercise 2.4 alone, with a separate file and separate progress."""
    folder = tmp_path / "exercises" / "stage2"
    folder.mkdir(parents=True)
    exercise = exercises()["2.4"]
    for path in (exercise.text, exercise.test, FOLDER / "conftest.py"):
        shutil.copy(path, folder)
    (folder / exercise.work.name).write_text(committed(exercise.work), encoding="utf-8")
    copy = catalogue.Exercise(folder / exercise.text.name, "2.4", exercise.title, exercise.minutes)
    monkeypatch.setattr(cli, "exercises", lambda: {"2.4": copy})
    monkeypatch.setattr(catalogue, "PROGRESS", tmp_path / "progress.json")
    return copy.work


@pytest.fixture
def run(capfd):
    """Run the command: exit status, stdout, stderr."""

    def run(*arguments):
        try:
            status = cli.main(list(arguments))
        except SystemExit as exit:
            status = exit.code
        return status, *capfd.readouterr()

    return run


SOLVED = exercises()["2.4"].solution_text


def test_the_life_of_an_exercise(own, run):
    """Not started, failing, revealed, passed: each is recorded, and the next exercise is named."""
    status, out, _ = run("check", "2.4")
    assert (status, "2.4 Sort and unsort: not started" in out, "then edit" in out) == (1, True, True)
    status, out, err = run("reveal", "2.4")
    assert (status, out, "Try it first" in err) == (1, "", True)
    own.write_text("print('seen')\ndef make_batches(lengths, size):\n    return []\n")
    status, out, _ = run("check", "2.4")
    assert (status, ": failing, " in out, "seen" in out) == (1, True, True)
    assert "expected  [" in out
    assert "got       []" in out
    assert "✗ 2.4" in run()[1]
    status, out, _ = run("reveal", "2.4")
    assert (status, "MUTANTS" in out) == (0, False)
    own.write_text(out)
    status, out, _ = run("check", "2.4")
    assert (status, "2.4 Sort and unsort: passed\n1 of 1 passed.\n" in out) == (0, True)
    assert "✓ 2.4" in run()[1]
    assert catalogue.read_progress()["2.4"] == {"state": "passed", "attempts": 2}


def test_hints_come_one_by_one(own, run):
    titles = [title for title, _ in exercises()["2.4"].hints]
    for title in titles:
        status, out, _ = run("hint", "2.4")
        assert (status, [other for other in titles if other in out]) == (0, [title])
    assert all(title in run("hint", "2.4")[1] for title in titles)


@pytest.mark.parametrize(("text", "words"), [
    ("def make_batches(lengths, size):\n    return lengths[0] + nothing\n", ("NameError: name 'nothing'", "line 2: return lengths[0] + nothing")),
    ("def make_batches(lengths, size)\n    return []\n", ("SyntaxError: expected ':'", "line 1: def make_batches")),
    ("x = 1\n", ("AttributeError", "has no attribute 'make_batches'")),
    ("raise SystemExit(3)\n", ("SystemExit: 3", "line 1: raise SystemExit(3)")),
    (SOLVED[: SOLVED.index("def restore")] + "def restore(batches, results):\n    raise NotImplementedError\n",
     ("NotImplementedError", "raise NotImplementedError")),
])  # fmt: skip
def test_an_error_names_its_line(own, run, text, words):
    own.write_text(text, encoding="utf-8")
    status, out, _ = run("check", "2.4")
    assert (status, ": failing" in out) == (1, True)
    for said in words:
        assert said in out


def test_a_loop_that_does_not_end_names_its_line(own, run, monkeypatch):
    monkeypatch.setattr(report.run, "__kwdefaults__", report.run.__kwdefaults__ | {"seconds": 0.1})
    own.write_text("def make_batches(lengths, size):\n    while True:\n        size += 1\n")
    status, out, _ = run("check", "2.4")
    assert (status, "Timeout" in out, "2_4_sort_and_unsort.py, line" in out) == (1, True, True)


@pytest.mark.parametrize(
    "text", ["import nothing_like_it", "def test_it(work):\n    open('/nothing_like_it')"], ids=["import", "open"]
)
def test_a_check_that_dies_says_nothing_about_the_answer(own, run, text):
    own.write_text(SOLVED)
    own.with_name("test_2_4_sort_and_unsort.py").write_text(f"{text}\n")
    status, out, _ = run("check", "2.4")
    assert (status, "2.4 Sort and unsort: not checked" in out, "nothing_like_it" in out) == (1, True, True)
    assert catalogue.read_progress() == {}


def test_bad_commands_are_named(run):
    for arguments, words in (
        (["check"], "which one?"),
        (["list", "1.1"], "list takes no exercise"),
        (["check", "9.9"], "there is no exercise '9.9'"),
        (["hint", "1.1", "1.2"], "takes one exercise"),
        (["reveal", "all"], "there is no exercise 'all'"),
        (["solve"], "there is no command 'solve'; `python -m exercises` lists what there is"),
        (["chek", "2.3"], "there is no command 'chek'; is check meant?"),
        (["check", "2.33"], "there is no exercise '2.33'; is 2.3 meant?"),
        (["grade", "none"], "none is not a folder"),
        (["grade", ".", "--only", "9.9"], "invalid choice: '9.9'"),
    ):
        status, _, err = run(*arguments)
        assert (status, words in err) == (2, True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"1.1": 5}'])
def test_damaged_progress_is_moved_aside(own, run, content):
    catalogue.PROGRESS.write_bytes(content)
    status, out, err = run()
    assert (status, "0 of 1 passed" in out, "is damaged" in err) == (0, True, True)
    assert catalogue.PROGRESS.with_name("progress.json.damaged").read_bytes() == content
    assert run()[2] == ""


def test_progress_that_cannot_be_written_is_one_line(own, run, monkeypatch):
    """The outcome is shown first, and the old progress stays."""
    assert run("hint", "2.4")[0] == 0
    before = catalogue.PROGRESS.read_bytes()

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(catalogue.os, "replace", fail)
    status, out, err = run("check", "2.4")
    assert (status, "not started" in out, err) == (2, True, "exercises: no space left\n")
    assert sorted(path.name for path in catalogue.PROGRESS.parent.iterdir()) == ["exercises", "progress.json"]
    assert catalogue.PROGRESS.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupted_check():
    """As it is typed: one line, status 130. The answer is one that never ends."""
    code = (
        "import sys; from pathlib import Path; from exercises import catalogue, report, __main__ as cli\n"
        "report.run = lambda *_: __import__('time').sleep(600)\n"
        "print('begun', flush=True)\n"
        "sys.exit(cli.main(['check', '2.4']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=600)[1] == "interrupted\n"
        assert process.returncode == 130
    finally:
        process.kill()


# --- A class ----------------------------------------------------------------------------------------------------------


def test_a_class_is_graded_from_files_alone(tmp_path, run):
    """Wherever in a folder the answers are, the newest counts; what an answer prints is not in the table."""
    name = exercises()["2.4"].work.name
    texts = {
        "anna/deep/er": "print('hello')\n" + SOLVED,
        "ben": "def make_batches(lengths, size):\n    return []\n",
        "ben/old": SOLVED,
        "cleo": "import os\nos._exit(7)\n",
        "dora/solutions": SOLVED,
    }
    for folder, text in texts.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    os.utime(tmp_path / "ben" / "old" / name, (0, 0))
    (tmp_path / "eric").mkdir()
    (tmp_path / "eric" / name).symlink_to(exercises()["2.4"].solution)
    stub = exercises()["2.3"].work  # which raises, but others pass some tests as they are
    shutil.copy(stub, tmp_path / "dora" / stub.name)
    folders = [str(tmp_path / name) for name in ("anna", "ben", "cleo", "dora", "eric")]
    status, out, err = run("grade", *folders, "--only", "2.4", "2.3")
    head, *rows = out.splitlines()
    assert (status, err, head) == (0, "", "folder,passed,2.4,2.3")
    rows = {Path(folder).name: marks for folder, *marks in csv.reader(rows)}
    passed, tests = rows.pop("ben")[1].split("/")
    assert int(passed) < int(tests)
    assert rows == {
        "anna": ["1", "passed", "missing"],
        "cleo": ["0", "failing", "missing"],
        "dora": ["0", "missing", "missing"],
        "eric": ["0", "missing", "missing"],  # a link to the solution
    }


def test_an_answer_that_does_not_end_is_one_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "LIMIT", 1)
    answer = tmp_path / exercises()["2.4"].work.name
    answer.write_text("while True:\n    pass\n")
    assert marks.mark("2.4", answer) == "timed out"

"""The exercises: a stub is not started, the solution and other right answers pass, and each wrong answer is refused with
words that meet the mistake."""

import subprocess
from pathlib import Path

import pytest

from exercises import report
from exercises.catalogue import exercises
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
def test_wrong_answer_is_refused(answer, tmp_path):
    exercise, _, old, new, words = answer
    result = check(exercise, edited(exercise, old, new), tmp_path, first=True, seconds=10)
    assert result.state == "failing"
    assert words, "a wrong answer needs words that it is told"
    assert words in result.message
    assert len(result.message.splitlines()) <= 14

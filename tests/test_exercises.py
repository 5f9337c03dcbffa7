"""The exercises: stubs fail, solutions pass, and every wrong answer is told what is wrong with it."""

import subprocess
import sys

import pytest

from exercises import __main__ as cli
from exercises import catalogue
from exercises.catalogue import exercises, grade, load
from exercises.grading import Wrong, expect, same, short
from tests.adapter import ROOT

BROKEN = ("2.1", "3.2")  # these begin with code that is to be mended
EXERCISES = list(exercises().values())
MUTANTS = [(exercise, *mutant) for exercise in EXERCISES for mutant in load(exercise.solution).MUTANTS]
by_number = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    """Nothing here touches the progress of who runs the tests."""
    monkeypatch.setattr(catalogue, "PROGRESS", tmp_path / "progress.json")


def committed(path) -> str:
    """A file as it is committed: the learner's copy may be solved."""
    command = ["git", "show", f"HEAD:{path.relative_to(ROOT).as_posix()}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    return path.read_text(encoding="utf-8") if result.returncode else result.stdout


def test_there_are_enough():
    assert len(EXERCISES) >= 20
    for stage in (1, 2, 3, 4, 5):
        own = [exercise.number for exercise in EXERCISES if exercise.text.parent.name == f"stage{stage}"]
        assert own == [f"{stage}.{i}" for i in range(1, len(own) + 1)]
        assert len(own) >= 4


@by_number
def test_is_complete(exercise):
    text = exercise.text.read_text(encoding="utf-8")
    assert "**What.**" in text
    assert "**Why.**" in text
    assert "**The picture.**" in text
    assert len(exercise.hints) >= 2
    assert len(load(exercise.solution).MUTANTS) >= 5
    assert exercise.work.name in text
    assert 10 <= exercise.minutes <= 60


@by_number
def test_stub_fails(exercise, tmp_path):
    stub = tmp_path / exercise.work.name
    stub.write_text(committed(exercise.work), encoding="utf-8")
    result = grade(exercise, stub)
    if exercise.number in BROKEN:
        assert result.state == "failing"
        assert "likely:" in result.message
    else:
        assert result.state == "not started"


@by_number
def test_solution_passes(exercise):
    result = grade(exercise, exercise.solution)
    assert (result.state, result.message) == ("passed", "")
    assert result.seconds < 20  # five where nothing else runs


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant[0].number} {mutant[1]}")
def test_wrong_answer_is_told(mutant, tmp_path):
    exercise, _, right, wrong, words = mutant
    text = exercise.solution_text
    for old, new in zip(right, wrong, strict=True) if isinstance(right, tuple) else [(right, wrong)]:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / exercise.work.name
    path.write_text(text, encoding="utf-8")
    result = grade(exercise, path)
    assert result.state == "failing"
    assert words, "a wrong answer needs words that it is told"
    assert words in result.message


@pytest.mark.parametrize("number", BROKEN)
def test_broken_ones_fail_at_each_of_their_tests(number, tmp_path):
    """Each mistake of the broken code has a test of its own that fails."""
    exercise = exercises()[number]
    names = [name for name in vars(load(exercise.test)) if name.startswith("test_")]
    broken = tmp_path / exercise.work.name
    broken.write_text(committed(exercise.work), encoding="utf-8")
    work, failing = load(broken), []
    for name in names:
        try:
            getattr(load(exercise.test), name)(work)
        except AssertionError:
            failing.append(name)
    assert len(failing) >= {"2.1": 5, "3.2": 3}[number]


# --- The command ------------------------------------------------------------------------------------------------------


def run(capsys, *arguments):
    try:
        status = cli.main(list(arguments))
    except SystemExit as exit:
        status = exit.code
    out, err = capsys.readouterr()
    return status, out, err


def test_list(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    for exercise in EXERCISES:
        assert f"{exercise.number:4} {exercise.title}" in out
    assert f"0 of {len(EXERCISES)} passed" in out


def test_hints_come_one_by_one(capsys):
    hints = exercises()["1.1"].hints
    for title, _ in hints:
        status, out, _ = run(capsys, "hint", "1.1")
        assert status == 0
        assert title in out
        assert sum(other in out for other, _ in hints) == 1
    _, out, _ = run(capsys, "hint", "1.1")
    assert all(title in out for title, _ in hints)


def test_check_and_reveal(capsys, tmp_path, monkeypatch):
    """A life of an exercise: not started, failing, revealed, passed; recorded all the way."""
    exercise = exercises()["2.4"]
    work = tmp_path / exercise.work.name
    monkeypatch.setattr(catalogue.Exercise, "work", property(lambda self: work))
    monkeypatch.setattr(cli, "grade_in_time", grade)
    monkeypatch.setattr(
        catalogue.Exercise, "test", property(lambda self: exercise.text.with_name("test_2_4_sort_and_unsort.py"))
    )
    work.write_text(committed(exercise.text.with_suffix(".py")))
    status, out, _ = run(capsys, "check", "2.4")
    assert status == 1
    assert "not started" in out
    status, out, err = run(capsys, "reveal", "2.4")
    assert status == 1
    assert "First try it" in err
    assert out == ""
    work.write_text("def make_batches(lengths, size):\n    return []\n")
    status, out, _ = run(capsys, "check", "2.4")
    assert status == 1
    assert "case:" in out
    assert "expected:" in out
    assert "✗ 2.4" in run(capsys)[1]
    monkeypatch.setattr(
        catalogue.Exercise, "solution", property(lambda self: ROOT / "exercises/solutions/2_4_sort_and_unsort.py")
    )
    status, out, _ = run(capsys, "reveal", "2.4")
    assert status == 0
    assert "MUTANTS" not in out
    work.write_text(out)
    status, out, _ = run(capsys, "check", "2.4")
    assert status == 0
    assert "2.4 Sort and unsort: passed" in out
    assert "✓ 2.4" in run(capsys)[1]
    assert catalogue.read_progress()["2.4"] == {"state": "passed", "attempts": 2}


def test_the_command_as_it_is_typed():
    """A process of its own, which grades in another one."""
    before = catalogue.FOLDER.parent.joinpath(".exercises.json")
    kept = before.read_bytes() if before.exists() else None
    command = [sys.executable, "-m", "exercises", "check", "3.2"]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    finally:
        before.unlink(missing_ok=True)
        if kept is not None:
            before.write_bytes(kept)
    assert result.stderr == ""
    assert "3.2 Fix the cache: failing (test_positions)" in result.stdout or "passed" in result.stdout
    assert result.returncode == (1 if "failing" in result.stdout else 0)


def test_an_error_in_the_answer_names_its_line(tmp_path):
    exercise = exercises()["2.4"]
    for text, words in (
        ("def make_batches(lengths, size):\n    return lengths[0] + nothing\n", "NameError at line 2"),
        ("def make_batches(lengths, size)\n    return []\n", "SyntaxError at line 1"),
        ("x = 1\n", "has no attribute 'make_batches'"),
    ):
        path = tmp_path / "answer.py"
        path.write_text(text)
        result = grade(exercise, path)
        assert result.state == "failing"
        assert words in result.message


def test_an_endless_loop_is_ended(tmp_path, monkeypatch):
    """The check runs in a process of its own, which is killed."""
    copy = tmp_path / "2_4_sort_and_unsort.md"
    exercise = exercises()["2.4"]
    copy.write_text(exercise.text.read_text(encoding="utf-8"), encoding="utf-8")
    copy.with_suffix(".py").write_text("while True:\n    pass\n")
    monkeypatch.setattr(catalogue, "SECONDS", 8)
    result = catalogue.grade_in_time(catalogue.Exercise(copy, "2.4", exercise.title, 15))
    assert result.state == "failing"
    assert "a loop that does not end" in result.message


def test_a_prediction_is_kept():
    assert catalogue.lock("1.4", 40.0) == 40.0
    assert catalogue.lock("1.4", 99.0) == 40.0


def test_bad_commands_are_named(capsys):
    for arguments, words in (
        (["check"], "which one?"),
        (["check", "9.9"], "there is no exercise '9.9'"),
        (["hint", "1.1", "1.2"], "takes one exercise"),
        (["reveal", "all"], "there is no exercise 'all'"),
        (["solve"], "invalid choice"),
    ):
        status, _, err = run(capsys, *arguments)
        assert status == 2
        assert words in err


def test_damaged_progress_is_named(capsys):
    catalogue.PROGRESS.write_text("{")
    status, _, err = run(capsys)
    assert status == 2
    assert "is damaged" in err


def test_pytest_is_the_grader():
    """The same tests under pytest, as the text says."""
    test = exercises()["2.3"].test
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test), "-x"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    assert "NotImplementedError" in result.stdout or " passed" in result.stdout


# --- What a grader says -----------------------------------------------------------------------------------------------


def test_a_known_mistake_is_named():
    with pytest.raises(Wrong, match="likely:    the first is too many"):
        expect("case", [1, 2], [2], {"other": [3], "the first is too many": [1, 2]})
    with pytest.raises(Wrong) as raised:
        expect("case", 1, 2, {"other": 3}, likely="look again")
    assert str(raised.value) == "case:      case\nexpected:  2\ngot:       1\nlikely:    look again"
    expect("equal within the tolerance", [1.0, 2.0], (1.0, 2.000001))


def test_same_and_short():
    import torch

    assert same(torch.tensor([1.0]), [1.0], 0)
    assert not same([1, 2], [1], 0)
    assert not same(True, 2, 5)
    assert not same(float("nan"), float("nan"), 1)
    assert short([1 / 3, "a "]) == "[0.333333, 'a ']"
    assert len(short("x" * 999)) < 310

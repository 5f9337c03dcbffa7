"""The exercises: stubs fail, solutions pass, and for every wrong answer the message says what is wrong."""

import contextlib
import io
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from exercises import __main__ as cli
from exercises import catalogue, child, examples, in_c, marks, skeletons
from exercises.capstone import check as capstone
from exercises.catalogue import exercises, grade, load
from exercises.examples import Choices, Example, at_random, fails, smallest
from exercises.grading import OneOf, Wrong, expect, same, short
from exercises.judge import Answer
from exercises.milestones import MILESTONES
from tests.adapter import ROOT

PASTE = "Paste this into Python"
BROKEN = ("2.1", "3.2")  # these begin with code that is to be mended
EXERCISES = list(exercises().values())
MUTANTS = [(exercise, *mutant) for exercise in EXERCISES for mutant in exercise.answers.MUTANTS]


SLOW = {  # these compute for seconds; quicker ones of their kind are in `make test`
    "4.2 pass by pass",
    "4.4 an abort that searches",
    "4.4 an abort that searches by hashes",
    "4.4 pops that look at everybody",
    "4.4 searches a sorted list",
    "5.6 a list of free blocks",
}


def by_answer(name, answers):
    titles = [f"{exercise.number} {title}" for exercise, title, *_ in answers]
    marks = [[pytest.mark.soak] * (title in SLOW) for title in titles]
    params = [pytest.param(answer, id=t, marks=m) for answer, t, m in zip(answers, titles, marks, strict=True)]
    return pytest.mark.parametrize(name, params)


ALSO_RIGHT = [(exercise, *edit) for exercise in EXERCISES for edit in getattr(exercise.answers, "ALSO_RIGHT", [])]
assert {f"{exercise.number} {title}" for exercise, title, *_ in [*MUTANTS, *ALSO_RIGHT]} >= SLOW
by_number = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    """Keep the tests away from the progress of the person who runs them."""
    monkeypatch.setattr(catalogue, "PROGRESS", tmp_path / "progress.json")


def committed(path) -> str:
    """A file as it is committed, since the copy here may be solved."""
    command = ["git", "show", f"HEAD:{path.relative_to(ROOT).as_posix()}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    return path.read_text(encoding="utf-8") if result.returncode else result.stdout


def edited(exercise, old, new, folder) -> Path:
    """A file with the solution in which one text, or each of several, stands for another."""
    text = exercise.solution_text
    for before, after in zip(old, new, strict=True) if isinstance(old, tuple) else [(old, new)]:
        assert before in text
        text = text.replace(before, after)
    path = folder / exercise.work.name
    path.write_text(text, encoding="utf-8")
    return path


def test_there_are_enough():
    assert len(EXERCISES) >= 30
    for stage in (1, 2, 3, 4, 5, 6, 7, 8):
        own = [exercise.number for exercise in EXERCISES if exercise.text.parent.name == f"stage{stage}"]
        assert own == [f"{stage}.{i}" for i in range(1, len(own) + 1)]
        assert len(own) >= (3 if stage == 8 else 4)


@by_number
def test_is_complete(exercise):
    text = exercise.text.read_text(encoding="utf-8")
    assert "**What.**" in text
    assert "**Why.**" in text
    assert "**The picture.**" in text
    assert len(exercise.hints) >= 2
    assert len(exercise.answers.MUTANTS) >= 5
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


@pytest.mark.parametrize("share", [0.2, pytest.param(1.0, marks=pytest.mark.soak)])
@by_number
def test_solution_passes(exercise, share, monkeypatch):
    monkeypatch.setattr(examples, "SHARE", share)
    result = grade(exercise, exercise.solution)
    assert (result.state, result.message) == ("passed", "")
    assert result.seconds < 20  # five where nothing else runs


def test_the_instructions_of_8_2():
    """They saturate at both ends, or have room; operands of another type or shape are refused."""
    import torch

    from exercises.stage8.instructions import vpdpbusd, vpmaddubsw

    pairs = torch.tensor([[255, 255], [255, 255], [2, 3]], dtype=torch.uint8)
    signed = torch.tensor([[127, 127], [-128, -128], [5, -7]], dtype=torch.int8)
    expect("vpmaddubsw", vpmaddubsw(pairs, signed), torch.tensor([32767, -32768, -11], dtype=torch.int16))
    sums, fours = torch.tensor([7, -2], dtype=torch.int32), torch.tensor([[255] * 4, [1, 2, 3, 4]], dtype=torch.uint8)
    bytes_ = torch.tensor([[127] * 4, [-1, 1, -1, 1]], dtype=torch.int8)
    expect("vpdpbusd", vpdpbusd(sums, fours, bytes_), torch.tensor([7 + 4 * 255 * 127, 0], dtype=torch.int32))
    for call, words in (
        (lambda: vpmaddubsw(signed, signed), "unsigned must be torch.uint8, got torch.int8"),
        (lambda: vpmaddubsw(pairs, signed.int()), "signed must be torch.int8, got torch.int32"),
        (lambda: vpmaddubsw(pairs, signed[:2]), r"as many lanes as the others have, got \[3, 2\]"),
        (lambda: vpmaddubsw(fours, bytes_), r"unsigned must be \[lanes, 2\]"),
        (lambda: vpdpbusd(sums.long(), fours, bytes_), "sums must be torch.int32"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.fixture
def compiled_quickly(monkeypatch):
    """Compile in half the time, but with fused multiply-adds, like the solutions and the learners' answers."""
    monkeypatch.setattr(in_c, "FLAGS", ("-O1", "-fexpensive-optimizations", *in_c.FLAGS[1:]))


@pytest.mark.usefixtures("compiled_quickly")
@by_answer("edit", ALSO_RIGHT)
def test_another_right_answer_passes(edit, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "SHARE", 0.2)
    exercise, _, old, new = edit
    path = edited(exercise, old, new, tmp_path)
    here = path.suffix != ".c" and os.name != "nt"
    result = graded_here(exercise, path) if here else grade(exercise, path, whole=False)
    assert (result.state, result.message) == ("passed", "")


def graded_here(exercise, path):
    """Like `grade`, but without a new process: starting one takes longer than most wrong answers."""
    told, limit = [], sys.getrecursionlimit()

    def tell(grade):  # run_tests sets an attribute of it
        told.append(grade)

    tell.begin = lambda: None
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("there is a loop that does not end"))
    signal.alarm(600)  # no timer of CPU time: it makes the process's clock of CPU time coarse
    try:
        settings = catalogue.PROGRESS, examples.SHARE, examples.SIMPLER
        catalogue.run_tests(tell, exercise, path, Answer(path), False, settings)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.setrecursionlimit(limit)
    return told[-1]


@pytest.mark.usefixtures("compiled_quickly")
@by_answer("mutant", MUTANTS)
def test_wrong_answer_is_told(mutant, tmp_path, monkeypatch):
    exercise, _, right, wrong, words = mutant
    path = edited(exercise, right, wrong, tmp_path)
    in_a_process = path.suffix == ".c" or "does not end" in words or "ended with" in words or os.name == "nt"
    result = grade(exercise, path, whole=False) if in_a_process else graded_here(exercise, path)
    assert result.state == "failing"
    assert words, "a wrong answer needs words that it is told"
    assert words in result.message
    if PASTE in result.message:
        monkeypatch.setattr(catalogue.Exercise, "work", property(lambda self: path))
        assert_goes_wrong(result.message.split(PASTE)[1].split("\n", 1)[1])


def assert_goes_wrong(program: str):
    """The message keeps its promise: its lines can be pasted, and the last one prints what is wrong."""
    lines = program.strip().splitlines()
    assert lines[-1].startswith("print(")
    assert not any(line.startswith(" ") for line in lines)
    names, printed = {}, io.StringIO()
    expected = lines[-1].split("  # expected ")[1]
    with contextlib.redirect_stdout(printed):
        try:
            for line in lines:
                exec(compile(line, "pasted", "single"), names)
        except Exception:
            return
    assert printed.getvalue().splitlines()[-1] != expected


@pytest.mark.parametrize("number", BROKEN)
def test_broken_ones_fail_at_each_of_their_tests(number, tmp_path):
    """Each mistake of the broken code has a test of its own that fails."""
    exercise = exercises()[number]
    names = [name for name in vars(load(exercise.test)) if name.startswith("test_")]
    broken = tmp_path / exercise.work.name
    broken.write_text(committed(exercise.work), encoding="utf-8")
    failing = []
    work = Answer(broken)
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
    """The life of an exercise: not started, failing, revealed, passed, each of which is recorded."""
    exercise = exercises()["2.4"]
    work = tmp_path / exercise.work.name
    monkeypatch.setattr(catalogue.Exercise, "work", property(lambda self: work))
    monkeypatch.setattr(cli, "grade", grade)
    monkeypatch.setattr(
        catalogue.Exercise, "test", property(lambda self: exercise.text.with_name("test_2_4_sort_and_unsort.py"))
    )
    work.write_text(committed(exercise.text.with_suffix(".py")))
    status, out, _ = run(capsys, "check", "2.4")
    assert status == 1
    assert "not started" in out
    status, out, err = run(capsys, "reveal", "2.4")
    assert status == 1
    assert "Try it first" in err
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
    """The command in a separate process, which grades in yet another one."""
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


CASE = "work.make_batches([3, 9, 1, 9], 2)" if sys.version_info >= (3, 11) else "work.make_batches([3, 9, 1, 9], 2), [["


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("assert size > 2", ("AssertionError at line 2 of answer.py\n", "assert size > 2", CASE)),
        ("assert size > 2, 'too small'", ("AssertionError at line 2 of answer.py: too small", CASE)),
        ("raise SystemExit(0)", ("SystemExit at line 2 of answer.py: 0", "raise SystemExit(0)", CASE)),
        ("return lengths[9]", ("IndexError at line 2 of answer.py", "return lengths[9]", CASE)),
        ("lengths.sort()", ("it returned None: is a `return` missing?",)),
        ("return []", ("it is empty",)),
        ("return [[]] * 2", ("rows 0 and 1 are the same list",)),
        ("return [[1, 3], [None, None]]", ("got:       [[1, 3], [None, None]]",)),
        ("return [i for i in range(4)][::size]", ("got:       [0, 2]",)),
    ],
)
def test_what_is_certain_is_told(body, words, tmp_path):
    """The case of an error, and where it was raised; that nothing came back; and no guess where nothing is known."""
    path = tmp_path / "answer.py"
    path.write_text(f"def make_batches(lengths, size):\n    {body}\n")
    message = grade(exercises()["2.4"], path).message
    for said in words:
        assert said in message
    assert ("likely:" in message) == any("`return`" in w or "empty" in w or "rows" in w for w in words)


def test_a_none_over_which_the_test_stumbles(tmp_path):
    path = tmp_path / "answer.py"
    path.write_text("def complete(model, eos_token_id, stop, max_tokens):\n    text = ''\n")
    message = grade(exercises()["1.2"], path).message
    assert "'NoneType' object has no attribute 'text'" in message
    assert "it returned None where a value was expected" in message


def test_what_is_not_written_yet(tmp_path):
    """A file with one of two functions is begun; the other is named."""
    path = tmp_path / "answer.py"
    solution = exercises()["2.4"].solution_text
    path.write_text(
        solution[: solution.index("def restore")] + "def restore(batches, results):\n    raise NotImplementedError\n"
    )
    result = grade(exercises()["2.4"], path)
    assert (result.state, result.num_passed) == ("failing", 3)
    assert result.message == "2_4_sort_and_unsort.py still raises NotImplementedError, in restore"


def graded(tmp_path, text, **limits):
    """The result of grading this text as an answer to exercise 2.4, with these limits."""
    path = tmp_path / "answer.py"
    path.write_text(text, encoding="utf-8")
    return grade(exercises()["2.4"], path, **limits)


def test_an_endless_loop_is_ended(tmp_path):
    """The message says where it was, and with which case."""
    text = "def make_batches(lengths, size):\n    while True:\n        size += 1\n"
    result = graded(tmp_path, text, seconds=0.3)
    assert result.state == "failing"
    assert "a loop that does not end" in result.message
    assert f"case:      {CASE}" in result.message
    assert "it was at: line " in result.message


def test_waiting_is_not_computing(tmp_path):
    """Only CPU time counts, so a busy machine fails nobody; but a call that waits forever is ended."""
    text = "import time\n\ntime.sleep(1)\n" + exercises()["2.4"].solution_text
    assert graded(tmp_path, text, seconds=0.9).state == "passed"
    result = graded(tmp_path, "import time\n\ntime.sleep(10_000)\n", patience=0.5)
    assert result.state == "failing"
    assert "still running after 0.5 seconds" in result.message


def test_a_prediction_is_kept():
    assert catalogue.lock("1.4", 40.0) == 40.0
    assert catalogue.lock("1.4", 99.0) == 40.0


def test_bad_commands_are_named(capsys):
    for arguments, words in (
        (["check"], "which one?"),
        (["list", "1.1"], "list takes no exercise"),
        (["check", "9.9"], "there is no exercise '9.9'"),
        (["hint", "1.1", "1.2"], "takes one exercise"),
        (["reveal", "all"], "there is no exercise 'all'"),
        (["solve"], "invalid choice"),
    ):
        status, _, err = run(capsys, *arguments)
        assert status == 2
        assert words in err


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", 0),
        (b"{", 0),
        (b'{"1.1": {"state": "passed"}, "1.2": {"sta', 0),
        (b"[]", 0),
        (b'"text"', 0),
        (b"null", 0),
        (b"\xff\xfe", 0),
        (b"[" * 100_000, 0),
        (b'{"1.1": 5}', 0),
        (b'{"1.1": {"state": "passed"}, "1.2": {"attempts": "x"}}', 1),
        (b'{"1.1": {"state": "passed"}, "1.2": {"hints": -1}, "1.3": {"state": []}, "1.4": {"prediction": "x"}}', 1),
    ],
)
def test_damaged_progress_is_copied_aside(capsys, content, kept):
    """No traceback, nothing lost silently, and one can go on."""
    catalogue.PROGRESS.write_bytes(content)
    status, out, err = run(capsys)
    assert status == 0
    assert f"{kept} of {len(EXERCISES)} passed" in out
    assert "is damaged" in err
    assert "a copy is progress.json.damaged1" in err
    assert catalogue.PROGRESS.with_name("progress.json.damaged1").read_bytes() == content
    assert run(capsys)[2] == ""  # told once
    catalogue.PROGRESS.write_bytes(content)
    status, out, err = run(capsys, "hint", "1.1")
    assert status == 0
    assert "hint 1 of" in out
    assert "a copy is progress.json.damaged2" in err
    assert catalogue.read_progress()["1.1"]["hints"] == 1


def test_progress_that_cannot_be_written_is_one_line(capsys, monkeypatch):
    """The result of the check is shown nevertheless."""
    catalogue.PROGRESS.mkdir()
    monkeypatch.setattr(cli, "grade", lambda exercise: catalogue.Grade("failing", "the message"))
    status, out, err = run(capsys, "check", "1.1")
    assert status == 2
    assert "the message" in out
    assert err.startswith("exercises: ")
    assert err.count("\n") == 1


def test_a_failed_write_leaves_the_progress(capsys, monkeypatch):
    assert run(capsys, "hint", "1.1")[0] == 0
    before = catalogue.PROGRESS.read_bytes()

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(catalogue.os, "replace", fail)
    status, _, err = run(capsys, "hint", "1.1")
    assert status == 2
    assert "no space left" in err
    assert list(catalogue.PROGRESS.parent.iterdir()) == [catalogue.PROGRESS]
    assert catalogue.PROGRESS.read_bytes() == before


def test_progress_of_two_commands_at_once():
    """Each keeps its own record, and both count in the same one."""
    code = (
        "import sys; from pathlib import Path; from exercises import catalogue\n"
        "catalogue.PROGRESS = Path(sys.argv[1])\n"
        "for i in range(100):\n"
        "    for number in (sys.argv[2], 'both'):\n"
        "        with catalogue.progress(number) as record:\n"
        "            record['attempts'] = record.get('attempts', 0) + 1\n"
        "        catalogue.read_progress()\n"
    )
    command = [sys.executable, "-c", code, str(catalogue.PROGRESS)]
    processes = [subprocess.Popen([*command, name], cwd=ROOT, stderr=subprocess.PIPE) for name in "abc"]
    assert [process.communicate(timeout=600)[1] for process in processes] == [b""] * 3
    counts = {name: record["attempts"] for name, record in json.loads(catalogue.PROGRESS.read_text()).items()}
    assert counts == {"a": 100, "b": 100, "c": 100, "both": 300}


@pytest.fixture
def own_command(tmp_path):
    """(the command with exercise 2.4 alone, in a folder of its own; the file of its learner)"""
    folder = tmp_path / "exercises" / "stage2"
    folder.mkdir(parents=True)
    exercise = exercises()["2.4"]
    shutil.copy(exercise.text, folder)
    shutil.copy(exercise.test, folder)
    code = (
        "import sys; from pathlib import Path; from exercises import catalogue, __main__ as cli\n"
        "catalogue.PROGRESS = Path(sys.argv[1])\n"
        "exercise = catalogue.Exercise(Path(sys.argv[2]), '2.4', 'Sort and unsort', 15)\n"
        "cli.exercises = lambda: {'2.4': exercise}\n"
        "sys.exit(cli.write_out(cli.main(sys.argv[3:])))"
    )
    text = folder / exercise.text.name
    return [sys.executable, "-c", code, str(catalogue.PROGRESS), str(text)], text.with_suffix(".py")


def test_a_message_longer_than_a_pipe(tmp_path):
    result = graded(tmp_path, "def make_batches(lengths, size):\n    raise ValueError('x' * 3_000_000)\n")
    assert "ValueError at line 2" in result.message
    assert len(result.message) > 3_000_000


def test_a_loop_in_c_is_ended(tmp_path, monkeypatch):
    """Python can't say where such a loop is."""
    monkeypatch.setattr(child, "GRACE", 0.3)
    text = "import itertools\n\ndef make_batches(lengths, size):\n    return 5 in itertools.repeat(4)\n"
    message = graded(tmp_path, text, seconds=0.3).message
    assert "a loop that does not end" in message
    assert "it was at: line 4 of answer.py: return 5 in itertools.repeat(4)" in message


def test_a_crash_is_told_with_its_line(tmp_path):
    result = graded(tmp_path, "import ctypes\n\n\ndef make_batches(lengths, size):\n    ctypes.string_at(0)\n")
    assert "the process that ran it ended with status -11" in result.message
    assert "it was at: line 5 of answer.py: ctypes.string_at(0)" in result.message
    assert result.test == "test_the_picture"


@pytest.mark.parametrize(("line", "status"), [("os._exit(7)", 7), ("os.abort()", None)])
def test_an_answer_that_ends_the_process(tmp_path, line, status):
    result = graded(tmp_path, f"import os\n{line}\n")
    assert result.state == "failing"
    assert "the process that ran it ended with status" in result.message
    assert status is None or result.message.endswith(str(status))


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("import os\nos._exit(7)", "ended with status 7"),
        ("def test_it(work):\n    open('/nothing_like_it')", "FileNotFoundError"),
        ("from exercises.examples import Example\n\n"
         "def test_it(work):\n    Example(work, __file__, 'import nothing_like_it')", "nothing_like_it"),
    ],
)  # fmt: skip
def test_a_check_that_dies_says_nothing_about_the_answer(own_command, test, words, monkeypatch, capsys):
    """And nothing is recorded."""
    _, work = own_command
    work.write_text(exercises()["2.4"].solution_text)
    exercise = catalogue.Exercise(work.with_suffix(".md"), "2.4", "Sort and unsort", 15)
    exercise.test.write_text(test)
    monkeypatch.setattr(cli, "exercises", lambda: {"2.4": exercise})
    assert cli.main(["check", "2.4"]) == 1
    out, err = capsys.readouterr()
    assert "2.4 Sort and unsort: not checked" in out
    assert words in out
    assert "Traceback" not in err
    assert catalogue.read_progress() == {"2.4": {"attempts": 0}}


def test_an_error_in_the_answer_is_not_the_checks(tmp_path):
    for line in ("open('/nothing_like_it')", "import nothing_like_it"):
        result = graded(tmp_path, f"def make_batches(lengths, size):\n    {line}\n")
        assert (result.state, "nothing_like_it" in result.message) == ("failing", True)


def test_without_a_compiler_nothing_is_checked(monkeypatch):
    def no_compiler():
        raise RuntimeError("there is no C compiler")

    monkeypatch.setattr(in_c, "find_compiler", no_compiler)
    result = grade(exercises()["6.2"], exercises()["6.2"].solution)
    assert (result.state, result.message) == ("not checked", "the check itself failed: there is no C compiler")


@pytest.mark.parametrize("number", ["2.4", "6.2"])
def test_where_nothing_forks(number, monkeypatch):
    """As on Windows and macOS: what a check needs goes to a new process."""
    monkeypatch.setattr(child, "FORKS", False)
    monkeypatch.setattr(child, "CONTEXT", multiprocessing.get_context("spawn"))
    monkeypatch.setattr(examples, "SHARE", 0.05)
    assert grade(exercises()[number], exercises()[number].solution).state == "passed"


def test_a_terminal_without_ticks(own_command):
    """Neither the marks, nor a title, nor the learner's output may make the command fail."""
    command, work = own_command
    work.write_text("print('✓ 🦊')\n" + exercises()["2.4"].solution_text, encoding="utf-8")
    for encoding in ("cp1252", "ascii"):
        catalogue.PROGRESS.unlink(missing_ok=True)
        for arguments, words in ((["check", "2.4"], b"2.4 Sort and unsort: passed"), ([], b"\\u2713 2.4")):
            environment = {**os.environ, "PYTHONIOENCODING": encoding}
            done = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, check=False)
            assert (done.returncode, done.stderr) == (0, b"")
            assert words in done.stdout
            assert (b"\\u2713 \\U0001f98a" in done.stdout) == bool(arguments)  # what the learner's code printed


@pytest.mark.skipif(os.name == "nt", reason="file descriptors of POSIX")
@pytest.mark.parametrize("closed", [">&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full", "| true"])
def test_a_stdout_that_is_closed(own_command, closed):
    """What is checked is recorded, and what the learner's code prints reaches no pipe that it does not belong to."""
    if "/dev/full" in closed and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    command, work = own_command
    work.write_text("print('x' * 100_000, flush=True)\n" + exercises()["2.4"].solution_text, encoding="utf-8")
    if closed in (">/dev/full", "| true"):
        work.write_text(exercises()["2.4"].solution_text, encoding="utf-8")
    script = f'set -o pipefail; "$@" check 2.4 {closed}'
    done = subprocess.run(["bash", "-c", script, "-", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert json.loads(catalogue.PROGRESS.read_text()) == {"2.4": {"state": "passed", "attempts": 1}}
    if closed == ">/dev/full":
        assert done.returncode == 2
        assert done.stderr == "exercises: No space left on device\n"
    elif closed != "| true":  # which may be late to go
        assert done.returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, getattr(signal, "SIGKILL", None)])
def test_an_interrupted_check(own_command, number):
    """Ctrl-C, which a terminal sends to both processes, gives one line and status 130; and the learner's loop ends with
    the command, however that ended."""
    command, work = own_command
    work.write_text("import os\nprint('pid', os.getpid(), flush=True)\nwhile True:\n    pass\n")
    process = subprocess.Popen([*command, "check", "2.4"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)  # fmt: skip
    try:
        learner = psutil.Process(int(process.stdout.readline().split()[1]))
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.kill()
        _, stderr = process.communicate(timeout=600)
        if number == signal.SIGINT:
            assert (process.returncode, stderr) == (130, "interrupted\n")
        end = time.monotonic() + 60
        while learner.is_running() and learner.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
            time.sleep(0.02)
        assert not learner.is_running() or learner.status() == psutil.STATUS_ZOMBIE
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    assert not catalogue.PROGRESS.exists()


def test_pytest_is_the_grader():
    """The same tests under pytest, as the text says."""
    test = exercises()["2.4"].test  # without torch
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test), "-x"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    assert "NotImplementedError" in result.stdout or " passed" in result.stdout


# --- A class ----------------------------------------------------------------------------------------------------------


def test_a_class_is_graded_from_files_alone(tmp_path, capfd):
    """Whatever records say, and wherever in a folder the answers are; what an answer prints is not in the table."""
    exercise = exercises()["2.4"]
    (tmp_path / "anna" / "exercises" / "stage2").mkdir(parents=True)
    (tmp_path / "anna" / "exercises" / "solutions").mkdir()
    (tmp_path / "ben").mkdir()
    anna = tmp_path / "anna" / "exercises" / "stage2" / exercise.work.name
    anna.write_text("print('hello')\n" + exercise.solution_text)
    (anna.parent.parent / "solutions" / exercise.work.name).write_text("raise ValueError")
    (tmp_path / "ben" / exercise.work.name).write_text("def make_batches(lengths, size):\n    return []\n")
    (tmp_path / "ben" / ".exercises.json").write_text('{"2.4": {"state": "passed", "attempts": 1}}')
    for old in (tmp_path / "anna" / "old", tmp_path / "ben" / "old"):
        old.mkdir()
        (old / exercise.work.name).write_text(exercise.solution_text if "ben" in str(old) else "raise ValueError")
        os.utime(old / exercise.work.name, (0, 0) if "ben" in str(old) else None)
    arguments = ["grade", str(tmp_path / "anna"), str(tmp_path / "ben"), "--only", "2.4", "2.3"]
    assert cli.main(arguments) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.splitlines()[0] == "| folder | passed | 2.4 | 2.3 |"
    assert out.splitlines()[2].endswith("anna | 1 of 2 | passed | missing |")
    assert "ben | 0 of 2 | failing " in out.splitlines()[3]
    assert cli.main([*arguments, "--table", str(tmp_path / "marks.csv")]) == 0
    rows = (tmp_path / "marks.csv").read_text().splitlines()
    assert rows[0] == "folder,passed,2.4,2.3"
    assert rows[1].endswith("anna,1 of 2,passed,missing")
    assert not catalogue.PROGRESS.exists()
    assert (tmp_path / "ben" / ".exercises.json").read_text() == '{"2.4": {"state": "passed", "attempts": 1}}'


def test_a_class_whose_answers_are_the_same_or_links(tmp_path, capfd):
    """One is a copy, one is a link to the solution; each learner gets a message."""
    exercise = exercises()["2.4"]
    for name in ("anna", "ben", "dora"):
        (tmp_path / name).mkdir()
    for name in ("anna", "ben"):
        (tmp_path / name / exercise.work.name).write_text(exercise.solution_text)
    (tmp_path / "dora" / exercise.work.name).symlink_to(exercise.solution)
    folders, told = [str(tmp_path / name) for name in ("anna", "ben", "dora")], tmp_path / "told"
    arguments = ["--only", "2.4", "--jobs", "2", "--messages", str(told)]
    assert cli.main(["grade", *folders, *arguments]) == 0
    rows = [line.split(" | ")[-1] for line in capfd.readouterr().out.splitlines()[2:]]
    assert rows == ["passed |", f"passed (same file as {folders[0]}) |", "missing |"]
    messages = {path.name: path.read_text() for path in told.iterdir()}
    names = ["-".join([*tmp_path.parts[1:], name]) + ".md" for name in ("anna", "ben", "dora")]
    assert sorted(messages) == names
    assert messages[names[0]] == "1 of 1 passed: 2.4.\n"
    assert messages[names[2]] == "0 of 1 passed: none.\n\n**2.4 Sort and unsort**: missing\n"


def test_a_table_is_written_after_each_folder(tmp_path, monkeypatch):
    """So what was graded is there if the rest takes too long."""
    rows, table = [], tmp_path / "marks.csv"

    def grade_folder(answers, numbers, patience):
        if "ben" in str(answers["2.4"]):  # begins when anna is done, which may be before her row is written
            written = []
            for _ in range(3000):
                written = table.read_text().splitlines() if table.exists() else []
                if len(written) == 2:
                    break
                time.sleep(0.01)
            rows.append(written)
        return {number: catalogue.Grade("passed") for number in numbers}

    monkeypatch.setattr(marks, "grade_folder", grade_folder)
    for name in ("anna", "ben"):
        (tmp_path / name).mkdir()
        (tmp_path / name / exercises()["2.4"].work.name).write_text("")
    marks.main([str(tmp_path / "anna"), str(tmp_path / "ben"), "--jobs", "1", "--only", "2.4", "--table", str(table)])
    assert [len(of) for of in rows] == [2]
    assert len(table.read_text().splitlines()) == 3


def test_every_exercise_has_a_column_and_what_somebody_has(tmp_path, monkeypatch, capfd):
    """A capstone as it was handed out is none, nor is a package's file, a pipe, or an engine with a damaged record."""
    monkeypatch.setattr(
        marks, "grade_folder", lambda of, names, patience: dict.fromkeys(names, catalogue.Grade("passed"))
    )
    anna, ben = tmp_path / "anna", tmp_path / "ben"
    for folder in (anna / ".venv", anna / "mine", anna / "exercises" / "capstone", ben):
        folder.mkdir(parents=True)
    (anna / ".venv" / "llama.py").write_text("")
    (anna / "mine" / ".start.json").write_text('{"milestone": 1, "files": "all"}')
    shutil.copy(marks.CAPSTONE, anna / "exercises" / "capstone")
    os.mkfifo(anna / "llama.py")

    def columns(*folders):
        marks.main([*map(str, folders)])
        return capfd.readouterr().out.splitlines()[0].strip("| ").split(" | ")[2:]

    assert columns(anna) == list(exercises())
    (ben / "llama.py").write_text("")
    assert columns(anna, ben) == [*exercises(), "capstone"]


def test_milestones_the_capstone_and_predictions_have_columns(tmp_path, capfd):
    """Anna has an engine and an older one, and a prediction; Ben has begun, with a Llama; Cleo has nothing."""
    anna, ben, cleo = (tmp_path / name for name in ("anna", "ben", "cleo"))
    cleo.mkdir()
    for engine in (anna / "mine", anna / "mine-1", ben / "mine"):
        skeletons.start(1, engine)
    for engine in (anna / "mine", anna / "mine-1"):
        for name in MILESTONES[0].to_write:
            shutil.copy(ROOT / MILESTONES[0].stage / name, engine / name)
    broken = anna / "mine-1" / "engine.py"
    broken.write_text("raise ValueError")
    for path in (anna / "mine-1").rglob("*"):
        os.utime(path, (0, 0))
    skeletons.start(2, ben / "mine-2")
    with (ben / "mine-2" / "engine.py").open("a") as file:
        file.write("print('begun')\n")
    solved = (capstone.FOLDER / "solution.py").read_text()
    (ben / "llama.py").write_text("print('hello')\n" + solved.replace("F.silu(self.gate_proj(x)) *", ""))
    said = {"predictions": [1, 2], "results": [3, 4], "predicted_at": "now", "compared_at": "now"}
    records = {"predict 1": said, "predict 2": {**said, "results": [1, math.nan]}}
    (anna / ".exercises.json").write_text(json.dumps(records))
    folders, told = [str(folder) for folder in (anna, ben, cleo)], tmp_path / "told"
    only = ["--only", "milestone-1", "milestone-2", "capstone", "predictions"]
    assert cli.main(["grade", *folders, *only, "--messages", str(told)]) == 0
    head, _, *rows = capfd.readouterr().out.splitlines()
    assert head == "| folder | passed | milestone-1 | milestone-2 | capstone | predictions |"
    cells = [row.strip("| ").split(" | ")[1:] for row in rows]
    assert cells[0] == ["1 of 4", "passed", "missing", "missing", "unfinished 1/10"]
    assert cells[1] == ["0 of 4", "not started", "not started", "failing 2/9", "missing"]
    assert cells[2] == ["0 of 4"] + ["missing"] * 4
    messages = {path.stem.split("-")[-1]: path.read_text() for path in told.iterdir()}
    assert "said 1, 2; the result was 3, 4" in messages["anna"]
    assert "**milestone-2 a batch**: not started" in messages["ben"]
    assert "**capstone load a Llama**: failing 2/9\n\n    MLP\n" in messages["ben"]
    assert not any((folder / "mine" / "__pycache__").exists() for folder in (anna, ben))
    assert list(marks.answers_in(anna, list(marks.TITLES))) == ["milestone-1", "predictions"]
    assert list(marks.answers_in(ben, list(marks.TITLES))) == ["milestone-1", "milestone-2", "capstone"]


def test_an_engine_that_does_not_end_is_ended(tmp_path, capfd):
    """And a capstone that can't be imported is named."""
    anna, ben = tmp_path / "anna" / "mine", tmp_path / "ben" / "llama.py"
    skeletons.start(1, anna)
    (anna / "__init__.py").write_text("import time\ntime.sleep(10_000)\n")
    ben.parent.mkdir()
    ben.write_text("import nothing_that_is_there\n")
    for path, only, patience, words in (
        (anna, "milestone-1", "0.5", "still running after 0.5 seconds"),
        (ben, "capstone", "60", "nothing_that_is_there"),
    ):
        told = tmp_path / only
        arguments = ["--only", only, "--patience", patience, "--messages", str(told)]
        assert cli.main(["grade", str(path.parent), *arguments]) == 0
        assert "| failing" in capfd.readouterr().out
        assert words in next(told.iterdir()).read_text()


def test_no_solution_is_where_a_class_is_graded(tmp_path, capfd):
    """And an answer that waits forever is ended."""
    module = "exercises.solutions.2_4_sort_and_unsort"
    texts = {
        "anna": f"from importlib import import_module\nglobals().update(vars(import_module({module!r})))\n",
        "ben": "import time\ntime.sleep(10_000)\n",
    }
    folders = [tmp_path / name for name in texts]
    for folder, text in zip(folders, texts.values(), strict=True):
        folder.mkdir()
        (folder / exercises()["2.4"].work.name).write_text(text)
    told = tmp_path / "told"
    arguments = ["--only", "2.4", "--jobs", "2", "--patience", "0.5", "--messages", str(told)]
    assert cli.main(["grade", *map(str, folders), *arguments]) == 0
    assert capfd.readouterr().out.count("| failing |") == 2
    assert "    still running after 0.5 seconds" in next(told.glob("*ben.md")).read_text()


def test_bad_arguments_of_grade_are_named(tmp_path, capsys):
    assert cli.main(["grade", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    for arguments, words in (
        (["--only", "9.9"], "there is no exercise '9.9'"),
        (["--table", "x.pdf"], ".csv or .md"),
        (["--jobs", "0"], "above 0, got 0"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["grade", str(tmp_path), *arguments])
        assert words in capsys.readouterr().err


# --- What a grader says -----------------------------------------------------------------------------------------------


def test_a_known_mistake_is_named():
    with pytest.raises(Wrong, match="likely:    the first is too many"):
        expect("case", [1, 2], [2], {"other": [3], "the first is too many": [1, 2]})
    with pytest.raises(Wrong) as raised:
        expect("case", 1, 2, {"other": 3}, likely="look again")
    assert str(raised.value) == "case:      case\nexpected:  2\ngot:       1\nlikely:    look again"
    expect("equal within the tolerance", [1.0, 2.0], [1.0, 2.000001])


def test_one_mistake_with_several_answers():
    with pytest.raises(Wrong, match="likely:    turned round"):
        expect("case", [3, 2, 1], [1, 2, 3], {"turned round": OneOf([[3, 1, 2], [3, 2, 1]])})


@pytest.fixture
def summing(tmp_path):
    """A random check of a `total` that is wrong for numbers over 30, and a list of the calls."""
    path = tmp_path / "answer.py"
    path.write_text("def total(numbers):\n    return sum(min(30, number) for number in numbers)\n")
    work, asked = load(path), []

    def check(choose):
        numbers = choose.some(lambda: choose.upto(60), 20)
        asked.append(numbers)
        Example(work, "test_2_4_total.py").expect(f"work.total({numbers})", sum(numbers))

    return check, asked


def test_a_case_is_made_small(summing):
    """It becomes as small as possible, whatever it was, the same every time, and lines that can be pasted."""
    check, asked = summing
    with pytest.raises(Wrong) as raised:
        at_random(check)
    first = str(raised.value)
    assert 'work = work_of("2.4")\nprint(work.total([31]))  # expected 31\n' in first
    assert len(asked) < 200 + 400
    with pytest.raises(Wrong) as raised:
        at_random(check)
    assert str(raised.value) == first


def test_a_smaller_case_fails_in_the_same_way():
    """Another mistake, which has a smaller case, is not reported instead."""

    def check(choose):
        numbers = choose.some(lambda: choose.upto(9), 9, least=1)
        expect(f"{numbers}", len(numbers) < 4, "right", {"too short": True, "too long": False})

    made = [5, 1, 5, 1, 5, 1, 5, 1, 5]  # five numbers; before each but the first, that there is one more
    found = smallest(check, made, fails(check, Choices(again=made)))
    assert found.likely == "too long"
    assert "case:      [0, 0, 0, 0]\n" in str(found)


def test_same_and_short():
    """Types are exact, but for a whole number where a float is wanted."""
    import torch

    one = torch.tensor([1.0])
    assert same(one, one.clone(), 0)
    assert same(1, 1.0, 0)
    pairs = [(one, [1.0]), ([1.0], one), (one.double(), one), ([1, 2], [1]), (True, 1), (1, True), (1.0, 1)]
    pairs += [(10**6 + 1, 10**6), ((1,), [1]), (float("nan"), float("nan")), ("1", 1), (True, 1.0)]
    for got, expected in pairs:
        assert not same(got, expected, 1e-5)
    with pytest.raises(Wrong, match="its type is float; it should be int"):
        expect("case", [1, 2.0], [1, 2])
    assert short([1 / 3, "a "]) == "[0.333333, 'a ']"
    assert len(short("x" * 999)) < 310

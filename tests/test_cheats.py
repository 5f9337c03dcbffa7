"""Answers that cheat: no object, frame, line, file or module of the judge is in reach of them, and none passes.

Each is an answer to exercise 2.4 (`make_batches` and `restore`) that does not solve it. The last ones hide nothing but
what they do with their arguments.
"""

import pickle
import textwrap

import pytest

from exercises import __main__ as cli
from exercises import catalogue, child
from exercises.catalogue import exercises, grade
from exercises.judge import Answer, Ended, start_alone
from tests.adapter import ROOT

EXERCISE = exercises()["2.4"]
SOLUTION = EXERCISE.solution
SELF = "def restore(batches, results):\n    return make_batches([], 1)\n"
FRAMES = """
    def frames():
        frame = sys._getframe()
        while frame:
            yield frame
            frame = frame.f_back
"""

CHEATS = {
    # objects
    "an object that is equal to all": "class Same:\n    __eq__ = lambda self, other: True\n\ndef make_batches(*_):\n    return Same()",
    "a list that is equal to all": "class Same(list):\n    __eq__ = lambda self, other: True\n\ndef make_batches(*_):\n    return Same()",
    "numbers that are equal to all": """
        class Same(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__

        def make_batches(lengths, size):
            return [[Same()] * 2] * 2
    """,
    "mock.ANY": "from unittest.mock import ANY\n\ndef make_batches(*_):\n    return ANY",
    "an object that says it is a list": "class Same:\n    __class__ = list\n    __len__ = lambda self: 2\n    __eq__ = lambda *_: True\n\ndef make_batches(*_):\n    return Same()",
    "an object that runs when it is unpickled": f"""
        class Bomb:
            def __reduce__(self):
                return exec, ("open({str(ROOT / '.bomb')!r}, 'w')",)

        def make_batches(*_):
            return Bomb()
    """,
    "NaN, which is not unequal by <": "def make_batches(*_):\n    return [[float('nan')]]",
    # files
    "exec of the solution": f"exec(open({str(SOLUTION)!r}).read())",
    "exec of the solution by os.open": f"import os\nexec(os.read(os.open({str(SOLUTION)!r}, os.O_RDONLY), 99999))",
    "exec of the solution through a link": f"import os\nos.symlink({str(SOLUTION)!r}, 'link.py')\nexec(open('link.py').read())",
    "a record is written": f"open({str(ROOT / '.exercises.json')!r}, 'w').write('{{}}')",
    "the directory of the judge's process": "import os\nexec(open(f'/proc/{os.getppid()}/cwd/exercises/solutions/2_4_sort_and_unsort.py').read())",
    "the memory of the judge's process": "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')",
    "a search for the solution": """
        import os
        for folder, _, files in os.walk("/"):
            if "2_4_sort_and_unsort.py" in files and "solutions" in folder:
                exec(open(os.path.join(folder, "2_4_sort_and_unsort.py")).read())
    """,
    # modules
    "the solution as a module": f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom importlib import import_module\nglobals().update(vars(import_module('exercises.solutions.2_4_sort_and_unsort')))",
    "the judge's own modules are changed": "import sys\nfor name, module in list(sys.modules.items()):\n    if name.startswith(('exercises', 'tests', 'tools')):\n        module.same = module.expect = lambda *_, **__: True",
    "a comparison is replaced": "import exercises.grading\nexercises.grading.same = lambda *_: True",
    "an engine of the project": "from stage02_static_batch.engine import *",
    "the importers are emptied first": f"import sys\nsys.meta_path[:] = sys.meta_path[-1:]\nsys.path[:] = [{str(ROOT)!r}]\nimport exercises.grading",
    # frames and memory
    "the tests are emptied through frames": "import sys\n" + textwrap.dedent(FRAMES) + """
for frame in frames():
    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
        if isinstance(value, dict) and any(str(key).startswith("test_") for key in value):
            value.clear()
""",
    "what is expected is looked for in frames": "import sys\n" + textwrap.dedent(FRAMES) + """
def make_batches(lengths, size):
    for frame in frames():
        for name in ("expected", "batches"):
            if name in frame.f_locals:
                return frame.f_locals[name]
""",
    "what is expected is looked for in memory": "import gc\n\ndef make_batches(lengths, size):\n    return next(x for x in gc.get_objects() if isinstance(x, list) and x and isinstance(x[0], list))",
    "the driver is changed": "import sys\n" + textwrap.dedent(FRAMES) + """
for frame in frames():
    if "Coder" in frame.f_globals:
        frame.f_globals["Coder"].encode = lambda self, value: {"r": 0}
        frame.f_globals["Line"].call = lambda self, function, message: {"changed": [], "value": True}
""",
    "the driver says that all is well": "import sys\n" + textwrap.dedent(FRAMES) + """
for frame in frames():
    if "Child" in frame.f_globals:
        frame.f_globals["Child"].answer = lambda self, message: {"value": None, "state": "passed", "measured": {}}
""",
    "json is changed": "import json\njson.dumps = lambda value, **_: '{\"value\": true}'",
    "the builtins are changed": "import builtins\nbuiltins.all = builtins.isinstance = builtins.zip = lambda *_, **__: True",
    # the line
    "a passed grade goes through every file": f"""
        import os
        grade = {pickle.dumps(catalogue.Grade("passed", num_passed=5, num_tests=5))!r}
        for number in range(3, 64):
            try:
                os.write(number, grade + b"\\n")
            except OSError:
                pass
    """,
    "replies are made beforehand": """
        import os
        for number in range(3, 64):
            try:
                os.write(number, b'{"value": {"u": []}, "result": 1, "state": "passed"}\\n' * 99)
            except OSError:
                pass
    """,
    "replies that can't be read": """
        import os
        for number in range(3, 64):
            try:
                os.write(number, b'{"value": {"r": 99}}\\n{"ask": "call", "number": 5}\\n[]\\n{"value": {"t": "os"}}\\n')
            except OSError:
                pass
    """,
    "a reply of no end": """
        import os
        for number in range(3, 64):
            try:
                while True:
                    os.write(number, b"x" * 65536)
            except OSError:
                pass
    """,
    # processes
    "it ends well": "import os\nos._exit(0)",
    "it ends well when it is asked": "import os\n\ndef make_batches(*_):\n    os._exit(0)",
    "it leaves with SystemExit": "def make_batches(*_):\n    raise SystemExit(0)",
    "the judge is ended": "import os\nos.kill(os.getppid(), 9)",
    "a shell": f"import os\nos.system('cp {SOLUTION} {EXERCISE.work}')",
    "another process": f"import subprocess\nexec(subprocess.run(['cat', {str(SOLUTION)!r}], capture_output=True).stdout)",
    "a fork goes on": "import os\nif os.fork():\n    os._exit(0)",
    "a socket": "import socket\nsocket.create_connection(('127.0.0.1', 9))",
    "memory by ctypes": "import ctypes\nctypes.string_at(id(make_batches), 8)",
    # errors and time
    "an error of every kind": "import random\n\ndef make_batches(*_):\n    raise random.choice([AssertionError, StopIteration, KeyboardInterrupt, GeneratorExit, MemoryError])('passed')",
    "its errors say that it passed": "class Passed(Exception):\n    __str__ = lambda self: 'passed'\n\ndef make_batches(*_):\n    raise Passed",
    "a generator that never ends": "import itertools\n\ndef make_batches(*_):\n    return itertools.repeat([])",
    "results that change later": """
        import threading, time
        kept = []

        def make_batches(lengths, size):
            threading.Thread(target=lambda: (time.sleep(0.01), kept.append([1, 3])), daemon=True).start()
            return kept
    """,
}  # fmt: skip


@pytest.fixture
def graded(tmp_path, monkeypatch):
    """Grades a text as an answer to 2.4."""
    monkeypatch.setattr(catalogue, "PROGRESS", tmp_path / "progress.json")
    monkeypatch.setattr(child, "LONGEST", 1 << 24)

    def grade_it(text, exercise=EXERCISE):
        path = tmp_path / exercise.work.name
        path.write_text(text)
        result = grade(exercise, path, seconds=2, patience=60)
        assert not catalogue.PROGRESS.exists()
        return result

    return grade_it


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_does_not_pass(name, graded):
    before = {path: path.read_bytes() for path in (SOLUTION, EXERCISE.work, ROOT / ".exercises.json") if path.exists()}
    text = textwrap.dedent(CHEATS[name])
    result = graded(text + "\n\n" + (SELF if "def make_batches" in text else ""))
    assert result.state in ("failing", "not started")
    assert result.num_passed < result.num_tests or not result.num_tests
    assert result.message
    assert before == {path: path.read_bytes() for path in before}
    assert not (ROOT / ".bomb").exists()
    assert not EXERCISE.work.with_name("link.py").exists()
    assert graded(EXERCISE.solution_text).state == "passed"


def test_there_are_many():
    assert len(CHEATS) >= 30


def test_the_process_of_an_answer_knows_nothing_of_the_project(tmp_path):
    """Its path, its directory, its environment, and what is loaded there."""
    path = tmp_path / "answer.py"
    path.write_text("""
import os, sys
def seen():
    return [*sys.path, *os.environ.values(), os.getcwd(), *sys.argv, *sys.modules, *os.listdir()]
""")
    with Answer(path) as work:
        for text in work.seen():
            if "site-packages" not in text and text not in (str(tmp_path),):
                assert str(ROOT) not in text
            assert "exercises" not in text.replace("exercise_answer", "")


def test_a_forged_reply_is_only_data(tmp_path):
    """Whatever comes is an object of Python's own, or is refused."""
    path = tmp_path / "answer.py"
    path.write_text("""
import os
def forge(text):
    for number in range(3, 64):
        try:
            os.write(number, text.encode() + b"\\n")
        except OSError:
            pass
""")
    for text in ('{"value": {"x": 1}}', '{"value": {"t": "__class__", "n": [1], "b": "", "p": []}}', '{"value": {"r": -9}}',
                 '{"ask": "call", "number": 99}', '{"changed": [[7, {"l": []}]]}', "null", "[", '{"error": {}}'):  # fmt: skip
        with Answer(path) as work, pytest.raises((Ended, ValueError)):
            work.forge(text)


def test_without_fork(tmp_path):
    """The same line over the standard streams of a process, where there is no `fork`."""
    path = tmp_path / "answer.py"
    path.write_text("def twice(numbers, f):\n    numbers.append(1)\n    return [f(n) for n in numbers]\n")
    work = Answer(path)
    with work:
        work._process = start_alone(path, [])
        work._exchange({"ask": "load"})
        numbers = [1, 2]
        assert work.twice(numbers, lambda n: 2 * n) == [2, 4, 2]
        assert numbers == [1, 2, 1]


# --- A class ----------------------------------------------------------------------------------------------------------


def test_a_class_is_graded_from_files_alone(tmp_path, capfd, monkeypatch):
    """Records say what they like; a folder has its answers anywhere; what an answer prints is not in the table."""
    monkeypatch.setattr(catalogue, "PROGRESS", tmp_path / "mine.json")
    (tmp_path / "anna" / "exercises" / "stage2").mkdir(parents=True)
    (tmp_path / "anna" / "exercises" / "solutions").mkdir()
    (tmp_path / "ben").mkdir()
    anna = tmp_path / "anna" / "exercises" / "stage2" / EXERCISE.work.name
    anna.write_text("print('hello')\n" + EXERCISE.solution_text)
    (anna.parent.parent / "solutions" / EXERCISE.work.name).write_text("raise ValueError")
    (tmp_path / "ben" / EXERCISE.work.name).write_text(SELF + "\ndef make_batches(lengths, size):\n    return []\n")
    (tmp_path / "ben" / ".exercises.json").write_text('{"2.4": {"state": "passed", "attempts": 1}}')
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


def test_bad_arguments_of_grade_are_named(tmp_path, capsys):
    assert cli.main(["grade", str(tmp_path / "none")]) == 2
    assert "is no folder" in capsys.readouterr().err
    for arguments, words in ((["--only", "9.9"], "there is no exercise '9.9'"), (["--table", "x.pdf"], ".csv or .md")):
        with pytest.raises(SystemExit):
            cli.main(["grade", str(tmp_path), *arguments])
        assert words in capsys.readouterr().err

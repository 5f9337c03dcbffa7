"""The exercises: where each one is, the learner's progress, and how an answer is graded."""

import functools
import importlib.util
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from . import child, examples
from .examples import Example
from .grading import Wrong, at_line, lines_in, of_machine, raised_at, spots_of, told, where
from .judge import Answer

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

FOLDER = Path(__file__).parent
PROGRESS = FOLDER.parent / ".exercises.json"  # git-ignored
HINT = re.compile(r"<details><summary>(.*?)</summary>\s*(.*?)\s*</details>", re.DOTALL)
TITLE = re.compile(r"# (\d+\.\d+) (.*) \((\d+) minutes\)")
MUTANTS = "# --- Wrong answers"  # in a solution: the learner is not shown what follows


@dataclass(frozen=True)
class Exercise:
    """One exercise: `exercises/stage2/2_3_waste.md` is its text, `2_3_waste.py` next to it is what the learner writes,
    `test_2_3_waste.py` grades it, and `exercises/solutions/2_3_waste.py` solves it. In some of stage 6 the learner
    writes C: `6_2_panels_in_c.c`."""

    text: Path
    number: str
    title: str
    minutes: int

    @property
    def work(self) -> Path:
        in_c = self.text.with_suffix(".c")
        return in_c if in_c.exists() else self.text.with_suffix(".py")

    @property
    def test(self) -> Path:
        return self.text.with_name(f"test_{self.text.stem}.py")

    @property
    def solution(self) -> Path:
        return FOLDER / "solutions" / self.work.name

    @property
    def answers(self) -> ModuleType:
        """The file that lists wrong and other right answers: the solution, or for C the Python file next to it."""
        return load(self.solution.with_suffix(".py"))

    @property
    def hints(self) -> list[tuple[str, str]]:
        """(title, hint) of each hint, in order."""
        return HINT.findall(self.text.read_text(encoding="utf-8"))

    @property
    def solution_text(self) -> str:
        """The solution without the wrong answers that the project's tests derive from it."""
        return self.solution.read_text(encoding="utf-8").split(MUTANTS)[0].rstrip() + "\n"


@functools.cache
def exercises() -> dict[str, Exercise]:
    """All of them by number, in order."""
    found = []
    for text in FOLDER.glob("stage*/*_*.md"):
        match = TITLE.match(text.read_text(encoding="utf-8"))
        if match is None:
            raise ValueError(f"{text} does not begin like '# 2.3 Title (20 minutes)'")
        found.append(Exercise(text, match[1], match[2], int(match[3])))
    found.sort(key=lambda exercise: tuple(map(int, exercise.number.split("."))))
    return {exercise.number: exercise for exercise in found}


def answer_of(path: Path, folder: Path | None = None) -> Any:
    """The answer in this file: an `Answer`, or an `AnswerInC`, compiled into the folder. They are used alike."""
    if path.suffix != ".c":
        return Answer(path)
    from .in_c import AnswerInC  # imported late: it imports torch

    return AnswerInC(path, folder)


def load(path: Path) -> ModuleType:
    """A Python file as a separate module, executed each time."""
    spec = importlib.util.spec_from_file_location(f"exercise_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Grade:
    """`state` is "passed", "failing", "not started" or, if the check itself failed, "not checked"; `message` explains;
    `test` is the first one that failed; `num_passed` of `num_tests` passed."""

    state: str
    message: str = ""
    test: str = ""
    num_passed: int = 0
    num_tests: int = 0
    seconds: float = 0.0


def work_of(number: str) -> ModuleType:
    """The learner's file, executed again: examples for pasting begin with it."""
    return load(exercises()[number].work)


def grade(
    exercise: Exercise,
    work: Path | None = None,
    *,
    whole: bool = True,
    quiet: bool = False,
    seconds: float = child.SECONDS,
    patience: float = child.PATIENCE,
) -> Grade:
    """Run the tests of an exercise on a file (the learner's unless another is given), in a separate process.

    whole: go on after the first test that fails, to count the others.
    quiet: don't show what the answer prints.
    seconds, patience: computing time and wall-clock time that a test may take.
    """
    work, result = work or exercise.work, Grade("failing")
    settings = PROGRESS, examples.SHARE, examples.SIMPLER
    with tempfile.TemporaryDirectory(prefix="answer-") as folder:
        try:
            answer = answer_of(work, Path(folder))
        except (OSError, RuntimeError) as error:  # there is no compiler, for example
            return Grade("not checked", f"the check itself failed: {error}")
        except Exception as error:  # from the compiler
            return Grade("failing", f"the file can't be read: {raised_at(error, work)}")
        try:
            checked, needs = (exercise, work, answer, whole, settings), exercise.test.read_text(encoding="utf-8")
            limits = dict(seconds=seconds, patience=patience, quiet=quiet)
            for told_now in child.run(run_tests, *checked, needs=needs, **limits):
                result = told_now
        except child.CheckFailed as error:
            return Grade("not checked", f"the check itself failed: {error}", result.test)
        except child.Stopped as error:
            places = [at_line(path, error.spots) for path in (work, exercise.test)]
            return replace(result, message=result.message or "\n".join([str(error), *filter(None, places)]))
    return result


def run_tests(tell: child.Tell, exercise: Exercise, work: Path, answer: Any, whole: bool, settings: tuple) -> None:
    """Send a `Grade` before each test and at the end. Only the first failure has a message; the others are counted."""
    global PROGRESS
    PROGRESS, examples.SHARE, examples.SIMPLER = settings
    sys.setrecursionlimit(sys.getrecursionlimit() + sum(1 for _ in traceback.walk_stack(None)))
    started, failure, unseen, passed = time.process_time(), None, None, 0
    tests = {name: test for name, test in vars(load(exercise.test)).items() if name.startswith("test_")}

    def grade_now(state: str, message: str = "", name: str = "") -> Grade:
        return Grade(state, message, name, passed, len(tests), time.process_time() - started)

    def where_now(spots: list[child.Spot]) -> str:
        program = [f"It was running:\n\n{Example.now}\n"] if Example.now else []
        return "\n".join(where(spots, work, exercise.test) + program)

    tell.where = where_now
    tell.begin()
    try:
        answer.load()
    except BaseException as error:  # sys.exit, too
        return tell(Grade("failing", f"the file can't be read: {raised_at(error, work)}"))
    for name, test in tests.items():
        Example.now = ""
        tell(grade_now("failing", *(failure or ("", name))))
        try:
            test(answer)
            passed += 1
        except NotImplementedError as error:
            function = getattr(error, "function", "") or traceback.extract_tb(error.__traceback__)[-1].name
            still = "has NOT_WRITTEN" if work.suffix == ".c" else "raises NotImplementedError"
            unwritten = f"{exercise.work.name} still {still}, in {function}"
            if not passed and not failure:
                return tell(Grade("not started", unwritten, name))
            failure = failure or (unwritten, name)
        except Wrong as error:
            failure = failure or (str(error), name)
        except BaseException as error:
            if of_machine(error, lines_in(work, spots_of(error))):
                raise
            failure = failure or (told(error, work, exercise.test), name)
        if failure and not whole:
            break
        try:
            answer.settle()
        except Wrong as error:  # used if no test has a better message
            unseen = unseen or (str(error), name)
    failure = failure or unseen
    tell(grade_now("failing" if failure else "passed", *(failure or ("", ""))))
    return None


def prepare_streams() -> None:
    """Escape what stdout's encoding lacks: a ✓ must not end the program. And occupy the file descriptors of closed
    streams: a pipe that got one of them would receive what is printed."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(number)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a closed one is None
            stream.reconfigure(errors="backslashreplace")


# --- Progress ---------------------------------------------------------------------------------------------------------


def read_progress() -> dict[str, dict]:
    """What is recorded for each exercise: attempts, state, hints shown, predictions."""
    everything, damage = _read_progress()
    if not damage:
        return everything
    with one_at_a_time():
        return _mend_progress()


@contextmanager
def progress(number: str) -> Iterator[dict]:
    """The record of one exercise, to be changed; written atomically when the block ends."""
    with one_at_a_time():
        everything = _mend_progress()
        yield everything.setdefault(number, {})
        _write_progress(everything)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lock out other commands: what one wrote between another's reading and writing would be lost. The lock is on this
    source file, which always exists and never changes, and it ends with the process."""
    with open(__file__, "r+b") as file:  # opened for writing, or NFS can't lock it
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX)
        else:
            file.seek(1 << 30)  # on Windows a locked byte can't be read by others: lock one past the end
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        yield


def _read_progress() -> tuple[dict[str, dict], str]:
    """(the readable records, what is wrong with the file)."""
    try:
        everything = json.loads(PROGRESS.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ""
    except (ValueError, RecursionError) as error:
        return {}, str(error)
    if not isinstance(everything, dict):
        return {}, f"expected a JSON object, got a {type(everything).__name__}"
    whole = {number: record for number, record in everything.items() if is_record(record)}
    lost = [number for number in everything if number not in whole]
    return whole, f"not valid records: {', '.join(lost)}" if lost else ""


def _mend_progress() -> dict[str, dict]:
    """The records. A damaged file is copied to a backup, its readable records are kept, and stderr says so."""
    everything, damage = _read_progress()
    if damage:
        names = (PROGRESS.with_name(f"{PROGRESS.name}.damaged{number}") for number in itertools.count(1))
        aside = next(path for path in names if not path.exists())
        shutil.copyfile(PROGRESS, aside)
        _write_progress(everything)
        kept = f"{len(everything)} of its records are kept" if everything else "your progress starts over"
        print(f"exercises: {PROGRESS} is damaged ({damage:.200}); {kept}, a copy is {aside.name}", file=sys.stderr)
    return everything


def is_record(record: object) -> bool:
    """Whether this is what a command records for an exercise."""
    if not isinstance(record, dict) or not isinstance(record.get("state", ""), str):
        return False
    counts = [record.get("attempts", 0), record.get("hints", 0)]
    whole = all(isinstance(count, int) and count >= 0 for count in counts)
    return whole and isinstance(record.get("prediction", 0.0), int | float) and is_prediction(record)


def is_prediction(record: dict) -> bool:
    """Whether the fields that `predict` writes, if present, have the right form."""
    lists, times = ("predictions", "results"), {"predicted_at": "predictions", "compared_at": "results"}
    numbers = [record.get(name, []) for name in lists]
    if not all(isinstance(some, list) and all(isinstance(x, int | float) and x == x for x in some) for some in numbers):
        return False
    return all(
        (name in record) == (of in record) and isinstance(record.get(name, ""), str) for name, of in times.items()
    )


def _write_progress(everything: dict[str, dict]) -> None:
    new = PROGRESS.with_suffix(".new")
    try:
        new.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
        os.replace(new, PROGRESS)
    finally:
        new.unlink(missing_ok=True)


def lock(number: str, prediction: float) -> float:
    """Keep a prediction before the measurement; from then on it counts, whatever the file says."""
    with progress(number) as record:
        return record.setdefault("prediction", prediction)

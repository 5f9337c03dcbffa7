"""The exercises: where each is, how far its learner is, and how a solution is graded."""

import functools
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent
PROGRESS = FOLDER.parent / ".exercises.json"  # git-ignored
HINT = re.compile(r"<details><summary>(.*?)</summary>\s*(.*?)\s*</details>", re.DOTALL)
TITLE = re.compile(r"# (\d+\.\d+) (.*) \((\d+) minutes\)")
SECONDS = 60  # that a check may take; they take five at the most
MUTANTS = "# --- Wrong answers"  # in a solution: from here on it is not the learner's


@dataclass(frozen=True)
class Exercise:
    """One exercise: `exercises/stage2/2_3_waste.md` is its text, `2_3_waste.py` beside it is what the learner writes,
    `test_2_3_waste.py` grades it, and `exercises/solutions/2_3_waste.py` solves it."""

    text: Path
    number: str
    title: str
    minutes: int

    @property
    def work(self) -> Path:
        return self.text.with_suffix(".py")

    @property
    def test(self) -> Path:
        return self.text.with_name(f"test_{self.work.name}")

    @property
    def solution(self) -> Path:
        return FOLDER / "solutions" / self.work.name

    @property
    def hints(self) -> list[tuple[str, str]]:
        """(its title, the hint) one after another."""
        return HINT.findall(self.text.read_text(encoding="utf-8"))

    @property
    def solution_text(self) -> str:
        """The solution without the wrong answers that the project's tests make of it."""
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


def load(path: Path) -> ModuleType:
    """A Python file as a module of its own, executed anew."""
    spec = importlib.util.spec_from_file_location(f"exercise_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Grade:
    """`state` is "passed", "failing" or "not started"; `message` teaches; `test` is what failed first; `num_passed` of
    `num_tests` did not."""

    state: str
    message: str = ""
    test: str = ""
    num_passed: int = 0
    num_tests: int = 0
    seconds: float = 0.0


def grade(exercise: Exercise, work: Path | ModuleType | None = None) -> Grade:
    """Run the tests of an exercise on a file (the learner's unless another is given)."""
    started = time.perf_counter()
    try:
        module = work if isinstance(work, ModuleType) else load(work or exercise.work)
    except Exception as error:
        return Grade("failing", f"the file can't be read: {where(error, work or exercise.work)}")
    tests = {name: test for name, test in vars(load(exercise.test)).items() if name.startswith("test_")}
    failure, passed = None, 0  # the first failure is told; the others show how far one is
    for name, test in tests.items():
        try:
            test(module)
        except NotImplementedError:
            return Grade("not started", f"{exercise.work.name} still raises NotImplementedError", name)
        except AssertionError as error:
            failure = failure or (str(error), name)
        except Exception as error:
            failure = failure or (where(error, Path(module.__file__ or "")), name)
        else:
            passed += 1
    if failure:
        return Grade("failing", *failure, passed, len(tests))
    return Grade("passed", "", "", passed, len(tests), time.perf_counter() - started)


def grade_in_time(exercise: Exercise) -> Grade:
    """Grade the learner's file in a process of its own, which is ended if the code in it does not end."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=_grade_into, args=(exercise, results), daemon=True)
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return Grade("failing", f"not done after {SECONDS} seconds; is there a loop that does not end?")
    if results.empty():
        return Grade("failing", f"the process that ran it ended with status {process.exitcode}")
    return results.get()


def _grade_into(exercise: Exercise, results) -> None:
    results.put(grade(exercise))


def where(error: Exception, path: Path) -> str:
    """What an exception says, and at which line of the learner's file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    return f"{type(error).__name__}{f' at line {line} of {path.name}' if line else ''}: {error}"


# --- Progress ---------------------------------------------------------------------------------------------------------


def read_progress() -> dict[str, dict]:
    """What is recorded of each exercise: attempts, state, hints shown, predictions. Raises ValueError if damaged."""
    if not PROGRESS.exists():
        return {}
    try:
        return json.loads(PROGRESS.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(
            f"{PROGRESS} is damaged; remove it to begin anew (the exercises themselves are not in it)"
        ) from None


@contextmanager
def progress(number: str) -> Iterator[dict]:
    """The record of one exercise, to be changed; written when the block ends, whole or not at all."""
    everything = read_progress()
    record = everything.setdefault(number, {})
    yield record
    new = PROGRESS.with_suffix(".new")
    new.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    os.replace(new, PROGRESS)


def lock(number: str, prediction: float) -> float:
    """Keep a prediction before it is measured; from then on it is this one, whatever the file says."""
    with progress(number) as record:
        return record.setdefault("prediction", prediction)

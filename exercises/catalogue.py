"""The exercises: where each one is, and the learner's progress."""

import functools
import importlib.util
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent
PROGRESS = FOLDER.parent / ".exercises.json"  # git-ignored
CAPSTONES = {"capstone": FOLDER / "capstone" / "llama.py", "capstone-2": FOLDER / "capstone" / "llama_engine.py"}
HINT = re.compile(r"<details><summary>(.*?)</summary>\s*(.*?)\s*</details>", re.DOTALL)
TITLE = re.compile(r"# (\d+\.\d+) (.*) \((\d+) minutes\)")
WRONG = "# --- Wrong answers"  # in a solution: the learner is not shown what follows


@dataclass(frozen=True)
class Exercise:
    """One exercise: `exercises/stage2/2_3_waste.md` is its text, `2_3_waste.py` next to it is what the learner writes,
    `test_2_3_waste.py` checks it, and `exercises/solutions/2_3_waste.py` solves it. In some of stage 6 the learner
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
        """The solution without the wrong answers."""
        return self.solution.read_text(encoding="utf-8").split(WRONG)[0].rstrip() + "\n"


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
    """A Python file as a separate module, executed each time."""
    spec = importlib.util.spec_from_file_location(f"exercise_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


# --- Progress ---------------------------------------------------------------------------------------------------------


def read_progress() -> dict[str, dict]:
    """What is recorded for each exercise: state, attempts, hints shown, predictions. A file that can't be read is moved
    aside, and stderr says so."""
    try:
        records = json.loads(PROGRESS.read_text(encoding="utf-8"))
        if isinstance(records, dict) and all(isinstance(record, dict) for record in records.values()):
            return records
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        pass
    aside = PROGRESS.with_name(f"{PROGRESS.name}.damaged")
    os.replace(PROGRESS, aside)
    print(f"exercises: {PROGRESS} is damaged; your progress starts over, and {aside.name} is the old file",
          file=sys.stderr)  # fmt: skip
    return {}


def record(number: str, **values: object) -> None:
    """Change these values in the record of an exercise. The file is replaced as a whole."""
    records = read_progress()
    records[number] = records.get(number, {}) | values
    new = PROGRESS.with_suffix(f".{os.getpid()}")
    try:
        new.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
        os.replace(new, PROGRESS)
    finally:
        new.unlink(missing_ok=True)

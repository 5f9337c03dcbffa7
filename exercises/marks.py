"""A class's answers, graded from the files alone.

python -m exercises grade anna ben                  # a table in Markdown
python -m exercises grade class/* --table marks.csv # or as CSV, for a spreadsheet
python -m exercises grade anna --only 2.1 2.3

A folder is a learner's checkout, or just has the files of the answers in it, at any depth. Only the answers are taken
from there, and they run in a copy of this checkout's exercises in which there are no solutions. Records
(`.exercises.json`) are neither read nor written.
"""

import argparse
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .catalogue import FOLDER, PROGRESS, Exercise, Grade, exercises, grade


def answer_in(folder: Path, exercise: Exercise) -> Path | None:
    """The answer to an exercise in a learner's folder, not a solution or a test; the one nearest to the top."""
    found = [path for path in folder.rglob(exercise.work.name) if path.is_file() and path.parent.name != "solutions"]
    return min(found, key=lambda path: (len(path.parts), path), default=None)


def grade_folders(folders: Sequence[Path], numbers: Sequence[str]) -> dict[str, dict[str, Grade]]:
    """The grade of each exercise by number, for each folder; the state is "missing" if there is no file."""
    with tempfile.TemporaryDirectory(prefix="grade-") as clean:
        shutil.copytree(
            FOLDER, Path(clean) / "exercises", ignore=shutil.ignore_patterns("solutions", "solution.py", "__pycache__")
        )
        paths = os.pathsep.join([clean, str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-c", "from exercises.marks import grade_here; grade_here()"]
        asked = json.dumps([[str(folder.resolve()) for folder in folders], list(numbers)])
        subprocess.run([*command, asked], cwd=clean, env={**os.environ, "PYTHONPATH": paths}, check=True)
        results = json.loads((Path(clean) / "results.json").read_text(encoding="utf-8"))
    rows = [{number: Grade(**of) for number, of in result.items()} for result in results]
    return dict(zip(map(str, folders), rows, strict=True))


def grade_here() -> None:
    """What `grade_folders` runs in the copy: the answers of a folder take the learner's place there."""
    folders, numbers = json.loads(sys.argv[1])
    results = []
    for folder in map(Path, folders):
        PROGRESS.unlink(missing_ok=True)  # exercise 1.4 keeps a prediction
        grades = {}
        for exercise in (exercises()[number] for number in numbers):
            answer, result = answer_in(folder, exercise), Grade("missing")
            if answer:
                shutil.copy(answer, exercise.work)
                result = grade(exercise, quiet=True)
            grades[exercise.number] = asdict(result)
        results.append(grades)
    Path("results.json").write_text(json.dumps(results), encoding="utf-8")


def cell(result: Grade) -> str:
    """A grade as a table has it: how many tests pass, if not all do."""
    count = f" {result.num_passed}/{result.num_tests}" if result.state == "failing" and result.num_tests else ""
    return result.state + count


def table(grades: dict[str, dict[str, Grade]], kind: str) -> str:
    """A row for each folder: its name, how many exercises are passed, and each of them."""
    numbers = list(next(iter(grades.values())))
    rows = [["folder", "passed", *numbers]]
    for folder, results in grades.items():
        passed = sum(result.state == "passed" for result in results.values())
        rows.append([folder, f"{passed} of {len(numbers)}", *(cell(results[number]) for number in numbers)])
    if kind == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def main(argv: list[str]) -> int:
    """The command `grade`."""
    parser = argparse.ArgumentParser(
        prog="python -m exercises grade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of a learner")
    parser.add_argument("--only", nargs="+", metavar="N.M", default=list(exercises()), help="these exercises")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write to this file: .csv or .md; default: stdout")
    args = parser.parse_args(argv)
    if unknown := [number for number in args.only if number not in exercises()]:
        parser.error(f"there is no exercise {unknown[0]!r}; `python -m exercises` lists them")
    if args.table and args.table.suffix not in (".csv", ".md"):
        parser.error(f"--table takes a file that ends in .csv or .md, got {args.table}")
    if missing := [folder for folder in args.folders if not folder.is_dir()]:
        raise ValueError(f"{missing[0]} is no folder")
    text = table(grade_folders(args.folders, args.only), getattr(args.table, "suffix", ""))
    if args.table:
        args.table.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0

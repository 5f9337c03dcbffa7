"""A class's answers, graded from the files alone.

python -m exercises grade anna ben                  # a table in Markdown
python -m exercises grade class/* --table marks.csv # or as CSV, for a spreadsheet
python -m exercises grade anna --only 2.1 2.3

A folder is a learner's checkout, or just has the files of the answers in it, at any depth. Only the answers are taken
from there, each into a fresh directory. Tests and judge are those of the checkout that runs this. Records
(`.exercises.json`) are neither read nor written. Grade as a user who can't read solutions of others: an answer is a
program.
"""

import argparse
import csv
import io
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from . import catalogue
from .catalogue import Exercise, Grade, exercises, grade


def answer_in(folder: Path, exercise: Exercise) -> Path | None:
    """The answer to an exercise in a learner's folder, not a solution or a test; the one nearest to the top."""
    found = [path for path in folder.rglob(exercise.work.name) if path.is_file() and path.parent.name != "solutions"]
    return min(found, key=lambda path: (len(path.parts), path), default=None)


def grade_folder(folder: Path, some: Iterable[Exercise]) -> dict[str, Grade]:
    """The grade of each exercise by number; the state is "missing" if there is no file."""
    grades, kept = {}, catalogue.PROGRESS
    with tempfile.TemporaryDirectory(prefix="grade-") as clean:
        catalogue.PROGRESS = Path(clean) / "records.json"  # exercise 1.4 keeps a prediction
        try:
            for exercise in some:
                answer = answer_in(folder, exercise)
                if answer is None:
                    grades[exercise.number] = Grade("missing")
                    continue
                copy = shutil.copy(answer, Path(clean) / exercise.work.name)
                grades[exercise.number] = grade(exercise, Path(copy), quiet=True)
        finally:
            catalogue.PROGRESS = kept
    return grades


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
    some = [exercises()[number] for number in args.only]
    text = table(
        {str(folder): grade_folder(folder, some) for folder in args.folders}, getattr(args.table, "suffix", "")
    )
    if args.table:
        args.table.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0

"""A class's answers, graded from the files alone.

python -m exercises grade anna ben                  # a table in Markdown
python -m exercises grade class/* --table marks.csv # or as CSV, for a spreadsheet; written after each folder
python -m exercises grade class/* --messages told   # and a message for each learner: told/class-anna.md
python -m exercises grade anna --only 2.1 2.3

A folder is a learner's checkout, or just has the files of the answers in it, at any depth. Only the answers are taken
from there, the newest of each, and they run in a copy of this checkout's exercises in which there are no solutions.
Records (`.exercises.json`) are neither read nor written. Folders are graded side by side.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from .catalogue import FOLDER, Exercise, Grade, exercises, grade

PATIENCE = 60.0  # seconds by the clock that one test of an answer may take


def answer_in(folder: Path, exercise: Exercise) -> Path | None:
    """The answer to an exercise in a learner's folder, no link and no solution: of the files that are not as they were
    handed out, the newest in the stage's folder, or else the newest."""
    skeleton = exercise.work.read_bytes()
    found = [path for path in folder.rglob(exercise.work.name) if path.is_file() and path.parent.name != "solutions"]
    found = [path for path in found if not path.is_symlink() and folder.resolve() in path.resolve().parents]
    stage = exercise.text.parent.name
    return max(
        found,
        key=lambda path: (path.read_bytes() != skeleton, path.parent.name == stage, path.stat().st_mtime, path),
        default=None,
    )


def grade_folders(
    folders: Sequence[Path],
    numbers: Sequence[str],
    jobs: int = 1,
    patience: float = PATIENCE,
    tell: Callable[[dict[str, dict[str, Grade]]], None] = lambda grades: None,
) -> dict[str, dict[str, Grade]]:
    """The grade of each exercise by number, for each folder; the state is "missing" if there is no file.

    jobs: folders at the same time.
    tell: gets the grades so far, whenever a folder is done.
    """
    done: dict[str, dict[str, Grade]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(grade_folder, folder, numbers, patience): str(folder) for folder in folders}
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            tell({str(folder): done[str(folder)] for folder in folders if str(folder) in done})
    return {str(folder): done[str(folder)] for folder in folders}


def grade_folder(folder: Path, numbers: Sequence[str], patience: float) -> dict[str, Grade]:
    """The grades of one folder, in a separate process."""
    with tempfile.TemporaryDirectory(prefix="grade-") as clean:
        shutil.copytree(
            FOLDER, Path(clean) / "exercises", ignore=shutil.ignore_patterns("solutions", "solution.py", "__pycache__")
        )
        paths = os.pathsep.join([clean, str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-c", "from exercises.marks import grade_here; grade_here()"]
        found = {number: answer_in(folder, exercises()[number]) for number in numbers}
        asked = json.dumps([{number: str(path.resolve()) for number, path in found.items() if path}, patience])
        subprocess.run([*command, asked], cwd=clean, env={**os.environ, "PYTHONPATH": paths}, check=True)
        results = json.loads((Path(clean) / "results.json").read_text(encoding="utf-8"))
    return {number: Grade(**results.get(number, {"state": "missing"})) for number in numbers}


def grade_here() -> None:
    """What `grade_folder` runs in the copy: the answers of a folder take the learner's place there."""
    found, patience = json.loads(sys.argv[1])
    grades = {}
    for number, answer in found.items():
        exercise = exercises()[number]
        shutil.copy(answer, exercise.work)
        grades[number] = asdict(grade(exercise, quiet=True, patience=patience))
    Path("results.json").write_text(json.dumps(grades), encoding="utf-8")


def copies(folders: Sequence[Path], numbers: Sequence[str]) -> dict[tuple[str, str], str]:
    """(folder, exercise) -> an earlier folder whose answer is the same, byte for byte, and not what was handed out."""
    found: dict[tuple[str, str], str] = {}
    for number in numbers:
        exercise, first = exercises()[number], {}
        for folder in folders:
            answer = answer_in(folder, exercise)
            if answer and (content := answer.read_bytes()) != exercise.work.read_bytes():
                if content in first:
                    found[str(folder), number] = first[content]
                first.setdefault(content, str(folder))
    return found


def cell(result: Grade) -> str:
    """A grade as a table has it: how many tests pass, if not all do."""
    count = f" {result.num_passed}/{result.num_tests}" if result.state == "failing" and result.num_tests else ""
    return result.state + count


def table(grades: dict[str, dict[str, Grade]], kind: str, same: Mapping[tuple[str, str], str] | None = None) -> str:
    """A row for each folder: its name, how many exercises are passed, and each of them."""
    numbers = list(next(iter(grades.values())))
    rows = [["folder", "passed", *numbers]]
    for folder, results in grades.items():
        passed = sum(result.state == "passed" for result in results.values())
        cells = [cell(results[number]) for number in numbers]
        others = [(same or {}).get((folder, number)) for number in numbers]
        cells = [f"{said} (same file as {other})" if other else said for said, other in zip(cells, others, strict=True)]
        rows.append([folder, f"{passed} of {len(numbers)}", *cells])
    if kind == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def message(results: dict[str, Grade]) -> str:
    """What a learner is told: what is passed, and of each other answer what its check says."""
    passed = [number for number, result in results.items() if result.state == "passed"]
    parts = [f"{len(passed)} of {len(results)} passed: {', '.join(passed) or 'none'}."]
    for number, result in results.items():
        if result.state != "passed":
            said = [f"    {line}" for line in result.message.splitlines()]
            parts.append("\n".join([f"**{number} {exercises()[number].title}**: {cell(result)}", "", *said]).rstrip())
    return "\n\n".join(parts) + "\n"


def main(argv: list[str]) -> int:
    """The command `grade`."""
    parser = argparse.ArgumentParser(
        prog="python -m exercises grade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of a learner")
    parser.add_argument("--only", nargs="+", metavar="N.M", default=list(exercises()), help="these exercises")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write to this file: .csv or .md; default: stdout")
    parser.add_argument("--messages", type=Path, metavar="DIRECTORY", help="write a message for each learner here")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="folders at once")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="SECONDS", help="that a test of an answer may take"
    )
    args = parser.parse_args(argv)
    if unknown := [number for number in args.only if number not in exercises()]:
        parser.error(f"there is no exercise {unknown[0]!r}; `python -m exercises` lists them")
    if args.table and args.table.suffix not in (".csv", ".md"):
        parser.error(f"--table takes a file that ends in .csv or .md, got {args.table}")
    if args.jobs < 1 or not args.patience > 0:
        parser.error(f"--jobs and --patience take numbers above 0, got {args.jobs} and {args.patience}")
    if missing := [folder for folder in args.folders if not folder.is_dir()]:
        raise ValueError(f"{missing[0]} is no folder")
    kind, same = getattr(args.table, "suffix", ""), copies(args.folders, args.only)

    def tell(grades: dict[str, dict[str, Grade]]) -> None:
        if args.table:
            args.table.write_text(table(grades, kind, same), encoding="utf-8")
        if args.messages:
            args.messages.mkdir(parents=True, exist_ok=True)
            for folder, results in grades.items():
                name = "-".join(part for part in Path(folder).parts if part.strip("./\\"))
                (args.messages / f"{name or 'here'}.md").write_text(message(results), encoding="utf-8")

    grades = grade_folders(args.folders, args.only, args.jobs, args.patience, tell)
    if not args.table:
        print(table(grades, kind, same), end="")
    return 0

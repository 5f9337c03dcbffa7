"""A class's answers, checked from the files alone: a row for each folder, as CSV.

python -m exercises grade anna ben                  # to the terminal
python -m exercises grade class/* > marks.csv
python -m exercises grade anna --only 2.1 2.3 milestone-4 capstone

A folder is a learner's checkout, or just contains the answers' files, at any depth; of several files with the same name
the newest counts. Every exercise has a column, and so have both parts of the capstone and each milestone at which some
folder has an engine. Pytest checks each answer in a separate process.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

from .catalogue import CAPSTONES, FOLDER, exercises
from .milestones import MILESTONES
from .report import FLAGS
from .skeletons import RECORD, read_record

LIMIT = 300  # seconds that the check of one answer may take

NAMES = [*exercises(), *(f"milestone-{milestone.number}" for milestone in MILESTONES), *CAPSTONES]


def newest(folder: Path) -> dict[str, Path]:
    """The answers in a folder by name: files, and directories of engines."""
    files = [path for path in folder.rglob("*") if not {"solutions", ".venv"} & set(path.parts)]
    files = [path for path in files if path.is_file() and not path.is_symlink()]  # not a link to a solution
    files.sort(key=lambda path: path.stat().st_mtime)
    found = {path.name: path for path in files}
    given = {number: found.get(exercise.work.name) for number, exercise in exercises().items()}
    answers = {number: file for number, file in given.items() if file and not untouched(file, exercises()[number].work)}
    answers |= {f"milestone-{read_record(path.parent)[0]}": path.parent for path in files if path.name == RECORD}
    for name, stub in CAPSTONES.items():
        if stub.name in found and found[stub.name].read_bytes() != stub.read_bytes():
            answers[name] = found[stub.name]
    return answers


def untouched(answer: Path, own: Path) -> bool:
    """Whether an answer is still as in this checkout. In the checkout itself nobody can tell."""
    return not answer.samefile(own) and answer.read_bytes() == own.read_bytes()


def command(name: str, answer: Path) -> list[str]:
    """Pytest's arguments for one answer."""
    if name.startswith("milestone-"):
        from .engine import engine_command

        return engine_command(answer, int(name.removeprefix("milestone-")))
    test = CAPSTONES[name].with_name(f"test_{CAPSTONES[name].name}") if name in CAPSTONES else exercises()[name].test
    return [*FLAGS, str(test), f"--answer={answer}"]


def mark(name: str, answer: Path | None) -> str:
    """The text of a cell: "passed", how many tests passed ("3/7"), "failing" if no test ran, "timed out", "missing"."""
    if answer is None:
        return "missing"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        arguments = [sys.executable, "-m", "pytest", *command(name, answer.resolve()), f"--junitxml={report}"]
        try:
            subprocess.run(arguments, cwd=FOLDER.parent, capture_output=True, check=False, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return "timed out"
        suite = ElementTree.parse(report).find("testsuite") if report.exists() else None
    if suite is None:  # the answer ended the process
        return "failing"
    tests, failures, errors, skipped = (int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped"))
    good = tests - failures - errors - skipped
    return "passed" if good and not failures + errors else f"{good}/{tests}"


def main(argv: Sequence[str]) -> int:
    """The command `grade`."""
    parser = argparse.ArgumentParser(
        prog="python -m exercises grade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a learner's folder")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="N.M", help="these exercises, or other columns")
    args = parser.parse_args(argv)
    if missing := [folder for folder in args.folders if not folder.is_dir()]:
        raise ValueError(f"{missing[0]} is not a folder")
    answers = {folder: newest(folder) for folder in args.folders}
    names = args.only or [name for name in NAMES if name in exercises() or any(name in of for of in answers.values())]
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["folder", "passed", *names])
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        for folder, of in answers.items():
            marks = list(pool.map(mark, names, map(of.get, names)))
            table.writerow([folder, marks.count("passed"), *marks])
            sys.stdout.flush()
    return 0

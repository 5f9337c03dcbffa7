"""A class's answers, graded from the files alone.

python -m exercises grade anna ben                  # a table in Markdown
python -m exercises grade class/* --table marks.csv # or as CSV, for a spreadsheet; written after each folder
python -m exercises grade class/* --messages told   # and a message for each learner: told/class-anna.md
python -m exercises grade anna --only 2.1 2.3 milestone-4 capstone predictions

A folder is a learner's checkout, or just contains the answers' files, at any depth. Only the answers are taken from
there, the newest of each, and they run in a copy of this checkout's exercises without the solutions. Folders are graded
in parallel.

Every exercise has a column. Milestones, the capstone and the predictions have one if some folder has them: engines that
`start` made, each for the milestone at which it was started; `llama.py`; and the learner's record, `.exercises.json`,
which is used for nothing else and is not written.
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

from . import predict
from .catalogue import FOLDER, PROGRESS, Grade, exercises, grade
from .milestones import MILESTONES
from .skeletons import RECORD, own_files, read_record

PATIENCE = 60.0  # wall-clock seconds that one test of an answer may take
MILESTONE = {f"milestone-{milestone.number}": milestone for milestone in MILESTONES}
CAPSTONE, PREDICTIONS = FOLDER / "capstone" / "llama.py", "predictions"
TITLES = {
    **{number: exercise.title for number, exercise in exercises().items()},
    **{name: milestone.title for name, milestone in MILESTONE.items()},
    "capstone": "load a Llama",
    PREDICTIONS: "made, and compared",
}  # of all columns, in order


def answers_in(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The files in a learner's folder for these columns, without links and solutions. Of several files take the newest
    one in its usual folder that differs from the handed-out one, else the newest; of several engines, the last
    changed."""
    found: dict[str, list[Path]] = {}
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in ("solutions", "site-packages")]
        for path in (Path(where, name) for name in files):
            if path.is_file() and not path.is_symlink():
                found.setdefault(path.name, []).append(path)
    engines = [path.parent for path in found.get(RECORD, [])]
    answers: dict[str, Path | None] = {}
    for name in names:
        if name in MILESTONE:
            started = [engine for engine in engines if read_record(engine)[0] == MILESTONE[name].number]
            answers[name] = max(started, key=changed, default=None)
            continue
        skeleton = skeleton_of(name)
        content = skeleton.read_bytes() if skeleton else b""
        parent = skeleton.parent.name if skeleton else folder.name
        answers[name] = max(
            found.get(skeleton.name if skeleton else PROGRESS.name, []),
            key=lambda path: (path.read_bytes() != content, path.parent.name == parent, path.stat().st_mtime, path),
            default=None,
        )
    if (capstone := answers.get("capstone")) and capstone.read_bytes() == CAPSTONE.read_bytes():
        del answers["capstone"]  # every checkout has it
    return {name: path for name, path in answers.items() if path}


def skeleton_of(name: str) -> Path | None:
    """The file that a learner fills in, as it was handed out; None if the column is not about one file."""
    return exercises()[name].work if name in exercises() else CAPSTONE if name == "capstone" else None


def changed(engine: Path) -> tuple[float, Path]:
    """When an engine was last changed; an unchanged skeleton is older than any."""
    return max(((engine / name).stat().st_mtime for name in own_files(engine)), default=0.0), engine


def grade_folders(
    answers: Mapping[Path, Mapping[str, Path]],
    names: Sequence[str],
    jobs: int = 1,
    patience: float = PATIENCE,
    tell: Callable[[dict[str, dict[str, Grade]]], None] = lambda grades: None,
) -> dict[str, dict[str, Grade]]:
    """The grade of each column by name, for each folder; the state is "missing" if there is no file.

    answers: of each folder.
    jobs: number of folders graded at the same time.
    tell: gets the grades so far, whenever a folder is done.
    """
    done: dict[str, dict[str, Grade]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(grade_folder, of, names, patience): str(folder) for folder, of in answers.items()}
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            tell({str(folder): done[str(folder)] for folder in answers if str(folder) in done})
    return {str(folder): done[str(folder)] for folder in answers}


def grade_folder(answers: Mapping[str, Path], names: Sequence[str], patience: float) -> dict[str, Grade]:
    """The grades of one folder's answers, in a separate process."""
    with tempfile.TemporaryDirectory(prefix="grade-") as clean:
        shutil.copytree(
            FOLDER, Path(clean) / "exercises", ignore=shutil.ignore_patterns("solutions", "solution.py", "__pycache__")
        )
        paths = os.pathsep.join([clean, str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-c", "from exercises.marks import grade_here; grade_here()"]
        asked = json.dumps([{name: str(path.resolve()) for name, path in answers.items()}, patience])
        subprocess.run([*command, asked], cwd=clean, env={**os.environ, "PYTHONPATH": paths}, check=True)
        results = json.loads((Path(clean) / "results.json").read_text(encoding="utf-8"))
    return {name: Grade(**results.get(name, {"state": "missing"})) for name in names}


def grade_here() -> None:
    """What `grade_folder` runs in the copy, where a folder's answers replace the learner's files."""
    answers, patience = json.loads(sys.argv[1])
    grades = {name: asdict(grade_answer(name, Path(path), patience)) for name, path in answers.items()}
    Path("results.json").write_text(json.dumps(grades), encoding="utf-8")


def grade_answer(name: str, answer: Path, patience: float) -> Grade:
    """The grade of one answer, after copying it to where its column expects it."""
    if name == PREDICTIONS:
        shutil.copy(answer, PROGRESS)
        try:
            return predict.grade()
        finally:
            PROGRESS.unlink()  # exercises must not see it
    if name in MILESTONE:
        from .milestones.run import grade_engine

        own = own_files(answer)
        engine = Path(shutil.copytree(answer, name, ignore=not_followed))
        return grade_engine(engine, MILESTONE[name].number, patience) if own else Grade("not started")
    if name == "capstone":
        from .capstone.check import grade_file

        return grade_file(Path(shutil.copy(answer, CAPSTONE)), patience)
    exercise = exercises()[name]
    shutil.copy(answer, exercise.work)
    return grade(exercise, quiet=True, patience=patience)


def not_followed(folder: str, names: list[str]) -> list[str]:
    """What is not copied with an engine: links, and files that Python compiled."""
    return [name for name in names if name == "__pycache__" or Path(folder, name).is_symlink()]


def copies(answers: Mapping[Path, Mapping[str, Path]], names: Sequence[str]) -> dict[tuple[str, str], str]:
    """(folder, column) -> an earlier folder whose file is identical, and not the one that was handed out."""
    found: dict[tuple[str, str], str] = {}
    for name in names:
        skeleton, first = skeleton_of(name), {}
        for folder, of in answers.items():
            if skeleton and name in of and (content := of[name].read_bytes()) != skeleton.read_bytes():
                if content in first:
                    found[str(folder), name] = first[content]
                first.setdefault(content, str(folder))
    return found


def cell(result: Grade) -> str:
    """A grade as shown in a table: how many tests pass, if not all do."""
    count = f" {result.num_passed}/{result.num_tests}" if result.state != "passed" and result.num_tests else ""
    return result.state + count


def table(grades: dict[str, dict[str, Grade]], kind: str, same: Mapping[tuple[str, str], str] | None = None) -> str:
    """A row for each folder: its name, how many columns passed, and each of them."""
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
    """The message for a learner: what passed, and what the checks say about the other answers."""
    passed = [number for number, result in results.items() if result.state == "passed"]
    parts = [f"{len(passed)} of {len(results)} passed: {', '.join(passed) or 'none'}."]
    for number, result in results.items():
        if result.state != "passed":
            said = [f"    {line}" for line in result.message.splitlines()]
            parts.append("\n".join([f"**{number} {TITLES[number]}**: {cell(result)}", "", *said]).rstrip())
    return "\n\n".join(parts) + "\n"


def main(argv: list[str]) -> int:
    """The command `grade`."""
    parser = argparse.ArgumentParser(
        prog="python -m exercises grade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a learner's folder")
    parser.add_argument("--only", nargs="+", metavar="N.M", help="these exercises, or other columns")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write to this file: .csv or .md; default: stdout")
    parser.add_argument("--messages", type=Path, metavar="DIRECTORY", help="write a message for each learner here")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="folders at once")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="SECONDS", help="that one test of an answer may take"
    )
    args = parser.parse_args(argv)
    if unknown := [name for name in args.only or () if name not in TITLES]:
        others = ", ".join(name for name in TITLES if name not in exercises())
        parser.error(f"there is no exercise {unknown[0]!r}; `python -m exercises` lists them, and there are {others}")
    if args.table and args.table.suffix not in (".csv", ".md"):
        parser.error(f"--table takes a file that ends in .csv or .md, got {args.table}")
    if args.jobs < 1 or not args.patience > 0:
        parser.error(f"--jobs and --patience take numbers above 0, got {args.jobs} and {args.patience}")
    if missing := [folder for folder in args.folders if not folder.is_dir()]:
        raise ValueError(f"{missing[0]} is not a folder")
    answers = {folder: answers_in(folder, args.only or list(TITLES)) for folder in args.folders}
    names = args.only or [name for name in TITLES if name in exercises() or any(name in of for of in answers.values())]
    kind, same = getattr(args.table, "suffix", ""), copies(answers, names)

    def tell(grades: dict[str, dict[str, Grade]]) -> None:
        if args.table:
            args.table.write_text(table(grades, kind, same), encoding="utf-8")
        if args.messages:
            args.messages.mkdir(parents=True, exist_ok=True)
            for folder, results in grades.items():
                name = "-".join(part for part in Path(folder).parts if part.strip("./\\"))
                (args.messages / f"{name or 'here'}.md").write_text(message(results), encoding="utf-8")

    grades = grade_folders(answers, names, args.jobs, args.patience, tell)
    if not args.table:
        print(table(grades, kind, same), end="")
    return 0

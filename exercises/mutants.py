"""Wrong answers by machine: each solution with one thing changed (tools/mutants.py).

    python -m exercises.mutants                   # all exercises; prints the survivors, and a table
    python -m exercises.mutants 5.1 milestone-5   # some of them; also milestone-1 to milestone-8, and capstone
    python -m exercises.mutants --share 0.1       # a share of them, picked by a seed
    python -m exercises.mutants --list 2.4        # only list them

A mutant is killed when the tests fail and say why. For a milestone, the functions that a learner writes are mutated. A
mutant that no test can tell from the solution is equivalent: it is listed, with the reason, in
`exercises/equivalent_mutants.txt`. Any other survivor is a gap in the tests.
"""

import argparse
import ast
import functools
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exercises import examples
from exercises.catalogue import FOLDER, Exercise, Grade, exercises, grade
from exercises.milestones import MILESTONES, Milestone
from exercises.skeletons import functions, is_written
from tools.engine_mutants import hardly_shows
from tools.mutants import Mutant, at_the_border, in_c, in_python, numbered

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
KINDS = ("made", "killed", "equivalent", "survived")


@dataclass(frozen=True)
class Whole:
    """An answer that is a directory: an engine for a milestone, or the capstone.

    Attributes:
        solution: the directory that has it.
        to_write: file -> the functions that a learner writes.
        grade: grades such a directory.
    """

    number: str
    solution: Path
    to_write: Mapping[str, Sequence[str]]
    grade: Callable[[Path], Grade]

    def mutants(self) -> list[Mutant]:
        """All mutants except where a mistake hardly shows, or only in a trace; `where` begins with the file."""
        made, traced = [], set()
        for name, names in self.to_write.items():
            source = (self.solution / name).read_text(encoding="utf-8")
            traced |= {(name, i) for i, line in enumerate(source.splitlines(), 1) if "self.emit(" in line}
            made += [
                mutant._replace(where=f"{name} {mutant.where}")
                for mutant in in_python(source)
                if mutant.where in names and not hardly_shows(mutant)
            ]
        return [mutant for mutant in numbered(made) if (mutant.where.split()[0], mutant.line) not in traced]

    def graded(self, mutant: Mutant) -> Grade:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(shutil.copytree(self.solution, Path(folder) / "engine"))
            path = directory / mutant.where.split()[0]
            path.write_text(mutant.text, encoding="utf-8")
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):  # the source may have the same timestamp
                compiled.unlink()
            return self.grade(directory)


@functools.cache
def wholes() -> dict[str, Whole]:
    """The milestones and the capstone by name."""
    from exercises.capstone.check import grade_file  # imported late: they import torch
    from exercises.milestones.run import grade_engine

    def graded(milestone: Milestone, engine: Path) -> Grade:
        """By the milestone; and if it passes, by the next one of the same stage: sharing shows only in milestone 6."""
        later = [other.number for other in MILESTONES[milestone.number - 1 :] if other.stage == milestone.stage]
        grades = (grade_engine(engine, number, seconds=10, patience=60) for number in later)
        return next((one for one in grades if one.state != "passed"), Grade("passed", ""))

    found = [
        Whole(
            f"milestone-{milestone.number}",
            FOLDER.parent / milestone.stage,
            milestone.to_write,
            functools.partial(graded, milestone),
        )
        for milestone in MILESTONES
    ]
    skeleton = FOLDER / "capstone" / "llama.py"
    names = [
        name
        for name in functions(ast.parse(skeleton.read_text(encoding="utf-8")))
        if not is_written(skeleton.read_bytes(), [name])
    ]
    capstone = Whole(
        "capstone", skeleton.parent, {"solution.py": names}, lambda of: grade_file(of / "solution.py", patience=60)
    )
    return {whole.number: whole for whole in (*found, capstone)}


def mutants(exercise: Exercise | Whole) -> list[Mutant]:
    """All mutants of an exercise, a milestone or the capstone."""
    if isinstance(exercise, Whole):
        return exercise.mutants()
    source = exercise.solution_text
    if exercise.work.suffix == ".c":
        return numbered(in_c(source))
    return numbered([*in_python(source), *at_the_border(source, ast.parse(source))])


def has_function(exercise: Exercise, name: str) -> bool:
    """Whether the learner's file has this function too: tests don't call a function that only the solution has."""
    skeleton = exercise.work.read_text(encoding="utf-8")
    return f"{'' if exercise.work.suffix == '.c' else 'def '}{name.split('.')[-1]}(" in skeleton


def is_undefined(exercise: Exercise | Whole) -> bool:
    """Whether mutants may have undefined behavior in C: one compiler's program shows it, another's does not."""
    return isinstance(exercise, Exercise) and exercise.work.suffix == ".c"


def listed() -> dict[tuple[str, str], str]:
    """(exercise, mutant) -> why it is equivalent. A name that ends in * stands for all names with that prefix."""
    found = {}
    for line in EQUIVALENT.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            number, name, reason = line.split(" | ")
            found[number, name] = reason
    return found


def is_listed(number: str, name: str) -> bool:
    begins = [of for exercise, of in listed() if exercise == number and of.endswith("*")]
    return (number, name) in listed() or any(name.startswith(of[:-1]) for of in begins)


def killed(exercise: Exercise | Whole, mutant: Mutant, seconds: float = 20) -> tuple[bool, str]:
    """Whether the tests fail, and what they say."""
    if isinstance(exercise, Whole):
        result = exercise.graded(mutant)
        if result.state == "not checked":
            raise RuntimeError(result.message)
        return result.state != "passed", result.message
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / exercise.work.name
        path.write_text(mutant.text, encoding="utf-8")
        result = grade(exercise, path, whole=False, seconds=seconds, patience=60)
    if result.state == "not checked":
        raise RuntimeError(result.message)
    if is_undefined(exercise) and result.message.startswith("the file can't be read"):
        raise ValueError(f"{mutant.name} can't be compiled: {result.message}")
    return result.state != "passed", result.message


def chosen(numbers: Sequence[str], share: float, seed: int) -> Iterator[tuple[Exercise | Whole, Mutant]]:
    """A share of the mutants of each exercise, at least one."""
    rng = random.Random(seed)
    for number in numbers or exercises():
        exercise = exercises()[number] if number in exercises() else wholes()[number]
        made = mutants(exercise)
        if isinstance(exercise, Exercise):
            made = [mutant for mutant in made if mutant.kind != "border" or has_function(exercise, mutant.where)]
        some = made if share >= 1 else rng.sample(made, max(1, round(share * len(made))))
        yield from ((exercise, mutant) for mutant in some)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument(
        "numbers", nargs="*", metavar="N.M", help="exercises, milestone-1 to 8, capstone; left out: all exercises"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants of each exercise")
    parser.add_argument("--seed", type=int, default=0, help="which share")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--words", action="store_true", help="show the message that each one gets")
    args = parser.parse_args()
    examples.SIMPLER = 0  # examples are not needed here
    counts: dict[str, Counter[str]] = {}
    for exercise, mutant in chosen(args.numbers, args.share, args.seed):
        if args.list:
            print(exercise.number, "|", mutant.name)
            continue
        count = counts.setdefault(exercise.number, Counter())
        count["made"] += 1
        dead, message = killed(exercise, mutant)
        known = is_listed(exercise.number, mutant.name)
        count["killed" if dead else "equivalent" if known else "survived"] += 1
        if not dead and not known:
            print(f"SURVIVES {exercise.number} | {mutant.name}", flush=True)
        elif dead and (exercise.number, mutant.name) in listed() and not is_undefined(exercise):
            print(f"LISTED BUT KILLED {exercise.number} | {mutant.name}", flush=True)
        if args.words:
            print(f"{exercise.number} | {mutant.name}\n{message}\n", flush=True)
    total = sum(counts.values(), Counter())
    for number, count in [*counts.items(), ("all", total)]:
        print(f"{number:5}" + "".join(f"{count[what]:6} {what}" for what in KINDS))
    return 1 if total["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())

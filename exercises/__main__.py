"""The course's exercises: list them, grade answers, and show your progress.

python -m exercises                 # list them all, with your progress
python -m exercises check 2.3       # grade one, several, or `all`
python -m exercises hint 2.3        # the next hint
python -m exercises reveal 2.3      # a solution, after at least one attempt
python -m exercises time 6.2        # how fast a C answer is, compared with torch
python -m exercises predict 2       # stage 2's experiment: you predict, it runs, and both are compared
python -m exercises start 1         # a skeleton for your own engine, in mine/
python -m exercises engine          # check that engine
python -m exercises grade FOLDER…   # for a class: grade the answers in these folders from the files alone, as a table
"""

import argparse
import os
import sys
from collections.abc import Callable

from stagewise.console import reason

from . import child, predict
from .catalogue import Exercise, Grade, exercises, grade, prepare_streams, progress, read_progress


def show_all() -> int:
    """A line for each exercise, and how many are passed."""
    records = read_progress()
    stage = ""
    for number, exercise in exercises().items():
        if exercise.text.parent.name != stage:
            stage = exercise.text.parent.name
            print(f"\n{stage}")
            for experiment in predict.EXPERIMENTS:
                if f"stage{experiment.stage}" == stage:
                    print(f"  {predict.line(experiment, records)}")
        state = records.get(number, {}).get("state", "not started")
        mark = {"passed": "✓", "failing": "✗"}.get(state, " ")
        print(f"  {mark} {number:4} {exercise.title:48} {exercise.minutes:3} min   {state}")
    passed = sum(records.get(number, {}).get("state") == "passed" for number in exercises())
    print(
        f"\n{passed} of {len(exercises())} passed. The texts are in exercises/stage…/; begin with exercises/README.md."
    )
    print("Your own engine: exercises/engine.md, and `python -m exercises engine`.")
    return 0


def check(numbers: list[str]) -> int:
    """Grade exercises and record it."""
    failed = 0
    for number in exercises() if numbers == ["all"] else numbers:
        exercise = exercises()[number]
        result = grade(exercise)
        failed += result.state != "passed"
        try:
            with progress(number) as record:
                graded = result.state != "not checked"
                if graded and record.get("state") != "passed":  # a passed exercise may be tried again
                    record["state"] = result.state
                record["attempts"] = record.get("attempts", 0) + (graded and result.state != "not started")
        finally:  # printed even if it can't be recorded
            tell(exercise, result)
    return 1 if failed else 0


def tell(exercise: Exercise, result: Grade) -> None:
    """The outcome of a check."""
    name = f"{exercise.number} {exercise.title}"
    if result.state == "passed":
        print(f"{name}: passed, {result.seconds:.1f} s")
        return
    how_far = f"; {result.num_passed} of {result.num_tests} tests pass" if result.num_tests else ""
    test = f" ({result.test})" if result.test else ""
    print(f"{name}: {result.state}{test}{how_far}")
    print(result.message)  # verbatim: code to paste must start at the left margin
    if result.state == "not started":
        text = exercise.text.relative_to(exercise.text.parents[2])
        print(f"read {text}, then edit {exercise.work.name} next to it")


def hint(number: str) -> int:
    """The next hint; once all have been shown, all of them again."""
    exercise = exercises()[number]
    with progress(number) as record:
        shown = record.get("hints", 0)
        record["hints"] = min(shown + 1, len(exercise.hints))
    if shown >= len(exercise.hints):
        print(f"These are all {len(exercise.hints)} hints; `python -m exercises reveal {number}` shows a solution.")
    for i, (title, text) in enumerate(exercise.hints[: shown + 1], start=1):
        if i == shown + 1 or shown >= len(exercise.hints):
            print(f"hint {i} of {len(exercise.hints)}: {title}\n{text}")
    return 0


def reveal(number: str) -> int:
    """The solution, after at least one attempt."""
    if not read_progress().get(number, {}).get("attempts"):
        print(
            f"Try it first: `python -m exercises check {number}`. You learn more from a solution after an attempt.",
            file=sys.stderr,
        )
        return 1
    print(exercises()[number].solution_text, end="")
    return 0


def start(argv: list[str]) -> int:
    """Put the skeleton of a milestone into a directory."""
    from . import skeletons  # imported late, like the next: they import torch

    return skeletons.main(argv)


def engine(argv: list[str]) -> int:
    """Run the milestones on an engine."""
    from .milestones import run

    return run.main(argv)


def time_it(argv: list[str]) -> int:
    """How fast a C answer is."""
    from . import timing

    return timing.main(argv)


def grade_class(argv: list[str]) -> int:
    """Grade the answers of a class and write a table."""
    from . import marks

    return marks.main(argv)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    own = {
        "predict": predict.main,
        "start": start,
        "engine": engine,
        "grade": grade_class,
        "time": time_it,
    }  # these parse their own flags
    if argv[:1] and argv[0] in own:
        return guarded(lambda: own[argv[0]](argv[1:]))
    parser = argparse.ArgumentParser(
        prog="python -m exercises", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = ("list", "check", "hint", "reveal", *own)
    parser.add_argument("action", choices=actions, nargs="?", default="list")
    parser.add_argument("numbers", nargs="*", metavar="N.M")
    args = parser.parse_args(argv)
    if args.action == "list" and args.numbers:
        parser.error("list takes no exercise: it shows all of them")
    if args.action != "list" and not args.numbers:
        parser.error(f"which one? For example: {args.action} {next(iter(exercises()))}")
    if unknown := [n for n in args.numbers if n not in exercises() and not (n == "all" and args.action == "check")]:
        parser.error(f"there is no exercise {unknown[0]!r}; `python -m exercises` lists them")
    if args.action in ("hint", "reveal") and len(args.numbers) > 1:
        parser.error(f"{args.action} takes one exercise")
    return guarded(lambda: run(args.action, args.numbers))


def guarded(command: Callable[[], int]) -> int:
    """A command's exit status; an error is one line."""
    prepare_streams()
    try:
        return command()
    except BrokenPipeError:  # the reader of stdout has gone: `| head`
        return 1
    except (ValueError, OSError) as error:
        print(f"exercises: {reason(error)}", file=sys.stderr)
        return 2
    except child.CheckFailed as error:
        print(f"exercises: the check itself failed: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def write_out(status: int) -> int:
    """Flush stdout, or say why it failed; at the interpreter's exit it would be a traceback."""
    try:
        if sys.stdout is not None:  # it was closed from the beginning
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return status or 1
        print(f"exercises: {reason(error)}", file=sys.stderr)
        return 2
    return status


def run(action: str, numbers: list[str]) -> int:
    if action == "list":
        return show_all()
    if action == "check":
        return check(numbers)
    return {"hint": hint, "reveal": reveal}[action](numbers[0])


if __name__ == "__main__":
    sys.exit(write_out(main()))

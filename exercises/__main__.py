"""The course's exercises: list them, check answers, and show your progress.

python -m exercises                 # list them all, with your progress
python -m exercises check 2.3       # check one, several, `all`, `capstone` or `capstone-2`
python -m exercises hint 2.3        # the next hint
python -m exercises reveal 2.3      # a solution, after at least one attempt
python -m exercises time 6.2        # how fast a C answer is, compared with torch
python -m exercises predict 2       # stage 2's experiment: you predict, it runs, and both are compared
python -m exercises start 1         # a skeleton for your own engine, in mine/
python -m exercises engine          # check that engine
python -m exercises grade FOLDER…   # for a class: check the answers in these folders from the files alone, as a table
"""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable

from stagewise.exits import reason

from .catalogue import CAPSTONES, exercises, read_progress, record

OWN = {  # these parse their own flags; imported late, because most of them import torch
    "predict": "predict",
    "start": "skeletons",
    "engine": "engine",
    "grade": "marks",
    "time": "timing",
}


def show_all() -> int:
    """A line for each exercise, and how many are passed."""
    from . import predict

    records, stage = read_progress(), ""
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
    print(f"\n{progress()}")
    print("Begin with exercises/README.md. Your own engine: exercises/engine.md, and `python -m exercises engine`.")
    return 0


def progress() -> str:
    """How many exercises are passed, and the next one."""
    records = read_progress()
    left = [exercise for number, exercise in exercises().items() if records.get(number, {}).get("state") != "passed"]
    text = f"{len(exercises()) - len(left)} of {len(exercises())} passed."
    if left:
        text += f" Next: {left[0].number} {left[0].title} ({left[0].minutes} minutes), {shown(left[0].text)}"
    return text


def shown(path: object) -> str:
    return os.path.relpath(str(path))


def check(numbers: list[str]) -> int:
    """Check exercises and record it."""
    from . import report

    failed = 0
    for number in exercises() if numbers == ["all"] else numbers:
        exercise = exercises().get(number)
        work = exercise.work if exercise else CAPSTONES[number]
        name = f"{number} {exercise.title}" if exercise else number
        test = exercise.test if exercise else work.with_name(f"test_{work.name}")
        result = report.run([test], work)
        how_far = f", {result.num_passed} of {result.num_tests} tests pass" if result.state == "failing" else ""
        print(f"{name}: {result.state}{how_far}")
        print("".join(f"  {line}\n" for line in result.message.splitlines()), end="")
        failed += result.state != "passed"
        if result.state == "not checked":
            continue
        if result.state == "not started":
            text = exercise.text if exercise else work.with_name("README.md")
            print(f"  read {shown(text)}, then edit {shown(work)}")
        kept = read_progress().get(number, {})
        state = "passed" if kept.get("state") == "passed" else result.state  # a passed exercise may be tried again
        record(number, state=state, attempts=kept.get("attempts", 0) + (result.state != "not started"))
    print(progress())
    return 1 if failed else 0


def hint(number: str) -> int:
    """The next hint; once all have been shown, all of them again."""
    hints, given = exercises()[number].hints, read_progress().get(number, {}).get("hints", 0)
    record(number, hints=min(given + 1, len(hints)))
    if given >= len(hints):
        print(f"These are all {len(hints)} hints; `python -m exercises reveal {number}` shows a solution.")
    for i, (title, text) in enumerate(hints, start=1):
        if i == given + 1 or given >= len(hints):
            print(f"hint {i} of {len(hints)}: {title}\n{text}")
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


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] and argv[0] in OWN:
        return guarded(lambda: importlib.import_module(f"exercises.{OWN[argv[0]]}").main(argv[1:]))
    parser = argparse.ArgumentParser(
        prog="python -m exercises", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = ("list", "check", "hint", "reveal", *OWN)
    parser.add_argument("action", nargs="?", default="list", help=", ".join(actions))
    parser.add_argument("numbers", nargs="*", metavar="N.M")
    args = parser.parse_args(argv)
    if args.action not in actions:
        parser.error(f"there is no command {args.action!r}; {meant(args.action, actions)}")
    if args.action == "list" and args.numbers:
        parser.error("list takes no exercise: it shows all of them")
    if args.action != "list" and not args.numbers:
        parser.error(f"which one? For example: {args.action} {next(iter(exercises()))}")
    others = ("all", *CAPSTONES) if args.action == "check" else ()
    if unknown := [number for number in args.numbers if number not in (*exercises(), *others)]:
        parser.error(f"there is no exercise {unknown[0]!r}; {meant(unknown[0], exercises())}")
    if args.action in ("hint", "reveal") and len(args.numbers) > 1:
        parser.error(f"{args.action} takes one exercise")
    if args.action == "list":
        return guarded(show_all)
    if args.action == "check":
        return guarded(lambda: check(args.numbers))
    return guarded(lambda: {"hint": hint, "reveal": reveal}[args.action](args.numbers[0]))


def meant(given: str, names: Iterable[str]) -> str:
    """What was probably meant; else, where the names are."""
    close = difflib.get_close_matches(given, names, n=1)
    return f"is {close[0]} meant?" if close else "`python -m exercises` lists what there is"


def guarded(command: Callable[[], int]) -> int:
    """A command's exit status; an error is one line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a ✓ that stdout's encoding lacks must not end the program
            stream.reconfigure(errors="backslashreplace")
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of stdout has gone: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        print(f"exercises: {reason(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

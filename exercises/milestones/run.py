"""Runs milestones on an engine, in a separate process that is stopped if the engine does not end."""

import argparse
import functools
import itertools
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from exercises import child
from exercises.catalogue import Grade
from exercises.grading import Wrong, of_machine

from . import MILESTONES

# The outcome of a check: (milestone's number, what it checks, state, message), the state one of these. "case" only
# announces what comes next.
PASSED, MISSING, WRONG, BLANK, CASE = "passed", "missing", "wrong", "not written", "case"
Outcome = tuple[int, str, str, str]


def outcomes(
    directory: Path, numbers: Sequence[int], tell: Callable[[int, str], None] = lambda number, case: None
) -> Iterator[Outcome]:
    """Check an engine in this process, up to the first check that fails.

    tell: called with each case and its milestone as it begins, in case it does not end.
    """
    from tools.engines import OwnEngine

    from .lab import Lab

    try:
        own = OwnEngine(directory)
    except ValueError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        raise ValueError(f"{directory} can't be imported: {said}") from error
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(own, Path(folder))
        for number in numbers:
            lab.tell = functools.partial(tell, number)
            for check in MILESTONES[number - 1].checks_of(own.directory):
                outcome = run_check(check, lab)
                yield number, check.__doc__.split("\n")[0], *outcome
                if outcome[0] in (WRONG, BLANK):
                    return


def run_check(check: Callable, lab) -> tuple[str, str]:
    """(state, message)"""
    from .lab import Missing

    lab.tell("")
    try:
        check(lab)
    except Missing as error:
        return MISSING, str(error)
    except NotImplementedError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return BLANK, f"{frame.name} is not written yet: {Path(frame.filename).name}, line {frame.lineno}"
    except Wrong as error:
        return WRONG, str(error)
    except Exception as error:
        if of_machine(error, lab.frames(error)):
            raise
        return WRONG, f"got:       {lab.where(error)}"
    return PASSED, ""


def outcomes_in_time(
    directory: Path,
    numbers: Sequence[int],
    seconds: float = child.SECONDS,
    patience: float = child.PATIENCE,
    quiet: bool = False,
) -> Iterator[Outcome]:
    """The same in a separate process. A check that computes, or takes, longer than this fails.

    quiet: don't show what the engine prints.

    Raises ValueError if there is no engine in the directory, and child.CheckFailed if a check itself fails.
    """
    number, case = numbers[0], ""
    limits = dict(seconds=seconds, patience=patience, quiet=quiet)
    try:
        for got in child.run(_tell_outcomes, directory, numbers, needs="torch", **limits):
            if isinstance(got, str):
                raise ValueError(got)
            number, _, state, message = got
            case = message if state == CASE else ""
            if state != CASE:
                yield got
    except child.Stopped as error:
        lines = [*([f"case:      {case}"] if case else []), f"got:       {error}"]
        yield number, "it ends", WRONG, "\n".join(lines)


def _tell_outcomes(tell: child.Tell, directory: Path, numbers: Sequence[int]) -> None:
    tqdm.set_lock(threading.RLock())  # tqdm's own lock is a semaphore, which would be reported as leaked
    tell.where = functools.partial(_where, directory)
    tell.begin()
    try:
        for outcome in outcomes(directory, numbers, lambda number, case: tell((number, "", CASE, case))):
            tell(outcome)
    except ValueError as error:  # there is no engine
        tell(str(error))


def _where(directory: Path, spots: list[child.Spot]) -> str:
    """The line of the engine that it had reached."""
    own = [
        (Path(f.f_code.co_filename), line)
        for f, line, _ in spots
        if directory.resolve() in Path(f.f_code.co_filename).parents
    ]
    return f"           it was at: {own[-1][0].name}, line {own[-1][1]}" if own else ""


def grade_engine(
    directory: Path, number: int, patience: float = child.PATIENCE, seconds: float = child.SECONDS
) -> Grade:
    """The grade of one milestone, for a teacher's table."""
    try:
        results = list(outcomes_in_time(directory, [number], seconds, patience, quiet=True))
    except ValueError as error:
        return Grade("failing", str(error))
    except child.CheckFailed as error:
        return Grade("not checked", f"the check itself failed: {error}")
    _, what, last, message = results[-1]
    states, num_checks = [state for _, _, state, _ in results], len(MILESTONES[number - 1].checks_of(directory))
    if last == BLANK and PASSED not in states:
        return Grade("not started", message, what)
    passed = PASSED in states and last not in (WRONG, BLANK)
    said = "" if passed else f"{what}\n{message}"
    return Grade("passed" if passed else "failing", said, what, states.count(PASSED), num_checks)


# --- Output ----------------------------------------------------------------------------------------------------------


def check_engine(directory: Path, numbers: Sequence[int]) -> int:
    """`python -m exercises engine`: run the milestones in order, print each check; returns the exit status."""
    results = outcomes_in_time(directory, numbers)
    for place, (number, checks) in enumerate(itertools.groupby(results, key=lambda outcome: outcome[0])):
        print(f"milestone {number}, {MILESTONES[number - 1].title}", flush=True)
        started, states = time.monotonic(), []
        for _, what, state, message in checks:
            states.append(state)
            tell_check(what, state, message)
        if not tell_milestone(number, states, time.monotonic() - started):
            blank = states[-1] == BLANK
            then = "Write it, then run this again" if blank else f"See exercises/engine.md, milestone {number}"
            print(f"\n{place} of {len(numbers)} passed. {then}.")
            return 1
    print(f"\n{'All' if len(numbers) == len(MILESTONES) else 'These are'} passed. Your engine on the ladder:")
    print(f"  python -m bench.throughput --stages {shown(directory)} 1 2 3 --repeat 1")
    return 0


def tell_check(what: str, state: str, message: str) -> None:
    mark = {PASSED: "✓", MISSING: "–"}.get(state, "✗")
    print(f"  {mark} {what}" + (f" ({message})" if state == MISSING else ""), flush=True)
    if state in (WRONG, BLANK):
        print("\n".join(f"      {line}" for line in message.splitlines()))


def tell_milestone(number: int, states: list[str], seconds: float) -> bool:
    """Print the outcome of a milestone from its checks' states; returns whether it passed."""
    if states[-1] in (WRONG, BLANK):
        return False
    if PASSED not in states:
        print("  nothing of this milestone is written yet")
        return False
    missing = states.count(MISSING)
    print(f"  passed in {seconds:.0f} s" + (f", except for {missing} that could not be checked" if missing else ""))
    if number < len(MILESTONES):
        print(f"  next: milestone {number + 1}, {MILESTONES[number].title} (python -m exercises start {number + 1})")
    return True


def shown(directory: Path) -> str:
    return str(directory) if directory.is_absolute() or len(directory.parts) == 1 else f"./{directory}"


def main(argv: Sequence[str]) -> int:
    """The command `engine`."""
    parser = argparse.ArgumentParser(prog="python -m exercises engine", description=check_engine.__doc__)
    parser.add_argument("--directory", type=Path, default=Path("mine"), help="the engine's directory; default: mine")
    parser.add_argument("milestones", type=int, nargs="*", metavar="N", help="which milestones; default: all eight")
    args, numbers = parser.parse_args(argv), [milestone.number for milestone in MILESTONES]
    if unknown := [number for number in args.milestones if number not in numbers]:
        parser.error(f"there is no milestone {unknown[0]}; there are 1 to {numbers[-1]}")
    if not args.directory.exists():
        print(f"exercises: there is no {args.directory}/; `python -m exercises start 1` makes one", file=sys.stderr)
        return 2
    return check_engine(args.directory, sorted(set(args.milestones)) or numbers)

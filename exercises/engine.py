"""Check your own engine: the project's tests on it, in the place of a stage, up to the first one that fails.

python -m exercises engine 3        # what the third milestone promises
python -m exercises engine          # all milestones up to the one at which the directory was started
"""

import argparse
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.sync_stages import ROOT

from .milestones import CONTRACT, MILESTONES, Milestone
from .skeletons import read_record

SECONDS = 120  # that a test may take
NEEDED = ("pytest", "pytest_timeout", "transformers", "httpx")  # by these tests


def stands_in_for(directory: Path, milestone: Milestone) -> Milestone:
    """The milestone in whose stage's place an engine is tested: the one that is asked for, or the one that it was
    started at if that has a later stage; CONTRACT if it is not built like a stage."""
    started = read_record(directory)[0]
    later = max([milestone, *MILESTONES[started - 1 : started]], key=lambda one: one.stage)
    return later if all((directory / name).is_file() for name in later.to_write) else CONTRACT


def engine_command(directory: Path, *numbers: int) -> list[str]:
    """The arguments of pytest for these milestones' tests on an engine."""
    from .report import LEAN  # late: it imports pytest, which not everybody has

    stage = stands_in_for(directory, MILESTONES[numbers[-1] - 1])
    asked = [CONTRACT] if stage is CONTRACT else [MILESTONES[number - 1] for number in numbers]
    tests = dict.fromkeys(f"{ROOT}/{test}" for milestone in asked for test in milestone.tests)
    place = ["--engine", str(directory.resolve()), "--as-stage", stage.stage[5:7].lstrip("0")]
    return [*place, *LEAN, "-m", "not soak", "--maxfail=1", f"--timeout={SECONDS}", f"--rootdir={ROOT}", *tests]


def check_engine(directory: Path, numbers: Sequence[int]) -> int:
    """Run milestones' tests on an engine; prints what passes, up to the first failure. Returns the exit status."""
    import pytest

    from .engine_report import Report

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    directory, asked = directory.resolve(), [MILESTONES[number - 1] for number in numbers]
    if stands_in_for(directory, asked[-1]) is CONTRACT:
        print(f"{directory.name}/ is not built like a stage, so only the public contract is tested.")
        asked = [CONTRACT]
    report = Report(directory, asked)
    status = pytest.main(engine_command(directory, *numbers), [report])
    if report.broken or status not in (0, 1, 4):
        print(report.log.getvalue(), file=sys.stderr)
        return 2
    if status:
        return 1
    print(f"passed in {report.seconds:.0f} s")
    if 0 < asked[-1].number < len(MILESTONES):
        print(f"next: python -m exercises start {asked[-1].number + 1} --aside")
    stages = f"{os.path.relpath(directory)} {'1 2 3' if asked[-1].stage < 'stage05' else '5 6'}"
    print(f"Your engine on the ladder: python -m bench.throughput --stages {stages} --repeat 1")
    return 0


def up_to(number: int) -> list[int]:
    """A milestone and those before it, without the ideas of later stages: milestone 9 goes back to stage 5."""
    last = MILESTONES[number - 1]
    return [one.number for one in MILESTONES[:number] if one.stage <= last.stage]


def run(directory: Path, numbers: Sequence[int]) -> None:
    sys.exit(check_engine(directory, numbers))


def in_a_process(directory: Path, numbers: Sequence[int]) -> int:
    """The same in another process, which an engine may end."""
    process = multiprocessing.get_context("spawn").Process(target=run, args=(directory, numbers))
    process.start()
    process.join()
    if process.exitcode in (0, 1, 2):
        return process.exitcode
    print(f"\nThe process that ran your engine ended with status {process.exitcode}.")
    return 1


def main(argv: Sequence[str]) -> int:
    """The command `engine`."""
    parser = argparse.ArgumentParser(prog="python -m exercises engine", description=check_engine.__doc__)
    parser.add_argument("--directory", type=Path, default=Path("mine"), help="the engine's directory; default: mine")
    parser.add_argument(
        "milestone", type=int, nargs="?", metavar="N", help="default: all up to the one at which it was started"
    )
    args, last = parser.parse_args(argv), len(MILESTONES)
    if args.milestone is not None and not 1 <= args.milestone <= last:
        parser.error(f"there is no milestone {args.milestone}; there are 1 to {last}")
    if not (args.directory / "__init__.py").is_file():
        raise ValueError(f"there is no engine in {args.directory}/; `python -m exercises start 1` makes one in mine/")
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ValueError(f"{missing[0]} is not installed; milestones need `pip install -r tests/requirements.txt`")
    started = read_record(args.directory)[0]
    if not args.milestone and not started and stands_in_for(args.directory, MILESTONES[0]) is not CONTRACT:
        raise ValueError(f"`start` has not made {args.directory}/; say which milestone it is, 1 to {last}")
    return in_a_process(args.directory, [args.milestone] if args.milestone else up_to(max(started, 1)))

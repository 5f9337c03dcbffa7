"""Which tests `make test` leaves to `make soak` because they take long: `tests/slow.txt`.

    python -m pytest -n 2 -m "not browser and not cluster and not arm" --durations=0 -vv > run.log
    python tools/slow_tests.py run.log

Of a test with several parameters the quickest case stays, however long it takes, and all that take less than LIMIT.
After a run without `soak`, which the list has shortened, what is in the list stays in it.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

LIST = Path(__file__).parent.parent / "tests" / "slow.txt"
LIMIT = 0.4  # seconds on two slow cores; a fast machine takes half of that
ALL_STAY = (
    "test_solution_passes",
    "test_broken_ones_fail_at_each_of_their_tests",
    "test_greedy_stories_equal_generate",
)
LINE = re.compile(r"([\d.]+)s (?:setup|call|teardown) +(tests/\S+::.+)")


def read(path: Path) -> list[str]:
    """The ids of tests in such a list."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def slow(log: str, before: list[str]) -> list[str]:
    """The ids of the list, from what pytest wrote and the list so far."""
    seconds: dict[str, float] = defaultdict(float)
    for line in log.splitlines():
        if match := LINE.fullmatch(line.strip()):
            seconds[match[2]] += float(match[1])
    cases = defaultdict(list)
    for test in sorted(seconds, key=lambda test: (seconds[test], test)):
        cases[test.partition("[")[0]].append(test)
    found = set(before)
    for function, tests in cases.items():
        if not function.endswith(ALL_STAY):
            found |= {test for test in tests[1:] if seconds[test] > LIMIT}
    return sorted(found)


if __name__ == "__main__":
    tests = slow(Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace"), read(LIST))
    LIST.write_text(
        "\n".join([f"# Written by {Path(__file__).name}, which says how.", *tests]) + "\n", encoding="utf-8"
    )
    print(f"{len(tests)} tests are for make soak")

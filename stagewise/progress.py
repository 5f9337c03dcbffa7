"""How far a run is and how long it will take: a bar on a terminal, now and then a line in a log."""

import sys
import time
from typing import Any

from tqdm import tqdm

from .console import tell

EVERY = 30  # seconds between two lines of a log


def duration(seconds: float) -> str:
    """45 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class Progress:
    """Counts what is done, on stderr, as a context manager. The estimate is by the run's mean speed so far: results
    come in bursts, so the latest speed says little.

    Args:
        total: how many there are.
        unit: what they are, one of them.
        done: how many of them an earlier run did.
        quiet: say nothing.
    """

    def __init__(self, total: int, unit: str, *, done: int = 0, quiet: bool = False):
        self.total, self.unit, self.done, self.before = total, unit, done, done
        self.has_bar = not quiet and sys.stderr.isatty()
        self.is_log = not quiet and not self.has_bar
        self.bar = tqdm(total=total, initial=done, unit=unit, smoothing=0, disable=not self.has_bar)
        self.started = self.told = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.close()

    def update(self) -> None:
        """One more is done."""
        self.done += 1
        self.bar.update()
        now = time.monotonic()
        if self.is_log and now > self.told + EVERY and self.done < self.total:
            self.told, passed = now, now - self.started
            left = passed / (self.done - self.before) * (self.total - self.done)
            counts = f"{self.done:,} of {self.total:,} {self.unit}s"
            tell(f"{counts} after {duration(passed)}, about {duration(left)} left")

    def write(self, text: str) -> None:
        """A line on stdout, with the bar out of its way."""
        if self.has_bar:
            self.bar.write(text, file=sys.stdout)
        else:
            print(text)
        sys.stdout.flush()

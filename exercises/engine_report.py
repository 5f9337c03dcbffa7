"""Pytest's outcome for one who writes an engine: which parts pass, and the first failure."""

import ast
import io
import linecache
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools.sync_stages import ROOT

from .milestones import Milestone
from .report import case, rule, said
from .skeletons import BLANK, functions

Spot = tuple[str, int]  # a file, and a line


class Report:
    """A plugin of pytest.

    Attributes:
        part: the milestone, and what to look at, of the test that runs.
        log: what pytest itself would print.
        failed, broken: whether a test has failed; whether that is not the engine's fault.
        seconds: that it took.
    """

    def __init__(self, directory: Path, milestones: Sequence[Milestone]):
        self.directory, self.log, self.started = directory, io.StringIO(), time.monotonic()
        self.part, self.failed, self.broken, self.seconds = None, False, False, 0.0
        self.parts = {test: (one, look) for one in reversed(milestones) for test, look in one.tests.items()}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config) -> None:
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(pytest.TerminalReporter(config, self.log), "terminalreporter")

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.failed = self.broken = True
            print(report.longreprtext)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        before, self.part = self.part, self.parts[nodeid.partition("[")[0]]
        if before and before != self.part:
            self.tell_passed(before)
        if before is None or before[0] is not self.part[0]:
            print(self.part[0].name)

    def pytest_sessionfinish(self) -> None:
        self.seconds = time.monotonic() - self.started
        if self.part and not self.failed:
            self.tell_passed(self.part)

    def tell_passed(self, part: tuple[Milestone, str]) -> None:
        print(f"  ✓ {part[1]}", flush=True)

    def pytest_runtest_makereport(self, item, call) -> None:
        error = call.excinfo
        if error is None or error.errisinstance(pytest.skip.Exception) or self.failed:
            return
        spots = [(str(entry.path), entry.lineno + 1) for entry in error.traceback]
        if too_long := str(error.value).startswith("Timeout"):
            spots += [spot for frame in sys._current_frames().values() for spot in spots_of(frame)]
        own = [spot for spot in spots if self.directory in Path(spot[0]).parents]
        self.failed, self.broken = True, error.errisinstance((OSError, ImportError, MemoryError)) and not own
        test = [spot for spot in spots if spot[0] == str(item.path)]
        milestone, look = self.part
        print(f"  ✗ {look}")
        if blank := next(filter(None, map(self.not_written, chain(error.value))), None):
            lines = [blank, "", "Write it, then run this again."]
        else:
            lines = [rule(item), *case(item), *said(error)]
            lines += [f"not written yet: {', '.join(names)}" for names in [self.blanks(milestone, look)] if names]
            lines += [f"yours: {shown(own[-1], self.directory)}"] if own else []
            lines += [f"test:  {shown(test[-1], ROOT)}"] if test else []
            lines += ["", "The test itself failed." if self.broken else f"See {milestone.text}."]
        print("\n".join(f"      {line}".rstrip() for line in lines), flush=True)
        if too_long:  # what it waits for may not end either
            os._exit(1)

    def not_written(self, error: BaseException) -> str:
        """Which of the engine's functions raised a NotImplementedError, if one did."""
        if not isinstance(error, NotImplementedError):
            return ""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        path = Path(frame.filename)
        inside = self.directory in path.parents
        return f"{frame.name} is not written yet: {path.name}, line {frame.lineno}" if inside else ""

    def blanks(self, milestone: Milestone, look: str) -> list[str]:
        """The functions of a part that are not written: an engine may turn the error into the result of a request."""
        names = {name.strip(" ,;") for name in look.split()}
        return [
            f"{file}: {name}"
            for file, to_write in milestone.to_write.items()
            for source in [(self.directory / file).read_text(encoding="utf-8")]
            for name, node in functions(ast.parse(source)).items()
            if name in names and BLANK in (ast.get_source_segment(source, node) or "")
        ]


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def spots_of(frame) -> list[Spot]:
    """Where a running thread is, the innermost call last."""
    spots = []
    while frame is not None:
        spots.insert(0, (frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return spots


def shown(spot: Spot, folder: Path) -> str:
    path, line = Path(spot[0]), spot[1]
    return f"{path.relative_to(folder)}, line {line}: {linecache.getline(str(path), line).strip()}"

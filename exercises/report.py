"""Pytest's outcome for a learner: how many tests pass; of the first one that fails, its rule, its case, what was
expected, and the line of the learner's file."""

import inspect
import io
import linecache
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SECONDS = 60  # that one test may take; a right answer takes at most five
WIDTH = 300  # of a value that is shown
NOISE = re.compile(r"\+ +(where|and) .* object (\S+ )?at 0x")  # of pytest's explanation: an object is no case
# What other plugins do, and the garbage collections of this one, takes longer than most checks.
LEAN = ["--disable-plugin-autoload", "-p", "pytest_timeout", "-p", "no:unraisableexception", "-p", "no:cacheprovider"]
FLAGS = ["-o", "addopts=", *LEAN, f"--rootdir={Path(__file__).parents[1]}", f"--timeout={SECONDS}"]


@dataclass(eq=False)  # plugins are hashed
class Report:
    """A plugin of pytest.

    Attributes:
        work: the learner's file, or the folder that contains the learner's files.
        state: "passed", "failing", "not started" or, if the check itself failed, "not checked".
        message: about the first test that failed.
        num_passed, num_tests: of all tests.
    """

    work: Path
    state: str = "not checked"
    message: str = ""
    num_passed: int = 0
    num_tests: int = 0
    broken: bool = False  # the check itself failed

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Nothing of pytest's own output is shown, but pytest-timeout needs something to write to."""
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(pytest.TerminalReporter(config, io.StringIO()), "terminalreporter")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.num_tests = len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":  # skipped: the capstone without transformers
            why = report.longrepr[2] if report.skipped else report.longreprtext
            self.message = f"the check itself failed: {why}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        self.num_passed += report.when == "call" and report.passed
        if report.failed and not self.message:
            self.message = self._told(item, call.excinfo, call.when)
        return report

    def pytest_sessionfinish(self) -> None:
        if self.num_tests and self.num_passed == self.num_tests:
            self.state = "passed"
        elif self.state == "not checked" and self.num_tests and self.message and not self.broken:
            self.state = "failing"

    def _told(self, item: pytest.Item, error: pytest.ExceptionInfo, when: str) -> str:
        """What failed, the case, the error, and where."""
        own = [(Path(entry.path), entry.lineno + 1) for entry in error.traceback if self._is_own(Path(entry.path))]
        if isinstance(error.value, SyntaxError) and error.value.filename and self._is_own(Path(error.value.filename)):
            own = [(Path(error.value.filename), error.value.lineno or 1)]
        of_machine = error.errisinstance((OSError, ImportError, MemoryError))  # no C compiler, a full disk
        self.broken = not own and (when != "call" or of_machine)
        if self.broken:
            return f"the check itself failed: {error.value}"
        if error.errisinstance(NotImplementedError) and own and not self.num_passed:
            self.state = "not started"
            return f"{own[-1][0].name} still raises NotImplementedError, at line {own[-1][1]}"
        lines = [rule(item), *case(item), *said(error)]
        if own:
            path, line = own[-1]
            lines.append(f"{path.name}, line {line}: {linecache.getline(str(path), line).strip()}")
        test = next((e for e in reversed(error.traceback) if Path(e.path) == item.path), None)
        lines.append(f"{item.path.name}, line {test.lineno + 1}" if test else item.path.name)
        return "\n".join(lines)

    def _is_own(self, path: Path) -> bool:
        return path == self.work or self.work in path.parents


def rule(item: pytest.Item) -> str:
    """What a test is about: the id of its case, if it is a phrase; or its docstring's first paragraph, or its name."""
    if hasattr(item, "callspec") and " " in item.callspec.id and "stage" not in item.callspec.params:
        return item.callspec.id
    name = getattr(item, "originalname", None) or item.name
    said = inspect.getdoc(getattr(item, "function", None)) or name.removeprefix("test_").replace("_", " ")
    return " ".join(said.split("\n\n")[0].split())


def case(item: pytest.Item) -> list[str]:
    """The values of a test's parameters."""
    values = item.callspec.params.items() if hasattr(item, "callspec") else ()
    told = [
        f"{name} = {cut(repr(value))}" for name, value in values if name != "expected" and not name.endswith("stage")
    ]
    return [", ".join(told)] if told else []


def cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[:WIDTH]} …"


def said(error: pytest.ExceptionInfo) -> list[str]:
    """The lines of an error's message: of an assertion, its words and what was compared."""
    lines = [line.removeprefix("assert ").strip() for line in str(error.value).split("\n")]
    lines = [line for line in lines if line and "Use -v" not in line]
    if error.errisinstance(AssertionError):
        told = [line for line in lines if line not in ("it is as expected", "False") and not NOISE.match(line)]
        return [cut(line) for line in told or lines][:8]
    lines = [cut(line) for line in lines]
    return [f"{error.typename}: {lines[0]}" if lines else error.typename, *lines[1:8]]


def run(
    arguments: Sequence[str | Path], work: Path, *, first: bool = False, show: bool = True, seconds: float = SECONDS
) -> Report:
    """Run these tests in this process.

    arguments: for pytest.
    work: the file or folder under test.
    first: stop at the first failure.
    show: show what the answer prints.
    seconds: that a test may take.
    """
    report = Report(work)
    flags = [*FLAGS, f"--timeout={seconds}", *["--maxfail=1"] * first, *["--capture=no"] * show]
    before = set(sys.modules)
    status = pytest.main([*flags, *map(str, arguments)], plugins=[report])
    for name in [name for name in sys.modules if name.startswith("test_") and name not in before]:
        del sys.modules[name]  # imported again for the next answer: this one may have changed a test's lists
    if status == pytest.ExitCode.INTERRUPTED and not report.message:  # else a file could not be read
        raise KeyboardInterrupt
    return report

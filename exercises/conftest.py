"""`pytest exercises/stage2/test_2_3_waste.py` checks the file that a learner fills in, or another: `--answer FILE`."""

import contextlib
import importlib.util
import sys
import tempfile
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--answer", type=Path, help="the file to check, instead of the one next to the test")


def pytest_assertrepr_compare(op, left, right):
    """The answer stands on the left in these tests."""
    right = getattr(right, "expected", right)  # of an approx
    return ["it is as expected", f"expected  {right!r}", f"got       {left!r}"] if op == "==" else None


@pytest.fixture(scope="module")
def path(request):
    """The file under test."""
    name = request.path.with_name(request.path.name.removeprefix("test_"))
    return request.config.getoption("--answer") or next(p for p in (name.with_suffix(".c"), name) if p.exists())


@pytest.fixture(scope="module")
def program(path):
    """The answer in C, compiled once for its tests."""
    from exercises import in_c

    with tempfile.TemporaryDirectory() as folder:
        yield in_c.compiled(path, Path(folder))


@pytest.fixture
def work(path, request, monkeypatch):
    """The module under test, executed again for each test; of an answer in C, its functions in a new process."""
    if path.suffix == ".c":
        from exercises import in_c

        with contextlib.closing(in_c.Running(request.getfixturevalue("program"))) as running:
            yield running
            return
    monkeypatch.syspath_prepend(path.parent)  # part two of the capstone uses the llama.py next to it
    monkeypatch.delitem(sys.modules, "llama", raising=False)  # another learner's
    spec = importlib.util.spec_from_file_location("answer", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["answer"] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    yield module

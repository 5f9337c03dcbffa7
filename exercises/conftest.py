"""`pytest exercises/stage2/test_2_3_waste.py` checks the file that a learner fills in, or another: `--answer FILE`."""

import importlib.util
import sys
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--answer", type=Path, help="the file to check, instead of the one next to the test")


def pytest_assertrepr_compare(op, left, right):
    """The answer stands on the left in these tests."""
    return ["it is as expected", f"expected  {right!r}", f"got       {left!r}"] if op == "==" else None


@pytest.fixture
def path(request):
    """The file under test."""
    name = request.path.with_name(request.path.name.removeprefix("test_"))
    return request.config.getoption("--answer") or next(p for p in (name.with_suffix(".c"), name) if p.exists())


@pytest.fixture
def work(path):
    """The module under test, executed again for each test."""
    spec = importlib.util.spec_from_file_location("answer", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["answer"] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module

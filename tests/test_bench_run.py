"""bench/run.py: alternating rounds, how far apart they are, and what is kept of a measurement."""

import json
import subprocess

import pytest

from bench import run
from tests.adapter import outcome, refusal
from tools.sync_stages import ROOT


def test_rounds_go_forwards_and_backwards_after_one_that_does_not_count():
    order = []
    cases = {name: lambda name=name: (order.append(name), len(order))[1] for name in "ab"}
    assert run.in_turn(cases, 2) == {"a": [3, 6], "b": [4, 5]}
    assert "".join(order) == "baabba"


def test_how_far_rounds_are_apart():
    result = {"rounds": {"a": {"1": [1.0, 1.2, 1.1], "2": [5.0]}}, "cells": [{"rounds": [2.0, 3.0]}], "speeds": [1, 9]}
    assert list(run.figures(result)) == [[1.0, 1.2, 1.1], [5.0], [2.0, 3.0]]
    assert run.apart(run.figures(result)) == 0.5
    assert run.apart([[1.0], [2.0]]) is None
    assert run.in_rounds([[4.0, 5.0]]) == "medians of 2 runs in turn, within 25%"
    assert run.in_rounds([[4.0]]) == "one run each"


def test_a_page_shows_no_figure_whose_rounds_are_far_apart():
    close, far = [1.0, 1.2, 1.25], [1.0, 1.2, 1.3]
    result = {"rounds": {"a": {"1": close, "2": far}}, "cells": [{"rounds": far, "speed": 2.0}], "speeds": far}
    shown = {"rounds": {"a": {"1": close, "2": []}}, "cells": [{"rounds": [], "speed": 2.0}], "speeds": far}
    assert run.steady(result) == shown


@pytest.mark.parametrize("second", [1.05, 1.2])
def test_rounds_that_are_far_apart_are_told(second, tmp_path):
    measure = lambda args: {"rounds": {"a": [1.0, second][: args.repeat]}}  # noqa: E731
    main, file = run.script(measure, run.source, rounds=2), tmp_path / "x.json"
    status, out, err = outcome(main, "--json", file)
    assert status == 0
    assert ("the rounds are up to 20% apart" in err) == (second == 1.2)
    assert f"within {second - 1:.0%}" in out
    assert out.endswith("`python -m tests.test_bench_run`\n")  # without the file
    assert json.loads(file.read_text())["rounds"] == {"a": [1.0, second]}
    assert "apart" not in outcome(main, "--repeat", "1")[2]


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, 130), (run.Failure("it broke"), 1), (RuntimeError("it broke"), 1)]
)
def test_what_was_measured_is_kept(error, status, tmp_path):
    def measure(args):
        yield {"rows": [1]}
        raise error

    file = tmp_path / "x.json"
    told, out, err = outcome(run.script(measure, lambda result: f"table of {result['rows']}"), "--json", file)
    assert (told, out) == (status, "table of [1]\n")
    assert json.loads(file.read_text())["rows"] == [1]
    assert ("it broke" in err) == (status == 1)
    assert ("Traceback" in err) == isinstance(error, RuntimeError)  # a mistake of the script's has to be found


def test_where_nothing_was_measured_no_file_is_left(tmp_path):
    def measure(args):
        raise ValueError("there is no such engine")

    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("kept")
    for file in (new, old):
        assert "there is no such engine" in refusal(run.script(measure, str), "--json", file)
    assert (new.exists(), old.read_text()) == (False, "kept")


def test_a_file_that_cannot_be_written_is_named_before_the_work(tmp_path):
    for file in (tmp_path, tmp_path / "nowhere" / "x.json"):
        said = refusal(run.script(lambda args: 1 / 0, str), "--json", file)
        assert said.startswith("tests.test_bench_run: --json ")
        assert str(file) in said


@pytest.mark.parametrize("patch", sorted(ROOT.glob("bench/candidates/*.patch")), ids=lambda patch: patch.stem)
def test_a_candidate_still_applies(patch):
    done = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr
    assert f"| `{patch.stem}` |" in (ROOT / "bench/README.md").read_text(encoding="utf-8")

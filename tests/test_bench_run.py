"""bench/run.py: alternating rounds, how far apart they are, and what is kept of a measurement."""

import errno
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

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


def test_a_picture_is_there_before_the_table(tmp_path):
    """A closed terminal must not lose the picture, nor a full disk the table."""

    def gone(result):
        raise BrokenPipeError

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    file, picture = tmp_path / "x.png", SimpleNamespace(savefig=lambda path: path.write_bytes(b"drawn"))
    with pytest.raises(BrokenPipeError):
        run.script(lambda args: {"rows": []}, gone, plot=lambda result: picture)(["--plot", str(file)])
    assert file.read_bytes() == b"drawn"
    picture.savefig = full
    main = run.script(lambda args: {"rows": []}, lambda result: "the table", plot=lambda result: picture)
    said = outcome(main, "--plot", file)
    assert said == (1, "the table\n", f"tests.test_bench_run: {file}: No space left on device\n")


# --- Files that can't be written --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ({"--json": "read"}, "--json read is the file of --workload"),
        ({"--json": "./folder/../read"}, "is the file of --workload"),
        ({"--plot": "symbolic.png"}, "--plot symbolic.png is the file of --workload"),
        ({"--json": "hard"}, "--json hard is the file of --workload"),
        ({"--json": "x.png", "--plot": "./x.png"}, "--plot x.png is the file of --json"),
        ({"--json": "folder"}, "--json folder is a directory"),
        ({"--json": "nowhere/x.json"}, "nowhere/x.json"),
        ({"--plot": "picture"}, "ends in one of"),
        ({"--plot": "picture.json"}, "ends in one of"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_written_is_named(outputs, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("read").write_text("kept")
    Path("folder").mkdir()
    os.symlink("read", "symbolic.png")
    os.link("read", "hard")
    with pytest.raises((ValueError, OSError)) as error:
        run.check_outputs({option: Path(path) for option, path in outputs.items()}, {"--workload": Path("read")})
    assert says in str(error.value)
    assert Path("read").read_text() == "kept"


def test_it_is_named_before_the_work(tmp_path):
    assert "is a directory" in refusal(run.script(lambda args: 1 / 0, str), "--json", tmp_path)


def test_outputs_may_be_there_already(tmp_path):
    """Also a pipe, which can't be tested by opening it: without a reader that would wait for one."""
    (tmp_path / "result.json").write_text("kept")
    run.check_outputs({"--json": tmp_path / "result.json", "--plot": tmp_path / "new.png"}, {})
    assert (tmp_path / "result.json").read_text() == "kept"
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        run.check_outputs({"--json": tmp_path / "pipe"}, {})


@pytest.mark.parametrize("patch", sorted(ROOT.glob("bench/candidates/*.patch")), ids=lambda patch: patch.stem)
def test_a_candidate_still_applies(patch):
    done = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr
    assert f"| `{patch.stem}` |" in (ROOT / "bench/README.md").read_text(encoding="utf-8")

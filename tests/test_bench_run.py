"""bench/run.py: alternating rounds, how far apart they are, and what is kept of a measurement."""

import errno
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bench import run
from tests.adapter import ROOT


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


def rounds_of(*figures):
    def measure(args):
        return {"rounds": {"a": list(figures)[: args.repeat]}}

    return measure


@pytest.mark.parametrize(("figures", "told"), [((1.0, 1.05), False), ((1.0, 1.2), True)])
def test_rounds_that_are_far_apart_are_told(figures, told, tmp_path, capsys):
    main = run.script(rounds_of(*figures), lambda result: run.source(result), rounds=2)
    file = tmp_path / "x.json"
    assert main(["--json", str(file)]) == 0
    out, err = capsys.readouterr()
    assert ("the rounds are up to 20% apart" in err) == told
    assert f"within {max(figures) - 1:.0%}" in out
    assert out.endswith("`python -m tests.test_bench_run`\n")  # without the file
    assert json.loads(file.read_text())["rounds"] == {"a": list(figures)}
    assert main(["--repeat", "1"]) == 0
    assert "apart" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, 130), (run.Failure("it broke"), 1), (RuntimeError("it broke"), 1)]
)
def test_what_was_measured_is_kept(error, status, tmp_path, capsys):
    def measure(args):
        yield {"rows": [1]}
        raise error

    file = tmp_path / "x.json"
    main = run.script(measure, lambda result: f"table of {result['rows']}")
    assert main(["--json", str(file)]) == status
    assert json.loads(file.read_text())["rows"] == [1]
    out, err = capsys.readouterr()
    assert out == "table of [1]\n"
    assert ("it broke" in err) == (status == 1)
    assert ("Traceback" in err) == isinstance(error, RuntimeError)  # a mistake of the script's has to be found


def test_a_picture_is_there_before_the_table(tmp_path, capsys):
    """A closed terminal must not lose the picture, nor a full disk the table."""
    file = tmp_path / "x.png"

    def gone(result):
        raise BrokenPipeError

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    picture = SimpleNamespace(savefig=lambda path: path.write_bytes(b"drawn"))
    with pytest.raises(BrokenPipeError):
        run.script(lambda args: {"rows": []}, gone, plot=lambda result: picture)(["--plot", str(file)])
    assert file.read_bytes() == b"drawn"
    picture.savefig = full
    main = run.script(lambda args: {"rows": []}, lambda result: "the table", plot=lambda result: picture)
    assert main(["--plot", str(file)]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("the table\n", f"tests.test_bench_run: {file}: No space left on device\n")


def test_a_file_that_cannot_be_written_is_named_before_the_work(tmp_path, capsys):
    main = run.script(lambda args: 1 / 0, str)
    assert main(["--json", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err


def test_where_nothing_was_measured_no_file_is_left(tmp_path, capsys):
    def measure(args):
        raise ValueError("there is no such engine")

    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("kept")
    for file in (new, old):
        assert run.script(measure, str)(["--json", str(file)]) == 2
        assert "there is no such engine" in capsys.readouterr().err
    assert not new.exists()
    assert old.read_text() == "kept"


def test_nothing_but_the_standard_library_is_imported():
    """Other engines' environments may have nothing else."""
    code = "import sys, bench.run; sys.exit(bool({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

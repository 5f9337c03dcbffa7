"""Wrong engines by machine: the tests that cover a file kill each, or it is listed as equivalent, with its reason."""

import subprocess
import sys

import pytest

from tools import engine_mutants
from tools.engine_mutants import brought, files, listed, mutants
from tools.sync_stages import ROOT


def test_what_is_listed_is_there():
    """And no name stands for two mutants."""
    for path in {path for path, _ in listed()}:
        names = [mutant.name for mutant in mutants(path)]
        assert len(set(names)) == len(names)
        assert not {name for of, name in listed() if of == path}.difference(names)
    assert all(listed().values())


def test_only_what_a_stage_brings_is_changed():
    assert "stage01_single/request.py" in files()
    assert "stage02_static_batch/request.py" not in files()  # the same
    source = (ROOT / "stage04_continuous/batch.py").read_text(encoding="utf-8").splitlines()
    before = (ROOT / "stage03_kvcache/batch.py").read_text(encoding="utf-8").splitlines()
    lines = brought("stage04_continuous/batch.py")
    assert {line for number, line in enumerate(source, 1) if number not in lines} <= set(before)
    assert {mutant.line for mutant in mutants("stage04_continuous/batch.py")} <= lines


def test_the_tool_says_what_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mutants", "--list", "stage01_single/request.py"])
    assert engine_mutants.main() == 0
    said = capsys.readouterr().out
    assert "stage01_single/request.py | condition in Request.add: if token_id in self.params.stop_token_ids" in said
    monkeypatch.setattr("sys.argv", ["mutants", "stage02_static_batch/request.py"])
    with pytest.raises(SystemExit, match="no stage brings or changes stage02_static_batch/request"):
        engine_mutants.main()


@pytest.mark.soak
def test_a_sample_is_killed():
    """In a process that has no threads, since it forks; other seeds are for use by hand."""
    command = [sys.executable, "tools/engine_mutants.py", "--all", "--sample", "24", "--seed", "1"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert process.returncode == 0, process.stdout + process.stderr
    assert " 24 made" in process.stdout.splitlines()[-1]

"""Mutation testing of the engines: the tests that cover a file kill each mutant, or it is listed as equivalent."""

import subprocess
import sys

import pytest

from tools import engine_mutants
from tools.engine_mutants import brought, files, listed, mutants
from tools.sync_stages import ROOT


def test_what_is_listed_is_there():
    """Each listed mutant exists, and no name stands for two."""
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


SAMPLES = {  # a sample of their mutants, each seen to be killed or listed
    "request": (24, 3, "stage01_single/request.py"),
    "files": (8, 7, "stage01_single/support/vocabulary.py", "stage01_single/support/weights.py"),
    "text": (30, 3, "stage01_single/support/text.py", "stage01_single/support/logits_processors.py"),
    "sampler": (36, 3, "stage01_single/sampler.py"),
    "cache": (14, 4, "stage03_kvcache/batch.py", "stage03_kvcache/engine.py", "stage03_kvcache/kv_cache.py"),
    "parameters": (20, 1, "stage01_single/support/sampling_params.py"),
    "continuous": (14, 2, *(f"stage04_continuous/{name}.py" for name in ("scheduler", "batch", "request"))),
    "scoring": (10, 2, "stage04_continuous/support/scoring.py"),
    "scheduler": (16, 2, *(f"stage05_paged/{name}.py" for name in ("scheduler", "policies", "block_manager"))),
    "paged": (12, 2, "stage05_paged/batch.py", "stage05_paged/request.py"),
    "beams": (8, 7, "stage05_paged/beam_search.py"),
    "config": (10, 2, *(f"{stage}/config.py" for stage in ("stage01_single", "stage05_paged", "stage06_fast"))),
    "runner": (10, 2, *(f"{stage}/runner.py" for stage in ("stage05_paged", "stage06_fast", "stage07_speculative"))),
    "kernels": (10, 2, "stage05_paged/attention.py", "stage06_fast/kernels/c_sampler.py"),
    "threads": (10, 7, "stage06_fast/support/threads.py", "stage06_fast/support/openmp.py"),
    "drafters": (8, 2, "stage07_speculative/drafters.py"),
    "speculator": (6, 2, "stage07_speculative/speculator.py"),
    "planner": (6, 7, "stage07_speculative/draft_planner.py"),
    "int8": (6, 7, "stage08_int8/quantize.py"),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_killed(name):
    """In a process without threads, since it forks. Other samples and files are tested by hand."""
    size, seed, *paths = map(str, SAMPLES[name])
    command = [sys.executable, "tools/engine_mutants.py", "--sample", size, "--seed", seed, *paths]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines()[-1].split()[:3] == ["all", size, "made"]

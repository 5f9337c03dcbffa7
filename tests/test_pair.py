"""Two versions of a stage in one process: what is compared, and what is said about it."""

import json
import shutil

import pytest

from bench import pair
from tests.adapter import ROOT

FEW = ["--rounds", "3", "--workload", "answers", "--requests", "2"]


@pytest.fixture
def versions(tmp_path):
    """A stage, and a copy that always makes the same token."""
    other = tmp_path / "stage03_kvcache"
    shutil.copytree(ROOT / "stage03_kvcache", other)
    (tmp_path / "stagewise").mkdir()
    (tmp_path / "stagewise/models").symlink_to(ROOT / "stagewise" / "models")
    text = (other / "sampler.py").read_text()
    assert "return int(token_id)" in text
    (other / "sampler.py").write_text(text.replace("return int(token_id)", "return 50255"))
    return ROOT / "stage03_kvcache", other


def test_the_same_stage_twice(versions, tmp_path, capsys):
    """Both take their turn in each round, and the order is swapped."""
    stage, _ = versions
    assert pair.main([str(stage), str(stage), *FEW, "--json", str(tmp_path / "result.json")]) == 0
    said = capsys.readouterr().out
    assert "3 rounds; tokens the same" in said
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["ratios"]) == 3
    assert all(ratio > 0 for ratio in result["ratios"])
    assert result["arguments"]["rounds"] == 3


def test_another_stage_is_seen(versions, capsys):
    assert pair.main([*map(str, versions), *FEW]) == 0
    assert "tokens DIFFER" in capsys.readouterr().out


def test_ratios_are_those_of_a_round():
    """B takes half as long as A, whatever the host does in a round."""

    class Half:
        def __init__(self, own, log):
            self.own, self.log, self.tokens = own, log, []

        def run(self):
            self.log.append(self)
            return self.own * (1 + (len(self.log) - 1) // 2)  # each round is slower than the one before

    log = []
    a, b = Half(2.0, log), Half(1.0, log)
    assert pair.compare(a, b, rounds=4) == ([2.0] * 4, True)
    assert log == [a, b, b, a, a, b, b, a, a, b]


@pytest.mark.parametrize(("arguments", "words"), [
    (["HEAD:no_such_stage", "stage03_kvcache"], "no_such_stage"),
    (["no_such_directory", "stage03_kvcache"], "is not an engine"),
    (["stage03_kvcache", "stage03_kvcache", "--rounds", "1"], "--rounds must be 2 or more, got 1"),
    (["stage03_kvcache", "stage03_kvcache", "--threads", "0"], "--threads must be 1 or more, got 0"),
])  # fmt: skip
def test_bad_arguments_are_one_line(arguments, words, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match="2"):
        pair.main([*FEW, *arguments])
    assert words in capsys.readouterr().err

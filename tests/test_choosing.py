"""Chapter 3, NEXT.md: the roofline, what a sampler chooses from, a Llama's lines."""

import re

import pytest
import torch

from bench import roofline, sampling
from tests.adapter import ROOT


def test_entropy_and_nucleus():
    assert sampling.entropy(torch.tensor([1.0, 0.0], dtype=torch.float64)) == 0
    assert sampling.entropy(torch.full((8,), 1 / 8, dtype=torch.float64)) == pytest.approx(3)
    skewed = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    assert [sampling.nucleus(skewed, p) for p in (0.4, 0.5, 0.6, 0.9)] == [1, 1, 2, 3]


def test_windows_that_came_before_are_counted():
    assert sampling.repeated(list(range(100))) == 0
    assert sampling.repeated([7] * 100) == pytest.approx(84 / 85)  # all but the first of 85
    period = list(range(20)) * 2
    assert sampling.repeated(period) == pytest.approx(5 / 25)  # those that begin at 20 to 24


def test_a_moment_of_the_bundled_model():
    """The figures that NEXT.md explains."""
    llm = sampling.LLM("tinytales", dtype="float32", device="cpu")
    sure, open_ = (sampling.moment(llm, text) for text in sampling.MOMENTS)
    assert (sure["best"][0][0], sure["nucleus"], open_["nucleus"]) == (" time", 1, 48)
    assert open_["entropy"] == pytest.approx(5.72, abs=0.01)
    assert open_["by temperature"]["1.0"] == pytest.approx(open_["entropy"])
    assert sorted(open_["by temperature"].values()) == list(open_["by temperature"].values())


def test_the_roofline_names_the_limit_of_each_batch(monkeypatch, capsys):
    """With a balance of 5: one row does half an operation for each byte, and 64 do dozens."""
    monkeypatch.setattr(roofline, "BATCHES", (1, 64))
    monkeypatch.setattr(roofline, "read_bandwidth", lambda device: 20e9)
    monkeypatch.setattr(roofline, "matmul_rate", lambda dtype, device: 100e9)
    monkeypatch.setattr(roofline, "decode_step", lambda llm, batch, *lengths: 0.001 * next(seconds))
    seconds = iter((1, 64, 128, 2, 4, 256))  # every other round goes through the batches in reverse
    roofline.main(["--model", "tinytales", "--device", "cpu", "--dtype", "float32"])
    one, many = (line.split() for line in capsys.readouterr().out.splitlines()[-2:])
    assert (one[0], one[1], one[2], one[5:]) == ("1", "0.5", "memory", ["500", "(250", "to", "1000)"])
    assert (many[0], many[2], many[5:]) == ("64", "arithmetic", ["500", "(250", "to", "1000)"])


def test_the_lines_that_a_llama_changes_are_in_the_model():
    page, model = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/NEXT.md", "stage01_single/model.py"))
    blocks = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    gone = [line for block in blocks for line in block.splitlines() if line.startswith("-")]
    kept = [line for block in blocks for line in block.splitlines() if line.startswith("  ")]
    assert len(blocks) == 4
    assert len(gone) >= 8
    for line in [*gone, *kept]:
        assert line[1:] in model.splitlines(), line

"""bench/quality.py: what int8 costs, computed by hand where possible, and otherwise against stage 8."""

import json
import math

import numpy as np
import pytest
import torch

from bench import quality
from stage08_int8.quantize import quantize
from tests.adapter import STAGES

TALE = "Once upon a time there was a bear named Otto. He lived near the sea."


def test_comparing_by_hand():
    """Two tokens, of which the first engine says 3 : 1 and the second 1 : 3, after any token."""
    one, other = (np.log(np.array([[3.0, 1.0], [1.0, 3.0]]))[i][None] for i in (0, 1))
    engines = {"one": lambda ids: one.repeat(len(ids), 0), "other": lambda ids: other.repeat(len(ids), 0) + 5}
    compared = quality.compare(engines, [[0, 0, 1], [1, 1]])
    assert compared["one"]["nats"] == pytest.approx([math.log(4 / 3) + math.log(4), math.log(4)])
    assert compared["other"]["nats"] == pytest.approx([math.log(4) + math.log(4 / 3), math.log(4 / 3)])
    assert (compared["one"]["agreement"], compared["other"]["agreement"]) == (1, 0)
    assert compared["one"]["kl"] == pytest.approx(0, abs=1e-7)
    assert compared["other"]["kl"] == pytest.approx(0.75 * math.log(3) - 0.25 * math.log(3), rel=1e-5)
    assert compared["one"]["positions"] == 3
    cost = quality.per_byte(compared["other"], compared["one"], [10, 10])
    assert cost["more"] == pytest.approx(-math.log2(3) / 20)
    assert cost["bits_per_byte"] == pytest.approx((2 + 2 * math.log2(4 / 3)) / 20)
    assert cost["more_error"] == pytest.approx(math.log2(3) / 20)  # one tale has no difference, one has all of it


def test_where_greedy_outputs_part():
    exact = [[1, 2, 3], [1, 2, 3], [1, 2, 3]]
    assert quality.divergence(exact, exact) == {"greedy_median": None, "greedy_same": 1}
    others = [[1, 2, 3], [1, 5, 3], [9, 2, 3]]
    assert quality.divergence(others, exact) == {"greedy_median": 1, "greedy_same": pytest.approx(1 / 3)}


def test_rounding_in_floats_is_that_of_stage_8():
    x = torch.randn(5, 100, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [10], [0.1], [3], [0]])
    integers, scale = quantize(x)
    torch.testing.assert_close(quality.rounded(x, "channel"), integers * scale)
    groups = quality.rounded(x, 32)
    assert groups.shape == x.shape
    for first in range(0, 100, 32):
        torch.testing.assert_close(groups[:, first : first + 32], quality.rounded(x[:, first : first + 32], "channel"))
    assert quality.rounded(x, None) is x
    assert (quality.rounded(x, "tensor") / (x.abs().max() / 127) % 1).round(decimals=3).unique().numel() <= 2


def test_the_simulation_is_as_far_from_float32_as_the_engine():
    ids, simulation = STAGES[0].tokenizer().encode(TALE), quality.Simulation()
    exact = simulation.logits(ids)
    as_it_is = quality.stage_logits(dtype="float32", weights="as-is")
    np.testing.assert_allclose(as_it_is(ids), exact, rtol=1e-4, atol=1e-3)

    def simulated(ids):
        simulation.set("channel", "channel", quality.EVERY)
        return simulation.logits(ids)

    stage_8 = quality.stage_logits(dtype="float32", weights="int8")
    compared = quality.compare({"as it is": as_it_is, "stage 8": stage_8, "simulated": simulated}, [ids])
    # Not the same bits: an activation on the edge between two integers falls to this side or that, and then others do.
    assert 0.5 < compared["simulated"]["kl"] / compared["stage 8"]["kl"] < 2
    assert 0 < compared["stage 8"]["kl"] < 0.01


def row(**rest):
    numbers = {"bits_per_byte": 0.1, "more": 0.001, "more_error": 0.0001, "agreement": 0.99, "kl": 0.0004}
    return {"engine": "stage 8", "of": "stage 8", **numbers, "nats": [1.0], **rest}


def test_both_tables_are_printed_and_a_failure_loses_nothing_that_was_measured(tmp_path, capsys, monkeypatch):
    spread = {"matrix": "h.0.mlp.c_proj", "largest": 8.0, "column": 3, "second": 4.0, "median": 0.5}

    def stages(*_):
        yield row(greedy_median=20, greedy_same=0.25)
        raise ValueError("it broke")

    monkeypatch.setattr(quality, "stage_part", stages)
    monkeypatch.setattr(quality, "ablation_part", lambda *_: ([row(what="weights")], [spread]))
    path = tmp_path / "quality.json"
    assert quality.main(["--tales", "1", "--openings", "1", "--json", str(path)]) == 1
    result, (out, err) = json.loads(path.read_text()), capsys.readouterr()
    assert [one["engine"] for one in result["rows"]] == ["stage 8"]
    assert "stage 8" in out
    assert "it broke" in err
    monkeypatch.setattr(quality, "stage_part", lambda *_: iter([row(greedy_median=20, greedy_same=0.25)]))
    assert quality.main(["--tales", "1", "--openings", "1"]) == 0
    out = capsys.readouterr().out
    for words in ("+0.00100 ± 0.00010", "the largest number is 8 in column 3,"):
        assert words in out

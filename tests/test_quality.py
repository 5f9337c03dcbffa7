"""bench/quality.py: what int8 costs, computed by hand where possible, and otherwise against stage 8."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench import quality
from bench.machine import int8_rate
from stage08_int8.quantize import quantize
from tests.adapter import STAGES, TINYTALES, random_prompts

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
    ids = STAGES[0].tokenizer().encode(TALE)
    simulation = quality.Simulation()

    def simulated(ids):
        simulation.set("channel", "channel", quality.EVERY)
        return simulation.logits(ids)

    engines = {
        "as it is": quality.stage_logits(dtype="float32", weights="as-is"),
        "stage 8": quality.stage_logits(dtype="float32", weights="int8"),
        "simulated": simulated,
    }
    compared = quality.compare(engines, [ids])
    # Not the same bits: an activation on the edge between two integers falls to this side or that, and then others do.
    assert 0.5 < compared["simulated"]["kl"] / compared["stage 8"]["kl"] < 2
    assert 0 < compared["stage 8"]["kl"] < 0.01


def test_the_engines_logits_are_those_of_stage_1():
    ids = STAGES[0].tokenizer().encode(TALE)
    simulation = quality.Simulation()
    expected = simulation.logits(ids)
    assert expected.shape == (len(ids), 50257)
    np.testing.assert_allclose(
        quality.stage_logits(dtype="float32", weights="as-is")(ids), expected, rtol=1e-4, atol=1e-3
    )


def test_outliers_are_those_of_the_inputs():
    simulation = quality.Simulation()
    found = simulation.outliers([STAGES[0].tokenizer().encode(TALE)])
    assert len(found) == 4 * len(simulation.model.h) + 1
    assert all(one["largest"] >= one["second"] >= one["median"] > 0 for one in found)
    assert {one["matrix"].rpartition("h.")[2][2:] for one in found} >= {"attn.c_attn", "mlp.c_proj"}


def test_features_that_are_there_four_times_compute_the_same(tmp_path):
    stage, records = STAGES[-1], []
    for copies in (1, 4):
        model = quality.write_checkpoint(tmp_path / str(copies), copies)
        llm = stage.LLM(str(model), device="cpu", dtype="float32", weights="as-is")
        with stage.recorded_logits() as recorded:
            llm.generate(random_prompts(50257, [1, 20]), stage.SamplingParams(temperature=0, max_tokens=1))
        records.append(recorded)
    narrow, wide = records
    assert len(narrow) == 2
    for key, logits in narrow.items():
        torch.testing.assert_close(wide[key], logits, rtol=1e-4, atol=1e-3)
    sizes = json.loads((tmp_path / "4" / "config.json").read_text())
    assert sizes["n_embd"] % 32 == sizes["n_inner"] % 32 == 0
    assert sizes["n_embd"] == 4 * json.loads((TINYTALES / "config.json").read_text())["n_embd"]


def row(engine, of, more, **rest):
    numbers = {"bits_per_byte": 0.1 + more, "more": more, "more_error": 0.00001, "agreement": 0.99, "kl": 0.0004}
    return {"engine": engine, "of": of, **numbers, "greedy_median": 20, "greedy_same": 0.25, **rest}


def test_a_part_that_fails_leaves_the_others(tmp_path, capsys, monkeypatch):
    first = row("stage 8 as-is float32", "stage 8 as-is float32", 0, nats=[1.0], kept=3, samples=4)

    def stages(*_):
        yield first
        raise ValueError("it broke")

    numbers = {"bits_per_byte": 0.1, "more": 0.001, "more_error": 0.0001, "agreement": 0.98, "kl": 0.01, "nats": [1.0]}
    spread = {"matrix": "h.0.mlp.c_proj", "largest": 8.0, "column": 3, "second": 4.0, "median": 0.5}
    monkeypatch.setattr(quality, "stage_part", stages)
    monkeypatch.setattr(quality, "ablation_part", lambda *_: ([{"what": "weights", **numbers}], [spread]))
    monkeypatch.setattr("bench.peers.PEERS", {"openvino": SimpleNamespace(python=tmp_path / "none", reported=())})
    path = tmp_path / "quality.json"
    arguments = ["--tales", "1", "--openings", "1", "--peers", "openvino", "--json", str(path)]
    assert quality.main(arguments) == 1
    result, out = json.loads(path.read_text()), capsys.readouterr().out
    assert [one["engine"] for one in result["rows"]] == ["stage 8 as-is float32"]
    assert "nats" not in result["rows"][0]
    assert result["missing"].keys() == {"stages", "openvino"}
    assert "it broke" in result["missing"]["stages"]
    for words in ("3 of 4", "+0.00100 ± 0.00010", "the largest number is 8 in column 3,", "Missing: stages"):
        assert words in out


def test_the_pictures(tmp_path):
    exact = "stage 8 as-is float32"
    rows = [row(exact, exact, 0), row("stage 8 int8 float32", exact, 0.0002)]
    rows += [row("openvino float32", "openvino float32", 0), row("openvino-int8 float32", "openvino float32", 0.0003)]
    named = {"stage07_speculative": 0, "stage08_int8": 1, "openvino-int8": 1, "vllm": 0}
    summary = [{"engine": e, "int8": int8, "tokens_per_second": 50 + 9 * len(e)} for e, int8 in named.items()]
    speeds = {"dtype": "float32", "workload": "single", "model": "gpt2", "summary": summary}
    picture = quality.draw_speeds({"rows": rows}, speeds)
    assert {text.get_text() for text in picture.axes[0].texts} == {"stage 7", "stage 8", "openvino-int8"}
    other = {**speeds, "dtype": "bfloat16", "summary": summary[1:2]}
    told = {text.get_text() for text in quality.draw_speeds({"rows": rows}, speeds, other).axes[0].texts}
    assert told == {"stage 7, float32", "stage 8, float32", "openvino-int8, float32", "stage 8, bfloat16"}
    quality.draw_histogram().savefig(tmp_path / "histogram.png")
    assert (tmp_path / "histogram.png").stat().st_size > 5000


@pytest.mark.soak
def test_the_rate_of_integer_products():
    assert int8_rate() > 1e9

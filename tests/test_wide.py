"""bench/wide.py: a wide checkpoint that computes the same as a narrow one; and bench/speculative.py, which uses it."""

import json
import shutil

import pytest

from bench import speculative
from bench.wide import MORE_LAYERS, TIMES, make
from tests.adapter import STAGES, TINYTALES, random_prompts, write_checkpoint

SIX = next(stage for stage in STAGES if stage.number == 6)


def differences(narrow, wide, prompts):
    """The largest difference of a log-probability, and whether all tokens are the same."""
    params = SIX.SamplingParams(temperature=0, max_tokens=12, logprobs=3, prompt_logprobs=0, ignore_eos=True)
    a, b = (SIX.LLM(str(path), device="cpu").generate(prompts, params) for path in (narrow, wide))
    pairs = [(x.outputs[0], y.outputs[0]) for x, y in zip(a, b, strict=True)]
    entries = [
        (one[token].logprob, other[token].logprob)
        for x, y in pairs
        for one, other in zip(x.logprobs, y.logprobs, strict=True)
        for token in one.keys() & other.keys()
    ]
    assert len(entries) >= 12 * len(prompts)
    return max(abs(x - y) for x, y in entries), all(x.token_ids == y.token_ids for x, y in pairs)


def test_a_small_one(tmp_path):
    sizes = dict(n_layer=2, n_head=3, n_embd=24, n_positions=40, vocab_size=211)
    narrow = write_checkpoint(tmp_path / "narrow", **sizes)
    for name in ("merges.txt", "vocab.json", "generation_config.json"):
        if not (narrow / name).exists():
            shutil.copy(TINYTALES / name, narrow)
    wide = make(tmp_path / "wide", narrow)
    config = json.loads((wide / "config.json").read_text())
    assert (config["n_embd"], config["n_head"]) == (24 * TIMES, 3 * TIMES)
    assert config["n_layer"] == 2 + MORE_LAYERS
    difference, same = differences(narrow, wide, random_prompts(211, [3, 9, 20]))
    assert same
    assert difference < 1e-4


@pytest.mark.soak
def test_the_bundled_one(tmp_path):
    wide = make(tmp_path / "wide")
    prompts = ["Once upon a time", "There was once a shy bear"]
    difference, same = differences(TINYTALES, wide, prompts)
    assert same
    assert difference < 1e-3


@pytest.mark.parametrize("text", speculative.TEXTS)
def test_what_guesses_gain_is_measured(text, monkeypatch):
    """On each kind of text, with each drafter; the tokens are stage 6's."""
    monkeypatch.setattr(speculative, "TOKENS", 8)
    records = speculative.Bench(str(TINYTALES), "float32", 1).run(text)
    assert [record["engine"] for record in records][:2] == ["stage 6", "prompt lookup"]
    assert all(record["same"] and record["tokens"] for record in records)
    assert any(record.get("drafted") for record in records)
    guessed = [record for record in records if record.get("drafted")]
    assert all(record["accepted"] <= record["tried"] <= record["drafted"] for record in guessed)
    assert any(record["accepted"] < record["tried"] < record["drafted"] for record in guessed)  # refused, and after it

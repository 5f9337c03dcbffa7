"""The bundled checkpoint: its layout, its size, and that its stories are stories."""

import json
import re
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.adapter import ROOT, STAGES, TINYTALES

sys.path.insert(0, str(ROOT / "tools"))
from tale_grammar import write_tale
from train_tinytales import cast_is_kept


def test_size_and_layout():
    assert sum(path.stat().st_size for path in TINYTALES.iterdir()) <= 16_000_000
    config = json.loads((TINYTALES / "config.json").read_text())
    assert (config["vocab_size"], config["n_positions"], config["activation_function"]) == (50257, 1024, "gelu_new")
    assert {t.dtype for t in load_file(TINYTALES / "model.safetensors").values()} == {torch.float16}
    assert (TINYTALES / "README.md").exists()


def test_transformers_loads_it_too():
    model, tokenizer = AutoModelForCausalLM.from_pretrained(TINYTALES), AutoTokenizer.from_pretrained(TINYTALES)
    ids = tokenizer("Once upon a time", return_tensors="pt")
    text = tokenizer.decode(model.float().generate(**ids, max_new_tokens=20, do_sample=False, pad_token_id=50256)[0])
    assert text.startswith("Once upon a time")


@pytest.mark.soak
def test_stories_end_and_keep_their_cast():
    """60 unedited samples at temperature 0.8: at least 9 of 10 end by themselves and mix up nobody."""
    stage = STAGES[-1]
    params = stage.SamplingParams(temperature=0.8, max_tokens=1000)
    llm = stage.LLM(device="cpu", seed=1)
    outputs = [output.outputs[0] for output in llm.generate(["Once upon a time"] * 60, params)]
    assert sum(output.finish_reason == "stop" for output in outputs) >= 54
    assert sum(cast_is_kept("Once upon a time" + output.text) for output in outputs) >= 54
    lengths = sorted(len(output.token_ids) for output in outputs)
    assert lengths[-1] > 3 * lengths[0]  # the uneven lengths that the course is about


def test_the_grammar_writes_clean_text():
    tales = [write_tale(seed) for seed in range(2000)]
    assert len(set(tales)) > 1950
    for tale in tales:
        assert not re.search(r"[\[\]{}<>|]|  |\ba [aeiou]| [.,!?]", tale), tale
        assert tale[0].isupper()
        assert tale[-1] in '.!"'
        assert cast_is_kept(tale)


def test_the_check_of_the_cast_can_fail():
    assert cast_is_kept("Once there was a fox named Tom. Tom ran. He met a girl named Lily. Lily laughed at Tom.")
    assert not cast_is_kept("Once there was a fox named Tom. Lily ran.")
    assert not cast_is_kept("Once there was a fox named Tom. She ran, and Tom lost her hat.")

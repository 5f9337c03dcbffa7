"""The bundled checkpoint: its layout, its size, that its stories are stories; and the grammar that wrote the others."""

import json
import random
import re
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.adapter import ROOT, STAGES, TINYTALES

sys.path.insert(0, str(ROOT / "tools" / "tinytales"))
from tale_grammar import Tale, lexicon, write_tale
from train_tinytales import Rows, Tokenizer, spell

TRAINING = ROOT / "tools" / "tinytales"
HELD_OUT_OPENINGS = (TRAINING / "held_out_openings.txt").read_text(encoding="utf-8").splitlines()


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
    params = STAGES[0].SamplingParams(temperature=0, max_tokens=20)
    (ours,) = STAGES[0].engine().generate(["Once upon a time"], params)[0].outputs
    assert text == f"Once upon a time{ours.text}"


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.soak)])
def test_stories_end_in_the_words_of_the_tales(count):
    """Unedited samples at temperature 0.8, also of openings that the grammar can't write."""
    prompts, stage = HELD_OUT_OPENINGS[::3][:count], STAGES[-1]
    outputs = stage.LLM(device="cpu", seed=1).generate(prompts, stage.SamplingParams(temperature=0.8, max_tokens=1000))
    stories = [output.outputs[0] for output in outputs]
    assert sum(story.finish_reason == "stop" for story in stories) >= 0.9 * count
    words = [word for story in stories for word in re.findall(r"(?<!^)(?<![.!?\"] )\b[a-z]+", story.text)]
    assert sum(word in lexicon() for word in words) > 0.97 * len(words)
    lengths = sorted(len(story.token_ids) for story in stories)
    assert lengths[-1] > (3 if count > 8 else 2) * lengths[0]  # the uneven lengths that the course is about


def test_the_grammar_writes_clean_text():
    tales = [write_tale(seed) for seed in range(300)]
    assert len(set(tales)) > 290
    for tale in tales:
        assert not re.search(r"[\[\]{}<>|]|  |\b[Aa] [aeiou]| [.,!?]", tale), tale
        assert tale[0].isupper() or tale[0] == '"'
        assert tale[-1] in '.!"'
        paragraphs = tale.split("\n\n")
        assert len({paragraph[:30] for paragraph in paragraphs}) == len(paragraphs), "an episode is told twice"


def test_no_held_out_opening_is_the_grammars():
    assert len(set(HELD_OUT_OPENINGS)) == 200
    tales = [write_tale(seed) for seed in range(1000)]
    for opening in HELD_OUT_OPENINGS:
        assert not any(tale.startswith(opening) for tale in tales), opening


def test_what_is_learned_is_the_tale():
    """Noise is read, but never asked for; nor are words that were invented for one tale, where they come first."""
    rows = Rows(Tokenizer(TINYTALES))
    noisy = invented = 0
    for seed in range(100):
        tale = Tale(seed, rows.invent)
        assert rows.tokenizer.decode(spell(rows.tokenizer, tale)[:-1]) == tale.text
        inputs, targets = zip(*rows.tale(seed, random.Random(seed)), strict=True)
        read = rows.tokenizer.decode(inputs)
        asked = rows.tokenizer.decode([max(target, 0) for target in targets])
        noisy += read != tale.text
        for word in tale.inventions:
            count = len(re.findall(rf"\b{word}\b", tale.text))
            invented += count > 0
            assert len(re.findall(rf"\b{word}\b", asked)) < max(1, count), (seed, word)
    assert noisy > 25
    assert invented > 25

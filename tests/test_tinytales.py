"""The bundled checkpoint: its layout, its size, and that its stories are stories; and the check that says so."""

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
from tale_check import Reader, sentences, slips
from tale_grammar import Tale, write_tale
from train_tinytales import Rows, Tokenizer, spell

TRAINING = ROOT / "tools" / "tinytales"
HELD_OUT_OPENINGS = (TRAINING / "held_out_openings.txt").read_text(encoding="utf-8").splitlines()
TALE = """\
Once upon a time, there was a clever girl named Poppy who lived in a cottage with a red door. Poppy's aunt was ill and \
lived far away. Poppy made a picture book to cheer up the poor aunt. Poppy had a good friend, a merry lamb named Wren. \
"May I come too?" asked Wren. "Of course," said Poppy. Together they left the cottage behind and followed the long road.

By evening they were hungry. Poppy had only one bun left, so she broke it in two. "Half for you and half for me," she \
said. It was a small supper, but it tasted wonderful. Then they went on.

At last they knocked at the door of the aunt. "What a surprise!" cried the aunt, and opened the gift. "A picture book! \
I have always wanted one." The two friends hugged. And the book got the best place in the house. The end."""


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


@pytest.mark.parametrize(
    ("kind", "count", "good"),
    [
        ("other openings", 8, 4),
        pytest.param("once upon a time", 60, 52, marks=pytest.mark.soak),
        pytest.param("other openings", 60, 38, marks=pytest.mark.soak),
    ],
)
def test_stories_end_and_contradict_neither_themselves_nor_their_prompt(kind, count, good):
    """Unedited samples at temperature 0.8: nearly all end, and most are good (the model card counts 200 of each)."""
    prompts = ["Once upon a time"] * count if kind == "once upon a time" else HELD_OUT_OPENINGS[::3][:count]
    stage = STAGES[-1]
    outputs = stage.LLM(device="cpu", seed=1).generate(prompts, stage.SamplingParams(temperature=0.8, max_tokens=1000))
    stories = [(output.prompt, output.outputs[0]) for output in outputs]
    assert sum(story.finish_reason == "stop" for _, story in stories) >= 0.9 * count
    assert sum(not slips(prompt + story.text, prompt) for prompt, story in stories) >= good
    lengths = sorted(len(story.token_ids) for _, story in stories)
    assert lengths[-1] > (3 if count > 8 else 2) * lengths[0]  # the uneven lengths that the course is about


def test_the_grammar_writes_clean_text_of_which_the_check_reads_every_sentence():
    tales = [write_tale(seed) for seed in range(300)]
    assert len(set(tales)) > 290
    for tale in tales:
        assert not re.search(r"[\[\]{}<>|]|  |\b[Aa] [aeiou]| [.,!?]", tale), tale
        assert tale[0].isupper() or tale[0] == '"'
        assert tale[-1] in '.!"'
        assert slips(tale) == [], tale
        assert Reader(tale, "").recognised == len(sentences(tale)), tale
        paragraphs = tale.split("\n\n")
        assert len({paragraph[:30] for paragraph in paragraphs}) == len(paragraphs), "an episode is told twice"


@pytest.mark.parametrize(
    ("old", "new", "slip"),
    [
        ("poor aunt", "poor uncle", "who was"),
        ('"A picture book!', '"A round book!', "t.a was picture book, now round book"),
        ("the book got", "the kite got", "t was book, now kite"),
        ("asked Wren", "asked Poppy", "f. was Wren, now Poppy"),
        ("so she broke", "so he broke", "h.pronoun was she, now he"),
        ("left the cottage", "left the village", "home was"),
        ('"Half', 'Then Tom came. "Half', "Tom was never introduced"),
        ("a merry lamb named Wren", "a merry lamb named Poppy", "Poppy is two characters"),
        ("wonderful", "trigonometric", "trigonometric is no word of the tales"),
        ("And the book got the best place in the house.", '"It was worth every step," said Poppy.', "plot was gift"),
    ],
)
def test_the_check_can_fail(old, new, slip):
    assert slips(TALE) == []
    assert old in TALE
    assert slips(TALE.replace(old, new))[0].startswith(slip)


@pytest.mark.parametrize(
    ("prompt", "story", "slip"),
    [
        ("Zorro was late.", " Zorro was a shy fox who lived near a windy harbor.", None),
        ("Zorro was late.", " A shy fox named Tom lived near a harbor.", "nobody of the prompt comes again: Zorro"),
        ("The old fox ran.", " His name was Otto, and he lived near a windy harbor.", None),
        (
            "The old fox ran.",
            " A shy bear named Otto lived near a windy harbor.",
            "the prompt's fox does not come again",
        ),
        ("It rained, and", " a shy fox named Otto slept.", None),
        ("It rained, and", " Otto slept.", "Otto was never introduced"),
        ("Otto lost his hat, and", " she never found it again.", "nobody is she"),
    ],
)
def test_the_check_compares_a_story_with_its_prompt(prompt, story, slip):
    found = slips(prompt + story, prompt)
    assert found[0].startswith(slip) if slip else not found


def test_no_held_out_opening_is_the_grammars():
    assert len(set(HELD_OUT_OPENINGS)) == 200
    tales = [write_tale(seed) for seed in range(1000)]
    for opening in HELD_OUT_OPENINGS:
        assert not any(tale.startswith(opening) for tale in tales), opening
        assert not Reader(opening, "").recognised, opening


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

"""The bundled checkpoint: its layout, its size, and that its stories are stories."""

import json
import random
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.adapter import ROOT, STAGES, TINYTALES

sys.path.insert(0, str(ROOT / "stagewise" / "models" / "training"))
from tale_check import Reader, sentences, slips
from tale_grammar import FRIENDS, NAMES, Tale, write_tale
from train_tinytales import Embedding, Rows, Sample, Tokenizer, look, spell

HELD_OUT_OPENINGS = (
    (ROOT / "stagewise" / "models" / "training" / "held_out_openings.txt").read_text(encoding="utf-8").splitlines()
)
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
    assert text.startswith("Once upon a time")


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


def test_a_tale_that_tells_an_episode_twice_is_counted():
    once, twice = "One day it rained.\n\nThey went on.", "One day it rained.\n\nThey went on.\n\nThey went on."
    assert [Sample("", SimpleNamespace(text=text)).repeats for text in (once, twice)] == [False, True]
    for seed in range(300):
        assert not Sample("", SimpleNamespace(text=write_tale(seed))).repeats


def test_the_grammar_writes_clean_text():
    tales = [write_tale(seed) for seed in range(2000)]
    assert len(set(tales)) > 1950
    for tale in tales:
        assert not re.search(r"[\[\]{}<>|]|  |\b[Aa] [aeiou]| [.,!?]", tale), tale
        assert tale[0].isupper() or tale[0] == '"'
        assert tale[-1] in '.!"'


@pytest.fixture(scope="module")
def rows() -> Rows:
    return Rows(Tokenizer(TINYTALES))


def test_noise_leaves_the_cast_alone_and_invented_words_are_never_asked_for(rows):
    """Or the model would learn to make names up."""
    noisy, invented = 0, 0
    for seed in range(200):
        tale = Tale(seed, rows.invent)
        text = tale.text
        inputs, targets = zip(*rows.tale(seed, random.Random(seed)), strict=True)
        read = rows.tokenizer.decode(inputs)
        noisy += read != text
        for name in (str(tale.values["h"]), str(tale.values["f"])):
            assert len(re.findall(rf"{name}", read)) >= len(re.findall(rf"\b{name}\b", text)), (seed, name)
        asked = rows.tokenizer.decode([0 if target < 0 else target for target in targets])
        for word in tale.inventions:
            count = len(re.findall(rf"\b{word}\b", text))
            invented += count > 0
            assert len(re.findall(rf"\b{word}\b", asked)) < max(1, count), (seed, word)
    assert noisy > 50
    assert invented > 50


def test_a_noisy_opening_is_one_sentence_and_keeps_its_marks(rows):
    """A reader's first sentence may be strange; the model learns to go on from it, not to write such."""
    noisy, asked, marks = 0, 0, lambda text: re.findall(r"[.,;:!?\"]", text)
    for seed in range(200):
        tale = Tale(seed, rows.invent)
        row = rows.tale(seed, random.Random(seed))
        noise = [i for i, (_, target) in enumerate(row) if target < 0]
        if not tale.inventions and noise:
            noisy += 1
            opening, rest = row[: noise[-1] + 1], [target for _, target in row[noise[-1] + 1 :]]
            first = tale.text.removesuffix(rows.tokenizer.decode(rest[:-1]))
            assert first != tale.text
            assert re.split(r'(?<=[.!?])"? (?=[A-Z"])', first)[1:] == [], (seed, first)
            assert marks(rows.tokenizer.decode([read for read, _ in opening])) == marks(first), (seed, first)
            # What is kept of it is asked for: an opening may end before its sentence does.
            assert all(read == target for read, target in opening if target >= 0)
            asked += sum(target >= 0 for _, target in opening)
    assert noisy > 30
    assert asked > noisy


def test_invented_names_are_cut_like_known_ones_and_are_none_of_them(rows):
    """Where a text begins, "Mateo" is M-ate-o and "Mara" M-ara: who knows M from Mara alone writes that."""
    known = {name for names in (NAMES, FRIENDS) for some in names.values() for name in some}
    starts = {pieces[0] for pieces in map(rows.tokenizer.encode, known) if len(pieces) > 1}
    random_numbers = random.Random(0)
    invented = [rows.invent(random_numbers, "name") for _ in range(2000)]
    assert known.isdisjoint(invented)
    alike = [name for name in invented if (pieces := rows.tokenizer.encode(name))[0] in starts and len(pieces) > 1]
    assert len(alike) > 0.15 * len(invented)
    assert len({rows.tokenizer.encode(name)[0] for name in alike}) > 0.9 * len(starts)


def test_a_name_keeps_the_pieces_of_its_first_mention(rows):
    """M-ate-o at a text's start is not Mate-o after a space: a model that knows neither could not repeat the name."""
    tale = Tale(0)
    tale.values["h"].name, tale.values["f"].name = "Mateo", "Priya"
    tale.inventions = {"Mateo", "Priya"}
    tale.text = "Mateo met Priya. Then Mateo went home.\n\nPriya saw Mateo's boots."
    pieces = "M|ate|o| met| Pri|ya|.| Then| M|ate|o| went| home|.|\n|\n|Pri|ya| saw| M|ate|o|'s| boots|."
    tokens = spell(rows.tokenizer, tale)
    assert "|".join(rows.texts[token] for token in tokens[:-1]) == pieces
    assert tokens[-1] == rows.tokenizer.end_of_text_id
    for seed in range(200):
        tale = Tale(seed, rows.invent)
        assert rows.tokenizer.decode(spell(rows.tokenizer, tale)[:-1]) == tale.text


@pytest.mark.parametrize(("text", "number"), [("fox", 1), (" fox", 2), ("Fox", 3), (" Fox", 4), (".", 0), (" 12", 0)])
def test_tokens_that_look_alike_share_an_embedding(rows, text, number):
    assert look(text) == number
    embedding = Embedding([5], rows.texts, 8)
    a, b = (rows.texts.index(word) for word in (" Pri", "Pri"))
    assert torch.equal(embedding.direction[a], embedding.direction[b])
    assert not torch.equal(embedding.direction[a], embedding.direction[rows.texts.index(" Pro")])
    embedding.shared.data = torch.arange(5.0)[:, None].expand(5, 8)
    token = torch.tensor([rows.texts.index(text)])
    assert torch.allclose(embedding(token) - embedding.direction[token], torch.tensor(float(number)))


def test_a_tale_tells_its_episodes_in_the_order_of_the_plot():
    """So that no episode comes twice, a small model need only know which came last."""
    marks = [
        "and there was no bridge",
        "thick fog",
        "A big bear",
        "goat with a long beard",
        "cart was stuck",
        "line of ants",
    ]
    several = 0
    for seed in range(400):
        text = Tale(seed).text
        told = [text.index(mark) for mark in marks if mark in text]
        several += len(told) > 1
        assert told == sorted(told), seed
        paragraphs = text.split("\n\n")[1:-1]
        assert len(paragraphs) == len({paragraph[:30] for paragraph in paragraphs}), seed
    assert several > 10


def test_the_check_reads_every_sentence_of_the_grammar_and_finds_no_slip():
    for seed in range(150):
        tale = write_tale(seed)
        assert slips(tale) == [], tale
        assert Reader(tale, "").recognised == len(sentences(tale)), tale


@pytest.mark.parametrize(
    ("old", "new", "slip"),
    [
        ("poor aunt", "poor uncle", "who was"),
        ('"A picture book!', '"A round book!', "t.a was picture book, now round book"),
        ("the book got", "the kite got", "t was book, now kite"),
        ("asked Wren", "asked Poppy", "f. was Wren, now Poppy"),
        ("asked Wren", "asked Lily", "f. was Wren, now Lily"),
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
    found = slips(TALE.replace(old, new))[0]
    assert found.startswith(slip)


@pytest.mark.parametrize(
    ("prompt", "story", "slip"),
    [
        ("Zorro was late.", " Zorro was a shy fox who lived near a windy harbor.", ""),
        (
            "Zorro was late.",
            " A shy fox named Tom lived near a windy harbor.",
            "nobody of the prompt comes again: Zorro",
        ),
        ("The old fox ran.", " His name was Otto, and he lived near a windy harbor.", ""),
        (
            "The old fox ran.",
            " A shy bear named Otto lived near a windy harbor.",
            "the prompt's fox does not come again",
        ),
        ("It rained, and", " a shy fox named Otto slept.", ""),
        ("It rained, and", " Otto slept.", "Otto was never introduced"),
        ("Otto lost his hat, and", " she never found it again.", "nobody is she"),
    ],
)
def test_the_check_compares_a_story_with_its_prompt(prompt, story, slip):
    found = slips(prompt + story, prompt)
    assert (found[0] if found else "").startswith(slip)
    assert bool(found) == bool(slip)


def test_no_held_out_opening_is_the_grammars():
    assert len(set(HELD_OUT_OPENINGS)) == 200
    tales = [write_tale(seed) for seed in range(5000)]
    for opening in HELD_OUT_OPENINGS:
        assert not any(tale.startswith(opening) for tale in tales), opening
        assert not Reader(opening, "").recognised, opening

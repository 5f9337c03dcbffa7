"""Tokenizers' files as people have them, in what reads them for `stagewise convert`: what a stage's tokenizer makes of
them is transformers', or the error names the file. test_convert.py compares more kinds of them."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
import tiktoken
from tokenizers import Tokenizer, models
from transformers import GPT2TokenizerFast

from stagewise.convert import convert
from stagewise.vocabulary import rank_merges, read_vocabulary
from tests.adapter import STAGES, TINYTALES
from tests.test_convert import bundled


@pytest.fixture
def read(tmp_path):
    """Read the tokenizer in tmp_path: a stage's tokenizer."""
    made = tmp_path / "made"

    def read():
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        read_vocabulary(tmp_path).write(made)
        return STAGES[0].part("tokenizer").Tokenizer(made)

    return read


def test_a_tokenizer_json(tmp_path, read):
    """What newer versions of transformers write, and both ways to write a merge; what is wrong is named."""
    GPT2TokenizerFast.from_pretrained(bundled(tmp_path)).save_pretrained(tmp_path)
    text = "The fox’s 12 houses, naïve?  \n\tüber <|endoftext|> 👍🏽 didn't"
    expected = GPT2TokenizerFast.from_pretrained(tmp_path)(text).input_ids
    assert read().encode(text) == expected
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    model, merges = content["model"], content["model"]["merges"]
    model["merges"] = [" ".join(merge) for merge in merges]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert read().encode(text) == expected
    more = {**model["vocab"], **{f"more {i}": 1257 + i for i in range(1100)}}
    for change, says in (
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer.type is 'Whitespace', supported: 'ByteLevel'"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "add_prefix_space is True, supported"),
        ({"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}}, "use_regex is False, supported: True"),
        ({"decoder": None}, "decoder.type is None"),
        ({"model": {**model, "dropout": 0.1}}, "model.dropout is 0.1, supported: None, False"),
        ({"model": {**model, "merges": [["a", "b", "c"]]}}, "merge 1: expected two tokens"),
        ({"model": {**model, "merges": merges[1:]}}, "merge 6: expected two tokens that earlier merges leave"),
        ({"model": {**model, "vocab": more}}, "has 2,357 tokens, but the merges make 1,256"),
        ({"model": {**model, "merges": "ab"}}, "merge 1: expected two tokens"),
        ({"model": {**model, "merges": 5}}, "has no tokenizer like GPT-2's: TypeError"),
        ({"model": {**model, "vocab": [["!", 0]]}}, "has no tokenizer like GPT-2's: AttributeError"),
        ({"model": {**model, "vocab": {"!": 0}}}, "has 1 tokens, but the merges make 1,256"),
        ({"model": {**model, "vocab": {**model["vocab"], "!": 7}}}, "ids of 1,257 tokens are not the numbers from 0"),
        ({"added_tokens": [{"id": "1"}]}, "has no tokenizer like GPT-2's: KeyError: 'content'"),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps({**content, **change}), encoding="utf-8")
        with pytest.raises(ValueError, match=re.escape(says)) as error:
            read_vocabulary(tmp_path)
        assert str(tmp_path) in str(error.value)


def test_merges_are_what_the_merges_before_leave():
    """tiktoken gives transformers' ids for all merges that are accepted, and most that are refused show why."""
    rng, tokens = random.Random(3), STAGES[0].part("tokenizer")
    accepted = refused = different = 0
    for _ in range(400):
        made, merges = list("abc"), []
        while len(merges) < 7:
            left, right = rng.choice(made), rng.choice(made)
            if left + right not in made:
                made.append(left + right)
                merges.append((left, right))
        ids = {token: i for i, token in enumerate([*tokens.ALPHABET, *made[3:]])}
        theirs = Tokenizer(models.BPE(vocab=ids, merges=merges))
        ranks = {tokens.to_bytes(token): i for token, i in ids.items()}
        ours = tiktoken.Encoding("", pat_str=tokens.PIECES, special_tokens={}, mergeable_ranks=ranks)
        texts = ["".join(rng.choices("abc", k=12)) for _ in range(30)]
        equal = all(ours.encode_ordinary(text) == theirs.encode(text).ids for text in texts)
        try:
            assert rank_merges(Path("merges.txt"), [" ".join(merge) for merge in merges]) == ids
            accepted += 1
            assert equal, merges
        except ValueError:
            refused += 1
            different += not equal
    assert accepted > 100
    assert refused / 2 < different


def test_a_small_tokenizer(tmp_path, read):
    """Merges alone have GPT-2's layout; with a vocab.json the ids are what that says."""
    (tmp_path / "merges.txt").write_text("Ġ t\nh e\nĠt he\n", encoding="utf-8")
    tokenizer = read()
    assert tokenizer.encode(" the") == [258]
    assert tokenizer.end_of_text_id == 259
    tokens = [*STAGES[0].byte_alphabet(), "Ġt", "he", "Ġthe"]
    vocabulary = {token: number for number, token in enumerate(["<|endoftext|>", *reversed(tokens)])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = read()
    assert tokenizer.encode(" the!<|endoftext|>") == [1, 259, 0]
    assert tokenizer.decode([1, 259, 0]) == " the!"
    assert (tokenizer.end_of_text_id, tokenizer.num_tokens) == (0, 260)


@pytest.mark.parametrize(
    ("merges", "line", "got"),
    [
        pytest.param("Ġ t\nĠt he\n", 2, "Ġt he", id="a line was lost"),
        pytest.param("Ġ t\nh e\nĠ t\n", 3, "Ġ t", id="one twice"),
        pytest.param("Ġ t\nĠ €\n", 2, "Ġ €", id="no byte"),
        pytest.param("Ġ t\nĠ a b\n", 2, "Ġ a b", id="three"),
        pytest.param("Ġ t\nh e\nĠt", 3, "Ġt", id="cut in the middle of a line"),
    ],
)
def test_merges_that_do_not_fit_together(tmp_path, merges, line, got):
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    says = f"{tmp_path / 'merges.txt'}, merge {line}: expected two tokens that earlier merges leave, got '{got}'"
    with pytest.raises(ValueError, match=re.escape(says)):
        read_vocabulary(tmp_path)


def test_half_a_merges_file(tmp_path):
    """Every line of it is right, so only the model's sizes tell; a vocabulary that is padded is whole."""
    lines = (TINYTALES / "merges.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(TINYTALES / name, tmp_path)
    (tmp_path / "merges.txt").write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the tokenizer has 25,2.. tokens, the model 50,257: merges.txt may be cut"):
        convert(tmp_path, tmp_path / "made")
    (tmp_path / "merges.txt").write_text("".join(lines[:-900]), encoding="utf-8")
    convert(tmp_path, tmp_path / "made")
    assert STAGES[0].tokenizer(tmp_path / "made").num_tokens == 50257 - 900


@pytest.mark.parametrize(
    ("vocabulary", "says"),
    [
        ('["ab", "cd"]', "is not a JSON object"),  # which dict() would take
        ('[["!", 0]]', "is not a JSON object"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"!": false}', "the ids of 1 tokens are not the numbers from 0 to 0"),
        ('{"!": 0.0}', "the ids of 1 tokens are not the numbers from 0 to 0"),
        ('{"€": 30}', "the ids of 1 tokens are not the numbers from 0 to 0"),
        ('{"<|endoftext|>": 0}', "has 1 tokens, but the merges make 257"),
    ],
)
def test_a_damaged_vocabulary(tmp_path, vocabulary, says):
    (tmp_path / "merges.txt").write_text("Ġ t\n", encoding="utf-8")
    (tmp_path / "vocab.json").write_text(vocabulary, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        read_vocabulary(tmp_path)
    assert str(tmp_path / "vocab.json") in str(error.value)


@pytest.mark.parametrize("name", ["merges.txt", "tokenizer.json", "vocab.json"])
def test_files_that_can_not_be_read(tmp_path, name):
    if name == "vocab.json":
        (tmp_path / "merges.txt").write_text("Ġ t\n", encoding="utf-8")
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"{name} can't be read: "):
        read_vocabulary(tmp_path)


def test_a_deeply_nested_tokenizer_json(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model":' * 100_000)
    with pytest.raises(ValueError, match=r"tokenizer.json is not valid JSON"):
        read_vocabulary(tmp_path)

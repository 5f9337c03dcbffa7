"""The tokenizer against Hugging Face's GPT-2 tokenizer, and the detokenizer against whole decodes."""

import json
import random
import re
import shutil
import time
from pathlib import Path

import pytest
import tiktoken
from tokenizers import Tokenizer, models
from transformers import GPT2TokenizerFast

from tests.adapter import TINYTALES

pytestmark = pytest.mark.covers("support/tokenizer.py", "support/vocabulary.py")

TEXTS = {
    "plain": "Once upon a time, there was a fox. It's he'll we've I'm they'd you're!",
    "multilingual": "Größe façade naïve Ελληνικά русский 日本語のテキスト 中文 한국어 العربية עברית हिन्दी ไทย ქართული",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 😀😃😄 👍🏽 ❤️ 🇩🇪 a😀b",
    "control": "a\x00b\x01\x02\t\n\r\x0b\x0c\x1b[0m\x7f\u0085\u2028\u2029\ufeff\u200b\u00a0end",
    "spaces": " a  b   c    d\n\n\n  e \t f\r\n\r\n   ",
    "only spaces": "          ",
    "numbers": "3.14159 1,000,000 0x1F ½ ² Ⅷ ٣ 12345678901234567890",
    "punctuation": "...!!!???---''\"\"``<>{}[]()@#$%^&*_+=~|\\/",
    "apostrophes": "'s 'S 't’s ''s 'll'LL 'veve",
    "end token": "one<|endoftext|>two <|endoftext|> <|endoftext|><|endoftext|>",
    "almost the end token": "<|endoftext <|endoftext|  |> < |endoftext|>",
    "combining": "e\u0301 n\u0303 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!",
    "code": "def f(x):\n    return x ** 2  # naïve\n\n\nif __name__ == '__main__':\n\tprint(f(3))\n",
}


@pytest.fixture(scope="module")
def reference():
    return GPT2TokenizerFast.from_pretrained(TINYTALES)


@pytest.mark.parametrize("name", TEXTS)
def test_same_ids_as_hugging_face(stage, reference, name):
    text = TEXTS[name]
    ids = stage.tokenizer().encode(text)
    assert ids == reference(text).input_ids
    without_end_token = stage.tokenizer().decode(ids)
    assert without_end_token == text.replace("<|endoftext|>", "")


def test_same_ids_on_random_text(stage, reference):
    """2,000 strings of characters from all over Unicode, spaces and apostrophes among them."""
    rng = random.Random(0)
    blocks = [(0, 32), (32, 127), (128, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00), (0x2000, 0x2070)]
    blocks += [(0x3040, 0x3100), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F300, 0x1F650)]
    for _ in range(2000):
        text = "".join(
            rng.choice([" ", "  ", "'s", "\n", chr(rng.randrange(*rng.choice(blocks)))])
            for _ in range(rng.randrange(1, 40))
        )
        assert stage.tokenizer().encode(text) == reference(text).input_ids, repr(text)


@pytest.mark.parametrize("unit", ["a", " ", "ab ", "\n", "a\n ", "é", "👍", "'", "1", "x" * 999 + " ", " \u3000"])
def test_100_kilobytes(stage, reference, unit):
    text = unit * (100_000 // len(unit.encode()))
    started = time.process_time()
    ids = stage.tokenizer().encode(text)
    assert time.process_time() - started < 20  # a quadratic merge takes minutes
    assert ids == reference(text).input_ids
    assert stage.tokenizer().decode(ids) == text


def test_the_literal_end_token_is_the_end_token(stage):
    """As in Hugging Face's tokenizer, and so in vLLM: the text <|endoftext|> is one token, the end token."""
    tokenizer = stage.tokenizer()
    assert tokenizer.encode("<|endoftext|>") == [50256]
    assert tokenizer.encode("a<|endoftext|>b") == [*tokenizer.encode("a"), 50256, *tokenizer.encode("b")]
    assert tokenizer.encode("") == [50256]


def test_half_a_surrogate_pair_is_refused(stage):
    """tiktoken alone would put another character in its place."""
    with pytest.raises(ValueError, match="the text is not valid Unicode: surrogates not allowed at character 4"):
        stage.tokenizer().encode("half\ud83d")


def test_every_token_survives(stage, reference):
    """All 50,257 tokens have Hugging Face's bytes."""
    tokenizer = stage.tokenizer()
    vocabulary = {i: text for text, i in reference.get_vocab().items()}
    alphabet = stage.part("vocabulary").byte_alphabet()
    for i in range(50256):
        assert tokenizer.token_bytes(i) == b"".join(alphabet[c] for c in vocabulary[i])
    assert tokenizer.token_bytes(50256) == b""
    assert tokenizer.token_bytes(50300) == b""  # vocabularies are sometimes padded


def test_detokenizer_never_breaks_a_character(stage):
    """Pieces, joined, are the whole; a piece holds U+FFFD only where the whole does; random bytes too."""
    tokenizer, detokenizer_class = stage.tokenizer(), stage.part("tokenizer").Detokenizer
    rng = random.Random(1)
    streams = [tokenizer.encode(text) for text in TEXTS.values()]
    streams += [[rng.randrange(256) for _ in range(60)] for _ in range(200)]  # the first 256 ids are single bytes
    streams += [[rng.randrange(50257) for _ in range(60)] for _ in range(200)]
    for token_ids in streams:
        detokenizer = detokenizer_class(tokenizer)
        pieces = [detokenizer.add(t) for t in token_ids] + [detokenizer.flush()]
        assert "".join(pieces) == tokenizer.decode(token_ids)
    detokenizer = detokenizer_class(tokenizer)
    assert [detokenizer.add(t) for t in tokenizer.encode("👍🏽é")].count("\ufffd") == 0


def test_decode_equals_hugging_face(stage, reference):
    rng = random.Random(2)
    for _ in range(300):
        ids = [rng.randrange(50256) for _ in range(30)]
        assert stage.tokenizer().decode(ids) == reference.decode(ids, clean_up_tokenization_spaces=False)


def test_a_tokenizer_json(stage, tmp_path, reference):
    """What newer versions of transformers write, and both ways to write a merge; what is wrong is named."""
    tokenizer_class = stage.part("tokenizer").Tokenizer
    reference.save_pretrained(tmp_path)
    text = "The fox’s 12 houses, naïve?  \n\tüber <|endoftext|> 👍🏽 didn't"
    assert tokenizer_class(tmp_path).encode(text) == stage.tokenizer().encode(text)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    model, merges = content["model"], content["model"]["merges"]
    model["merges"] = [" ".join(merge) for merge in merges]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert tokenizer_class(tmp_path).encode(text) == stage.tokenizer().encode(text)
    for change, says in (
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer.type is 'Whitespace', supported: 'ByteLevel'"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "add_prefix_space is True, supported"),
        ({"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}}, "use_regex is False, supported: True"),
        ({"decoder": None}, "decoder.type is None"),
        ({"model": {**model, "dropout": 0.1}}, "model.dropout is 0.1, supported: None, False"),
        ({"model": {**model, "merges": [["a", "b", "c"]]}}, "merge 1: expected two tokens"),
        ({"model": {**model, "merges": merges[1:]}}, "merge 6: expected two tokens that earlier merges leave"),
        (
            {"model": {**model, "merges": merges[:-2000]}},
            "has 50,257 tokens, but the merges make 48,256",
        ),
        ({"model": {**model, "merges": "ab"}}, "merge 1: expected two tokens"),
        ({"model": {**model, "merges": 5}}, "has no tokenizer like GPT-2's: TypeError"),
        ({"model": {**model, "vocab": [["!", 0]]}}, "has no tokenizer like GPT-2's: AttributeError"),
        ({"model": {**model, "vocab": {"!": 0}}}, "has 1 tokens, but the merges make 50,256"),
        ({"model": {**model, "vocab": {**model["vocab"], "!": 7}}}, "ids of 50,257 tokens are not the numbers from 0"),
        ({"added_tokens": [{"id": "1"}]}, "has no tokenizer like GPT-2's: KeyError: 'content'"),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps({**content, **change}), encoding="utf-8")
        with pytest.raises(ValueError, match=re.escape(says)) as error:
            tokenizer_class(tmp_path)
        assert str(tmp_path) in str(error.value)


def test_added_tokens(stage, tmp_path):
    """They are found before anything is merged, the longest first; decoding leaves out the special ones."""
    tokenizer = GPT2TokenizerFast.from_pretrained(TINYTALES)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|user|>:"]})
    tokenizer.add_tokens(["rabbithole"])
    tokenizer.save_pretrained(tmp_path)
    ours = stage.part("tokenizer").Tokenizer(tmp_path)
    assert ours.encode("<|user|>:<|user|>Hi rabbitholes") == [50258, 50257, 17250, 220, 50259, 82]
    assert (ours.num_tokens, ours.end_of_text_id) == (50260, 50256)
    assert ours.special == {50256: "<|endoftext|>", 50257: "<|user|>", 50258: "<|user|>:"}
    assert ours.decode([50258, 17250, 220, 50259, 82, 60000]) == "Hi rabbitholes"
    assert [ours.token_text(i) for i in (50258, 50259, 17250, 220, 60000)] == ["<|user|>:", "rabbithole", "Hi", " ", ""]
    assert [ours.token_bytes(i) for i in (50258, 50259)] == [b"", b"rabbithole"]


def test_merges_are_what_the_merges_before_leave(stage):
    """tiktoken gives transformers' ids for all merges that are accepted, and most that are refused show why."""
    rng, vocabulary, tokens = random.Random(3), stage.part("vocabulary"), stage.part("tokenizer")
    accepted = refused = different = 0
    for _ in range(400):
        made, merges = list("abc"), []
        while len(merges) < 7:
            left, right = rng.choice(made), rng.choice(made)
            if left + right not in made:
                made.append(left + right)
                merges.append((left, right))
        ids = {token: i for i, token in enumerate([*vocabulary.byte_alphabet(), *made[3:]])}
        theirs = Tokenizer(models.BPE(vocab=ids, merges=merges))
        ranks = {tokens.to_bytes(token): i for token, i in ids.items()}
        ours = tiktoken.Encoding("", pat_str=tokens.PIECES, special_tokens={}, mergeable_ranks=ranks)
        texts = ["".join(rng.choices("abc", k=12)) for _ in range(30)]
        equal = all(ours.encode_ordinary(text) == theirs.encode(text).ids for text in texts)
        try:
            assert vocabulary.rank_merges(Path("merges.txt"), [" ".join(merge) for merge in merges]) == ids
            accepted += 1
            assert equal, merges
        except ValueError:
            refused += 1
            different += not equal
    assert accepted > 100
    assert refused / 2 < different


def test_a_small_tokenizer(stage, tmp_path):
    """Merges alone have GPT-2's layout; with a vocab.json the ids are what that says."""
    tokenizer_class = stage.part("tokenizer").Tokenizer
    (tmp_path / "merges.txt").write_text("Ġ t\nh e\nĠt he\n", encoding="utf-8")
    tokenizer = tokenizer_class(tmp_path)
    assert tokenizer.encode(" the") == [258]
    assert tokenizer.end_of_text_id == 259
    tokens = [*stage.part("vocabulary").byte_alphabet(), "Ġt", "he", "Ġthe"]
    vocabulary = {token: number for number, token in enumerate(["<|endoftext|>", *reversed(tokens)])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = tokenizer_class(tmp_path)
    assert tokenizer.encode(" the!<|endoftext|>") == [1, 259, 0]
    assert tokenizer.decode([1, 259, 0]) == " the!"
    assert (tokenizer.end_of_text_id, tokenizer.num_tokens) == (0, 260)


@pytest.mark.parametrize(
    ("merges", "says"),
    [
        ("Ġ t\nĠt he\n", "merge 2: expected two tokens that earlier merges leave, got 'Ġt he'"),  # a line was lost
        ("Ġ t\nh e\nĠ t\n", "merge 3: expected two tokens that earlier merges leave, got 'Ġ t'"),  # and one twice
        ("Ġ t\nĠ €\n", "merge 2: expected two tokens that earlier merges leave, got 'Ġ €'"),
        ("Ġ t\nĠ a b\n", "merge 2: expected two tokens that earlier merges leave, got 'Ġ a b'"),
        (
            "Ġ t\nh e\nĠt",
            "merge 3: expected two tokens that earlier merges leave, got 'Ġt'",
        ),  # cut short in the middle of a line
    ],
)
def test_merges_that_do_not_fit_together(stage, tmp_path, merges, says):
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    with pytest.raises(ValueError, match=says) as error:
        stage.part("tokenizer").Tokenizer(tmp_path)
    assert str(tmp_path / "merges.txt") in str(error.value)


@pytest.mark.covers("support/tokenizer.py", "support/vocabulary.py", "support/weights.py")
def test_half_a_merges_file(stage, tmp_path):
    """Every line of it is right, so only the model's sizes tell; a vocabulary that is padded is whole."""
    lines = (TINYTALES / "merges.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(TINYTALES / name, tmp_path)
    (tmp_path / "merges.txt").write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the tokenizer has 25,2.. tokens, config.json 50,257"):
        stage.LLM(tmp_path, device="cpu")
    (tmp_path / "merges.txt").write_text("".join(lines[:-900]), encoding="utf-8")
    assert stage.LLM(tmp_path, device="cpu").get_tokenizer().num_tokens == 50257 - 900


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
def test_a_damaged_vocabulary(stage, tmp_path, vocabulary, says):
    (tmp_path / "merges.txt").write_text("Ġ t\n", encoding="utf-8")
    (tmp_path / "vocab.json").write_text(vocabulary, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        stage.part("tokenizer").Tokenizer(tmp_path)
    assert str(tmp_path / "vocab.json") in str(error.value)


@pytest.mark.parametrize("name", ["merges.txt", "tokenizer.json", "vocab.json"])
def test_files_that_can_not_be_read(stage, tmp_path, name):
    if name == "vocab.json":
        (tmp_path / "merges.txt").write_text("Ġ t\n", encoding="utf-8")
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"{name} can't be read: "):
        stage.part("tokenizer").Tokenizer(tmp_path)


def test_a_deeply_nested_tokenizer_json(stage, tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model":' * 100_000)
    with pytest.raises(ValueError, match=r"tokenizer.json is not valid JSON"):
        stage.part("tokenizer").Tokenizer(tmp_path)

"""The tokenizer against Hugging Face's GPT-2 tokenizer, and the detokenizer against whole decodes."""

import json
import random
import shutil
import time

import pytest
from transformers import GPT2TokenizerFast

from tests.adapter import TINYTALES

pytestmark = pytest.mark.covers("support/tokenizer.py")

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
    alphabet = stage.byte_alphabet()
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


def test_added_tokens(stage, tmp_path):
    """They are found before anything is merged, the longest first; decoding leaves out the special ones."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(TINYTALES / name, tmp_path)
    special = {"<|endoftext|>": 50256, "<|user|>": 50257, "<|user|>:": 50258}
    added = {text: {"id": token_id, "special": True, "normalized": False} for text, token_id in special.items()}
    added["rabbithole"] = {"id": 50259, "special": False, "normalized": True}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    ours = stage.part("tokenizer").Tokenizer(tmp_path)
    assert ours.encode("<|user|>:<|user|>Hi rabbitholes") == [50258, 50257, 17250, 220, 50259, 82]
    assert (ours.num_tokens, ours.end_of_text_id) == (50260, 50256)
    assert ours.special == {50256: "<|endoftext|>", 50257: "<|user|>", 50258: "<|user|>:"}
    assert ours.decode([50258, 17250, 220, 50259, 82, 60000]) == "Hi rabbitholes"
    assert [ours.token_text(i) for i in (50258, 50259, 17250, 220, 60000)] == ["<|user|>:", "rabbithole", "Hi", " ", ""]
    assert [ours.token_bytes(i) for i in (50258, 50259)] == [b"", b"rabbithole"]

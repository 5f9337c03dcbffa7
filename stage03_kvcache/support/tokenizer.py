"""Text to token ids and back: GPT-2's byte-level byte-pair encoding, with transformers' ids and texts.

tiktoken merges. Added tokens, such as `[PAD]` or `<|user|>`, are cut out of a text before anything is merged. So is the
literal text `<|endoftext|>` in a prompt: strip it from text that you do not trust.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
"""

import codecs
import json
import re
from pathlib import Path

import tiktoken

FILES = ("vocab.json", "merges.txt", "added_tokens.json")  # the last one only if tokens were added to GPT-2's
END_OF_TEXT = "<|endoftext|>"
# How text is split before any merging: contractions, words, numbers, punctuation, runs of spaces. A possessive
# quantifier (`++`) never gives characters back, so a run of 100,000 letters is matched in one go.
PIECES = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
SPACES = "".join(chr(i) for i in range(0x3001) if chr(i).isspace() and not 0x1C <= i <= 0x1F)  # Unicode's White_Space


def byte_alphabet() -> dict[str, bytes]:
    """The 256 printable characters that files write bytes as, each with its byte, in the order of GPT-2's ids.

    Printable bytes stand for themselves and come first; the other 68 are written as the characters from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]
    return {c: bytes([b]) for c, b in zip(characters, printable + others, strict=True)}


ALPHABET = byte_alphabet()


def to_bytes(token: str) -> bytes:
    """The bytes of a token. Files write it in the alphabet; a token with any other character is plain text."""
    try:
        return b"".join([ALPHABET[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


class Tokenizer:
    """Encodes and decodes text with the vocabulary of one model.

    Args:
        directory: has the tokenizer's files.

    Attributes:
        num_tokens: ids are below this.
        special: id -> text of the tokens that a decoded text does not show.
        end_of_text_id: the id of `<|endoftext|>`; in a vocabulary without it, that of the first special token.
    """

    def __init__(self, directory: Path):
        ids = json.loads((directory / "vocab.json").read_bytes())
        merges = (directory / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]  # after the version
        tokens = [*ALPHABET, *(merge.replace(" ", "") for merge in merges if merge)]  # in the order of their ranks
        if (directory / "added_tokens.json").exists():
            added = json.loads((directory / "added_tokens.json").read_bytes())
        else:
            added = {END_OF_TEXT: {"id": ids[END_OF_TEXT], "special": True, "normalized": True}}
        self._added = {text: token["id"] for text, token in added.items()}
        self._lstrip = {
            text for text, token in added.items() if token.get("lstrip")
        }  # they take the spaces before them
        self._bytes = {token_id: to_bytes(token) for token, token_id in (ids | self._added).items()}
        self._ids = [ids[token] for token in tokens]
        self.num_tokens = len(self._bytes)
        self.special = {token["id"]: text for text, token in added.items() if token["special"]}
        self.end_of_text_id = self._added.get(END_OF_TEXT, next(iter(self.special), 0))
        ranks = {self._bytes[token_id]: rank for rank, token_id in enumerate(self._ids)}
        self._encoding = tiktoken.Encoding("gpt2", pat_str=PIECES, mergeable_ranks=ranks, special_tokens={})
        self._patterns = []
        for normalized in (False, True):  # as transformers: two passes over the text, longer tokens first
            texts = sorted((text for text in added if added[text]["normalized"] is normalized), key=len, reverse=True)
            self._patterns += [re.compile(f"({'|'.join(map(re.escape, texts))})")] if texts else []

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; the empty text is the end token alone, GPT-2's "start anywhere".

        Raises ValueError if the text holds half a surrogate pair, which UTF-8 can't encode.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"the text is not valid Unicode: {error.reason} at character {error.start}") from None
        pieces = [text]
        for pattern in self._patterns:
            pieces = [part for piece in pieces for part in ([piece] if piece in self._added else pattern.split(piece))]
        token_ids = []
        for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
            if piece in self._added:
                token_ids.append(self._added[piece])
            else:
                piece = piece.rstrip(SPACES) if following in self._lstrip else piece
                token_ids += [self._ids[rank] for rank in self._encoding.encode_ordinary(piece)]
        return token_ids or [self.end_of_text_id]

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        """The bytes of a token, perhaps part of a character; none for special tokens and unknown ids."""
        return b"" if skip_special and token_id in self.special else self._bytes.get(token_id, b"")

    def token_text(self, token_id: int) -> str:
        """A single token, for display: a part of a character is U+FFFD, and a special token is shown."""
        return self.special.get(token_id) or self.decode([token_id])

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids, without special tokens. Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")


class Detokenizer:
    """Decodes a stream of tokens, whole characters only. The pieces, joined, are `decode` of all tokens.

    skip_special: leave out special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True):
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._pending = b""  # the first bytes of a character

    def add(self, token_id: int) -> str:
        """The text that this token completes: empty while a character still lacks bytes."""
        new_bytes = self._pending + self._tokenizer.token_bytes(token_id, self._skip_special)
        text, length = codecs.utf_8_decode(new_bytes, "replace", False)
        self._pending = new_bytes[length:]
        return text

    def flush(self) -> str:
        """No token follows: U+FFFD for a character that never got its last bytes."""
        text, self._pending = self._pending.decode("utf-8", errors="replace"), b""
        return text

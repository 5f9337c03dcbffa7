"""Text to token ids and back: GPT-2's byte-level byte-pair encoding.

tiktoken does the merging; what it merges by is read from the `merges.txt` of the model's directory, so nothing is
downloaded. The ids are those of Hugging Face's GPT-2 tokenizer. As there, the literal text `<|endoftext|>` in a prompt
becomes the end token (id 50256), not its thirteen characters: strip it from text that you do not trust.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
"""

import codecs
import json
from pathlib import Path

import tiktoken

END_OF_TEXT = "<|endoftext|>"
# How text is cut into pieces before any merging: contractions, words, numbers, punctuation, runs of spaces. A
# possessive quantifier (`++`) never gives characters back, so a run of 100,000 letters is matched in one go.
PIECES = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def byte_alphabet() -> dict[str, bytes]:
    """The 256 printable characters in which merges.txt writes bytes, each with its byte, in the order of their ids.

    Printable bytes stand for themselves and come first; the other 68 are written as the characters from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]
    return {c: bytes([b]) for c, b in zip(characters, printable + others, strict=True)}


def read_merges(path: Path) -> dict[bytes, int]:
    """The tokens of a merges.txt as bytes, each with its id: the 256 bytes, then one token per line.

    Raises ValueError, naming the line, if the file is not a list of merges.
    """
    alphabet = byte_alphabet()
    ranks = {byte: rank for rank, byte in enumerate(alphabet.values())}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    for number, line in enumerate(lines, start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        halves = line.split(" ")
        if len(halves) != 2 or not all(c in alphabet for half in halves for c in half):
            raise ValueError(f"{path}, line {number}: expected two tokens to merge, got {line[:60]!r}")
        ranks[b"".join(alphabet[c] for half in halves for c in half)] = len(ranks)
    return ranks


def check_vocabulary(path: Path, ranks: dict[bytes, int]) -> None:
    """Raise ValueError unless vocab.json gives every token the id of its line in merges.txt, as GPT-2's does."""
    alphabet = byte_alphabet()
    try:
        vocabulary = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a JSON object of tokens and ids: {error}") from None
    for text, token_id in vocabulary.items():
        if text != END_OF_TEXT and ranks.get(b"".join(alphabet.get(c, b"?") for c in text)) != token_id:
            raise ValueError(
                f"{path}: token {text!r} has id {token_id}, not the place of its merge: not GPT-2's layout"
            )


class Tokenizer:
    """Encodes and decodes text with the byte-pair merges of one model.

    Args:
        directory: the model's directory, which holds merges.txt (and maybe vocab.json, which is then checked).
    """

    def __init__(self, directory: Path):
        ranks = read_merges(directory / "merges.txt")
        if (directory / "vocab.json").exists():
            check_vocabulary(directory / "vocab.json", ranks)
        self.end_of_text_id = len(ranks)
        self._encoding = tiktoken.Encoding(
            "gpt2", pat_str=PIECES, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: self.end_of_text_id}
        )

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; the empty text is the end token alone, GPT-2's "start anywhere".

        Raises ValueError if the text holds half a surrogate pair, which no UTF-8 can carry.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"the text is not valid Unicode: {error.reason} at character {error.start}") from None
        return self._encoding.encode(text, allowed_special="all") or [self.end_of_text_id]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, which may be a part of a character; none for the end token and ids without a merge."""
        return self._encoding.decode_single_token_bytes(token_id) if token_id < self.end_of_text_id else b""

    def token_text(self, token_id: int) -> str:
        """A single token as text for people to read: U+FFFD for a part of a character, the end token by its name."""
        return END_OF_TEXT if token_id == self.end_of_text_id else self.decode([token_id])

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD. The end token has no text."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")


class Detokenizer:
    """Decodes a stream of tokens: never half a character; the pieces, joined, are what `decode` gives for the whole."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_id: int) -> str:
        """The text that this token completes: empty while a character is still missing bytes."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left when the stream ends: U+FFFD for a character that never got its last bytes."""
        return self._decoder.decode(b"", final=True)

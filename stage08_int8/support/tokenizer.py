"""Text to token ids and back: GPT-2's byte-level byte-pair encoding.

tiktoken does the merging; what it merges by is read from the model's directory (`merges.txt`, or the `tokenizer.json`
that newer versions of transformers write), so nothing is downloaded. The ids are those of Hugging Face's GPT-2
tokenizer. As there, the literal text `<|endoftext|>` in a prompt becomes the end token (id 50256), not its thirteen
characters: strip it from text that you do not trust.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
"""

import codecs
import json
from pathlib import Path

import tiktoken

END_OF_TEXT = "<|endoftext|>"
PADDING = 1024  # a model's vocabulary may be larger than its tokenizer's, as for a multiple of 128, but not by more
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


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except FileNotFoundError:
        raise ValueError(f"{path.parent} has no {path.name}") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None


def read_json(path: Path) -> dict:
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object")
    return content


def read_merges(path: Path) -> dict[str, int]:
    """The tokens of a merges.txt, in the alphabet of its bytes, each with its id: the 256 bytes, then one per line.

    Raises ValueError, naming the line, if the file is not a list of merges.
    """
    lines = enumerate(read_text(path).split("\n"), start=1)
    return rank(path, "line", [(n, x) for n, x in lines if x and not (n == 1 and x.startswith("#version"))])


def rank(path: Path, place: str, merges: list[tuple[int, str]]) -> dict[str, int]:
    """Tokens and ids of merges, each with the number of its place in the file."""
    alphabet = byte_alphabet()
    ranks = {character: rank for rank, character in enumerate(alphabet)}
    for number, merge in merges:
        left, _, right = merge.partition(" ")
        token = left + right
        if left not in ranks or right not in ranks or token in ranks:  # lines were lost, or came twice
            whole = left and right and all(c in alphabet for c in token)
            expected = "two tokens of before that make a new one" if whole else "two tokens to merge"
            raise ValueError(f"{path}, {place} {number}: expected {expected}, got {merge[:60]!r}")
        ranks[token] = len(ranks)
    return ranks


def read_tokenizer_json(path: Path) -> dict[str, int]:
    """As `read_merges`, of a tokenizer.json. Raises ValueError if it is not a tokenizer of GPT-2's kind."""
    content = read_json(path)
    try:
        cuts, model = content["pre_tokenizer"], content["model"]
        kinds = (cuts["type"], cuts.get("add_prefix_space", True), model["type"])
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        vocabulary = dict(model["vocab"].items())
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not a tokenizer of GPT-2's kind: {type(error).__name__}: {error}") from None
    if kinds != ("ByteLevel", False, "BPE"):
        raise ValueError(f"{path} is not a tokenizer of GPT-2's kind: ByteLevel without a prefix space, and BPE")
    ranks = rank(path, "merge", list(enumerate(merges)))
    check_vocabulary(path, vocabulary, ranks)
    return ranks


def check_vocabulary(path: Path, vocabulary: dict[str, int], ranks: dict[str, int]) -> None:
    """Raise ValueError unless a file's vocabulary gives every token the place of its merge as id, as GPT-2's does."""
    expected = {**ranks, END_OF_TEXT: len(ranks)}
    for text, token_id in vocabulary.items():
        if type(token_id) is not int or expected.get(text) != token_id:
            raise ValueError(
                f"{path}: token {text[:60]!r} has id {token_id!r:.60}, not the place of its merge: not GPT-2's layout"
            )
    if len(vocabulary.keys() - {END_OF_TEXT}) < len(ranks):
        raise ValueError(f"{path} has {len(vocabulary):,} tokens, and the merges make {len(ranks):,}")


def in_bytes(ranks: dict[str, int]) -> dict[bytes, int]:
    """The tokens as bytes. Latin-1 writes a character below U+0100 as the byte of that number."""
    byte_of = {ord(character): byte[0] for character, byte in byte_alphabet().items()}
    return {token.translate(byte_of).encode("latin-1"): token_id for token, token_id in ranks.items()}


def check_size(path: Path, ranks: dict[str, int]) -> None:
    """Raise ValueError if a config.json counts so many more tokens that merges must have been lost."""
    vocab_size = read_json(path).get("vocab_size")
    if isinstance(vocab_size, int) and vocab_size > len(ranks) + 1 + PADDING:
        raise ValueError(
            f"{path.parent}: the merges make {len(ranks):,} tokens, {path.name} has vocab_size {vocab_size:,}: "
            "merges.txt or tokenizer.json was cut short"
        )


class Tokenizer:
    """Encodes and decodes text with the byte-pair merges of one model.

    Args:
        directory: the model's directory, which holds merges.txt (and maybe vocab.json, which is then checked), or
            tokenizer.json.
    """

    def __init__(self, directory: Path):
        merges, vocabulary = directory / "merges.txt", directory / "vocab.json"
        ranks = read_merges(merges) if merges.exists() else read_tokenizer_json(directory / "tokenizer.json")
        if vocabulary.exists():
            check_vocabulary(vocabulary, read_json(vocabulary), ranks)
        if (directory / "config.json").exists():
            check_size(directory / "config.json", ranks)
        self.end_of_text_id = len(ranks)
        special = {END_OF_TEXT: self.end_of_text_id}
        self._encoding = tiktoken.Encoding(
            "gpt2", pat_str=PIECES, mergeable_ranks=in_bytes(ranks), special_tokens=special
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
    """Decodes a stream of tokens: never half a character; the pieces, joined, are what `decode` gives for the whole.

    skip_special: the end token has no text; else its name.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True):
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._begun = b""  # of a character

    def copy(self) -> "Detokenizer":
        """Another one that has seen the same tokens."""
        other = Detokenizer(self._tokenizer, self._skip_special)
        other._begun = self._begun
        return other

    def add(self, token_id: int) -> str:
        """The text that this token completes: empty while a character is still missing bytes."""
        is_special = token_id == self._tokenizer.end_of_text_id and not self._skip_special
        new_bytes = self._begun + (END_OF_TEXT.encode() if is_special else self._tokenizer.token_bytes(token_id))
        text, length = codecs.utf_8_decode(new_bytes, "replace", False)
        self._begun = new_bytes[length:]
        return text

    def flush(self) -> str:
        """What is left when the stream ends: U+FFFD for a character that never got its last bytes."""
        text, self._begun = self._begun.decode("utf-8", errors="replace"), b""
        return text

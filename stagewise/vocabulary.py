"""A tokenizer's files as people have them: tokenizer.json, or merges.txt and vocab.json, and what is next to them.

They are read as transformers reads them, or refused with an error that names the file, the key and what to do.
"""

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .stages import STAGES
from .strict_json import read_json, read_text, write_json

TOKENIZER_FILES = ("merges.txt", "vocab.json", "tokenizer.json", "tokenizer_config.json")
TOKENIZER_FILES += ("special_tokens_map.json", "added_tokens.json")
END_OF_TEXT = "<|endoftext|>"
NUM_BYTES = 256
SPARE = 1024  # a vocabulary may have this many tokens that no merge makes: special ones, or to round up its size
GPT2_MERGES = "04e3597d7996f292ca9b8b7285ca4d58a6ae171ac47d73fc7140ceb0c7a6bbc0"  # SHA-256
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that do what tokenizer.json says, and no more
# Keys of tokenizer_config.json that change tokens, and their supported values, the default first.
SETTINGS = {
    "tokenizer_class": (None, "GPT2Tokenizer", "GPT2TokenizerFast", *GENERIC),
    "errors": ("replace",),
    "init_inputs": ([],),
    **dict.fromkeys(("add_prefix_space", "add_bos_token", "add_eos_token", "split_special_tokens"), (False, None)),
    **dict.fromkeys(("auto_map", "fast_tokenizer_files", "vocab", "merges"), (None,)),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (False,),
}
# Its keys that change nothing here: lengths, padding, chats, notes. Any other key is refused, unless it names tokens.
UNUSED_SETTINGS = {
    *("model_max_length", "max_len", "max_length", "stride", "padding", "padding_side", "pad_to_multiple_of"),
    *("pad_token_type_id", "truncation", "truncation_side", "truncation_strategy", "return_tensors", "trim_offsets"),
    *("name_or_path", "special_tokens_map_file", "tokenizer_file", "model_input_names", "processor_class"),
    *("backend", "is_local", "local_files_only", "use_fast", "clean_up_tokenization_spaces", "chat_template"),
}
TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens")
# The same for tokenizer.json,
TOKENIZER_JSON = {
    "normalizer": (None,),
    **dict.fromkeys(("pre_tokenizer.type", "decoder.type"), ("ByteLevel",)),
    **dict.fromkeys(("model.dropout", "model.byte_fallback", "model.ignore_merges"), (None, False)),
    **dict.fromkeys(("model.continuing_subword_prefix", "model.end_of_word_suffix"), (None, "")),
    "model.type": ("BPE",),
    "pre_tokenizer.add_prefix_space": (False,),
    "pre_tokenizer.use_regex": (True,),
    "post_processor.type": (None, "ByteLevel", "TemplateProcessing"),
    "post_processor.single": (None, [{"Sequence": {"id": "A", "type_id": 0}}]),
}
# and for an added token.
ADDED: dict[str, tuple] = {"lstrip": (False, True), **dict.fromkeys(("rstrip", "single_word"), (False,))}


@dataclass
class Vocabulary:
    """What a tokenizer's files say.

    Attributes:
        ids: the ids of the tokens, but for those that are added to them.
        merges: pairs of tokens, the first that is merged first.
        added: the added tokens by their texts, as tokenizer.json describes them.
        settings: of tokenizer_config.json, which change no token.
    """

    ids: dict[str, int]
    merges: list[str]
    added: dict[str, dict]
    settings: dict[str, Any]

    @property
    def num_tokens(self) -> int:
        return len({*self.ids.values(), *(token["id"] for token in self.added.values())})

    def write(self, directory: Path) -> None:
        """Write the files that a stage reads, and the one from which transformers takes the same added tokens."""
        merges = "\n".join(["#version: 0.2", *self.merges])
        (directory / "merges.txt").write_text(merges + "\n", encoding="utf-8", newline="\n")
        end = self.added.get(END_OF_TEXT)
        if end and end["special"] and len(self.added) == 1:  # as in GPT-2's, whose vocabulary has it
            write_json(directory / "vocab.json", {**self.ids, END_OF_TEXT: end["id"]}, indent=None)
        else:
            write_json(directory / "vocab.json", self.ids, indent=None)
            kept = ("id", "special", "normalized", "lstrip")
            added = {text: {key: token[key] for key in kept} for text, token in self.added.items()}
            write_json(directory / "added_tokens.json", added)
        flags = {"rstrip": False, "single_word": False}
        flagged = {
            text: {key: token[key] for key in ("special", "normalized", "lstrip")} for text, token in self.added.items()
        }
        decoder = {self.added[text]["id"]: {"content": text, **token, **flags} for text, token in flagged.items()}
        settings = {**self.settings, "tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": decoder}
        if self.settings.get("tokenizer_class") in GENERIC:  # which has no tokens that are not named
            settings = {**dict.fromkeys(("bos_token", "eos_token", "unk_token")), **settings}
        write_json(directory / "tokenizer_config.json", settings)


def check_values(where: Path | str, given: dict[str, Any], supported: dict[str, tuple], remedy: str = "") -> None:
    """Raise ValueError for a key whose value is not supported. A missing key counts as the first supported value."""
    for key, values in supported.items():
        if repr(given.get(key, values[0])) not in map(repr, values):  # 1 is not True
            what = f"{where}: {key} is {given[key]!r:.60}, supported: {', '.join(map(repr, values))}"
            raise ValueError(f"{what}; {remedy}" if remedy else what)


def read_vocabulary(directory: Path) -> Vocabulary:
    """Raises ValueError, naming the file, for a tokenizer that is damaged or not like GPT-2's."""
    try:
        path, ids, merges, added = read_files(directory)
        ranks = rank_merges(path if path.name == "tokenizer.json" else directory / "merges.txt", merges)
        ids = dict(ranks) if ids is None else ids  # GPT-2's are in the order of the merges
        if set(map(type, ids.values())) != {int} or sorted(ids.values()) != [*range(len(ids))]:
            raise ValueError(f"{path}: the ids of {len(ids):,} tokens are not the numbers from 0 to {len(ids) - 1:,}")
        if ranks.keys() - ids.keys() or len(ids) > len(ranks) + SPARE:
            raise ValueError(
                f"{path} has {len(ids):,} tokens, but the merges make {len(ranks):,}: one of the files is damaged"
            )
        numbered = number_added(path, ids, added)
        return Vocabulary(ids, merges, numbered, check_settings(path, numbered))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{directory} has no tokenizer like GPT-2's: {type(error).__name__}: {error}") from None


def read_files(directory: Path) -> tuple[Path, dict[str, int] | None, list[str], list[dict]]:
    """The file that has the ids, the ids (None if merges.txt is alone), the merges, and the added tokens."""
    path = directory / "tokenizer.json"
    if path.exists():
        content = read_json(path)
        given = {"normalizer": unpacked(content.get("normalizer")), "pre_tokenizer.type": None, "decoder.type": None}
        for part in ("model", "pre_tokenizer", "decoder", "post_processor"):
            given |= {f"{part}.{key}": value for key, value in (unpacked(content.get(part)) or {}).items()}
        check_values(path, given, TOKENIZER_JSON)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in given["model.merges"]]
        return path, given["model.vocab"], merges, content["added_tokens"]
    path, ids = directory / "merges.txt", None
    lines = read_text(path).split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    if (directory / "vocab.json").exists():
        path, ids = directory / "vocab.json", read_json(directory / "vocab.json")
    num_tokens = NUM_BYTES + len(merges) if ids is None else len(ids)
    end = {"content": END_OF_TEXT, "id": (ids or {}).get(END_OF_TEXT, num_tokens), "special": True}
    return path, ids, merges, [end]


def unpacked(part: Any) -> Any:
    """A part of tokenizer.json. A sequence of one is that one, and a sequence of none does nothing."""
    while isinstance(part, dict) and part.get("type") == "Sequence":
        (parts,) = (value for value in part.values() if isinstance(value, list))
        if len(parts) > 1:
            return part
        part = parts[0] if parts else None
    return part


def rank_merges(path: Path, merges: list[str]) -> dict[str, int]:
    """Each token with its rank: the 256 bytes, then what the merges make, in their order.

    tiktoken joins any two neighbors that make a token, transformers only the two that a merge names. The two agree if
    each merge joins what all merges before it leave of its token, as in every tokenizer that was trained.
    """
    ranks = {character: rank for rank, character in enumerate(STAGES[1].byte_alphabet())}
    is_gpt2 = hashlib.sha256("\n".join(merges).encode("utf-8", "replace")).hexdigest() == GPT2_MERGES
    for number, merge in enumerate(merges, start=1):
        pair = merge.split(" ")
        token = "".join(pair)
        if not (is_gpt2 or (len(pair) == 2 and {*pair} <= ranks.keys() and merge_all(token, ranks) == pair)):
            raise ValueError(
                f"{path}, merge {number}: expected two tokens that earlier merges leave, got {merge!r:.60}"
            )
        ranks[token] = len(ranks)
    return ranks


def merge_all(token: str, ranks: dict[str, int]) -> list[str]:
    """What these merges make of a token's characters: each time the earliest that applies, until none does."""
    parts = list(token)
    while len(parts) > 1:
        pairs = [left + right for left, right in itertools.pairwise(parts)]
        best = min(range(len(pairs)), key=lambda i: ranks.get(pairs[i], len(ranks)))
        if pairs[best] not in ranks:
            break
        parts[best : best + 2] = [pairs[best]]
    return parts


def number_added(path: Path, ids: dict[str, int], listed: list[dict]) -> dict[str, dict]:
    """The added tokens by their texts. Raises ValueError if transformers would give them other ids."""
    added, following = {}, len(ids)
    for token in sorted(listed, key=lambda token: token["id"]):
        expected = ids.get(token["content"], following)  # the id that transformers gives it
        check_values(f"{path}: added token {token['content']!r:.60}", token, {"id": (expected,), **ADDED})
        added[token["content"]] = {"special": False, "normalized": True, "lstrip": False, **token}
        following += expected == following
    spaced = [text for text in added if text != text.rstrip()]
    if spaced and any(token["lstrip"] for token in added.values()):
        raise ValueError(
            f"{path}: added token {spaced[0]!r:.60} ends with a space, which lstrip of another one removes"
        )
    return added


def check_settings(path: Path, added: dict[str, dict]) -> dict[str, Any]:
    """What tokenizer_config.json says. Raises ValueError if it has settings that change tokens, or names or describes
    an added token differently from the file at `path`, which was read."""
    directory = path.parent
    settings = read_json(directory / "tokenizer_config.json", optional=True)
    check_values(directory / "tokenizer_config.json", settings, SETTINGS)
    given = {key: value for key, value in settings.items() if value is not None}
    if unknown := sorted(key for key, value in given.items() if not is_known_setting(key, value)):
        why = f"{directory / 'tokenizer_config.json'}: unsupported key {unknown[0]!r:.60} may change tokens"
        raise ValueError(why)
    if settings.get("tokenizer_class") not in GENERIC:
        given = {**dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT), **settings}
    special = as_tokens(value for key, value in given.items() if names_token(key, value))
    lists = [settings.get(key) or [] for key in TOKEN_LISTS]
    listed = as_tokens(token for some in lists for token in (some.values() if isinstance(some, dict) else some))
    named = {token["content"] for token in special}
    different = named - {text for text, token in added.items() if token["special"]}
    different |= {token["content"] for token in listed} - added.keys()  # transformers makes no known token special here
    if path.name != "tokenizer.json":  # then nothing else says that this one is special
        different |= {END_OF_TEXT} - named
    decoder = settings.get("added_tokens_decoder")
    if decoder is not None:
        keys = ("special", "normalized", "lstrip") if len(added) > 1 else ("special",)
        read = {(token["id"], text, *(token[key] for key in keys)) for text, token in added.items()}
        described = {(int(i), token["content"], *(token.get(key) for key in keys)) for i, token in decoder.items()}
        different |= {text for _, text, *_ in read ^ described}
    else:
        for older in ("added_tokens.json", "special_tokens_map.json"):
            if (directory / older).exists():
                raise ValueError(f"{directory / older} has an older format")
    for token in [*special, *listed, *(decoder or {}).values()]:
        lstrip = added.get(token["content"], {"lstrip": False})["lstrip"]
        check_values(f"{directory}: added token {token['content']!r:.60}", token, ADDED | {"lstrip": (lstrip,)})
    if different:
        why = f"the added token {min(different)!r:.60} is not the same in all files of the tokenizer"
        raise ValueError(f"{directory}: {why}")
    return settings


def is_known_setting(key: str, value: Any) -> bool:
    """Whether it is known what this key of tokenizer_config.json changes, if anything."""
    return key in {*SETTINGS, *UNUSED_SETTINGS, *TOKEN_LISTS, "added_tokens_decoder"} or names_token(key, value)


def names_token(key: str, value: Any) -> bool:
    """Whether this key of tokenizer_config.json names a token, as pad_token does; add_bos_token is a switch."""
    return key.endswith("_token") and key not in SETTINGS and isinstance(value, str | dict)


def as_tokens(values: Iterable[Any]) -> list[dict[str, Any]]:
    """Tokens given as texts or as JSON objects, as objects."""
    return [value if isinstance(value, dict) else {"content": value} for value in values]

"""A tokenizer's files: tokenizer.json, or merges.txt and vocab.json.

They are read as transformers reads them, or refused with an error that names the file and the key.
"""

import hashlib
import itertools
import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"
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
ADDED: dict[str, tuple] = dict.fromkeys(("lstrip", "rstrip", "single_word"), (False,))


def byte_alphabet() -> dict[str, bytes]:
    """The 256 printable characters that files write bytes as, each with its byte, in the order of GPT-2's ids.

    Printable bytes stand for themselves and come first; the other 68 are written as the characters from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]
    return {c: bytes([b]) for c, b in zip(characters, printable + others, strict=True)}


def convert_hint(path: Path) -> str:
    """What to do with a directory or file that can't be read here."""
    return f"`stagewise convert {shlex.quote(str(path))} DIRECTORY` makes a directory that can be read, or says why not"


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in a file; an optional file that does not exist counts as an empty one."""
    text = "{}" if optional and not path.exists() else read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def check_values(where: Path | str, given: dict[str, Any], supported: dict[str, tuple]) -> None:
    """Raise ValueError for a key whose value is not supported. A missing key counts as the first supported value."""
    for key, values in supported.items():
        if repr(given.get(key, values[0])) not in map(repr, values):  # 1 is not True
            raise ValueError(f"{where}: {key} is {given[key]!r:.60}, supported: {', '.join(map(repr, values))}")


def read_vocabulary(directory: Path) -> tuple[dict[str, int], dict[str, int], dict[str, dict]]:
    """The ids of the tokens, their ranks in merging, and the added tokens as tokenizer.json describes them.

    Raises ValueError, naming the file, for a tokenizer that is damaged or not like GPT-2's.
    """
    try:
        path, ids, ranks, added = read_files(directory)
        if set(map(type, ids.values())) != {int} or sorted(ids.values()) != [*range(len(ids))]:
            raise ValueError(f"{path}: the ids of {len(ids):,} tokens are not the numbers from 0 to {len(ids) - 1:,}")
        if ranks.keys() - ids.keys() or len(ids) > len(ranks) + SPARE:
            raise ValueError(
                f"{path} has {len(ids):,} tokens, but the merges make {len(ranks):,}: one of the files is damaged"
            )
        numbered = number_added(path, ids, added)
        check_settings(path, numbered)
        return ids, ranks, numbered
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{directory} has no tokenizer like GPT-2's: {type(error).__name__}: {error}") from None


def read_files(directory: Path) -> tuple[Path, dict[str, int], dict[str, int], list[dict]]:
    """The file that has the ids, the ids, the ranks, and the added tokens."""
    path = directory / "tokenizer.json"
    if path.exists():
        content = read_json(path)
        given = {"normalizer": content.get("normalizer"), "pre_tokenizer.type": None, "decoder.type": None}
        for part in ("model", "pre_tokenizer", "decoder", "post_processor"):
            given |= {f"{part}.{key}": value for key, value in (content.get(part) or {}).items()}
        check_values(path, given, TOKENIZER_JSON)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in given["model.merges"]]
        return path, given["model.vocab"], rank_merges(path, merges), content["added_tokens"]
    path = directory / "merges.txt"
    lines = read_text(path).split("\n")
    ranks = rank_merges(path, [line for line in lines if line and not line.startswith("#version")])
    ids = dict(ranks)  # GPT-2's are in the order of the merges
    if (directory / "vocab.json").exists():
        path, ids = directory / "vocab.json", read_json(directory / "vocab.json")
    return path, ids, ranks, [{"content": END_OF_TEXT, "id": ids.get(END_OF_TEXT, len(ids)), "special": True}]


def rank_merges(path: Path, merges: list[str]) -> dict[str, int]:
    """Each token with its rank: the 256 bytes, then what the merges make, in their order.

    tiktoken joins any two neighbors that make a token, transformers only the two that a merge names. The two agree if
    each merge joins what all merges before it leave of its token, as in every tokenizer that was trained.
    """
    ranks = {character: rank for rank, character in enumerate(byte_alphabet())}
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
        added[token["content"]] = {"special": False, "normalized": True, **token}
        following += expected == following
    return added


def check_settings(path: Path, added: dict[str, dict]) -> None:
    """Raise ValueError if tokenizer_config.json has settings that change tokens, or names or describes an added token
    differently from the file at `path`, which was read."""
    directory = path.parent
    settings = read_json(directory / "tokenizer_config.json", optional=True)
    check_values(directory / "tokenizer_config.json", settings, SETTINGS)
    given = {key: value for key, value in settings.items() if value is not None}
    if unknown := sorted(key for key, value in given.items() if not is_known_setting(key, value)):
        why = f"{directory / 'tokenizer_config.json'}: unsupported key {unknown[0]!r:.60} may change tokens"
        raise ValueError(f"{why}; {convert_hint(directory)}")
    if settings.get("tokenizer_class") not in GENERIC:
        settings = {**dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT), **settings}
    special = as_tokens(value for key, value in settings.items() if names_token(key, value))
    lists = [settings.get(key) or [] for key in TOKEN_LISTS]
    listed = as_tokens(token for some in lists for token in (some.values() if isinstance(some, dict) else some))
    named = {token["content"] for token in special}
    different = named - {text for text, token in added.items() if token["special"]}
    different |= {token["content"] for token in listed} - added.keys()  # transformers makes no known token special here
    if path.name != "tokenizer.json":  # then nothing else says that this one is special
        different |= {END_OF_TEXT} - named
    decoder = settings.get("added_tokens_decoder")
    if decoder is not None:
        keys = ("special", "normalized") if len(added) > 1 else ("special",)
        read = {(token["id"], text, *(token[key] for key in keys)) for text, token in added.items()}
        described = {(int(i), token["content"], *(token[key] for key in keys)) for i, token in decoder.items()}
        different |= {text for _, text, *_ in read ^ described}
    else:
        for older in ("added_tokens.json", "special_tokens_map.json"):
            if (directory / older).exists():
                raise ValueError(f"{directory / older} has an older format; {convert_hint(directory)}")
    for token in [*special, *listed, *(decoder or {}).values()]:
        check_values(f"{directory}: added token {token['content']!r:.60}", token, ADDED)
    if different:
        why = f"the added token {min(different)!r:.60} is not the same in all files of the tokenizer"
        raise ValueError(f"{directory}: {why}; {convert_hint(directory)}")


def is_known_setting(key: str, value: Any) -> bool:
    """Whether it is known what this key of tokenizer_config.json changes, if anything."""
    return key in {*SETTINGS, *UNUSED_SETTINGS, *TOKEN_LISTS, "added_tokens_decoder"} or names_token(key, value)


def names_token(key: str, value: Any) -> bool:
    """Whether this key of tokenizer_config.json names a token, as pad_token does; add_bos_token is a switch."""
    return key.endswith("_token") and key not in SETTINGS and isinstance(value, str | dict)


def as_tokens(values: Iterable[Any]) -> list[dict[str, Any]]:
    """Tokens given as texts or as JSON objects, as objects."""
    return [value if isinstance(value, dict) else {"content": value} for value in values]

"""The files of a tokenizer: tokenizer.json, or merges.txt and vocab.json, read as transformers reads them.

What it would read otherwise is refused, by file and key.
"""

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"
SPARE = 1024  # how many tokens a vocabulary may have that no merge makes: special ones, or to round up its size
GPT2_MERGES = "04e3597d7996f292ca9b8b7285ca4d58a6ae171ac47d73fc7140ceb0c7a6bbc0"  # SHA-256; they have been checked
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that do what tokenizer.json says, and no more
# Keys that change tokens, and their supported values, the default first: of tokenizer_config.json,
CONFIG = {
    "tokenizer_class": (None, "GPT2Tokenizer", "GPT2TokenizerFast", *GENERIC),
    "errors": ("replace",),
    "init_inputs": ([],),
    **dict.fromkeys(("add_prefix_space", "add_bos_token", "add_eos_token", "split_special_tokens"), (False, None)),
    **dict.fromkeys(("auto_map", "fast_tokenizer_files", "vocab", "merges"), (None,)),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (False,),
}
# of tokenizer.json,
WHOLE = {
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
WITHOUT = {"pre_tokenizer.type": None, "decoder.type": None}
ADDED: dict[str, tuple] = dict.fromkeys(("lstrip", "rstrip", "single_word"), (False,))  # and of an added token.


def byte_alphabet() -> dict[str, bytes]:
    """The 256 printable characters that files write bytes as, each with its byte, in the order of GPT-2's ids.

    Printable bytes stand for themselves and come first; the other 68 are written as the characters from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]
    return {c: bytes([b]) for c, b in zip(characters, printable + others, strict=True)}


def convert(path: Path) -> str:
    """What to do about a directory or file that is not read here."""
    return f"`stagewise convert {shlex.quote(str(path))} DIRECTORY` makes a directory that can be read, or says why not"


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in a file. optional: a file that does not exist is an empty one."""
    text = "{}" if optional and not path.exists() else read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object")
    return content


def check_values(where: Path | str, given: dict[str, Any], supported: dict[str, tuple]) -> None:
    """Raise ValueError for a key whose value is not supported. The first value is that of a key that is not given."""
    for key, values in supported.items():
        if repr(given.get(key, values[0])) not in map(repr, values):  # 1 is not True
            raise ValueError(f"{where}: {key} is {given[key]!r:.60}, supported: {', '.join(map(repr, values))}")


def read_vocabulary(directory: Path) -> tuple[dict[str, int], dict[str, int], dict[str, dict]]:
    """The ids of tokens, their ranks in merging, and the added tokens as tokenizer.json describes them.

    Raises ValueError, naming the file, for a tokenizer that is damaged or not of GPT-2's kind.
    """
    try:
        path, ids, ranks, added = read_files(directory)
        if set(map(type, ids.values())) != {int} or sorted(ids.values()) != [*range(len(ids))]:
            raise ValueError(f"{path}: the ids of {len(ids):,} tokens are not the numbers from 0 to {len(ids) - 1:,}")
        if ranks.keys() - ids.keys() or len(ids) > len(ranks) + SPARE:
            raise ValueError(
                f"{path} has {len(ids):,} tokens, not the {len(ranks):,} that the merges make: one is damaged"
            )
        return ids, ranks, number_added(directory, path, ids, added)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{directory} has no tokenizer of GPT-2's kind: {type(error).__name__}: {error}") from None


def read_files(directory: Path) -> tuple[Path, dict[str, int], dict[str, int], list[dict]]:
    """The file with the ids, these, the ranks, and the list of added tokens."""
    path = directory / "tokenizer.json"
    if path.exists():
        content = read_json(path)
        parts = {name: content.get(name) or {} for name in ("model", "pre_tokenizer", "decoder", "post_processor")}
        flat = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}
        check_values(path, {**WITHOUT, **flat, "normalizer": content.get("normalizer")}, WHOLE)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in parts["model"]["merges"]]
        return path, parts["model"]["vocab"], rank_merges(path, merges), content["added_tokens"]
    path = directory / "merges.txt"
    lines = read_text(path).split("\n")
    ranks = rank_merges(path, [line for line in lines if line and not line.startswith("#version")])
    ids = dict(ranks)  # GPT-2's are in the order of the merges
    if (directory / "vocab.json").exists():
        path, ids = directory / "vocab.json", read_json(directory / "vocab.json")
    end = {"content": END_OF_TEXT, "id": ids.get(END_OF_TEXT, len(ids)), "special": True, "normalized": False}
    return path, ids, ranks, [end]


def number_added(directory: Path, path: Path, ids: dict[str, int], listed: list[dict]) -> dict[str, dict]:
    """The added tokens by their texts. Raises ValueError if transformers gives them other ids, or if a file lists or
    names one that another does not."""
    added, following = {}, len(ids)
    for token in sorted(listed, key=lambda token: token["id"]):
        expected = ids.get(token["content"], following)  # the id that transformers gives it
        check_values(f"{path}: added token {token['content']!r:.60}", token, {"id": (expected,), **ADDED})
        added[token["content"]] = {"special": False, "normalized": True, **token}
        following += expected == following
    settings = directory / "tokenizer_config.json"
    config = read_json(settings, optional=True)
    check_values(settings, config, CONFIG)
    if "added_tokens_decoder" in config:
        others = [{**token, "id": int(token_id)} for token_id, token in config["added_tokens_decoder"].items()]
        missing = added.keys() - {token["content"] for token in others}
    else:  # then transformers reads two older files, too
        older = read_json(directory / "added_tokens.json", optional=True)
        others, missing = [{"content": text, "id": token_id} for text, token_id in older.items()], set()
        config |= read_json(directory / "special_tokens_map.json", optional=True)
    if config.get("tokenizer_class") not in GENERIC:
        config = {**dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT), **config}
    named = [value for key, value in config.items() if key.endswith("_token")]
    texts = [token["content"] if isinstance(token, dict) else token for token in named]
    others += [{"content": text, "special": True} for text in texts if isinstance(text, str)]
    for key in ("additional_special_tokens", "extra_special_tokens"):  # a list makes no known token special
        listed = config.get(key) or []
        named += listed.values() if isinstance(listed, dict) else listed
    others += [token if isinstance(token, dict) else {"content": token} for token in named if token]
    for token in others:
        read = added.get(token["content"], {})
        keys = ("id", "special", "normalized") if "id" in token and len(added) > 1 else ("id", "special")
        if not read or any(token.get(key, read[key]) != read[key] for key in keys):
            missing |= {token["content"]}
        check_values(f"{directory}: added token {token['content']!r:.60}", token, ADDED)
    if missing or (path.name != "tokenizer.json" and END_OF_TEXT not in texts):
        why = f"the added token {min(missing or added)!r:.60} is not the same in all files of the tokenizer"
        raise ValueError(f"{directory}: {why}; {convert(directory)}")
    return added


def rank_merges(path: Path, merges: list[str]) -> dict[str, int]:
    """Each token with its rank: the 256 bytes, then what the merges make, in their order.

    tiktoken joins any two neighbors that make a token, transformers only the two that a merge names. It is the same if
    each merge names the two tokens that all merges before it leave, as in a trained tokenizer: where the two meet, no
    earlier merge joins the end of the first with the beginning of the second.
    """
    ranks, halves = {character: rank for rank, character in enumerate(byte_alphabet())}, {}
    known = hashlib.sha256("\n".join(merges).encode("utf-8", "replace")).hexdigest() == GPT2_MERGES
    for number, merge in enumerate(merges, start=1):
        left, _, right = merge.partition(" ")
        token, fits = left + right, known or (left in ranks and right in ranks and left + right not in ranks)
        halves[token] = left, right
        while fits and not known and (left in halves or right in halves):  # undo the later of their merges
            if right not in halves or (left in halves and ranks[left] > ranks[right]):
                limit, left = ranks[left], halves[left][1]
            else:
                limit, right = ranks[right] + 1, halves[right][0]
            fits = ranks.get(left + right, limit) >= limit
        if not fits:
            raise ValueError(
                f"{path}, merge {number}: expected two tokens that earlier merges leave, got {merge!r:.60}"
            )
        ranks[token] = len(ranks)
    return ranks

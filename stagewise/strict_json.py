"""JSON as the standard has it, whatever is to be written; and keys that are there once, in what is read."""

import json
from typing import Any


def to_json(values: Any, *, ascii: bool = False) -> str:
    """A line of JSON, readable where it can be, unless it is to be ASCII. A number that JSON has no form for, an
    infinity or NaN, becomes null; half a surrogate pair, which UTF-8 can't carry, stays escaped."""
    try:
        line = json.dumps(values, ensure_ascii=ascii, allow_nan=False)
    except ValueError:
        return to_json(json.loads(json.dumps(values), parse_constant=lambda _: None), ascii=ascii)
    return line if ascii else line.encode("utf-8", "backslashreplace").decode("utf-8")


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of an object, as `object_pairs_hook` of json. Raises ValueError if a key is there twice: which of the
    two is meant?"""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the key {name!r:.80} is there twice")
        fields[name] = value
    return fields

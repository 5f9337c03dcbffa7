"""JSON by the standard: no NaN in what is written, no duplicate keys in what is read, and errors that say where."""

import json
from typing import Any


def to_json(values: Any, *, ascii: bool = False) -> str:
    """A line of JSON, in ASCII or with characters as they are. A number that JSON can't represent, an infinity or NaN,
    becomes null; half a surrogate pair, which UTF-8 can't encode, stays escaped."""
    try:
        line = json.dumps(values, ensure_ascii=ascii, allow_nan=False)
    except ValueError:
        return to_json(json.loads(json.dumps(values), parse_constant=lambda _: None), ascii=ascii)
    return line if ascii else line.encode("utf-8", "backslashreplace").decode("utf-8")


def from_line(line: bytes, **options: Any) -> Any:
    """The value of one line of a file. Raises ValueError with the place in the line; the caller knows its number."""
    try:
        return json.loads(line.decode("utf-8"), **options)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}") from None


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of an object, for json's `object_pairs_hook`. Raises ValueError for a duplicate key."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the key {name!r:.80} appears twice")
        fields[name] = value
    return fields

"""JSON by the standard: no NaN in what is written, no duplicate keys in what is read, and errors that say where."""

import json
from pathlib import Path
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


# --- Files, all in UTF-8 ----------------------------------------------------------------------------------------------


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    path.write_text(json.dumps(content, indent=indent) + "\n", encoding="utf-8", newline="\n")


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark. Raises ValueError."""
    try:
        return path.read_text(encoding="utf-8-sig")
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

"""JSON as the standard has it, whatever is to be written."""

import json
from typing import Any


def to_json(values: Any) -> str:
    """A line of JSON, readable where it can be. A number that JSON has no form for, an infinity or NaN, becomes null;
    half a surrogate pair, which UTF-8 can't carry, stays escaped."""
    try:
        line = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return to_json(json.loads(json.dumps(values), parse_constant=lambda _: None))
    return line.encode("utf-8", "backslashreplace").decode("utf-8")

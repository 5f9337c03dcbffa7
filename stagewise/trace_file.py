"""Files of --trace: a header, and a line of JSON per step. replay/trace.py says what is in them, and reads them."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from .console import naming
from .replay.trace import VERSION, lines_of

BEGIN = f'{{"trace": {VERSION}, '.encode()


def check_trace(path: Path, used: list[tuple[str, str | Path | int | None]]) -> None:
    """Raise ValueError if the trace would replace what is no trace, or a file that this run uses otherwise.

    Makes the file if it is not there: a path that can't be written is an error now, not after the work.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"--trace {path} is not a regular file")
    with path.open("a+b") as file:
        streams = [("stdout", sys.__stdout__ and 1), ("stderr", sys.__stderr__ and 2)]
        for name, other in used + streams:
            if other is None or (not isinstance(other, int) and not os.path.exists(other)):
                continue
            if os.path.samestat(os.fstat(file.fileno()), os.stat(other)):
                raise ValueError(f"--trace {path} is {name} too")
        file.seek(0)
        begin = file.read(len(BEGIN))
        if not BEGIN.startswith(begin):
            raise ValueError(f"--trace {path} exists and is not a trace: remove it, or take another name")


def write_trace(path: Path, trace: Any) -> None:
    with naming(path), path.open("w", encoding="utf-8") as file:
        for line in lines_of(trace):
            file.write(json.dumps(line, allow_nan=False) + "\n")

"""The inputs of batch runs: JSON lines or parquet, on the disk or on the Hub.

A row of a parquet file is read as the line of JSON that it would be: a field without a value is left out, a date is a
text as in ISO 8601, NaN is a value (and null in the output, see batch_file.py). Parquet needs pyarrow: `pip install
pyarrow`, or the extra `parquet`.
"""

import codecs
import datetime
import decimal
import hashlib
import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from .console import naming

HUB = "hf://"


@dataclass(frozen=True)
class Dataset:
    """An input, read.

    Attributes:
        name: as the user gave it.
        rows: (number, bytes) of each line that is not blank, numbered from 1 as an editor does.
        sha256: of the whole file.
    """

    name: str
    rows: list[tuple[int, bytes]]
    sha256: str


def check_dataset(name: str) -> None:
    """Raise ValueError, or OSError, if it can't be read. Cheap: called before the model is loaded."""
    if name.endswith(".parquet"):
        import_parquet(name)
    if name.startswith(HUB):
        if not name.startswith(f"{HUB}datasets/") or len(name.split("/")) < 6:
            raise ValueError(f"--input {name}: a file on the Hub is hf://datasets/USER/NAME/FILE")
        return
    path = Path(name)
    if not path.exists():
        raise ValueError(f"--input {path}: there is no such file")
    if not path.is_file():  # a pipe, say
        raise ValueError(f"--input {path} is not a regular file, which --resume could read again")
    path.open("rb").close()


def read_dataset(name: str) -> Dataset:
    """Read an input. Raises ValueError or OSError, which name it, if that fails."""
    if name.startswith(HUB):
        content = fetch(name)
    else:
        with naming(name):
            content = Path(name).read_bytes()
    if name.endswith(".parquet"):
        rows = read_parquet(name, content)
    else:
        rows = content.removeprefix(codecs.BOM_UTF8).split(b"\n")  # Windows writes such a mark
    numbered = [(number, row) for number, row in enumerate(rows, start=1) if row.strip()]
    return Dataset(name, numbered, hashlib.sha256(content).hexdigest())


def fetch(name: str) -> bytes:
    """A file of the Hub, by huggingface_hub's file system."""
    from huggingface_hub import HfFileSystem

    try:
        return HfFileSystem().cat_file(name)  # pyright: ignore[reportReturnType]
    except Exception as error:  # the client's many network errors, told as one
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise OSError(f"--input {name} can't be fetched: {reason}") from error


def import_parquet(name: str):
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ValueError(f"--input {name}: parquet needs pyarrow, which `pip install pyarrow` brings") from None
    return parquet


def read_parquet(name: str, content: bytes) -> list[bytes]:
    """The rows as lines of JSON."""
    parquet = import_parquet(name)
    try:
        rows = parquet.read_table(BytesIO(content)).to_pylist()
    except Exception as error:  # a damaged file can raise anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"--input {name} can't be read as parquet: {reason}") from error
    try:
        return [json.dumps(without_nulls(row), default=as_text).encode() for row in rows]
    except TypeError as error:
        raise ValueError(f"--input {name}: {error}; leave that column out") from None


def without_nulls(value):
    """A row, and what is in it, without the fields that have no value: parquet gives every row every field."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def as_text(value) -> str:
    """What JSON has no form for."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"JSON has no form for a value of the type {type(value).__name__}")

"""The inputs of batch runs: JSON lines, an array of JSON, parquet, or a folder of `datasets`' `save_to_disk`; files may
be on the Hub.

A row of parquet or Arrow is read as the line of JSON that it would be: a field without a value is null, a date is a
text as in ISO 8601, a decimal its digits, bytes are in Base64, NaN is a value (and null in the output, see
batch_file.py). These need pyarrow: `pip install pyarrow`, or the extra `parquet`.
"""

import base64
import codecs
import contextlib
import datetime
import decimal
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from .console import naming
from .strict_json import no_duplicates

HUB = "hf://"
STATE = "state.json"  # of a folder of save_to_disk: lists its Arrow files


@dataclass(frozen=True)
class Columns:
    """Which fields of a row have the prompt, and the id."""

    prompt: str = "prompt"
    id: str = "id"


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
    if path.is_dir():
        import_arrow(name)
        arrow_files(path)
        return
    if not path.is_file():  # a pipe, say
        raise ValueError(f"--input {path} is not a regular file, which --resume could read again")
    path.open("rb").close()


def check_columns(name: str, columns: Columns) -> None:
    """Raise ValueError if the first row of a file on the disk lacks a column that was named. Cheap."""
    named = [one for one, usual in ((columns.prompt, "prompt"), (columns.id, "id")) if one != usual]
    is_table = name.endswith(".parquet") or Path(name).is_dir()
    if name.startswith(HUB) or not (named or is_table) or (there := first_columns(name)) is None:
        return
    if lost := [one for one in named if one not in there]:
        raise ValueError(f"--input {name} has no column {lost[0]!r}; it has {', '.join(map(repr, there))}")
    if is_table and columns.prompt == "prompt" and not {"prompt", "prompt_token_ids", "body"} & set(there):
        names = ", ".join(map(repr, there))
        raise ValueError(f"--input {name} has no column 'prompt': name another with --prompt-column; it has {names}")


def first_columns(name: str) -> list[str] | None:
    """The fields of its first row; None if that is no row."""
    if Path(name).is_dir():
        ipc = import_arrow(name).ipc
        with arrow_files(Path(name))[0].open("rb") as file:
            return ipc.open_stream(file).schema.names
    if name.endswith(".parquet"):
        parquet = import_parquet(name)
        try:
            return parquet.read_schema(name).names
        except Exception:  # whatever it is, `read_dataset` will say it
            return None
    try:
        rows = read_dataset(name).rows if name.endswith(".json") else [(1, next(filter(bytes.strip, open_lines(name))))]
        row = json.loads(rows[0][1])
    except (ValueError, IndexError, StopIteration):
        return None
    return list(row) if isinstance(row, dict) else None


def open_lines(name: str) -> Iterator[bytes]:
    with open(name, "rb") as file:
        yield from file


def read_dataset(name: str) -> Dataset:
    """Read an input. Raises ValueError or OSError, which name it, if that fails."""
    if name.startswith(HUB):
        content = fetch(name)
    else:
        with naming(name):
            files = arrow_files(Path(name)) if Path(name).is_dir() else [Path(name)]
            content = b"".join(file.read_bytes() for file in files)
    if name.endswith(".parquet"):
        rows = read_parquet(name, content)
    elif not name.startswith(HUB) and Path(name).is_dir():
        rows = read_arrow(name)
    elif name.endswith(".json"):
        rows = read_array(name, content)
    else:
        rows = content.removeprefix(codecs.BOM_UTF8).split(b"\n")  # Windows writes such a mark
    numbered = [(number, row) for number, row in enumerate(rows, start=1) if row.strip()]
    return Dataset(name, numbered, hashlib.sha256(content).hexdigest())


def read_array(name: str, content: bytes) -> list[bytes]:
    """The rows of a .json file: of an array, else its lines."""
    text = content.removeprefix(codecs.BOM_UTF8)
    if not text.lstrip().startswith(b"["):
        return text.split(b"\n")
    try:
        rows = json.loads(text.decode("utf-8"), object_pairs_hook=no_duplicates)
        return [json.dumps(row).encode() for row in rows]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--input {name} is no array of JSON: {error}") from None


def fetch(name: str, flag: str = "--input ") -> bytes:
    """A file of the Hub, by huggingface_hub's file system. flag: names it in an error. Raises OSError."""
    from huggingface_hub import HfFileSystem

    with telling(f"{flag}{name}"):
        return HfFileSystem().cat_file(name)  # pyright: ignore[reportReturnType]


def find_results(name: str) -> str:
    """The result file of a dataset of the Hub, as `stagewise push` makes them: the only one of JSON lines. Raises
    ValueError, OSError."""
    from huggingface_hub import HfFileSystem

    with telling(name):
        files = sorted(map(str, HfFileSystem().glob(f"{name}/*.jsonl")))
    if len(files) != 1:
        there = f"one of {', '.join(Path(file).name for file in files)}" if files else "it has none of JSON lines"
        raise ValueError(f"{name}: name the result file, {name}/FILE ({there})")
    return f"{HUB}{files[0]}"


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """The many network errors of the Hub's client, told as one OSError."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise OSError(f"{what} can't be fetched: {reason}") from error


def import_parquet(name: str):
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ValueError(f"--input {name}: parquet needs pyarrow, which `pip install pyarrow` brings") from None
    return parquet


def import_arrow(name: str):
    try:
        import pyarrow
        import pyarrow.ipc
    except ModuleNotFoundError:
        raise ValueError(f"--input {name}: a folder needs pyarrow, which `pip install pyarrow` brings") from None
    return pyarrow


def arrow_files(folder: Path) -> list[Path]:
    """The files of a folder of save_to_disk. Raises ValueError if it is none."""
    if (folder / "dataset_dict.json").exists():
        splits = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{STATE}")))
        raise ValueError(f"--input {folder} has several splits: name one of the folders in it ({splits})")
    try:
        files = [
            folder / one["filename"] for one in json.loads((folder / STATE).read_text(encoding="utf-8"))["_data_files"]
        ]
    except FileNotFoundError:
        raise ValueError(
            f"--input {folder} is not a regular file, nor a folder of save_to_disk: it has no {STATE}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--input {folder / STATE} lists no files: {error}") from None
    if lost := [file for file in files if file.parent != folder or not file.is_file()]:
        raise ValueError(f"--input {folder}: {lost[0]} is not there")
    if not files:
        raise ValueError(f"--input {folder / STATE} lists no files")
    return files


def read_arrow(name: str) -> list[bytes]:
    """The rows of a folder of save_to_disk as lines of JSON."""
    ipc, rows = import_arrow(name).ipc, []
    for file in arrow_files(Path(name)):
        try:
            with file.open("rb") as stream:
                rows += ipc.open_stream(stream).read_all().to_pylist()
        except Exception as error:  # a damaged file can raise anything
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise ValueError(f"--input {file} can't be read as Arrow: {reason}") from error
    return as_lines(name, rows)


def read_parquet(name: str, content: bytes) -> list[bytes]:
    """The rows as lines of JSON."""
    parquet = import_parquet(name)
    try:
        rows = parquet.read_table(BytesIO(content)).to_pylist()
    except Exception as error:  # a damaged file can raise anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"--input {name} can't be read as parquet: {reason}") from error
    return as_lines(name, rows)


def as_lines(name: str, rows: list[dict]) -> list[bytes]:
    try:
        return [json.dumps(row, default=as_text).encode() for row in rows]
    except TypeError as error:
        raise ValueError(f"--input {name}: {error}; leave that column out") from None


def as_text(value) -> str:
    """What JSON has no form for."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"JSON has no form for a value of the type {type(value).__name__}")

"""The inputs of batch runs: JSON lines, a JSON array, CSV, TSV or parquet, in UTF-8. Files may be compressed with gzip,
on the Hub, or come from stdin (`-`).

The file extension decides: .jsonl, .json, .csv, .tsv or .parquet, maybe with .gz; any other is read as JSON lines. Each
row becomes the corresponding line of JSON:

- CSV and TSV have a header; all values are strings.
- In a .json file with an object, such as {"data": [...]}, its only list of objects has the rows.
- In parquet a field without a value is null, a date is a text as in ISO 8601, a decimal its digits, bytes are Base64,
  NaN is a value (and null in the output, see batch_file.py). It needs the extra `parquet`.
"""

import base64
import codecs
import contextlib
import csv
import datetime
import decimal
import gzip
import hashlib
import io
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from .exits import naming
from .strict_json import from_line, no_duplicates

HUB = "hf://"
STDIN = "-"
TABLES = {".csv": ",", ".tsv": "\t"}  # ending -> what separates columns
KINDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
NUM_LOOKED_AT = 100  # rows, to see which fields an input has


@dataclass(frozen=True)
class Columns:
    """The fields of a row that a run uses. A nested field is named with dots, as in `answer.value` or `choices.0`.

    Attributes:
        prompt, id: the fields.
        template: makes the prompt, as in "Question: {question}\\nAnswer:".
        choices: the field with the texts from which to pick the likeliest, or a tuple of these texts.
        score: "text": how likely the prompt is as a text; "last-word": how likely its last word is after the others.
    """

    prompt: str = "prompt"
    id: str = "id"
    template: str | None = None
    choices: str | tuple[str, ...] | None = None
    score: str | None = None

    def __post_init__(self) -> None:
        if self.template is not None:
            if self.prompt != "prompt":
                raise ValueError("give either --prompt-column or --prompt-template")
            try:
                parts = [part for part in Formatter().parse(self.template) if part[1] is not None]
            except ValueError as error:
                raise ValueError(f"--prompt-template: {error}") from None
            if any(not name or form or conversion for _, name, form, conversion in parts):
                message = "write a field as {name}, and double any other brace"
                raise ValueError(f"--prompt-template {self.template!r:.80}: {message}")
        if self.choices is not None and self.score is not None:
            raise ValueError("give either --choices-column, or --choices, or --score")

    @property
    def is_scored(self) -> bool:
        """Whether every line is scored, rather than completed."""
        return self.choices is not None or self.score is not None

    @property
    def named(self) -> dict[str, str]:
        """Each field that was named, with its flag."""
        names = {name: "--prompt-template" for _, name, _, _ in Formatter().parse(self.template or "") if name}
        for name in ("prompt", "id", "choices"):
            value = getattr(self, name)
            if isinstance(value, str) and value != getattr(Columns, name):
                names[value] = f"--{name}-column"
        return names

    def prompt_of(self, values: dict) -> Any:
        """A row's prompt. In a template, a null is empty. Raises ValueError if a field of it is missing, or all are
        null."""
        if self.template is None:
            return find(values, self.prompt, "--prompt-column")
        pieces, found = [], []
        for text, name, _, _ in Formatter().parse(self.template):
            pieces.append(text)
            if name is not None:
                found.append(value := find(values, name, "--prompt-template"))
                value = "" if value is None else value
                pieces.append(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        if found and not any(value is not None for value in found):
            raise ValueError("all fields that --prompt-template names are null")
        return "".join(pieces)

    def to_dict(self) -> dict[str, Any] | None:
        """As in a manifest; None if everything is at its default."""
        return None if self == Columns() else json.loads(json.dumps(asdict(self)))


# ShareGPT's names of who speaks, and a chat template's.
SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}


def messages_of(chat: list[dict]) -> list[dict]:
    """A chat's messages for a chat template, without the answer at its end. ShareGPT's `from` and `value` become `role`
    and `content`; anything else is left as it is. Raises ValueError."""
    messages = []
    for i, turn in enumerate(chat):
        message = {name: value for name, value in turn.items() if value is not None}
        if {"from", "value"} <= message.keys():
            if (speaker := str(message["from"])) not in SPEAKERS:
                raise ValueError(f"turn {i} of the chat is from {speaker!r:.80}, not one of {', '.join(SPEAKERS)}")
            message = {"role": SPEAKERS[speaker], "content": message["value"]}
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content", ""), str):
            raise ValueError(f"turn {i} of the chat must have texts as role and content, got {turn!r:.80}")
        messages.append(message)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise ValueError("the chat has only answers")
    return messages


def find(values: dict, path: str, flag: str) -> Any:
    """A field of a row, or a nested one, as in `conversations.0.value`. Raises ValueError if there is none."""
    if path in values:
        return values[path]
    value: Any = values
    for name in path.split("."):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise ValueError(f"it has no {path!r}, which {flag} names")
    return value


def has(values: dict, path: str) -> bool:
    """Whether a row has such a field."""
    try:
        find(values, path, "")
    except ValueError:
        return False
    return True


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


def is_on_disk(name: str) -> bool:
    return name != STDIN and not name.startswith(HUB)


def check_dataset(name: str) -> None:
    """Raise ValueError, or OSError, if there is no such input. Cheap."""
    if name == STDIN:
        return
    if name.startswith(HUB):
        if not name.startswith(f"{HUB}datasets/") or len(name.split("/")) < 6:
            raise ValueError(f"--input {name}: a file on the Hub is hf://datasets/USER/NAME/FILE")
        return
    path = Path(name)
    if not path.exists():
        raise ValueError(f"--input {path}: there is no such file")
    if path.is_dir():
        raise ValueError(f"--input {path} is a folder: name a file in it")
    if not path.is_file():  # such as a pipe
        raise ValueError(f"--input {path} is not a regular file, so --resume could not read it again")
    path.open("rb").close()


def check_columns(dataset: Dataset, columns: Columns) -> None:
    """Raise ValueError if no row has the prompt, or a named field; called before the model is loaded."""
    rows, why = [], None
    for number, raw in dataset.rows[:NUM_LOOKED_AT]:
        try:
            row = from_line(raw)
        except (ValueError, RecursionError) as error:
            why = why or f"line {number}: {error}"
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            why = why or f"line {number} is a JSON {type(row).__name__}, not an object"
    if not dataset.rows:
        return
    kind = kind_of(dataset.name)
    if not rows:
        kinds = f"names of other files end in {', '.join(KINDS[:-1])} or {KINDS[-1]}, perhaps with .gz"
        message = f"is not JSON lines ({why}); {kinds}; --prompts-file completes the lines of a text"
        raise ValueError(f"--input {dataset.name} {message}")
    there = dict.fromkeys(name for row in rows for name in row)
    names = ", ".join(f"{name!r:.80}" for name in there)
    names += " (its first line; if these are values, put the columns' names before them)" if kind in TABLES else ""
    for path, flag in columns.named.items():
        if not any(has(row, path) for row in rows):
            raise ValueError(f"--input {dataset.name} has no column {path!r}, which {flag} names; it has {names}")
    usual = {"prompt", "prompt_token_ids", "body"}
    if columns.prompt == "prompt" and columns.template is None and not usual & there.keys():
        message = "name another with --prompt-column, or combine several with --prompt-template"
        raise ValueError(f"--input {dataset.name} has no column 'prompt': {message}; it has {names}")


def read_dataset(name: str) -> Dataset:
    """Read an input. Raises ValueError or OSError, which name it, if that fails."""
    content = read_bytes(name)
    rows = read_rows(name, unpacked(name, content))
    numbered = [(number, row) for number, row in enumerate(rows, start=1) if row.strip()]
    return Dataset(name, numbered, hashlib.sha256(content).hexdigest())


def read_bytes(name: str) -> bytes:
    if name.startswith(HUB):
        return fetch(name)
    with naming("stdin" if name == STDIN else name):
        return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()


def unpacked(name: str, content: bytes) -> bytes:
    """A file's content, decompressed if its first bytes say that it is compressed. Raises ValueError if it is
    damaged."""
    try:
        if content.startswith(b"\x1f\x8b"):
            return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:  # gzip's BadGzipFile is an OSError
        raise ValueError(f"--input {name} can't be decompressed: {error}") from None
    return content


def kind_of(name: str) -> str:
    """The ending of a name, in lower case, without a packing's."""
    return Path(name.removesuffix(".gz")).suffix.lower()


def read_rows(name: str, content: bytes) -> list[bytes]:
    """The rows of a file as lines of JSON."""
    kind = kind_of(name)
    if kind == ".parquet" or content.startswith(b"PAR1"):
        return read_parquet(name, content)
    text = content.removeprefix(codecs.BOM_UTF8)  # Windows writes such a mark; a single line may be invalid UTF-8
    if kind in TABLES:
        try:
            return read_table(name, text.decode("utf-8"), TABLES[kind])
        except UnicodeDecodeError as error:
            place = f"{error.reason} at byte {error.start}"
            raise ValueError(f"--input {name} is not UTF-8: {place}; convert it to UTF-8") from None
    start = text.lstrip()[:1]
    if start == b"[" or (start == b"{" and kind == ".json"):
        return read_json(name, text)
    return text.split(b"\n")


def read_table(name: str, text: str, delimiter: str) -> list[bytes]:
    """The rows of CSV or TSV; the first one has the names."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    try:
        header = next(reader, [])
        if twice := [one for i, one in enumerate(header) if one in header[:i]]:
            raise ValueError(f"two columns are named {twice[0]!r:.80} in its first line, which has the columns' names")
        for row in reader:
            if row and len(row) != len(header):
                raise ValueError(
                    f"the row that ends in line {reader.line_num} has {len(row)} fields, the header {len(header)}"
                )
            rows += [json.dumps(dict(zip(header, row, strict=True))).encode()] if row else []
    except (csv.Error, ValueError) as error:
        where = f" (line {reader.line_num})" if isinstance(error, csv.Error) else ""
        raise ValueError(f"--input {name} can't be read as a table: {error}{where}") from None
    return [b"", *rows]  # so that rows have their line numbers, if each is one line


def read_json(name: str, text: bytes) -> list[bytes]:
    """The rows of an array, or of the only list of objects in an object; else the lines."""
    try:
        whole = json.loads(text.decode("utf-8"), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        if not text.lstrip().startswith(b"{"):
            raise ValueError(f"--input {name} is not a JSON array: {error}") from None
        return text.split(b"\n")  # each line an object
    if isinstance(whole, dict):
        lists = {key: value for key, value in whole.items() if are_objects(value)}
        if "prompt" in whole or not lists:
            return [json.dumps(whole).encode()]
        if len(lists) > 1:
            raise ValueError(f"--input {name} has several lists ({', '.join(lists)}): put each into its own file")
        (whole,) = lists.values()
    return [json.dumps(row).encode() for row in whole]


def are_objects(value: Any) -> bool:
    """Whether it is a list of JSON objects, such as rows, or the turns of a chat."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def fetch(name: str, flag: str = "--input ") -> bytes:
    """A file on the Hub, through huggingface_hub's file system. flag: names it in an error. Raises OSError."""
    from huggingface_hub import HfFileSystem

    with telling(f"{flag}{name} can't be fetched"):
        return HfFileSystem().cat_file(name)  # pyright: ignore[reportReturnType]


def find_results(name: str) -> str:
    """The result file of a dataset on the Hub, as uploaded by `stagewise push`: its only JSON lines file. Raises
    ValueError, OSError."""
    from huggingface_hub import HfFileSystem

    with telling(f"{name} can't be fetched"):
        files = sorted(map(str, HfFileSystem().glob(f"{name}/*.jsonl")))
    if len(files) != 1:
        there = f"one of {', '.join(Path(file).name for file in files)}" if files else "it has no JSON lines file"
        raise ValueError(f"{name}: name the result file, {name}/FILE ({there})")
    return f"{HUB}{files[0]}"


@contextlib.contextmanager
def telling(what: str, kind: type[Exception] = OSError) -> Iterator[None]:
    """Turn any error of a library (network, damaged files) into a one-line error of this type."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise kind(f"{what}: {reason}") from error


def read_parquet(name: str, content: bytes) -> list[bytes]:
    """The rows as lines of JSON."""
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ValueError(f'--input {name}: parquet needs pyarrow: pip install "stagewise[parquet]"') from None
    with telling(f"--input {name} can't be read as parquet", ValueError):
        rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    return as_lines(name, rows)


def as_lines(name: str, rows: list[dict]) -> list[bytes]:
    try:
        return [json.dumps(row, default=as_text).encode() for row in rows]
    except TypeError as error:
        raise ValueError(f"--input {name}: {error}; leave that column out") from None


def as_text(value) -> str:
    """Values that JSON can't represent."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"JSON can't represent a value of type {type(value).__name__}")

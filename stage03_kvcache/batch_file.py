"""Run a file of prompts, for evaluation on a dataset: a line of JSON in, a line of JSON out.

An input line has `prompt` (a text) or `prompt_token_ids`, maybe an `id` (a text or whole number; default: "line-7"),
maybe `sampling` (fields of SamplingParams, over those of the command line), and any other fields, a reference answer
say, which are carried through. A result line is the input's fields and `text`, `token_ids`, `finish_reason`,
`stop_reason`, with `cumulative_logprob` and `logprobs` if asked for; or, for a line that is wrong, `error`.

Lines are written in the order in which they are done. A line's answer depends on the line, its number and the settings
alone, so a run that was killed and resumed ends with the same lines as one that was not: to the byte, if no sum's
rounding depends on what else is in its forward pass. Torch's does: there log-probabilities may differ in their last
digits, and at a near-tie the token. The settings are
beside the output, in a manifest (manifest.py): resume with the same.

A number that JSON has no form for, an infinity or NaN, is null in the output, whether the input or the model had it.
"""

import json
import os
import time
from dataclasses import dataclass, fields, replace
from io import FileIO
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    import msvcrt

    fcntl = None

from tqdm import tqdm

from .console import naming
from .dataset import HUB, Dataset, check_dataset, read_dataset
from .llm import LLM
from .manifest import begin, describe_run, resume
from .outputs import to_json
from .sampler import derive_seed
from .sampling_params import SamplingParams

SYNC_SECONDS = 5  # how much work a machine that fails may lose; a process that is killed loses none
RESULT_FIELDS = ("text", "token_ids", "finish_reason", "stop_reason", "cumulative_logprob", "logprobs", "error")


@dataclass
class Line:
    """An input line: its id, its fields as they were, and what to run, or what is wrong with it."""

    id: str | int | None
    fields: dict
    prompt: str | list[int] | None = None
    params: SamplingParams | None = None
    error: str | None = None


def open_output(source: str, output_path: Path, resume: bool) -> FileIO:
    """The output, locked as long as it is open. Cheap: called before the model is loaded.

    Raises:
        ValueError: a run would destroy something, or another run is writing to this output.
    """
    check_dataset(source)
    if not output_path.parent.is_dir():
        raise ValueError(f"--output {output_path}: there is no directory {output_path.parent}")
    if output_path.exists():
        if not source.startswith(HUB) and output_path.samefile(source):
            raise ValueError(f"--output {output_path} is the input file")
        if not output_path.is_file():
            raise ValueError(f"--output {output_path} is not a regular file")
    file = output_path.open("a+b", buffering=0)
    try:
        lock(file)
        if not resume and os.fstat(file.fileno()).st_size:
            raise ValueError(f"--output {output_path} exists: add --resume to continue it, or remove it")
    except BaseException:
        file.close()
        raise
    return file


def lock(file: FileIO) -> None:
    """Keep other runs off this file until it is closed: two on one file would answer every line twice."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            file.seek(1 << 62)  # Windows locks bytes, also from reading: one that is not there
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        raise ValueError(f"--output {file.name}: another run is writing to this file") from None
    except OSError as error:
        raise ValueError(f"--output {file.name} can't be locked: {error.strerror}") from None


def run_batch_file(llm: LLM, source: str, file: FileIO, defaults: SamplingParams, *, quiet: bool) -> tuple[int, int]:
    """Answer every line of the input that the output, a file of `open_output`, does not answer yet.

    Returns:
        how many lines the output has, and how many of them are errors.

    Raises:
        ValueError: the output is of another run (see manifest.py), or not of this input.
        OSError: a file can't be read or written; what was written before is there.
    """
    dataset = read_dataset(source)
    lines, run = read_lines(llm, dataset, defaults), describe_run(llm, dataset, defaults)
    (resume if os.fstat(file.fileno()).st_size else begin)(file.name, run)
    finished = read_finished(file, {line.id: line for line in lines})
    num_lines, num_errors, synced = len(lines), sum(finished.values()), time.monotonic()
    todo = [line for line in lines if line.id not in finished]
    with tqdm(total=num_lines, initial=len(finished), unit="line", disable=quiet) as bar:

        def write(line: Line, result: dict) -> None:
            nonlocal synced
            append(file, to_json({**line.fields, "id": line.id, **result}).encode())
            if time.monotonic() > synced + SYNC_SECONDS:
                sync(file)
                synced = time.monotonic()
            bar.update()

        try:
            for line in todo:
                if line.error:
                    write(line, {"error": line.error})
                    num_errors += 1
            todo = [line for line in todo if not line.error]
            for index, output in llm.as_completed([line.prompt for line in todo], [line.params for line in todo]):
                completion = output.to_dict()["outputs"][0]
                asked = [name for name in RESULT_FIELDS if completion.get(name) is not None or name == "stop_reason"]
                write(todo[index], {name: completion[name] for name in asked})
        finally:
            sync(file)
    return num_lines, num_errors


def append(file: FileIO, line: bytes) -> None:
    """Write a line. It is there when this returns, whatever becomes of this process."""
    rest = line + b"\n"
    with naming(file.name):
        while rest:
            rest = rest[file.write(rest) :]


def sync(file: FileIO) -> None:
    """Have the system put what was written on the disk, where it is whatever becomes of the machine."""
    with naming(file.name):
        os.fsync(file.fileno())


def read_lines(llm: LLM, dataset: Dataset, defaults: SamplingParams) -> list[Line]:
    """The lines of the input, those that are wrong with what is wrong."""
    lines = [(number, read_line(llm, raw, number, defaults)) for number, raw in dataset.rows]
    given = {line.id for _, line in lines if line.id is not None}
    taken = set()
    for number, line in lines:
        if line.id in taken:
            line.error, line.id = f"line {number}: the id {line.id!r:.80} stands on an earlier line too", None
        if line.id is None:  # named by its number, and told apart from ids that only look like it
            line.id = f"line-{number}"
            while line.id in given:
                line.id += "+"
        taken.add(line.id)
    return [line for _, line in lines]


def read_line(llm: LLM, raw: bytes, number: int, defaults: SamplingParams) -> Line:
    line = Line(id=None, fields={})
    try:
        values = json.loads(raw.decode("utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"a line is a JSON object, got {type(values).__name__}")
        to_json(values)  # what is nested too deeply to be written again is an error too
        line.fields = values
        if isinstance(values.get("id", ""), bool) or not isinstance(values.get("id", ""), str | int):
            raise ValueError(f"id must be a text or a whole number, got {values['id']!r:.80}")
        line.id = values.get("id")
        if taken := [name for name in RESULT_FIELDS if name in values]:
            raise ValueError(f"the field {taken[0]!r} is the result's: rename it")
        if ("prompt" in values) == ("prompt_token_ids" in values):
            raise ValueError("give either prompt or prompt_token_ids")
        line.prompt = values["prompt"] if "prompt" in values else values["prompt_token_ids"]
        if not isinstance(line.prompt, str if "prompt" in values else list):
            raise ValueError("prompt must be a text, prompt_token_ids a list of token ids")
        line.params = read_params(values.get("sampling", {}), defaults)
        if (
            line.params.seed is None
        ):  # by the line, not by the engine's count of requests, which a resumed run starts anew
            line.params = replace(line.params, seed=derive_seed(llm.engine.config.seed, number))
        llm.validate(line.prompt, line.params)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        line.error = f"line {number}: {error}"
    return line


def read_params(sampling: dict, defaults: SamplingParams) -> SamplingParams:
    """The parameters of a line. Raises ValueError for a field that SamplingParams does not have."""
    if not isinstance(sampling, dict):
        raise ValueError(f"sampling must be a JSON object, got {sampling!r:.80}")
    if unknown := sorted(sampling.keys() - {field.name for field in fields(SamplingParams)}):
        raise ValueError(f"sampling has no field {unknown[0]!r:.80}")
    return replace(defaults, **sampling)


def read_finished(file: FileIO, lines: dict[str | int, Line]) -> dict[str | int, bool]:
    """The ids that the output answers already, each with whether by an error; a last line that was torn by a kill is
    cut off.

    Raises ValueError if the output is not one of this input's, and leaves it as it is: better no run than answers to
    other questions.
    """
    finished, size = {}, 0
    file.seek(0)
    with naming(file.name), open(file.fileno(), "rb", closefd=False) as reader:
        for number, raw in enumerate(reader, start=1):
            if not raw.endswith(b"\n"):
                if not any(begins(line, raw) for line in lines.values()):
                    raise ValueError(
                        f"--resume: {file.name}, what stands behind its last whole line is no result of this input"
                    )
                file.truncate(size)
                break
            try:
                line, result = read_result(raw, lines)
                if line.id in finished:
                    raise ValueError(f"the id {line.id!r:.80} stands on an earlier line too")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                reason = f"the input has no such id: {error!s:.80}" if isinstance(error, KeyError) else error
                raise ValueError(
                    f"--resume: {file.name}, line {number} is no result of this input ({reason})"
                ) from None
            finished[line.id] = "error" in result
            size += len(raw)
    return finished


def read_result(raw: bytes, lines: dict[str | int, Line]) -> tuple[Line, dict]:
    """A line of the output, behind the input's line that it answers. Raises an error if it answers none."""
    result = json.loads(raw.decode("utf-8"))
    line = lines[result["id"]]
    carried = {name: value for name, value in line.fields.items() if name not in ("id", *RESULT_FIELDS)}
    if missing := [name for name in carried if name not in result]:
        raise ValueError(f"it lacks the field {missing[0]!r:.80} of the input's line")
    if to_json(carried) != to_json({name: result[name] for name in carried}):
        raise ValueError("the input's line of this id has other fields")
    if "text" not in result and "error" not in result:
        raise ValueError("it has neither text nor error")
    return line, result


def begins(line: Line, torn: bytes) -> bool:
    """Whether these bytes can be the beginning of a line's result."""
    if line.error:
        start = to_json({**line.fields, "id": line.id, "error": line.error}).encode()
    else:
        start = to_json({**line.fields, "id": line.id}).removesuffix("}").encode()
    return torn.startswith(start) or start.startswith(torn)

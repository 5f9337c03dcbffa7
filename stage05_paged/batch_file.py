"""Run a file of prompts, for evaluation on a dataset: a line of JSON in, a line of JSON out.

An input line has `prompt` (a text) or `prompt_token_ids`, maybe an `id` (a text or whole number; default: "line-7"),
maybe `sampling` (fields of SamplingParams, over those of the command line), maybe `priority` (under that policy), and
any other fields, a reference answer say, which are carried through. A result line is the input's fields and `text`,
`token_ids`, `finish_reason`, `stop_reason`, with `cumulative_logprob`, `logprobs` and `prompt_logprobs` if asked for;
with n > 1 a list of n such objects in `outputs`; or, for a line that is wrong, `error`.

A line with `"score": true` is scored instead: how likely is its `continuation`, or each of its `choices`, behind the
prompt? Without either, how likely is the prompt as a text? Its result has `scores`, a list of objects with `logprob`,
`num_tokens`, `is_greedy` and, for texts, `num_bytes`; and, of choices, the likeliest one's number, `choice`.

OpenAI's batch lines are taken too, and answered as OpenAI does (see openai_lines.py).

Lines are written in the order in which they are done. A line's answer depends on the line, its number and the settings
alone, so a run that was killed and resumed ends with the same lines as one that was not: to the byte, if no sum's
rounding depends on what else is in its forward pass. Torch's does: there log-probabilities may differ in their last
digits, and at a near-tie the token. (Answers to OpenAI's lines also say when they were made.) The settings are
beside the output, in a manifest (manifest.py): resume with the same.

A number that JSON has no form for, an infinity or NaN, is null in the output, whether the input or the model had it.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
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
from .openai_lines import answer, answer_id, is_request, refusal, to_line
from .outputs import RequestOutput, to_json
from .sampler import derive_seed
from .sampling_params import SamplingParams
from .scoring import SCORING, Pair, score_of

SYNC_SECONDS = 5  # how much work a machine that fails may lose; a process that is killed loses none
SCORE_FIELDS = ("scores", "choice")  # of lines that are scored
RESULT_FIELDS = (
    "text",
    "token_ids",
    "finish_reason",
    "stop_reason",
    "cumulative_logprob",
    "logprobs",
    "error",
    "outputs",
    "scores",
    "choice",
    "prompt_logprobs",
)


@dataclass
class Line:
    """An input line: its id, its fields as they were, and what to run, or what is wrong with it. `is_openai`: it is a
    request of OpenAI's batch interface."""

    id: str | int | None
    fields: dict
    prompts: list[str | list[int] | Pair] = field(default_factory=list)
    params: SamplingParams | None = None
    priority: int = 0
    error: str | None = None
    is_openai: bool = False

    def refusal(self) -> dict:
        """What is written of a line that is wrong."""
        if self.is_openai:
            return refusal(self.fields, self.error)
        return {**self.fields, "id": self.id, "error": self.error}

    def begin(self) -> str:
        """What its result begins with, as JSON."""
        if self.error:
            return to_json(self.refusal())
        carried = {"id": answer_id(self.fields)} if self.is_openai else {**self.fields, "id": self.id}
        return to_json(carried).removesuffix("}")


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

        def write(result: dict) -> None:
            nonlocal synced
            append(file, to_json(result).encode())
            if time.monotonic() > synced + SYNC_SECONDS:
                sync(file)
                synced = time.monotonic()
            bar.update()

        try:
            for line in todo:
                if line.error:
                    write(line.refusal())
                    num_errors += 1
            # All are known, so plan: a long output that begins last would run alone at the end.
            todo = sorted((line for line in todo if not line.error), key=lambda line: -line.params.max_tokens)
            for line, outputs in completed(llm, todo):
                result = result_of(line, outputs)
                write(result)
                num_errors += is_error(result)
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


def completed(llm: LLM, lines: list[Line]) -> Iterator[tuple[Line, list[RequestOutput]]]:
    """Each line with the results of its prompts, as soon as they are all there."""
    owners = [(number, i) for number, line in enumerate(lines) for i in range(len(line.prompts))]
    prompts = [prompt for line in lines for prompt in line.prompts]
    columns = [lines[number].params for number, _ in owners], [lines[number].priority for number, _ in owners]
    there: dict[int, dict[int, RequestOutput]] = defaultdict(dict)
    for index, output in llm.as_completed(prompts, *columns):
        number, i = owners[index]
        there[number][i] = output
        if len(there[number]) == len(lines[number].prompts):
            yield lines[number], [output for _, output in sorted(there.pop(number).items())]


def result_of(line: Line, outputs: list[RequestOutput]) -> dict:
    """The result line of an input line."""
    if line.is_openai:
        return answer(line.fields, outputs[0])
    return {**line.fields, "id": line.id, **own_fields(line, outputs)}


def is_error(result: dict) -> bool:
    return result.get("error") is not None


def own_fields(line: Line, outputs: list[RequestOutput]) -> dict:
    """What a result line has beside the input's fields."""
    if isinstance(line.prompts[0], Pair):
        try:
            scores = [asdict(score_of(output)) for output in outputs]
        except RuntimeError as error:
            return {"error": str(error)}
        for score, pair in zip(scores, line.prompts, strict=True):
            if isinstance(pair.continuation, str):
                score["num_bytes"] = len(pair.continuation.encode())
        best = max(range(len(scores)), key=lambda i: scores[i]["logprob"])
        return {"scores": scores, "choice": best} if "choices" in line.fields else {"scores": scores}
    output = outputs[0].to_dict()
    results = [select(completion) for completion in output["outputs"]]
    scored = {"prompt_logprobs": output["prompt_logprobs"]} if output["prompt_logprobs"] else {}
    return (results[0] if len(results) == 1 else {"outputs": results}) | scored


def select(completion: dict) -> dict:
    """What a result line has of a completion."""
    asked = [name for name in RESULT_FIELDS if completion.get(name) is not None or name == "stop_reason"]
    return {name: completion[name] for name in asked}


def read_lines(llm: LLM, dataset: Dataset, defaults: SamplingParams) -> list[Line]:
    """The lines of the input, those that are wrong with what is wrong."""
    lines = [(number, read_line(llm, raw, number, defaults)) for number, raw in dataset.rows]
    given = {line.id for _, line in lines if line.id is not None}
    taken = set()
    for number, line in lines:
        if line.id in taken:
            line.error, line.id = f"line {number}: the id {line.id!r:.80} stands on an earlier line too", None
            line.is_openai = False  # a custom_id that is not its own names no answer
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
        if is_request(values):
            if not isinstance(values["custom_id"], str):
                raise ValueError(f"custom_id must be a text, got {values['custom_id']!r:.80}")
            line.id, line.is_openai = values["custom_id"], True
            values = to_line(values, llm.engine.config.model) | {"id": line.id}
        if isinstance(values.get("id", ""), bool) or not isinstance(values.get("id", ""), str | int):
            raise ValueError(f"id must be a text or a whole number, got {values['id']!r:.80}")
        line.id = values.get("id")
        others = () if values.get("score") is True else SCORE_FIELDS
        if taken := [name for name in RESULT_FIELDS if name in values and name not in others]:
            raise ValueError(f"the field {taken[0]!r} is the result's: rename it")
        line.prompts, line.params = read_job(values, defaults)
        # By the line, not by the engine's count of requests, which a resumed run starts anew.
        if line.params.seed is None:
            line.params = replace(line.params, seed=derive_seed(llm.engine.config.seed, number))
        if llm.engine.config.policy == "priority":
            line.priority = values.get("priority", 0)
        for prompt in line.prompts:
            llm.validate(prompt, line.params, line.priority)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        line.error = f"line {number}: {error}"
    return line


def read_job(values: dict, defaults: SamplingParams) -> tuple[list[str | list[int] | Pair], SamplingParams]:
    """What a line asks for. Raises ValueError if that is not clear."""
    if ("prompt" in values) == ("prompt_token_ids" in values):
        raise ValueError("give either prompt or prompt_token_ids")
    prompt = values["prompt"] if "prompt" in values else values["prompt_token_ids"]
    if not isinstance(prompt, str if "prompt" in values else list):
        raise ValueError("prompt must be a text, prompt_token_ids a list of token ids")
    if values.get("score") is not True:
        if {"choices", "continuation"} & values.keys() and not isinstance(values.get("score", False), bool):
            raise ValueError(f"score must be true or false, got {values['score']!r:.80}")
        return [prompt], read_params(values.get("sampling", {}), defaults)
    if "sampling" in values:
        raise ValueError("a line that is scored has no sampling: nothing is generated")
    if "choices" in values and "continuation" in values:
        raise ValueError("give either continuation or choices")
    if "choices" in values:
        if not isinstance(values["choices"], list) or not values["choices"]:
            raise ValueError(f"choices must be a list that is not empty, got {values['choices']!r:.80}")
        return [Pair(prompt, choice) for choice in values["choices"]], SCORING
    if "continuation" in values:
        return [Pair(prompt, values["continuation"])], SCORING
    return [Pair("", prompt) if isinstance(prompt, str) else Pair(prompt[:1], prompt[1:])], SCORING


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
            finished[line.id] = is_error(result)
            size += len(raw)
    return finished


def read_result(raw: bytes, lines: dict[str | int, Line]) -> tuple[Line, dict]:
    """A line of the output, behind the input's line that it answers. Raises an error if it answers none."""
    result = json.loads(raw.decode("utf-8"))
    line = lines.get(result["id"]) or lines[result.get("custom_id", result["id"])]
    if line.is_openai:
        if result["id"] != answer_id(line.fields):
            raise ValueError("the input's request of this custom_id is another")
        return line, result
    carried = {name: value for name, value in line.fields.items() if name not in ("id", *RESULT_FIELDS)}
    if missing := [name for name in carried if name not in result]:
        raise ValueError(f"it lacks the field {missing[0]!r:.80} of the input's line")
    if to_json(carried) != to_json({name: result[name] for name in carried}):
        raise ValueError("the input's line of this id has other fields")
    if not {"text", "outputs", "scores", "error"} & result.keys():
        raise ValueError("it has neither text nor outputs nor scores nor error")
    return line, result


def begins(line: Line, torn: bytes) -> bool:
    """Whether these bytes can be the beginning of a line's result."""
    start = line.begin().encode()
    return torn.startswith(start) or start.startswith(torn)

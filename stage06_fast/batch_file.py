"""Run a file of prompts, for evaluation on a dataset: a line of JSON in, a line of JSON out.

An input line has `prompt` (a text) or `prompt_token_ids`, maybe an `id` (a text or whole number; default: "line-7"),
maybe `sampling` (fields of SamplingParams, over those of the command line), maybe `priority` (under that policy), and
any other fields, a reference answer say, which are carried through. A result line is the input's fields and `text`,
`token_ids`, `finish_reason`, `stop_reason`, with `cumulative_logprob` and `logprobs` if asked for; with n > 1 a list of
n such objects in `outputs`; or, for a line that is wrong, `error`.

Lines are written in the order in which they are done. A line's answer depends on the line, its number and the settings
alone, so a run that was killed and resumed ends with the same lines as one that was not. The settings are not in the
file: resume with those of the first run.
"""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from tqdm import tqdm

from .llm import LLM
from .sampler import derive_seed
from .sampling_params import SamplingParams

RESULT_FIELDS = (
    "text",
    "token_ids",
    "finish_reason",
    "stop_reason",
    "cumulative_logprob",
    "logprobs",
    "error",
    "outputs",
)


@dataclass
class Line:
    """An input line: its id, its fields as they were, and what to run, or what is wrong with it."""

    id: str | int | None
    fields: dict
    prompt: str | list[int] | None = None
    params: SamplingParams | None = None
    priority: int = 0
    error: str | None = None


def check_paths(input_path: Path, output_path: Path, resume: bool) -> None:
    """Raise ValueError if a run would destroy something. Cheap: called before the model is loaded."""
    if not input_path.is_file():
        raise ValueError(f"--input {input_path}: there is no such file")
    if not output_path.parent.is_dir():
        raise ValueError(f"--output {output_path}: there is no directory {output_path.parent}")
    if output_path.exists():
        if output_path.samefile(input_path):
            raise ValueError(f"--output {output_path} is the input file")
        if not resume:
            raise ValueError(f"--output {output_path} exists: add --resume to continue it, or remove it")


def run_batch_file(
    llm: LLM, input_path: Path, output_path: Path, defaults: SamplingParams, *, resume: bool, quiet: bool
) -> tuple[int, int]:
    """Answer every line of the input that the output does not answer yet.

    Returns:
        how many lines the output has, and how many of them are errors.

    Raises:
        ValueError: the output file is not one of this input's.
    """
    lines = read_lines(llm, input_path, defaults)
    finished = read_finished(output_path, {line.id: line for line in lines}) if resume else {}
    num_errors = sum("error" in result for result in finished.values())
    todo = [line for line in lines if line.id not in finished]
    with (
        output_path.open("a", encoding="utf-8", newline="\n") as file,
        tqdm(total=len(lines), initial=len(finished), unit="line", disable=quiet) as bar,
    ):

        def write(line: Line, result: dict) -> None:
            file.write(to_json({**line.fields, "id": line.id, **result}) + "\n")
            file.flush()
            bar.update()

        for line in todo:
            if line.error:
                write(line, {"error": line.error})
                num_errors += 1
        todo = [line for line in todo if not line.error]
        columns = [line.prompt for line in todo], [line.params for line in todo], [line.priority for line in todo]
        for index, output in llm.as_completed(*columns):
            results = [select(completion) for completion in output.to_dict()["outputs"]]
            write(todo[index], results[0] if len(results) == 1 else {"outputs": results})
    return len(lines), num_errors


def select(completion: dict) -> dict:
    """What a result line has of a completion."""
    asked = [name for name in RESULT_FIELDS if completion.get(name) is not None or name == "stop_reason"]
    return {name: completion[name] for name in asked}


def to_json(result: dict) -> str:
    """A line of JSON, readable where it can be; half a surrogate pair, which UTF-8 can't carry, stays escaped."""
    line = json.dumps(result, ensure_ascii=False)
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        line = json.dumps(result)
    return line


def read_lines(llm: LLM, path: Path, defaults: SamplingParams) -> list[Line]:
    """The lines of the input, those that are wrong with what is wrong. Blank lines are skipped."""
    numbered = [(number, raw) for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1) if raw.strip()]
    lines = [(number, read_line(llm, raw, number, defaults)) for number, raw in numbered]
    given = {line.id for _, line in lines if line.id is not None}
    taken = set()
    for number, line in lines:
        if line.id in taken:
            line.error, line.id = f"line {number}: the id {line.id!r} stands on an earlier line too", None
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
            line.params = replace(line.params, seed=derive_seed(llm.seed, number))
        if llm.scheduler.policy == "priority":
            line.priority = values.get("priority", 0)
        llm.validate(line.prompt, line.params, line.priority)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        line.error = f"line {number}: {error}"
    return line


def read_params(sampling: dict, defaults: SamplingParams) -> SamplingParams:
    """The parameters of a line. Raises ValueError for a field that SamplingParams does not have."""
    if not isinstance(sampling, dict):
        raise ValueError(f"sampling must be a JSON object, got {sampling!r:.80}")
    if unknown := sorted(sampling.keys() - {field.name for field in fields(SamplingParams)}):
        raise ValueError(f"sampling has no field {unknown[0]!r}")
    return replace(defaults, **sampling)


def read_finished(path: Path, lines: dict[str | int, Line]) -> dict[str | int, dict]:
    """The results that the output holds already, by id; a last line that was torn by a kill is cut off.

    Raises ValueError if the output is not one of this input's, and leaves it as it is: better no run than answers to
    other questions.
    """
    finished = {}
    if not path.exists():
        return finished
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    for number, raw in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            result = json.loads(raw.decode("utf-8"))
            line = lines[result["id"]]
            carried = {name: value for name, value in line.fields.items() if name not in ("id", *RESULT_FIELDS)}
            if missing := [name for name in carried if name not in result]:
                raise ValueError(f"it lacks the field {missing[0]!r} of the input's line")
            if json.dumps(carried) != json.dumps({name: result[name] for name in carried}):
                raise ValueError("the input's line of this id has other fields")
            if not {"text", "outputs", "error"} & result.keys():
                raise ValueError("it has neither text nor outputs nor error")
            if result["id"] in finished:
                raise ValueError(f"the id {result['id']!r} stands on an earlier line too")
        except (ValueError, KeyError, TypeError) as error:
            reason = f"the input has no such id: {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"--resume: {path}, line {number} is no result of this input ({reason})") from None
        finished[result["id"]] = result
    if (torn := content[len(whole) :]) and not any(begins(line, torn) for line in lines.values()):
        raise ValueError(f"--resume: {path}, what stands behind its last whole line is no result of this input")
    with path.open("r+b") as file:
        file.truncate(len(whole))
    return finished


def begins(line: Line, torn: bytes) -> bool:
    """Whether these bytes can be the beginning of a line's result."""
    start = to_json({**line.fields, "id": line.id}).removesuffix("}").encode()
    return torn.startswith(start) or start.startswith(torn)

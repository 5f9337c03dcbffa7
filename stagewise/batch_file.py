"""Run a file of prompts, for evaluation on a dataset: one line of JSON in, one line of JSON out.

An input line has `prompt` (a string, or a chat) or `prompt_token_ids`. It may have an `id` (a string or whole number;
default: "line-7"), `sampling` (vLLM's field names; overrides the command line), `priority` (under that policy), and any
other fields, such as a reference answer, which are carried through. A field with the name of a result field, such as
`text`, is carried as `input_text`; where a field controls the run, null means that it is left out. `--prompt-column`,
`--prompt-template` and `--id-column` name other fields for the prompt and the id; with `--choices-column`, `--choices`
and `--score` every line is scored.

A chat is a list of messages with `role` and `content`, or ShareGPT's `from` and `value`. `--chat-template`, or the
model's own template, turns it into a prompt, from its first turn on and without the answer at its end, if it has one.

A result line has the input's fields, `text`, `token_ids`, `finish_reason`, `stop_reason`, with `cumulative_logprob`,
`logprobs` and `prompt_logprobs` if requested; with n > 1 a list of n such objects in `outputs`; or, for a line that is
wrong or fails by itself, `error`.

From stage 4 on a line with `"score": true` is scored instead: how likely is its `continuation`, or each of its
`choices`, after the prompt? Without either, how likely is the prompt as a text? Its result has `scores`, a list of
objects with `logprob`, `num_tokens`, `is_greedy` and, for texts, `num_bytes`; with choices also `choice`, the index of
the likeliest.

OpenAI's batch lines are accepted too, and answered as by the server (see openai/lines.py).

Lines are written in the order in which they finish. A line's answer depends only on the line, its number and the
settings, so a run that was killed and resumed ends with the same lines as one that was not. They are the same byte for
byte, except in stages 2 to 5: there torch's rounding depends on what else is in a forward pass, so the last digits of
log-probabilities may differ, and so may the token at a near-tie. (Answers to OpenAI's lines also say when they were
made.) The settings are next to the output, in a manifest (manifest.py): resume with the same ones.

A number that JSON can't represent, an infinity or NaN, is null in the output, whether it came from the input or the
model.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    import msvcrt

    fcntl = None

from .console import progress_bar
from .dataset import Columns, Dataset, are_objects, find, has, is_on_disk, messages_of
from .exits import MissingPackageError, naming, tell
from .manifest import begin, describe_run, resume
from .openai.fields import BEAM_FIELDS, objection
from .openai.lines import answer, answer_id, check_request, is_request, longest_output, read_job, refusal, served_lines
from .results import as_dict
from .sampling import MORE_FIELDS, Sampling, cut_hint
from .stages import Setup, Stage, setup_of
from .strict_json import from_line, no_duplicates, to_json

SYNC_SECONDS = 5  # of work that a machine's crash may lose; a process that is killed loses none
SCORE_FIELDS = ("scores", "choice")  # in the results of scored lines
SCORING_FIELDS = ("score", "choices", "continuation")  # in lines to be scored
# Other programs' names for sampling fields. A line that has one is probably meant to be sampled so: warn.
FOREIGN_FIELDS = ("max_new_tokens", "max_completion_tokens", "do_sample", "num_beams", "typical_p", "stop_sequences")
LINES_AT_ONCE = 4096  # checked and submitted together: a smaller number gives the first result sooner
OWN = "input_"  # prefix of an input field that has the name of a result field
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
    """An input line: its id, its original fields, and what to run, or what is wrong with it.

    Attributes:
        number: in the file, from 1.
        prompts: one prompt, or the pairs of a scored line.
        sampling: its fields; None: it is scored.
        params: SamplingParams of the stage, without processors until `LineReader.check`.
        longest: the maximum length of an output.
        is_openai: it is a request of OpenAI's batch interface.
        openai: once checked, (what serves it, its Job).
        is_checked: against the model.
        has_seed: whether its seed is given, rather than derived from its number.
    """

    number: int
    id: str | int | None = None
    fields: dict = field(default_factory=dict)
    prompts: list = field(default_factory=list)
    sampling: Sampling | None = None
    params: Any = None
    priority: Any = 0
    error: str | None = None
    is_scored: bool = False
    longest: int = 0
    is_openai: bool = False
    openai: Any = None
    is_checked: bool = False
    has_seed: bool = True

    @property
    def answer_id(self) -> str:
        """The id of the answer to an OpenAI request. Two requests with one custom_id get different ones."""
        return answer_id(self.fields) if self.id == self.fields["custom_id"] else str(self.id)

    def refusal(self) -> dict:
        """The result of a line that is wrong."""
        if self.is_openai:
            return refusal(self.answer_id, self.fields["custom_id"], self.error)
        return {**self.fields, "id": self.id, "error": self.error}


@dataclass(frozen=True)
class How:
    """How the lines of an input are completed.

    Attributes:
        sampling: the fields of the command line.
        columns: which fields have what a line needs.
        chat_template: the text of one; None: the model's own.
        model, tokenizer: as the command line names them, before a conversion; None: the engine's. The model's name is
            that of OpenAI's lines, and both may have a chat template.
    """

    sampling: Sampling
    columns: Columns = Columns()  # noqa: RUF009 (it is frozen)
    chat_template: str | None = None
    model: str | None = None
    tokenizer: str | None = None

    def names(self, config: Any) -> tuple[str, str | None]:
        """The model and its tokenizer, by the user's names. config: the engine's, which may name a converted model."""
        return (self.model, self.tokenizer) if self.model else (config.model, config.tokenizer)


Job = tuple[int, Line]  # a line's place in the input, and the line
Answer = tuple[int, bytes, bool]  # a line's place, its result as JSON, and whether that is an error
Counts = tuple[int, int]  # lines in an output, and errors among them


def open_output(source: str, output_path: Path, resume: bool) -> FileIO:
    """The output file, locked while it is open. Cheap: called before the model is loaded.

    Raises:
        ValueError: a run would destroy something, or another run is writing to this output.
    """
    if not output_path.parent.is_dir():
        raise ValueError(f"--output {output_path}: there is no directory {output_path.parent}")
    if output_path.exists():
        if is_on_disk(source) and output_path.samefile(source):
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
    """Lock out other runs until this file is closed: two runs on one file would answer every line twice."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            file.seek(1 << 62)  # on Windows a locked byte can't be read by others: lock one past the end
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
    except (BlockingIOError, PermissionError):
        raise ValueError(f"--output {file.name}: another run is writing to this file") from None
    except OSError as error:
        raise ValueError(f"--output {file.name} can't be locked: {error.strerror}") from None


def append(file: FileIO, result: bytes) -> None:
    """Write a line. When this returns it is in the file, whatever happens to this process."""
    rest = result + b"\n"
    with naming(file.name):
        while rest:
            rest = rest[file.write(rest) :]


def sync(file: FileIO) -> None:
    """Flush to disk, so that the file survives a crash of the machine."""
    with naming(file.name):
        os.fsync(file.fileno())


class LineReader:
    """Turns the lines of an input into work for an engine.

    Args:
        config: the engine's EngineConfig.
        llm: checks what depends on the model; None: a worker does that, and there is no engine here.

    Attributes:
        renamed: the fields that are carried under another name.
        unused: fields that would be parameters in a line's `sampling`, and are only carried through.
    """

    def __init__(self, stage: Stage, config: Any, how: How, llm: Any = None):
        self.stage, self.config, self.llm, columns = stage, config, llm, how.columns
        self.defaults, self._template = how.sampling, how.chat_template
        self.columns, self.renamed, self.unused = columns, set[str](), set[str]()
        self.model, self.tokenizer = how.names(config)
        self._names = {*stage.SamplingParams.__dataclass_fields__, *MORE_FIELDS} - {"logits_processors"}
        self._like_sampling = self._names | {*BEAM_FIELDS, *FOREIGN_FIELDS} - {*columns.named}
        self._like_sampling |= {"sampling"} if columns.is_scored else set()
        if self._template is not None:
            _ = self._chats  # one error, rather than one per line

    def read_lines(self, dataset: Dataset) -> list[Line]:
        """The lines of the input; a bad line has its error, if that can be found without a model."""
        lines = [self.read_line(raw, number) for number, raw in dataset.rows]
        given = {line.id for line in lines if line.id is not None}
        taken = set()
        for line in lines:
            if line.id in taken:
                line.error = f"line {line.number}: an earlier line has the same id, {line.id!r:.80}"
                line.id = None
            if line.id is None:  # named by its number, and distinguished from ids that look the same
                line.id = f"line-{line.number}"
                while line.id in given:
                    line.id += "+"
            taken.add(line.id)
        return lines

    def read_line(self, raw: bytes, number: int) -> Line:
        line = Line(number)
        try:
            values = from_line(raw, object_pairs_hook=no_duplicates)
            if not isinstance(values, dict):
                raise ValueError(f"a line is a JSON object, got {type(values).__name__}")
            is_openai = is_request(values)
            column, kinds = ("custom_id", str) if is_openai else (self.columns.id, str | int)
            name = find(values, column, "") if has(values, column) else None
            if isinstance(name, kinds) and not isinstance(name, bool):
                line.id = name  # first, so that an error, whatever it is about, has it
            to_json(values)  # nesting too deep to be written again is an error too
            line.fields, line.is_openai = values, is_openai and line.id is not None
            if line.id is None and (is_openai or name is not None):
                kinds = "a string" if is_openai else "a string or a whole number"
                raise ValueError(f"{column} must be {kinds}, got {name!r:.80}")
            if is_openai:
                check_request(values, self.model)
                if "chat" in values["url"]:
                    self._template_of_chats()
                line.longest = longest_output(values, self.defaults.params.max_tokens)
                return line
            self.unused |= self._like_sampling & values.keys()
            line.fields = self._carried(values) | ({"score": True} if self.columns.is_scored else {})
            values, more = self._by_usual_names(values)
            line.fields |= more
            self._read_job(line, values)
            line.longest = line.params.max_tokens
            if getattr(self.config, "policy", None) == "priority":
                line.priority = values.get("priority", 0)
        except MissingPackageError:
            raise
        except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
            line.error = f"line {number}: {error}"
        return line

    def check(self, line: Line) -> None:
        """Turn a line into work for this model, or an error."""
        if line.error or line.is_checked:
            return
        line.is_checked = True
        try:
            if line.is_openai:
                self._read_request(line)
            if line.sampling is not None:
                line.params = line.sampling.params_for(self.llm)
                line.prompts = [line.sampling.prompt(self.llm, prompt) for prompt in line.prompts]
            # From the line's number, not the engine's count of requests, which restarts at 0 in a resumed run.
            line.has_seed = line.params.seed is not None
            if not line.has_seed:
                line.params = replace(line.params, seed=self.stage.derive_seed(self.config.seed, line.number))
            for prompt in line.prompts:
                with cut_hint() if line.sampling is not None else contextlib.nullcontext():
                    self.llm.validate(prompt, line.params, *([line.priority] if self.stage.has_priority else []))
        except MissingPackageError:
            raise
        except (ValueError, RecursionError) as error:
            line.error = f"line {line.number}: {error}"

    @functools.cached_property
    def _served(self) -> Any:
        return replace(served_lines(self.stage, self.llm, self.defaults), model_name=self.model)

    @functools.cached_property
    def _served_chats(self) -> Any:
        return replace(self._served, chat=self._chats)

    def _template_of_chats(self) -> Any:
        """What turns chats into prompts. Raises ValueError if there is nothing."""
        if self._chats is None:
            raise ValueError("a chat needs a chat template, and the model has none: give one with --chat-template FILE")
        return self._chats

    @functools.cached_property
    def _chats(self) -> Any:
        """The ChatTemplate; None if neither the command line nor the model has one."""
        try:
            from .openai.chat import ChatTemplate, load_template, special_tokens
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                f'chats need what the server needs: pip install "stagewise[serve]" ({error})'
            ) from None
        directory = self.stage.tokenizer_files(self.model, self.config.load_format, self.tokenizer)
        if self._template is None:
            template = load_template(None, directory)
        else:
            template = ChatTemplate(self._template, "--chat-template", special_tokens(directory))
        if template is not None and self.llm is not None:
            template.check_tokens(self.llm.get_tokenizer())
        return template

    def _read_request(self, line: Line) -> None:
        """What an OpenAI request asks for. Raises ValueError."""
        served = self._served_chats if "chat" in line.fields["url"] else self._served
        job = read_job(served, line.fields)
        line.openai, line.sampling, line.prompts = (served, job), job.sampling, job.token_ids
        if getattr(self.config, "policy", None) == "priority":
            line.priority = job.fields["priority"]

    def tell_names(self, source: str) -> None:
        """Print notes on field names with effects that the user may not expect."""
        if self.renamed:
            names = ", ".join(f"{name} -> {OWN}{name}" for name in sorted(self.renamed))
            tell(f"{source}: fields with names of result fields are renamed: {names}")
        if self.unused:
            names = ", ".join(sorted(self.unused))
            hint = 'put a line\'s own parameters into its "sampling"; parameters of all lines are flags'
            hint = "scoring draws nothing" if self.columns.is_scored else hint
            tell(f"{source}: warning: these fields are carried through but not used: {names}; {hint}")

    def _carried(self, values: dict) -> dict:
        """The fields of a line under names that no result field has. Raises ValueError if that is impossible."""
        scored = self.columns.is_scored or values.get("score") is True
        taken = {*RESULT_FIELDS, *(["id"] if self.columns.id != "id" else [])}.difference(
            () if scored else SCORE_FIELDS
        )
        if self.columns.is_scored:
            taken |= {*SCORING_FIELDS} - {self.columns.choices}
        names = {name: OWN + name if name in taken else name for name in values}
        if clash := [name for name in taken & values.keys() if OWN + name in values]:
            raise ValueError(f"{clash[0]!r} is a result field, and {OWN + clash[0]!r} is taken too: rename it")
        self.renamed |= taken & values.keys()
        return {names[name]: value for name, value in values.items()}

    def _by_usual_names(self, values: dict) -> tuple[dict, dict]:
        """The line without nulls, with its prompt, a chat's too, under the usual name, and with the fields that flags
        add."""
        columns, row = self.columns, values
        values = {name: value for name, value in row.items() if value is not None}
        if columns.template is not None or columns.prompt != "prompt":
            prompt = columns.prompt_of(row)
            name = "prompt_token_ids" if isinstance(prompt, list) and not are_objects(prompt) else "prompt"
            values = {k: v for k, v in values.items() if k not in ("prompt", "prompt_token_ids")} | {name: prompt}
        prompt: Any = values.get("prompt")
        if columns.score is not None and are_objects(prompt):
            raise ValueError("--score is for texts, and the prompt is a chat")
        if are_objects(prompt):
            values = {**values, "prompt": self._template_of_chats().prompt(messages_of(prompt))}
        if not columns.is_scored:
            return values, {}
        values = {k: v for k, v in values.items() if k not in (*SCORING_FIELDS, "sampling")} | {"score": True}
        if columns.score == "last-word":
            if not isinstance(prompt, str):
                raise ValueError("--score last-word is for prompts that are texts")
            *words, last = prompt.split(" ")
            values |= {"prompt": " ".join(words), "continuation": f" {last}"}
        elif columns.choices is not None:
            choices = columns.choices
            values["choices"] = find(row, choices, "--choices-column") if isinstance(choices, str) else [*choices]
        return values, {name: values[name] for name in SCORING_FIELDS if name in values}

    def _read_job(self, line: Line, values: dict) -> None:
        """What a line asks for. Raises ValueError if that is unclear."""
        if ("prompt" in values) == ("prompt_token_ids" in values):
            raise ValueError("give either prompt or prompt_token_ids")
        prompt = values["prompt"] if "prompt" in values else values["prompt_token_ids"]
        if not (isinstance(prompt, str) if "prompt" in values else are_token_ids(prompt)):
            message = "prompt must be a string or a chat, prompt_token_ids a list of token ids"
            raise ValueError(f"{message}, got {prompt!r:.80}")
        if values.get("score") is True:
            line.prompts, line.is_scored = self._pairs(prompt, values), True
            line.params = self.stage.SCORING
            return
        if {"choices", "continuation"} & values.keys() and not isinstance(values.get("score", False), bool):
            raise ValueError(f"score must be true or false, got {values['score']!r:.80}")
        line.sampling = self._sampling(values.get("sampling", {}))
        line.prompts, line.params = [prompt], line.sampling.params

    def _pairs(self, prompt: str | list[int], values: dict) -> list:
        """The continuations of a line to score, each after its prompt."""
        if not self.stage.can_score:
            raise ValueError(f"{self.stage.command} can't score lines: use a later stage")
        pair = self.stage.Pair
        if "sampling" in values:
            raise ValueError("a line to be scored can't have sampling: nothing is generated")
        if "choices" in values and "continuation" in values:
            raise ValueError("give either continuation or choices")
        if "choices" in values:
            if not isinstance(values["choices"], list) or not values["choices"]:
                raise ValueError(f"choices must be a non-empty list, got {values['choices']!r:.80}")
            choices = values["choices"]
            if self.columns.choices is not None:  # with a space between prompt and choice, as in lm-eval
                gap = "" if not isinstance(prompt, str) or prompt[-1:].isspace() else " "
                choices = [c if not isinstance(c, str) or c[:1].isspace() else gap + c for c in choices]
            return [pair(prompt, choice) for choice in choices]
        if "continuation" in values:
            return [pair(prompt, values["continuation"])]
        return [pair("", prompt) if isinstance(prompt, str) else pair(prompt[:1], prompt[1:])]

    def _sampling(self, sampling: dict) -> Sampling:
        """The sampling fields of a line. Raises ValueError."""
        if not sampling and isinstance(sampling, dict):  # most lines: nothing more to check
            return self.defaults
        if not isinstance(sampling, dict):
            raise ValueError(f"sampling must be a JSON object, got {sampling!r:.80}")
        sampling = {name: value for name, value in sampling.items() if value is not None}
        for name in [name for name in BEAM_FIELDS if name in sampling]:
            if error := objection(name, sampling.pop(name), prefix="sampling."):
                raise error
        if unknown := sorted(sampling.keys() - self._names):
            raise ValueError(f"sampling has no field {unknown[0]!r:.80}")
        return self.defaults.replace(**sampling)


class BatchJob:
    """The lines of an input, and the file for their results; for a run on one machine, or on many.

    Args:
        run: what the answers depend on, see manifest.py.
        file: from `open_output`.

    Raises:
        ValueError: the file belongs to another run, or to another input.
    """

    def __init__(self, lines: list[Line], run: dict, file: FileIO):
        self.lines, self.file = lines, file
        (resume if os.fstat(file.fileno()).st_size else begin)(file.name, run)
        # id -> whether the answer is an error
        self._answered = read_finished(file, {line.id: line for line in lines})

    def run(self, complete: Callable[[list[Job]], Iterable[Answer]], *, longest_first: bool, quiet: bool) -> Counts:
        """Answer every line that the file does not answer yet; `complete` does so for the lines without errors.

        Raises OSError: the file can't be written; what was written before is there.
        """
        todo = [(place, line) for place, line in enumerate(self.lines) if line.id not in self._answered]
        good = [(place, line) for place, line in todo if not line.error]
        if longest_first:  # a long output that begins last would run alone at the end
            good.sort(key=lambda job: -job[1].longest)
        num_errors, synced = sum(self._answered.values()), time.monotonic()
        progress = progress_bar(len(self.lines), "line", done=len(self._answered), quiet=quiet)
        with progress, contextlib.ExitStack() as end:
            end.callback(sync, self.file)
            for _, result, is_error in itertools.chain(refused(todo), complete(good) if good else ()):
                append(self.file, result)
                num_errors += is_error
                if time.monotonic() > synced + SYNC_SECONDS:
                    sync(self.file)
                    synced = time.monotonic()
                progress.update()
        return len(self.lines), num_errors


def run_batch_file(
    stage: Stage,
    llm: Any,
    dataset: Dataset,
    file: FileIO,
    how: How,
    *,
    quiet: bool,
) -> Counts:
    """Answer every line of the input that the output does not answer yet. file: from `open_output`.

    Raises:
        ValueError: the output belongs to another run (see manifest.py), or to another input.
        OSError: a file can't be read or written; what was written before is there.
    """
    setup = setup_of(llm)
    reader = LineReader(stage, setup.config, how, llm)
    lines = reader.read_lines(dataset)
    if not quiet:
        reader.tell_names(dataset.name)
    run = describe_batch(stage, setup, dataset, how)
    job = BatchJob(lines, run, file)
    return job.run(lambda jobs: in_parts(stage, jobs, llm, reader), longest_first=stage.can_serve, quiet=quiet)


def are_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int for one in value)


def check_some(lines: Iterable[Line], name: str) -> None:
    """Raise ValueError if there are lines, but none to be run. Looks only at the lines up to the first good one."""
    wrong = None
    for line in lines:
        if not line.error:
            return
        wrong = wrong or line.error
    if wrong:
        raise ValueError(f"--input {name}: no line can be run; {wrong}")


def in_parts(stage: Stage, jobs: list[Job], llm: Any, reader: LineReader) -> Iterator[Answer]:
    """The answers to lines that are not checked yet: checking all of a long file first would delay the first result."""
    for start in range(0, len(jobs), LINES_AT_ONCE):
        part = jobs[start : start + LINES_AT_ONCE]
        for _, line in part:
            reader.check(line)
        yield from refused(part)
        yield from completed(stage, [job for job in part if not job[1].error], llm)


def describe_batch(stage: Stage, setup: Setup, dataset: Dataset, how: How) -> dict:
    """Everything that the answers depend on, see manifest.py."""
    run = describe_run(stage, setup, dataset, how.sampling)
    template = how.chat_template
    if template is None:  # that of the tokenizer, as it came: a converted model need not have it
        model, tokenizer = how.names(setup.config)
        directory = stage.tokenizer_files(model, setup.config.load_format, tokenizer)
        files = [directory / name for name in ("chat_template.jinja", "tokenizer_config.json")]
        texts = [file.read_bytes() for file in files if file.is_file()]
        template = hashlib.sha256(b"".join(texts)).hexdigest() if texts else None
    return run | {"columns": how.columns.to_dict(), "chat_template": template}


def refused(jobs: list[Job]) -> Iterator[Answer]:
    """The answers to lines that are wrong."""
    return ((place, to_json(line.refusal()).encode(), True) for place, line in jobs if line.error)


def completed(stage: Stage, jobs: list[Job], llm: Any) -> Iterator[Answer]:
    """The answers to valid lines, each as soon as all its prompts have their results."""
    owners = [(number, i) for number, (_, line) in enumerate(jobs) for i in range(len(line.prompts))]
    columns = [[line.prompts[i] for _, line in jobs for i in range(len(line.prompts))]]
    columns.append([params_of(stage, jobs[number][1], i) for number, i in owners])
    if stage.has_priority:
        columns.append([jobs[number][1].priority for number, _ in owners])
    there: dict[int, dict[int, Any]] = defaultdict(dict)
    for index, output in llm.as_completed(*columns):
        number, i = owners[index]
        there[number][i] = output
        place, line = jobs[number]
        if len(there[number]) == len(line.prompts):
            result = result_of(stage, line, [output for _, output in sorted(there.pop(number).items())])
            line.sampling = line.params = line.openai = None  # a form is large
            yield place, to_json(result).encode(), is_error(result)


def params_of(stage: Stage, line: Line, prompt: int) -> Any:
    """The parameters of one of a line's prompts. Without a seed of the line's, each of several draws by itself."""
    if not prompt or line.has_seed or line.is_scored:
        return line.params
    return replace(line.params, seed=stage.derive_seed(line.params.seed, prompt))


def result_of(stage: Stage, line: Line, outputs: list) -> dict:
    """The result line of an input line."""
    if line.is_openai:
        message = next(filter(None, map(failure, outputs)), None)
        name, custom_id = line.answer_id, line.fields["custom_id"]
        if message:
            return refusal(name, custom_id, message, "generation_failed")
        served, job = line.openai
        return answer(served, line.fields, job, outputs)
    return {
        **line.fields,
        "id": line.id,
        **(scores_of(stage, line, outputs) if line.is_scored else texts_of(line, outputs)),
    }


def is_error(result: dict) -> bool:
    return result.get("error") is not None


def scores_of(stage: Stage, line: Line, outputs: list) -> dict:
    """The result fields of a scored line, in addition to the input's fields."""
    try:
        scores = [asdict(stage.score_of(output)) for output in outputs]
    except RuntimeError as error:
        return {"error": str(error)}
    for score, pair in zip(scores, line.prompts, strict=True):
        if isinstance(pair.continuation, str):
            score["num_bytes"] = len(pair.continuation.encode())
    best = max(range(len(scores)), key=lambda i: scores[i]["logprob"])
    return {"scores": scores, "choice": best} if "choices" in line.fields else {"scores": scores}


def texts_of(line: Line, outputs: list) -> dict:
    """The result fields of a completed line, in addition to the input's fields."""
    output = as_dict(outputs[0])
    results = [select(completion) for completion in output["outputs"]]
    failed = {"error": message} if (message := failure(outputs[0])) else {}
    scored = {"prompt_logprobs": output["prompt_logprobs"]} if output.get("prompt_logprobs") else {}
    return (results[0] if len(results) == 1 else {"outputs": results}) | scored | failed


def failure(output: Any) -> str | None:
    """The message of a completion that failed, if one did."""
    return next((c.stop_reason for c in output.outputs if c.finish_reason == "error"), None)


def select(completion: dict) -> dict:
    """A completion's fields in a result line."""
    asked = [name for name in RESULT_FIELDS if completion.get(name) is not None or name == "stop_reason"]
    return {name: completion[name] for name in asked}


def read_finished(file: FileIO, lines: dict[Any, Line]) -> dict[str | int, bool]:
    """The ids that the output answers already, each with whether the answer is an error. A last line that was cut short
    by a kill is removed.

    Raises ValueError, without changing the file, if the output belongs to another input.
    """
    finished, size = {}, 0
    file.seek(0)
    with naming(file.name), open(file.fileno(), "rb", closefd=False) as reader:
        for number, raw in enumerate(reader, start=1):
            if not raw.endswith(b"\n"):
                file.truncate(size)
                break
            try:
                line, result = read_result(raw, lines)
                if line.id in finished:
                    raise ValueError(f"an earlier line has the same id, {line.id!r:.80}")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                reason = f"the input has no such id: {error!s:.80}" if isinstance(error, KeyError) else error
                raise ValueError(
                    f"--resume: {file.name}, line {number} is not a result of this input ({reason})"
                ) from None
            finished[line.id] = is_error(result)
            size += len(raw)
    return finished


def read_result(raw: bytes, lines: dict[str | int, Line]) -> tuple[Line, dict]:
    """The input line that a line of the output answers, and the result in it. Raises an error if it answers none."""
    result = from_line(raw)
    return lines.get(result["id"]) or lines[result.get("custom_id", result["id"])], result

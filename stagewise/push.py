"""Upload a batch run's result file to the Hub, as a dataset: the lines, the run's manifest, scores, and a card.

    stagewise push answers.jsonl --repo USER/NAME --reference answer
    stagewise push answers.jsonl --folder FOLDER         # what would be uploaded; sends nothing

Read next: docs/USING.md, "A dataset".

The manifest, answers.jsonl.run.json, is next to the file: the run wrote it. With --reference the lines are scored, as
`stagewise score` does. Log in first (`hf auth login`, or HF_TOKEN); a new dataset is private unless --public is given.
"""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, DatasetCardData, HfApi

from .dataset import telling
from .exits import Outcome, naming
from .manifest import manifest_path
from .parser import Parser
from .score import read_scores, summarize
from .strict_json import from_line, read_json

CARD = """---
{header}
---

# {name}

{lines:,} lines that `python -m {stage}` of stagewise {version} made with the model `{model}`; {errors:,} of them are
errors, and {truncated:,} outputs ended because they reached their maximum length.

| | |
|---|---|
{settings}
{sampling}
`{file}` has a line of JSON for each line of the input, with the input's fields and the result's (`text`, `token_ids`,
`finish_reason`, or `scores`, or `error`). [`{manifest}`]({manifest}) says what the run was.
{scores}"""

SAMPLING = """
| sampling parameter of the lines | |
|---|---|
{rows}

Where the seed is `null`, it was derived from the run's seed and the line's number.
"""
MOST_VALUES = 5  # of a sampling parameter that are listed, each with its number of lines


def read(path: Path) -> tuple[list[dict], dict]:
    """The lines of a result file, and its manifest. Raises ValueError or OSError, which name the file."""
    results = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            results += [from_line(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not results or not all(isinstance(result, dict) for result in results):
        raise ValueError(f"{path}: it contains no results")
    manifest = manifest_path(str(path))
    if not manifest.exists():
        raise ValueError(f"there is no {manifest}: {path} is not the output of a batch run")
    run = read_json(manifest)
    if not {"stage", "model", "version", "sampling"} <= run.keys():
        raise ValueError(f"{manifest} is not the manifest of a batch run")
    return results, run


def completions(result: dict) -> list[Any]:
    """A result line's completions, also those of an answer in OpenAI's format."""
    if result.keys() != {"id", "custom_id", "response", "error"}:
        return result.get("outputs", [result])
    return result["response"]["body"].get("choices", []) if result.get("response") else []


def is_truncated(completion: object) -> bool:
    return isinstance(completion, dict) and completion.get("finish_reason") == "length"


def sampling_values(results: list[dict], defaults: dict) -> list[tuple[str, str]]:
    """Each sampling parameter with the lines' values; a line's own value overrides the command line's. Errors and
    scored lines had none, and answers in OpenAI's format don't include them."""
    lines = [
        defaults | {name: value for name, value in (result.get("sampling") or {}).items() if value is not None}
        for result in results
        if result.get("error") is None and result.get("score") is not True and {"text", "outputs"} & result.keys()
    ]
    values = []
    for name in defaults if lines else ():
        counts = Counter(code(line[name]) for line in lines).most_common()
        told = [
            value if len(counts) == 1 else f"{value} ({n:,} of {len(lines):,} lines)"
            for value, n in counts[:MOST_VALUES]
        ]
        more = len(counts) - len(told)
        values.append((name, ", ".join(told) + (f" and {more:,} other values" if more else "")))
    return values


def code(value: object) -> str:
    """A value as JSON, in a table of Markdown."""
    return f"`{json.dumps(value, ensure_ascii=False, allow_nan=False)}`".replace("|", "\\|")


def rows(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(f"| {key} | {value} |" for key, value in pairs)


def card(name: str, path: Path, results: list[dict], run: dict, scores: dict | None) -> str:
    """The dataset's README."""
    data = [{"config_name": "default", "data_files": path.name}]
    header = DatasetCardData(tags=["stagewise", "synthetic"], configs=data).to_yaml()
    settings = [(key, code(value)) for key, value in run.items() if key not in ("sampling", "version")]
    told = f"\n## Scores\n\n```json\n{json.dumps(scores, indent=1, allow_nan=False)}\n```\n" if scores else ""
    return CARD.format(
        header=header.strip(),
        name=name.split("/")[-1],
        lines=len(results),
        errors=sum(result.get("error") is not None for result in results),
        truncated=sum(map(is_truncated, itertools.chain(*map(completions, results)))),
        stage=run["stage"],
        version=run["version"],
        model=run["model"],
        settings=rows(settings),
        sampling=SAMPLING.format(rows=rows(values)) if (values := sampling_values(results, run["sampling"])) else "",
        file=path.name,
        manifest=manifest_path(path.name),
        scores=told,
    )


def files_of(path: Path, name: str, reference: str | None) -> dict[str, bytes]:
    """The dataset's files, by name."""
    results, run = read(path)
    files = {file.name: file.read_bytes() for file in (path, manifest_path(str(path)))}
    scores = None
    if reference is not None:
        scores = summarize(read_scores(path, reference)[0])
        files["scores.json"] = f"{json.dumps(scores, indent=1, allow_nan=False)}\n".encode()
    return {**files, "README.md": card(name, path, results, run, scores).encode()}


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        with naming(folder / name):
            (folder / name).write_bytes(content)


def build_parser(prog: str) -> Parser:
    parser = Parser(prog, description=__doc__)
    parser.add_argument("results", metavar="RESULTS", type=Path, help="a result file of a batch run")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--repo", metavar="USER/NAME", help="the dataset on the Hub")
    target.add_argument("--folder", type=Path, help="write the dataset here, and upload nothing")
    parser.add_argument("--reference", metavar="FIELD", help="score the lines against this field")
    parser.add_argument("--public", action="store_true", help="make a new dataset public")
    return parser


def main(argv: list[str] | None = None, prog: str = "stagewise push") -> int:
    args, outcome = build_parser(prog).parse_args(argv), Outcome(prog)
    with outcome:
        if args.public and args.folder:
            raise ValueError("--public needs --repo: nothing is uploaded")
        name = args.repo or args.folder.name
        files = files_of(args.results, name, args.reference)
        if args.folder is not None:
            args.folder.mkdir(parents=True)
            write(args.folder, files)
            print(args.folder)
        else:
            print(push(files, args.repo, args.public))
    return outcome.status


def push(files: dict[str, bytes], repo: str, public: bool) -> str:
    """Upload files to the Hub, in one commit. Returns the dataset's address; raises OSError if it fails."""
    api, added = HfApi(), [CommitOperationAdd(name, content) for name, content in files.items()]
    with telling(f"{repo} can't be written"):
        url = api.create_repo(repo, repo_type="dataset", private=not public, exist_ok=True)
        api.create_commit(repo, added, commit_message="Results of a batch run", repo_type="dataset")
    return str(url)

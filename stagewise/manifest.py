"""The manifest of a batch run: OUTPUT.run.json, written next to the output before its first line.

It lists everything that the answers depend on, so `--resume` can tell whether it continues the same run.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from . import __version__
from .dataset import Dataset
from .exits import naming
from .stages import Setup, Stage
from .strict_json import read_json

PATHS = ("model", "input")  # may differ; what is in them is compared by hash


def manifest_path(output: str) -> Path:
    return Path(f"{output}.run.json")


def describe_run(stage: Stage, setup: Setup, dataset: Dataset, defaults: Any) -> dict:
    """What a run's answers depend on."""
    config = setup.config
    return {
        "version": __version__,
        "stage": stage.package,
        "model": config.model,
        "weights": hash_of_checkpoint(stage, setup.directory, config),
        "dtype": setup.dtype,
        "arithmetic": setup.arithmetic,
        "seed": config.seed,
        "max_model_len": setup.max_model_len,
        "sampling": json.loads(json.dumps(defaults.to_dict())),
        "input": dataset.name,
        "input_sha256": dataset.sha256,
    }


def begin(output: str, run: dict) -> None:
    """Write the manifest of a new run. Raises ValueError if it would replace some other file."""
    path = manifest_path(output)
    if path.exists() and "input_sha256" not in read_json(path):
        raise ValueError(f"{path} exists and is not a manifest: remove it, or choose another --output")
    new = path.with_name(path.name + ".new")
    with naming(new), new.open("w", encoding="utf-8") as file:
        json.dump(run, file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())  # before the output: without its manifest, it can't be resumed
    os.replace(new, path)


def resume(output: str, run: dict) -> None:
    """Raise ValueError, naming what differs, unless the output belongs to a run like this one."""
    path = manifest_path(output)
    if not path.exists():
        raise ValueError(f"--resume: there is no {path}, the manifest of the run that wrote {output}")
    before = read_json(path)
    for name in (name for name in run if name not in PATHS):
        a, b = before.get(name), run[name]
        if name == "arithmetic" and None in (a, b):  # a cluster's driver has no engine, so it is not known
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            for field in (field for field in b if a.get(field) != b[field]):
                raise ValueError(f"--resume: {field} is {b[field]!r:.80} now, but {path} says {a.get(field)!r:.80}")
        elif a != b and isinstance(b, str) and len(b) >= 64:
            raise ValueError(f"--resume: {name} differs from {path}: {output} was made with another one")
        elif a != b:
            raise ValueError(f"--resume: {name} is {b!r:.80} now, but {path} says {a!r:.80}")


def hash_of_checkpoint(stage: Stage, directory: Path, config: Any) -> str:
    """A hash of all files that the model is read from. config: an EngineConfig."""
    if config.load_format == "dummy":
        return f"dummy weights of {config.model}"
    total = hashlib.sha256()
    for path in stage.checkpoint_files(directory, config.tokenizer):
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                total.update(part)
    return f"sha256:{total.hexdigest()}"

"""Models as users have them. What is not in the layout that a stage reads is converted once, into the user's cache."""

import glob
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .exits import tell
from .stages import STAGES
from .vocabulary import TOKENIZER_FILES

PROGRAMS = ("convert", "layout", "vocabulary")  # if they change, so may what they write


def readable(options: dict[str, Any], say: Callable[[str], None] = tell) -> dict[str, Any]:
    """An engine's options, in which each directory is one that a stage reads. Raises ValueError or OSError if one can't
    be converted. say: is told of each that is converted now."""
    stage, tokenizer, draft = STAGES[1], options.get("tokenizer"), options.get("speculate")
    is_dummy = options.get("load_format") == "dummy"
    tokenizer = None if tokenizer is None or is_dummy or stage.is_named(tokenizer) else Path(tokenizer)
    model = readable_model(options["model"], tokenizer, say)
    changed = {"model": model, **({"tokenizer": None} if tokenizer else {})}
    if draft not in (None, "auto", "ngram", "off") and Path(draft).is_dir():
        has_own = any((Path(draft) / name).exists() for name in TOKENIZER_FILES)  # it is never used
        place = stage.place_of(model, options.get("load_format", "auto"))
        changed["speculate"] = readable_model(draft, None if has_own else place, say)
    return {**options, **changed}


def readable_model(model: str, tokenizer: Path | None = None, say: Callable[[str], None] = tell) -> str:
    """A model's name, or a directory that a stage reads, made of this model, maybe with another tokenizer."""
    stage = STAGES[1]
    if tokenizer is None and stage.is_named(model):
        return model
    source = stage.place_of(model)
    if not source.is_dir() or (tokenizer is None and stage.is_converted(source)):
        return model  # a stage says what is wrong with it, if anything is
    from .convert import convert

    name = f"{source.resolve().name}-{digest(source.resolve(), tokenizer and tokenizer.resolve())}"
    files = [file for place in filter(None, (source, tokenizer)) for file in sorted(place.iterdir()) if file.is_file()]
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    programs = [Path(__file__).with_name(f"{program}.py").read_bytes() for program in PROGRAMS]
    directory = cache() / f"{name}-{digest(states, programs)}"
    if directory.is_dir():
        return str(directory)
    try:
        notes = convert(source, directory, tokenizer=tokenizer, link=True)
    except (ValueError, OSError):
        if not directory.is_dir():  # else another process was faster
            raise
        return str(directory)
    for older in directory.parent.glob(f"{glob.escape(name)}-*"):
        if older != directory:
            shutil.rmtree(older, ignore_errors=True)
    say("; ".join([f"{model} is converted into {directory}", *notes]))
    return str(directory)


def digest(*values: Any) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


def cache() -> Path:
    """In the user's cache directory, with the compiled kernels."""
    directory = STAGES[6].cache_directory() / "models"
    directory.mkdir(exist_ok=True)
    return directory

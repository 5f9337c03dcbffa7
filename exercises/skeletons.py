"""Skeletons of an engine to build, made from the stage that has it: `python -m exercises start 3`.

The functions that carry a milestone's idea (milestones.py lists them) keep their signature and docstring;
everything else is copied from the stage. So nothing is written twice, and a skeleton is always up to date.
"""

import argparse
import ast
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.sync_stages import IGNORED, ROOT, stage_files

from .milestones import MILESTONES, Milestone

RECORD = ".start.json"  # in the engine's directory: the milestone at which it was started, and what was put there
BLANK = "raise NotImplementedError"
TO_WRITE = "/* --- To write --- */\n"  # in C: what follows is the solution
VERBS = (  # in the skeleton of every `step`
    "# build: the requests of this step, as a Batch (from milestone 4 on, schedule chooses them)",
    "# forward: the batch through the model, to logits",
    "# sample: the logits to a token for each request that is ready for one",
    "# commit: the tokens to their requests",
)

# --- Making one -------------------------------------------------------------------------------------------------------


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions of a file by name, methods as `Engine.step`."""
    found = {}
    for node in tree.body:
        prefix, body = (f"{node.name}.", node.body) if isinstance(node, ast.ClassDef) else ("", [node])
        found |= {prefix + child.name: child for child in body if isinstance(child, ast.FunctionDef)}
    return found


def blanked(source: str, names: Iterable[str], later: dict[str, str]) -> str:
    """A file with only the signatures and docstrings of these functions, otherwise unchanged.

    later: functions that a later milestone fills in -> their body until then.
    Raises ValueError if it has no such function.
    """
    found, lines = functions(ast.parse(source)), source.splitlines()
    bodies = dict.fromkeys(names, BLANK) | later
    if unknown := bodies.keys() - found.keys():
        raise ValueError(f"there is no function {min(unknown)}")
    for name in sorted(bodies, key=lambda name: -found[name].lineno):
        node, indent = found[name], " " * (found[name].col_offset + 4)
        head = node.body[0] if ast.get_docstring(node) else node.returns
        verbs = [indent + verb for verb in VERBS] if name == "Engine.step" else []
        lines[head.end_lineno : node.end_lineno] = [*verbs, indent + bodies[name]]
    return "\n".join(lines) + "\n"


def skeleton(milestone: Milestone) -> dict[str, bytes]:
    """The files of a skeleton: the milestone's stage without its idea."""
    files = {name: (ROOT / milestone.stage / name).read_bytes() for name in stage_files(ROOT / milestone.stage)}
    del files["README.md"]
    for name, solution in milestone.added.items():
        above, line, _ = (ROOT / solution).read_text(encoding="utf-8").partition(TO_WRITE)
        files[name] = (above + line).encode()
    for name, to_write in milestone.to_write.items():
        later = milestone.later.get(name, {})
        files[name] = blanked(files[name].decode(), to_write, later).encode()
    return files


# --- Putting it there -------------------------------------------------------------------------------------------------


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_record(directory: Path) -> tuple[int, dict[str, str]]:
    """(the milestone at which a directory was started, file -> digest of what was put there); (0, {}) if it was not."""
    try:
        record = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        return record["milestone"], dict(record["files"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0, {}


def own_files(directory: Path) -> set[str]:
    """The files that the learner has changed or added since `start`."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file; an engine is a directory")
    put = read_record(directory)[1]
    present = {name for name in stage_files(directory) if not IGNORED & set(Path(name).parts)} - {RECORD}
    return {name for name in present if digest((directory / name).read_bytes()) != put.get(name)}


def free_name(directory: Path) -> Path:
    """An unused name to move a directory to: mine-1, mine-2 …"""
    number = 1
    while directory.with_name(f"{directory.name}-{number}").exists():
        number += 1
    return directory.with_name(f"{directory.name}-{number}")


def kept_files(directory: Path, own: set[str], milestone: Milestone) -> tuple[dict[str, bytes], list[str]]:
    """(the learner's files that are carried over, the ones left behind because a function is not written yet).

    A file is carried over if it is identical in this milestone's stage and the stage before, so nothing has to change.
    """
    number = read_record(directory)[0]
    if not 0 < number < milestone.number:
        return {}, []
    before, kept, unfinished = MILESTONES[number - 1], {}, []
    for name in sorted(own):
        old, new = ROOT / before.stage / name, ROOT / milestone.stage / name
        if old.exists() != new.exists() or (old.exists() and old.read_bytes() != new.read_bytes()):
            continue
        content = (directory / name).read_bytes()
        if name in before.to_write and not is_written(content, before.to_write[name]):
            unfinished.append(name)
        elif name in milestone.to_write:
            kept[name] = blanked(content.decode(), milestone.to_write[name], milestone.later.get(name, {})).encode()
        else:
            kept[name] = content
    return kept, unfinished


def is_written(content: bytes, names: Iterable[str]) -> bool:
    """Whether a file is Python in which each of these functions is more than a skeleton."""
    try:
        source = content.decode()
        found = functions(ast.parse(source))
    except (SyntaxError, ValueError):
        return False
    segments = [ast.get_source_segment(source, found[name]) if name in found else BLANK for name in names]
    return not any(BLANK in segment for segment in segments)


def start(number: int, directory: Path, aside: bool = False) -> str:
    """Put a milestone's skeleton into a directory; returns a message for the learner.

    No work is overwritten: with `aside` it is moved to another directory next to it, otherwise this raises ValueError.
    Files that need no change are carried over into the skeleton.
    """
    milestone, own = MILESTONES[number - 1], own_files(directory)
    if own and not aside:
        some = ", ".join(sorted(own)[:3]) + (" …" if len(own) > 3 else "")
        raise ValueError(
            f"{directory}/ contains your work ({some}); `start {number} --aside` moves it to "
            f"{free_name(directory).name}/ and goes on from there"
        )
    kept, unfinished = kept_files(directory, own, milestone)
    moved = put(skeleton(milestone), kept, milestone, directory, keep_old=bool(own))
    return told(milestone, directory, moved, sorted(kept), unfinished)


def put(
    files: dict[str, bytes], kept: dict[str, bytes], milestone: Milestone, directory: Path, keep_old: bool
) -> Path | None:
    """Replace a directory atomically by one with these files, or with the kept ones instead. Returns where the old one
    is, if it is kept. Kept files are not recorded as `start`'s: they remain the learner's work."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".start-") as folder:
        new = Path(folder) / "new"
        record = {"milestone": milestone.number, "files": {name: digest(content) for name, content in files.items()}}
        for name, content in {**files, **kept, RECORD: json.dumps(record, indent=1).encode()}.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(content)
        old = free_name(directory) if keep_old else Path(folder) / "old"
        if directory.exists():
            shutil.move(directory, old)
        shutil.move(new, directory)
    return old if keep_old else None


def told(milestone: Milestone, directory: Path, moved: Path | None, kept: list[str], unfinished: list[str]) -> str:
    """What `start` did, and what to do next."""
    to_write = [f"  {name:18} {', '.join(names)}" for name, names in milestone.to_write.items()]
    to_write += [f"  {name}" for name in milestone.added if name not in milestone.to_write]
    minutes = f"{milestone.minutes[0]} to {milestone.minutes[1]} minutes"
    flag = "" if directory.name == "mine" and directory.parent == Path() else f" --directory {directory}"
    return "\n".join([
        f"{directory}/ is a skeleton for milestone {milestone.number}, {milestone.title} ({minutes}).",
        *([f"Everything that was there is now in {moved.name}/."] if moved else []),
        *([f"Carried over from your work: {', '.join(kept)}"] if kept else []),
        *([f"Not finished, so replaced by the stage's: {', '.join(unfinished)}"] if unfinished else []),
        "\nTo write:",
        *to_write,
        f"\nEverything else is {milestone.stage}'s own. Read exercises/engine.md, milestone {milestone.number}; then",
        f"  python -m exercises engine{flag}",
    ])  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """The command `start`."""
    parser = argparse.ArgumentParser(prog="python -m exercises start", description=start.__doc__.split("\n")[0])
    numbers = [milestone.number for milestone in MILESTONES]
    parser.add_argument("milestone", type=int, choices=numbers, metavar="N", help="which milestone")
    parser.add_argument("--directory", type=Path, default=Path("mine"), help="where to; default: mine")
    parser.add_argument("--aside", action="store_true", help="first move existing work to another directory next to it")
    args = parser.parse_args(argv)
    print(start(args.milestone, args.directory, args.aside))
    return 0

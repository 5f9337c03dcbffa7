"""Copy a fix in a shared file to every stage that has the same file, according to stages.toml.

    python tools/sync_stages.py --check     # say what differs from stages.toml; exit 1 if anything does
    python tools/sync_stages.py --write     # copy each "same" file from the one stage where it was edited to the others

A file is the "same" in a run of consecutive stages. For each run, `--write` takes the copy that was edited since the
last commit as the fix, and writes it to all others. If two copies were edited differently, it says so and writes
nothing for that file.
"""

import argparse
import subprocess
import sys
from pathlib import Path

try:
    import tomllib  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parent.parent
IGNORED = {"__pycache__"}


def read_stages(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """stages.toml: directory -> file -> "new", "same" or "changed", in the order of the stages."""
    return tomllib.loads((root / "tools" / "stages.toml").read_text(encoding="utf-8"))


def stage_files(directory: Path) -> set[str]:
    """The files of a stage, as paths relative to it."""
    files = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return {path.as_posix() for path in files if not IGNORED & set(path.parts)}


def check(root: Path = ROOT) -> list[str]:
    """What differs from stages.toml, a line each."""
    problems, before = [], None
    for stage, files in read_stages(root).items():
        present = stage_files(root / stage)
        problems += [f"{stage}/{name} is not listed in stages.toml" for name in sorted(present - files.keys())]
        problems += [
            f"{stage}/{name} is listed in stages.toml but not there" for name in sorted(files.keys() - present)
        ]
        for name, state in files.items():
            if name not in present:
                continue
            earlier = root / before / name if before else None
            if earlier is None or not earlier.exists():
                actual = "new"
            else:
                actual = "same" if earlier.read_bytes() == (root / stage / name).read_bytes() else "changed"
            if actual != state:
                problems.append(f"{stage}/{name} is {state!r} in stages.toml but {actual!r} against {before}")
        before = stage
    return problems


def runs(stages: dict[str, dict[str, str]]) -> list[list[str]]:
    """Groups of paths that must be byte-identical: a file, and its "same" copies in the following stages."""
    groups: list[list[str]] = []
    current: dict[str, list[str]] = {}
    for stage, files in stages.items():
        for name, state in files.items():
            if state == "same" and name in current:
                current[name].append(f"{stage}/{name}")
            else:
                current[name] = [f"{stage}/{name}"]
                groups.append(current[name])
    return [group for group in groups if len(group) > 1]


def committed(path: str, root: Path) -> bytes | None:
    """The file's content in the last commit; None if it does not exist there."""
    result = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=root, capture_output=True, check=False)
    return result.stdout if result.returncode == 0 else None


def write(root: Path = ROOT) -> tuple[list[str], list[str]]:
    """Copy every fix. Returns the paths written, and the conflicts."""
    written, conflicts = [], []
    for group in runs(read_stages(root)):
        contents = {path: (root / path).read_bytes() if (root / path).exists() else None for path in group}
        edited = {path: c for path, c in contents.items() if c is not None and c != committed(path, root)}
        versions = set(edited.values()) or {c for c in contents.values() if c is not None}
        if len(versions) > 1:
            conflicts.append(f"edited in different ways: {', '.join(edited or contents)}")
            continue
        fixed = versions.pop()
        for path in group:
            if contents[path] != fixed:
                (root / path).write_bytes(fixed)
                written.append(path)
    return written, conflicts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    args = parser.parse_args(argv)
    conflicts = []
    if args.write:
        written, conflicts = write()
        print("\n".join(f"wrote {path}" for path in written) or "nothing to write")
    problems = conflicts + check()
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a stage changes compared with the one before it: files, lines added, lines removed.

    python tools/stage_diff.py 2            # the table of stage 2
    python tools/stage_diff.py 2 --full     # and the diff itself
    python tools/stage_diff.py 2 model.py   # the diff of this file
    python tools/stage_diff.py --write      # put every stage's table, and the code that it shows, into its README

Pages and pictures are left out, because they contain the tables. Of `support/`, which no chapter teaches, the table
only names the files that are new or changed. The code that a README shows is between the marks
`<!-- code: FILE FUNCTION ... -->` and `<!-- end of code -->`, where a function may be `Class.method`.
"""

import argparse
import ast
import difflib
import os
import re
import sys
import textwrap
from pathlib import Path

from sync_stages import ROOT, read_stages

TEXTS = {".md", ".svg", ".typed"}  # no code
SUPPORT = "support/"
BEGIN, END = "<!-- stage_diff: made by tools/stage_diff.py --write -->", "<!-- end of stage_diff -->"


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


def file_diff(stage: str, before: str | None, name: str) -> list[str]:
    """The unified diff of a file against the stage before."""
    old = read_lines(ROOT / before / name) if before else []
    return list(difflib.unified_diff(old, read_lines(ROOT / stage / name), f"{before}/{name}", f"{stage}/{name}"))


def count(diff: list[str]) -> tuple[int, int]:
    """Lines added and removed."""
    added = sum(line.startswith("+") and not line.startswith("+++") for line in diff)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in diff)
    return added, removed


def is_code(name: str) -> bool:
    """Whether the table counts its lines: not for pages and pictures, nor for files in support/."""
    return Path(name).suffix not in TEXTS and not name.startswith(SUPPORT)


def table(stage: str) -> str:
    """A Markdown table of the stage's new, changed and removed files, with the lines added and removed."""
    files, stages = read_stages(), list(read_stages())
    before = stages[stages.index(stage) - 1] if stages.index(stage) else None
    states = {name: state for name, state in files[stage].items() if state != "same"}
    if before:
        states |= {name: "removed" for name in files[before] if name not in files[stage]}
    lines = ["| | files | lines |", "|---|---|---:|"]
    for state in ("new", "changed", "removed"):
        names = sorted(name for name in states if states[name] == state and is_code(name))
        counts = [count(file_diff(stage, before, name)) for name in names]
        if names:
            cells = [f"`{name}` {figures(*own)}" for name, own in zip(names, counts, strict=True)]
            lines.append(f"| {state} | {', '.join(cells)} | {figures(*map(sum, zip(*counts, strict=True)))} |")
    support = sorted(name for name in states if name.startswith(SUPPORT) and Path(name).suffix not in TEXTS)
    if before is None:
        return "\n".join([*lines, "", "What `support/` has is on [its page](support/README.md)."])
    lines.append(f"| in `support/` | {', '.join(f'`{name.removeprefix(SUPPORT)}`' for name in support)} | |")
    return "\n".join([*lines, "", f"All other files are the same as in `{before}`."])


def figures(added: int, removed: int) -> str:
    """Lines added and removed, such as "+20 −9"; no zeros."""
    return " ".join([f"+{added}"] * bool(added) + [f"−{removed}"] * bool(removed))


def with_table(readme: str, new_table: str) -> str:
    """The README with the table between its two marks. Raises ValueError if it has none."""
    if BEGIN not in readme or END not in readme:
        raise ValueError(f"no place for the table: it goes between {BEGIN!r} and {END!r}")
    head, rest = readme.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{new_table}\n{END}{rest.split(END, 1)[1]}"


def functions(text: str, path: Path) -> dict[str, tuple[int, int]]:
    """The functions in a file's text: name -> where its lines begin and end. A method's name may be `Class.method`."""
    return (python_functions if path.suffix == ".py" else c_functions)(text)


def source(path: Path, names: list[str]) -> str:
    """The source of some functions in a file. Raises ValueError if one does not exist."""
    text = path.read_text(encoding="utf-8")
    lines, found = text.splitlines(), functions(text, path)
    if unknown := [name for name in names if name not in found]:
        raise ValueError(f"{path} has no function {unknown[0]}")
    return "\n\n\n".join(textwrap.dedent("\n".join(lines[slice(*found[name])])) for name in names)


def first_line(path: Path, name: str) -> int:
    """The number of the line on which a function begins, counted from 1."""
    return functions(path.read_text(encoding="utf-8"), path)[name][0] + 1


def python_functions(text: str) -> dict[str, tuple[int, int]]:
    """name -> where its lines begin and end, including decorators. Classes are in it, too."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                found[child.name] = found[owner + child.name] = first - 1, child.end_lineno
    return found


def c_functions(text: str) -> dict[str, tuple[int, int]]:
    """The same for C: from an unindented line with `name(` to the next unindented line that ends with a brace."""
    lines, found = text.splitlines(), {}
    for number, line in enumerate(lines):
        if (match := re.match(r"\w[\w *]* \**(\w+)\(", line)) and not re.search(r"\);[^{}]*$", line):  # no prototype
            end = next((n for n in range(number, len(lines)) if lines[n].endswith("}") and lines[n][0] != " "), number)
            found[match[1]] = number, end + 1
    return found


def with_code(readme: str, stage: str) -> str:
    """The README with up-to-date code between its marks."""

    def shown(match: re.Match) -> str:
        name, *functions = match[1].split()
        language, code = "python" if name.endswith(".py") else "c", source(ROOT / stage / name, functions)
        return f"<!-- code: {match[1]} -->\n```{language}\n{code}\n```\n<!-- end of code -->"

    return re.sub(r"<!-- code: ([^>]+) -->\n.*?<!-- end of code -->", shown, readme, flags=re.DOTALL)


def pages(stage: str) -> list[Path]:
    """The stage's chapter, its other pages, and the page of its support/ if there is one."""
    return sorted([*(ROOT / stage).glob("*.md"), *(ROOT / stage / SUPPORT).glob("README.md")])


def fresh(page: Path, stage: str) -> str:
    """A page with its code, and the stage's table if it is the chapter, brought up to date."""
    text = page.read_text(encoding="utf-8")
    is_chapter = page == ROOT / stage / "README.md"
    return with_code(with_table(text, table(stage)) if is_chapter else text, stage)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=int, nargs="?", help="the number of a stage")
    parser.add_argument("files", nargs="*", metavar="FILE", help="print the diff of these files of the stage")
    parser.add_argument("--full", action="store_true", help="print the diff too")
    parser.add_argument("--write", action="store_true", help="write the tables and the code into the READMEs")
    args = parser.parse_args(argv)
    stages = list(read_stages())
    if args.write == (args.stage is not None):
        parser.error("give either the number of a stage or --write")
    if args.write:
        for stage in stages:
            for page in pages(stage):
                page.write_text(fresh(page, stage), encoding="utf-8")
        (ROOT / "README.md").write_text(
            with_code((ROOT / "README.md").read_text(encoding="utf-8"), "."), encoding="utf-8"
        )
        return 0
    if not 1 <= args.stage <= len(stages):
        parser.error(f"there are stages 1 to {len(stages)}, got {args.stage}")
    stage, before = stages[args.stage - 1], stages[args.stage - 2] if args.stage > 1 else None
    files = {name: state for name, state in read_stages()[stage].items() if Path(name).suffix not in TEXTS}
    changed = [name for name, state in files.items() if state != "same"]
    if unknown := [name for name in args.files if name not in changed]:
        parser.error(f"{stage} changed no {unknown[0]}; it changed {', '.join(changed)}")
    if not args.files:
        print(table(stage))
    for name in changed if args.full else args.files:
        print("\n" + "".join(file_diff(stage, before, name)), end="")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # a pager was closed before the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

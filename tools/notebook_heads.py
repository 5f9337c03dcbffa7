"""What every notebook begins with: a badge that opens it on Colab, and the lines that find or install the project.

    python tools/notebook_heads.py             # say which notebooks differ; exit 1 if any does
    python tools/notebook_heads.py --write     # put both into the notebooks

The repository's address stands once: in pyproject.toml, under [project.urls], as Repository. Without it the notebooks
have no badge, and clone nothing.
"""

import argparse
import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from sync_stages import ROOT, tomllib

BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})"
COLAB = "https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name}"

# The first code cell up to the line that begins as the last one here; what follows is the notebook's own.
SETUP = """import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = {address!r}  # pyproject.toml has it; python tools/notebook_heads.py --write puts it here

root = next((folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "stages.toml").exists()), None)
if root is None and not REPOSITORY:
    raise FileNotFoundError("no stages.toml in this folder or above: open the notebook within a clone of stagewise")
if root is None:  # the notebook stands alone, as on Colab
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", REPOSITORY, "stagewise"], check=True)
    root = Path("stagewise").resolve()
if not any(importlib.metadata.distributions(name="stagewise")):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--editable", str(root)], check=True)
os.chdir(root)
sys.path.insert(0, str(root))  # a package installed a moment ago is not on the path yet"""
LAST_LINE = "sys.path.insert(0, str(root))"


def repository(pyproject: Path = ROOT / "pyproject.toml") -> str | None:
    """The repository's address, as https://github.com/OWNER/NAME; None if pyproject.toml names none.

    Raises:
        ValueError: the address is another one; Colab opens notebooks of GitHub.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Repository")
    if address is not None and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address):
        raise ValueError(f"Repository in {pyproject} must be https://github.com/OWNER/NAME, got {address!r}")
    return address


def with_badge(text: str, name: str, address: str | None) -> str:
    """A notebook's first text with the badge below its title, or without one."""
    title, _, rest = re.sub(r"\[!\[Open in Colab\].*\n\n", "", text).partition("\n\n")
    if address is None:
        return f"{title}\n\n{rest}"
    colab = COLAB.format(repository=address.removeprefix("https://github.com/"), name=name)
    return f"{title}\n\n{BADGE.format(address=colab)}\n\n{rest}"


def with_setup(code: str, address: str | None) -> str:
    """The first code cell with SETUP in place of what it has up to LAST_LINE."""
    lines = code.split("\n")
    last = next(i for i, line in enumerate(lines) if line.startswith(LAST_LINE))
    return "\n".join([SETUP.format(address=address), *lines[last + 1 :]])


def write_head(notebook: NotebookNode, name: str, address: str | None) -> None:
    """Put badge and setup into a notebook, in place; its outputs stay."""
    text = next(cell for cell in notebook.cells if cell.cell_type == "markdown")
    code = next(cell for cell in notebook.cells if cell.cell_type == "code")
    text.source, code.source = with_badge(text.source, name, address), with_setup(code.source, address)


def refresh(path: Path, address: str | None, write: bool) -> bool:
    """Whether a notebook's head is not as it should be; with `write` it is then."""
    notebook = nbformat.read(path, as_version=4)
    before = nbformat.writes(notebook)
    write_head(notebook, path.name, address)
    differs = nbformat.writes(notebook) != before
    if differs and write:
        nbformat.write(notebook, path)
    return differs


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write into the notebooks")
    args = parser.parse_args(argv)
    notebooks, address = sorted((ROOT / "notebooks").glob("*.ipynb")), repository()
    outdated = [path for path in notebooks if refresh(path, address, args.write)]
    for path in outdated:
        print(f"{path.relative_to(ROOT)}: {'written' if args.write else 'python tools/notebook_heads.py --write'}")
    return int(bool(outdated) and not args.write)


if __name__ == "__main__":
    sys.exit(main())

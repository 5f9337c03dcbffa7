"""What depends on the repository's address: the badges in the README and the notebooks, the README's `git clone`, the
lines with which a notebook on Colab fetches the project, and where CITATION.cff says that the code is.

    python tools/notebook_heads.py             # say which files are out of date; exit 1 if any is
    python tools/notebook_heads.py --write     # update them

The address is given once, in pyproject.toml, under [project.urls], as Repository. Without it there are no badges, and
nothing is fetched.
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

CODESPACES = "[![Open in Codespaces](https://github.com/codespaces/badge.svg)](https://codespaces.new/{repository})"
SITE = "[Read it as a website]({address})"

# The first code cell, up to the line that begins with LAST_LINE; from there it is the notebook's own. In a clone,
# start.py is next to the notebook, and nothing is fetched.
FETCH = """import importlib.util

if not importlib.util.find_spec("start"):  # the notebook stands alone, as on Colab
    !git clone --quiet --depth 1 {address} stagewise
    %cd -q stagewise/notebooks
"""
LAST_LINE = "from start import "


def repository(pyproject: Path = ROOT / "pyproject.toml") -> str | None:
    """The repository's address, as https://github.com/OWNER/NAME; None if pyproject.toml names none.

    Raises:
        ValueError: the address is not on GitHub, from where Colab opens notebooks.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Repository")
    if address is not None and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address):
        raise ValueError(f"Repository in {pyproject} must be https://github.com/OWNER/NAME, got {address!r}")
    return address


def site_address(repository: str) -> str:
    """Where GitHub Pages publishes a repository's site."""
    owner, _, name = repository.removeprefix("https://github.com/").partition("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def with_badge(text: str, name: str, address: str | None) -> str:
    """A notebook's first text cell, with the badge below its title, or without a badge if there is no address."""
    title, _, rest = re.sub(r"\[!\[Open in Colab\].*\n\n", "", text).partition("\n\n")
    if address is None:
        return f"{title}\n\n{rest}"
    colab = COLAB.format(repository=address.removeprefix("https://github.com/"), name=name)
    return f"{title}\n\n{BADGE.format(address=colab)}\n\n{rest}"


def with_entries(readme: str, address: str | None) -> str:
    """The README with the address to clone, and with links below its first sentence to the site, Colab and Codespaces,
    or without these if there is no address."""
    readme = re.sub(r"git clone \S+ stagewise", f"git clone {address or 'REPOSITORY_URL'} stagewise", readme)
    before, _, rest = re.sub(r"\n<!-- entries -->.*?<!-- end of entries -->\n", "", readme, flags=re.DOTALL).partition(
        "**\n"
    )
    if address is None:
        return f"{before}**\n{rest}"
    repository = address.removeprefix("https://github.com/")
    notebook = COLAB.format(repository=repository, name="01_throughput.ipynb")
    ways = [SITE.format(address=site_address(address)), BADGE.format(address=notebook)]
    ways.append(CODESPACES.format(repository=repository))
    entries = "\n".join(["<!-- entries -->", *ways, "<!-- end of entries -->"])
    return f"{before}**\n\n{entries}\n{rest}"


def with_code(citation: str, address: str | None) -> str:
    """CITATION.cff with the address of the code, or without if there is none."""
    citation = re.sub(r"^repository-code: .*\n", "", citation, flags=re.MULTILINE)
    return citation if address is None else f"{citation}repository-code: {address}\n"


def with_setup(code: str, address: str | None) -> str:
    """The first code cell, which fetches the project if there is an address to fetch it from."""
    fetch = "" if address is None else FETCH.format(address=address)
    return fetch + code[code.index(LAST_LINE) :]


def write_head(notebook: NotebookNode, name: str, address: str | None) -> None:
    """Put the badge and the setup into a notebook, in place. Its outputs stay."""
    text = next(cell for cell in notebook.cells if cell.cell_type == "markdown")
    code = next(cell for cell in notebook.cells if cell.cell_type == "code")
    text.source, code.source = with_badge(text.source, name, address), with_setup(code.source, address)


def refresh(path: Path, address: str | None, write: bool) -> bool:
    """Whether a notebook's head is out of date. With `write`, it is updated."""
    notebook = nbformat.read(path, as_version=4)
    before = nbformat.writes(notebook)
    write_head(notebook, path.name, address)
    differs = nbformat.writes(notebook) != before
    if differs and write:
        nbformat.write(notebook, path)
    return differs


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the files")
    args = parser.parse_args(argv)
    notebooks, address = sorted((ROOT / "notebooks").glob("*.ipynb")), repository()
    outdated = [path for path in notebooks if refresh(path, address, args.write)]
    for path, made in ((ROOT / "README.md", with_entries), (ROOT / "CITATION.cff", with_code)):
        text = path.read_text(encoding="utf-8")
        if made(text, address) != text:
            outdated.append(path)
            if args.write:
                path.write_text(made(text, address), encoding="utf-8")
    for path in outdated:
        print(f"{path.relative_to(ROOT)}: {'written' if args.write else 'python tools/notebook_heads.py --write'}")
    return int(bool(outdated) and not args.write)


if __name__ == "__main__":
    sys.exit(main())

"""Pages that show a file, with line numbers to link to, or list a folder: the stages' files and whatever is linked."""

from collections.abc import Iterator
from html import escape
from pathlib import Path, PurePosixPath

from extensions.links import COPIED, can_be_shown
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.osutil import relative_uri
from sync_stages import ROOT, read_stages

HIDDEN = ("__pycache__", ".")


def stage_files() -> list[str]:
    """The files of all stages, as paths from the root; their READMEs have separate pages."""
    return [f"{stage}/{name}" for stage, files in read_stages().items() for name in files if name != "README.md"]


def folder_files(folder: str) -> list[str]:
    """What a folder holds, folders first, without what Git ignores anyway."""
    entries = [entry for entry in (ROOT / folder).iterdir() if not entry.name.startswith(HIDDEN)]
    entries.sort(key=lambda entry: (entry.is_file(), entry.name))
    return [entry.relative_to(ROOT).as_posix() for entry in entries]


def wanted(env: BuildEnvironment) -> tuple[set[str], set[str]]:
    """The files and the folders that need a page: a listed folder needs those of what it lists."""
    todo, files, folders = [*stage_files(), *set().union(*env.shown_files.values())], set(), set()
    while todo:
        path = todo.pop()
        if path in files | folders or f"{path}/README" in env.found_docs:
            continue
        if (ROOT / path).is_dir():
            folders.add(path)
            todo += folder_files(path)
        elif env.path2doc(path) not in env.found_docs and Path(path).suffix not in COPIED and can_be_shown(ROOT / path):
            files.add(path)
    return files, folders


def lexer_name(path: str) -> str:
    try:
        return get_lexer_for_filename(path).aliases[0]
    except ClassNotFound:
        return TextLexer.aliases[0]


def anchor(page: str, target: str | None, label: str) -> str:
    """A link from one page of the site to another, both as paths from its root; only the label if there is no
    target."""
    return f'<a href="{relative_uri(page, target)}">{escape(label)}</a>' if target else escape(label)


class Pages:
    """The pages of one build."""

    def __init__(self, app: Sphinx):
        self.highlight = app.builder.highlighter.highlight_block
        self.env = app.env
        self.files, self.folders = wanted(app.env)

    def page_of(self, path: str) -> str | None:
        """The page of a file or a folder; None if it has none."""
        for docname in (f"{path}/README", self.env.path2doc(path)):
            if docname in self.env.found_docs:
                return f"{docname}.html"
        if path in self.folders:
            return f"{path}/index.html"
        return f"{path}.html" if path in self.files else None

    def crumbs(self, path: str, page: str) -> str:
        """Links to the folders above."""
        above = [parent.as_posix() for parent in PurePosixPath(path).parents][-2::-1]
        links = [anchor(page, self.page_of(folder), Path(folder).name) for folder in above]
        return f'<p class="crumbs">{" / ".join([*links, escape(Path(path).name)])}</p>'

    def file(self, path: str) -> dict:
        text = (ROOT / path).read_text(encoding="utf-8")
        numbers = dict(linenos="inline", lineanchors="L", linespans="line", anchorlinenos=True)
        code = self.highlight(text, lexer_name(path), force=True, **numbers)
        head = f"{self.crumbs(path, f'{path}.html')}<h1>{escape(Path(path).name)}</h1>"
        return dict(title=path, body=f'{head}<div class="wide">{code}</div>')

    def folder(self, path: str) -> dict:
        page, items = f"{path}/index.html", ""
        for entry in folder_files(path):
            label = Path(entry).name + "/" * (ROOT / entry).is_dir()
            items += f"<li>{anchor(page, self.page_of(entry), label)}</li>"
        return dict(title=path, body=f"{self.crumbs(path, page)}<h1>{escape(path)}</h1><ul>{items}</ul>")


def is_fresh(app: Sphinx, page: str, *sources: Path) -> bool:
    """A page need not be made again if it is younger than its sources, and the list of all pages is as it was."""
    target = app.outdir / page
    if app.env.pages_came_or_went or not target.exists():
        return False
    return all(source.stat().st_mtime < target.stat().st_mtime for source in sources)


def pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    made = Pages(app)
    for path in sorted(made.files):
        if not is_fresh(app, f"{path}.html", ROOT / path):
            yield path, made.file(path), "page.html"
    for path in sorted(made.folders):
        yield f"{path}/index", made.folder(path), "page.html"


def note_pages(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list[str]:
    env.pages_came_or_went = bool(added or removed)  # then every sidebar differs
    return []


def remove_leftovers(app: Sphinx, exception: Exception | None) -> None:
    """Pages of files that are gone go too; their links would be broken."""
    if exception is not None:
        return
    files, folders = wanted(app.env)
    there = {*app.env.found_docs, *files, *(f"{folder}/index" for folder in folders), "index", "search", "404"}
    there |= {f"walks/{stage}" for stage in read_stages()}
    there |= {f"differences/{stage}/{name}" for stage, names in read_stages().items() for name in names}
    keep = {f"{page}.html" for page in there}.union(*app.env.copied_files.values())
    for page in app.outdir.rglob("*.html"):
        name = page.relative_to(app.outdir).as_posix()
        if name not in keep and not name.startswith("_static/"):
            page.unlink()


def setup(app: Sphinx) -> dict:
    app.add_config_value("site_code", "", "env")  # where these extensions change, all pages are made again
    app.connect("env-get-outdated", note_pages)
    app.connect("html-collect-pages", pages)
    app.connect("build-finished", remove_leftovers)
    return {"parallel_read_safe": True}

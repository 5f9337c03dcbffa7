"""What a stage changed against the one before it, side by side: a page for each changed file, by difflib's opcodes, in
Pygments' colors (templates/difference.html)."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path

from docutils import nodes
from extensions.links import COPIED
from extensions.sources import is_fresh
from extensions.walks import in_words, walk_page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri
from stage_diff import count, file_diff
from sync_stages import ROOT, read_stages

CONTEXT = 3  # lines shown around a change


def opcodes(old: list[str], new: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """difflib's, as (tag, the lines from i to j of the old file, from k to m of the new one); what is far from every
    change has the tag "folded"."""
    i = k = 0
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT):
        if i < group[0][1]:
            yield "folded", i, group[0][1], k, group[0][3]
        yield from group
        _, _, i, _, k = group[-1]
    if i < len(old):
        yield "folded", i, len(old), k, len(new)


def colored_lines(path: Path) -> list[str]:
    """The lines of a file as HTML, in their colors."""
    lexer = get_lexer_for_filename(path.name, stripnl=False)
    return highlight(path.read_text(encoding="utf-8"), lexer, HtmlFormatter(nowrap=True)).splitlines()


@dataclass(frozen=True)
class Change:
    """A file that two neighbouring stages have, and that differs."""

    stage: str
    before: str
    name: str

    @property
    def page(self) -> str:
        return f"differences/{self.stage}/{self.name}.html"

    def counts(self) -> str:
        added, removed = count(file_diff(self.stage, self.before, self.name))
        return f"+{added} −{removed}"

    def paths(self) -> list[Path]:
        return [ROOT / stage / self.name for stage in (self.before, self.stage)]


def changes() -> list[Change]:
    """All of them, in the order of stages.toml."""
    stages = read_stages()
    return [
        Change(stage, before, name)
        for before, stage in zip(stages, list(stages)[1:], strict=False)
        for name, state in stages[stage].items()
        if state == "changed" and not name.endswith((".md", *COPIED))
    ]


def context(change: Change, everything: list[Change]) -> dict:
    """What the template shows."""
    of_stage = [other for other in everything if other.stage == change.stage]
    place, title = of_stage.index(change), f"{change.name}: {change.before} and {change.stage}"
    neighbours = {"Previous": of_stage[place - 1] if place else None, "Next": [*of_stage, None][place + 1]}
    texts = [path.read_text(encoding="utf-8").splitlines() for path in change.paths()]
    old, new = map(colored_lines, change.paths())
    parts = [(tag, (i, old[i:j]), (k, new[k:m])) for tag, i, j, k, m in opcodes(*texts)]
    return dict(title=title, change=change, neighbours=neighbours, parts=parts)


def pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    everything = changes()
    for change in everything:
        if not is_fresh(app, change.page, *change.paths()):
            yield change.page.removesuffix(".html"), context(change, everything), "difference.html"


# --- Links to the pages -----------------------------------------------------------------------------------------------


class ChapterTables(SphinxTransform):
    """In a chapter's table of changes, the name of a changed file leads to its difference."""

    default_priority = 410  # before extensions/links.py lets it lead to the file

    def apply(self, **_) -> None:
        page_of = {change.name: change.page for change in changes() if f"{change.stage}/README" == self.env.docname}
        for row in self.document.findall(nodes.row):
            for name in list(row.findall(nodes.literal)):
                if page := page_of.get(name.astext()):
                    address = relative_uri(f"{self.env.docname}.html", page)
                    name.replace_self(nodes.reference("", "", name.deepcopy(), refuri=address, internal=True))


def overview(app: Sphinx, docname: str, source: list[str]) -> None:
    """The page that lists all changed files, after its introduction."""
    if docname != "docs/site/differences":
        return
    for (before, stage), of_stage in groupby(changes(), key=lambda change: (change.before, change.stage)):
        title = f"From {before} to {stage}"
        walk = relative_uri("docs/site/differences.html", walk_page(stage))
        source[0] += f"\n\n{title}\n{'-' * len(title)}\n\n"
        source[0] += f"`A walk <{walk}>`__, in {in_words(stage)} stops. The chapter: :doc:`/{stage}/README`\n\n"
        for change in of_stage:
            address = relative_uri("docs/site/differences.html", change.page)
            source[0] += f"* `{change.name} <{address}>`__ {change.counts()}\n"


def note_stage_files(app: Sphinx, doctree: nodes.document) -> None:
    """A change in any stage makes the list out of date, and with it the build."""
    if app.env.docname == "docs/site/differences":
        for stage, files in read_stages().items():
            for name in files:
                app.env.note_dependency(str(ROOT / stage / name))


def setup(app: Sphinx) -> dict:
    app.add_transform(ChapterTables)
    app.connect("source-read", overview)
    app.connect("doctree-read", note_stage_files)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True}

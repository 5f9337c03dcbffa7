"""What a stage changed against the one before it, side by side: a page for each changed file.

`difflib.ndiff` says which lines belong together and where they were edited; the colors are Pygments'.
"""

import difflib
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, zip_longest
from pathlib import Path

from docutils import nodes
from extensions.links import COPIED
from extensions.sources import anchor, is_fresh
from extensions.walks import in_words, walk_page
from pygments.lexers import get_lexer_for_filename
from pygments.token import STANDARD_TYPES
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri
from stage_diff import count, file_diff
from sync_stages import ROOT, read_stages

CONTEXT = 3  # lines shown around a change
SHORTEST_FOLD = 4  # fewer unchanged lines are shown


# --- Rows of a page ---------------------------------------------------------------------------------------------------


@dataclass
class Line:
    """A line of one side: its number, and for each column whether it was edited (empty: as a whole, or not at all)."""

    number: int
    edited: Sequence[bool] = ()


@dataclass(frozen=True)
class Row:
    """The two sides; None if a side has nothing."""

    old: Line | None
    new: Line | None
    differs: bool


def single_rows(old: list[str], new: list[str]) -> list[Row]:
    """All lines in ndiff's order, each in a separate row unless both sides have it unchanged."""
    found: list[Row] = []
    numbers = {"-": 0, "+": 0}
    for text in difflib.ndiff(old, new, charjunk=None):
        if text[0] == "?":  # a hint: where the line before it was edited
            (found[-1].old or found[-1].new).edited = [char != " " for char in text[2:-1]]
            continue
        lines = []
        for side in numbers:
            here = text[0] in (side, " ")
            numbers[side] += here
            lines.append(Line(numbers[side]) if here else None)
        found.append(Row(*lines, differs=text[0] != " "))
    return found


def rows(old: list[str], new: list[str]) -> Iterator[Row]:
    """Two texts as rows. An edited line is next to its old version; other differing lines keep their order."""
    todo, removed, added = deque(single_rows(old, new)), [], []
    while todo:
        row = todo.popleft()
        edit = row.old and todo and todo[0].new and not todo[0].old and (row.old.edited or todo[0].new.edited)
        if row.differs and not edit:
            removed += [row.old] if row.old else []
            added += [row.new] if row.new else []
            continue
        yield from (Row(*pair, differs=True) for pair in zip_longest(removed, added))
        removed, added = [], []
        yield Row(row.old, todo.popleft().new, differs=True) if edit else row
    yield from (Row(*pair, differs=True) for pair in zip_longest(removed, added))


def parts(found: list[Row]) -> Iterator[tuple[bool, list[Row]]]:
    """The rows in their order, as (shown at first, rows): changes with some lines around them, and what is between."""
    changed = [i for i, row in enumerate(found) if row.differs]
    near = {i + offset for i in changed for offset in range(-CONTEXT, CONTEXT + 1)}
    for shown, run in groupby(range(len(found)), key=near.__contains__):
        part = [found[i] for i in run]
        yield shown or len(part) < SHORTEST_FOLD, part


# --- A page -----------------------------------------------------------------------------------------------------------


def colored_lines(path: Path) -> list[list[tuple[str, str]]]:
    """The lines of a file, each as (class of its color, text) pairs."""
    lines: list[list[tuple[str, str]]] = [[]]
    lexer = get_lexer_for_filename(path.name, stripnl=False)
    for kind, text in lexer.get_tokens(path.read_text(encoding="utf-8")):
        while kind not in STANDARD_TYPES:
            kind = kind.parent
        for i, part in enumerate(text.split("\n")):
            if i:
                lines.append([])
            if part:
                lines[-1].append((STANDARD_TYPES[kind], part))
    return lines


def edited_words(text: str, edited: Sequence[bool]) -> list[bool]:
    """For each column of a line, whether its word was edited; nothing is marked where most of the line was."""
    marks: list[bool] = []
    for word in re.findall(r"\w+|\W", text):
        marks += [any(edited[len(marks) : len(marks) + len(word)])] * len(word)
    return marks if sum(marks) < 0.6 * len(text.strip()) else [False] * len(marks)


def code_html(colored: list[tuple[str, str]], edited: Sequence[bool]) -> str:
    """A line in its colors, edited words marked."""
    columns = [(color, char) for color, text in colored for char in text]
    marks = edited_words("".join(char for _, char in columns), edited)
    html = ""
    for (mark, color), run in groupby(zip(marks, columns, strict=True), key=lambda column: (column[0], column[1][0])):
        text = f'<span class="{color}">{escape("".join(char for _, (_, char) in run))}</span>'
        html += f"<mark>{text}</mark>" if mark else text
    return html.replace("</mark><mark>", "")


def side_html(line: Line | None, lines: list[list[tuple[str, str]]], kind: str) -> str:
    if line is None:
        return '<td class="number"></td><td class="none"></td>'
    code = code_html(lines[line.number - 1], line.edited)
    return f'<td class="number">{line.number}</td><td class="{kind}"><code>{code}</code></td>'


def table_html(old: Path, new: Path) -> str:
    """Both files side by side; what is far from every change is folded away."""
    lines = [colored_lines(path) for path in (old, new)]
    found = list(rows(*(path.read_text(encoding="utf-8").splitlines(keepends=True) for path in (old, new))))
    html = ""
    for shown, part in parts(found):
        if not shown:
            html += f'<tbody><tr><td class="fold" colspan="4"><button type="button">{len(part)} unchanged lines'
            html += "</button></td></tr></tbody>"
        html += f"<tbody{'' if shown else ' hidden'}>"
        for row in part:
            kinds = ("old", "new") if row.differs else ("", "")
            html += f"<tr>{side_html(row.old, lines[0], kinds[0])}{side_html(row.new, lines[1], kinds[1])}</tr>"
        html += "</tbody>"
    return html


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


def neighbour_links(change: Change, everything: list[Change]) -> str:
    """Links to the files before and after it in its stage."""
    of_stage = [other for other in everything if other.stage == change.stage]
    place, links = of_stage.index(change), []
    for label, i in (("Previous: ", place - 1), ("Next: ", place + 1)):
        if 0 <= i < len(of_stage):
            links.append(label + anchor(change.page, of_stage[i].page, of_stage[i].name))
    return " · ".join(links)


def body(change: Change, everything: list[Change]) -> str:
    """A page, without what the theme puts around it."""
    overview = anchor(change.page, "site/differences.html", "What each stage changes")
    chapter = anchor(change.page, f"{change.stage}/README.html", change.stage)
    old, new = (
        anchor(change.page, f"{stage}/{change.name}.html", f"{stage}/{change.name}")
        for stage in (change.before, change.stage)
    )
    return f"""<p class="crumbs">{overview} / {chapter} / {escape(change.name)}</p>
<h1>{escape(change.name)} <span class="counts">{change.counts()}</span></h1>
<p>{neighbour_links(change, everything)}</p>
<div class="wide side-by-side highlight" role="region" aria-label="Both files, side by side" tabindex="0"><table>
<colgroup><col class="number"><col><col class="number"><col></colgroup>
<thead><tr><th colspan="2">{old}</th><th colspan="2">{new}</th></tr></thead>
{table_html(*change.paths())}</table></div>"""


def pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    everything = changes()
    for change in everything:
        if not is_fresh(app, change.page, *change.paths()):
            title = f"{change.name}: {change.before} and {change.stage}"
            yield change.page.removesuffix(".html"), dict(title=title, body=body(change, everything)), "page.html"


# --- Links to the pages -----------------------------------------------------------------------------------------------


class ChapterTables(SphinxTransform):
    """In a chapter's table of changes, the name of a changed file leads to its difference."""

    default_priority = 410  # before extensions/links.py lets it lead to the file

    def apply(self, **_) -> None:
        page_of = {change.name: change.page for change in changes() if f"{change.stage}/README" == self.env.docname}
        for row in self.document.findall(nodes.row):
            for name in list(row[0].findall(nodes.literal)):
                if page := page_of.get(name.astext()):
                    address = relative_uri(f"{self.env.docname}.html", page)
                    name.replace_self(nodes.reference("", "", name.deepcopy(), refuri=address, internal=True))


def overview(app: Sphinx, docname: str, source: list[str]) -> None:
    """The page that lists all changed files, after its introduction."""
    if docname != "site/differences":
        return
    for (before, stage), of_stage in groupby(changes(), key=lambda change: (change.before, change.stage)):
        title = f"From {before} to {stage}"
        walk = relative_uri("site/differences.html", walk_page(stage))
        source[0] += f"\n\n{title}\n{'-' * len(title)}\n\n"
        source[0] += f"`A walk <{walk}>`__, in {in_words(stage)} stops. The chapter: :doc:`/{stage}/README`\n\n"
        for change in of_stage:
            address = relative_uri("site/differences.html", change.page)
            source[0] += f"* `{change.name} <{address}>`__ {change.counts()}\n"


def note_stage_files(app: Sphinx, doctree: nodes.document) -> None:
    """A change in any stage makes the list out of date, and with it the build."""
    if app.env.docname == "site/differences":
        for stage, files in read_stages().items():
            for name in files:
                app.env.note_dependency(str(ROOT / stage / name))


def setup(app: Sphinx) -> dict:
    app.add_transform(ChapterTables)
    app.connect("source-read", overview)
    app.connect("doctree-read", note_stage_files)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True}

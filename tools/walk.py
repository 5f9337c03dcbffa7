"""A walk through what a stage changes: stops that introduce its idea in order. Each shows some functions as they are
now, with the new lines marked, and a few sentences.

    python tools/walk.py     # say what is wrong with the stops; exit 1 if anything is

docs/site/walks/ has a file for each stage but the first: an `intro`, and `stops` with a `title`, the `code` (a file and
some of its functions or classes, named as in the chapters' marks) and what it `says`. The site's extensions/walks.py
makes the pages.
"""

import difflib
import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from stage_diff import first_line, source
from sync_stages import ROOT, read_stages, tomllib

FEWEST, MOST = 6, 10  # stops of a walk


@dataclass(frozen=True)
class Stop:
    """Functions of a file of a stage, and what to see in them.

    Attributes:
        before: the directory of the stage before.
    """

    stage: str
    before: str
    title: str
    code: str
    says: str

    @property
    def file(self) -> str:
        return self.code.split()[0]

    @property
    def names(self) -> list[str]:
        return self.code.split()[1:]

    @property
    def line(self) -> int:
        """The number of the line on which the first of its functions begins, counted from 1."""
        return first_line(ROOT / self.stage / self.file, self.names[0])

    def text(self) -> str:
        """Its code. Raises ValueError if there is no such file or function."""
        if not (path := ROOT / self.stage / self.file).is_file():
            raise ValueError(f"there is no file {self.stage}/{self.file}")
        return source(path, self.names)

    def old_text(self) -> str:
        """The same functions in the stage before, as far as its file of the same name has them."""
        path, found = ROOT / self.before / self.file, []
        for name in self.names if path.is_file() else []:
            try:
                found.append(source(path, [name]))
            except ValueError:  # this function is new
                continue
        return "\n\n\n".join(found)

    def changes(self) -> tuple[list[bool], int]:
        """(for each line of the code, whether it is new or changed; how many lines of the stage before are gone)"""
        old, new = self.old_text().splitlines(), self.text().splitlines()
        marks, num_gone = [True] * len(new), len(old)
        for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
            marks[block.b : block.b + block.size] = [False] * block.size
            num_gone -= block.size
        return marks, num_gone


@dataclass(frozen=True)
class Walk:
    stage: str
    intro: str
    stops: list[Stop]


def walk_file(stage: str) -> Path:
    return ROOT / "docs" / "site" / "walks" / f"{stage.partition('_')[0]}.toml"


def read_walk(stage: str) -> Walk:
    """The walk from the stage before to this one, which must not be the first."""
    stages, found = list(read_stages()), tomllib.loads(walk_file(stage).read_text(encoding="utf-8"))
    before = stages[stages.index(stage) - 1]
    return Walk(stage, found["intro"].strip(), [Stop(stage, before, **stop) for stop in found["stops"]])


def problems(walk: Walk) -> list[str]:
    """What is wrong with a walk, a line each."""
    found = []
    if not FEWEST <= len(walk.stops) <= MOST:
        found.append(f"{walk.stage} has {len(walk.stops)} stops; a walk has {FEWEST} to {MOST}")
    for number, stop in enumerate(walk.stops, 1):
        try:
            marks, num_gone = stop.changes()
        except ValueError as error:
            found.append(f"{walk.stage}, stop {number}: {error}")
            continue
        if not any(marks) and not num_gone:
            found.append(f"{walk.stage}, stop {number}: {stop.code} is as in {stop.before}")
    return found


def words_html(text: str) -> str:
    """A few sentences as HTML, with `code` and *emphasis*."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text.strip(), quote=False))
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)


def code_html(stop: Stop) -> str:
    """A stop's code as HTML with colors. New and changed lines have the class `new`."""
    lexer = get_lexer_for_filename(stop.file, stripnl=False)
    lines = highlight(stop.text(), lexer, HtmlFormatter(nowrap=True)).splitlines()
    marked = zip(lines, stop.changes()[0], strict=True)
    html = "".join(f'<span class="{"line new" if new else "line"}">{line}\n</span>' for line, new in marked)
    return f'<div class="highlight"><pre><code>{html}</code></pre></div>'


def stop_html(stop: Stop, number: int, total: int, link: str) -> str:
    """A stop as HTML. link: a link to the file's own page."""
    marks, num_gone = stop.changes()
    counts = f"+{sum(marks)} −{num_gone}" if stop.old_text() else "new"
    return f"""<section class="stop" id="stop-{number}" aria-labelledby="title-{number}">
<div class="words"><p class="count">{number} of {total}</p><h2 id="title-{number}">{escape(stop.title)}</h2>
<p>{words_html(stop.says)}</p></div>
<figure><figcaption>{link} <span class="counts">{counts}</span></figcaption>{code_html(stop)}</figure>
</section>"""


def main() -> int:
    found = [problem for stage in list(read_stages())[1:] for problem in problems(read_walk(stage))]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

"""Pages that walk through what each stage changed (tools/walk.py), and the links that lead there."""

from collections.abc import Iterator
from html import escape

from docutils import nodes
from extensions.sources import anchor, is_fresh
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri
from sync_stages import ROOT, read_stages
from walk import Stop, Walk, read_walk, stop_html, walk_file

NUMBERS = ("six", "seven", "eight", "nine", "ten")


def walked() -> list[str]:
    """The stages that have a walk: all but the first."""
    return list(read_stages())[1:]


def walk_page(stage: str) -> str:
    return f"walks/{stage}.html"


def link_html(stop: Stop, page: str) -> str:
    """The name of a stop's file, which leads to its functions there."""
    address = relative_uri(page, f"{stop.stage}/{stop.file}.html")
    return f'<a href="{address}#L-{stop.line}">{escape(stop.file)}</a>'


def body(walk: Walk) -> str:
    """A page, without what the theme puts around it. Without a script, all stops stand one below the other."""
    page, stages, total = walk_page(walk.stage), walked(), len(walk.stops)
    number, place = int(walk.stage[5:7]), stages.index(walk.stage)
    titles = "".join(f'<li><a href="#stop-{i}">{escape(stop.title)}</a></li>' for i, stop in enumerate(walk.stops, 1))
    stops = "".join(stop_html(stop, i, total, link_html(stop, page)) for i, stop in enumerate(walk.stops, 1))
    after = f" · {anchor(page, walk_page(stages[place + 1]), 'the next walk')}" if place + 1 < len(stages) else ""
    return f"""<p class="crumbs">{anchor(page, "docs/site/differences.html", "What each stage changes")} /
{anchor(page, f"{walk.stage}/README.html", walk.stage)}</p>
<h1>A walk through stage {number}</h1><p class="intro">{escape(walk.intro, quote=False)}</p>
<div class="wide walk"><ol class="titles">{titles}</ol>
<nav class="steps" aria-label="Stops" hidden><button type="button" class="back">Back</button>
<span class="where" role="status"></span><button type="button" class="next">Next</button>
<span class="keys">or the keys ← and →</span></nav>
{stops}</div>
<p class="after">Lines with a + are new in this stage, or changed. Read on:
{anchor(page, f"{walk.stage}/README.html", f"chapter {number}")}{after}</p>"""


def pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    for stage in walked():
        walk, page = read_walk(stage), walk_page(stage)
        sources = [ROOT / folder / stop.file for stop in walk.stops for folder in (stop.stage, stop.before)]
        if not is_fresh(app, page, walk_file(stage), *(path for path in sources if path.exists())):
            context = dict(title=f"A walk through stage {int(stage[5:7])}", body=body(walk))
            yield page.removesuffix(".html"), context, "page.html"


def in_words(stage: str) -> str:
    total = len(read_walk(stage).stops)
    return NUMBERS[total - 6]


class WalkLinks(SphinxTransform):
    """Below a chapter's title, a link to its walk."""

    default_priority = 405

    def apply(self, **_) -> None:
        stage, _, name = self.env.docname.partition("/")
        if name != "README" or stage not in walked():
            return
        self.env.note_dependency(str(walk_file(stage)))
        address = relative_uri(f"{self.env.docname}.html", walk_page(stage))
        text = f"A walk through what this stage changed, in {in_words(stage)} stops"
        link = nodes.raw("", f'<p class="walk-link"><a href="{address}">{text}</a></p>', format="html")
        title = next(iter(self.document.findall(nodes.title)))
        title.parent.insert(title.parent.index(title) + 1, link)


def setup(app: Sphinx) -> dict:
    app.add_transform(WalkLinks)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True}

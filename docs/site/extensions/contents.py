"""Every page's place in the sidebar, without a list to keep: a page belongs to the nearest README above it, in the
order of that README's links. And what only the site's front page has."""

import re
from fnmatch import fnmatch
from posixpath import dirname, relpath

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

# The headings below the root README: a page goes to the first heading with a pattern that it matches.
HEADINGS = {
    "The stages": ["stage0*", "docs/site/differences"],
    "Do it yourself": ["exercises/*", "notebooks/*"],
    "Look and serve": ["stagewise/*"],
    "Look it up": ["docs/GLOSSARY", "*"],
}
RACE = re.compile(r"/ladder[\w.]*\.svg")
WAYS = {  # below it: address -> label
    "docs/examples/traces/static_and_continuous.html": "▶ Watch two engines, step by step",
    "stage01_single/README.html": "Read chapter 1",
    "docs/site/differences.html": "Walk through each stage's code",
}


def readme_above(docname: str, docs: set[str]) -> str:
    """The README that a page belongs to: that of its folder, or of the nearest one above; a README's is further up."""
    folder = dirname(docname)
    if docname.endswith("README"):
        folder = dirname(folder)
    while folder and f"{folder}/README" not in docs:
        folder = dirname(folder)
    return f"{folder}/README" if folder else "README"


def pages_below(readme: str, docs: set[str]) -> list[str]:
    """The pages that belong to a README, in the order of their names."""
    return sorted(doc for doc in docs if doc != "README" and readme_above(doc, docs) == readme)


def toctree(pages: list[str], heading: str = "") -> str:
    caption = [f":caption: {heading}"] if heading else []
    return "\n".join(["\n\n```{toctree}", ":hidden:", *caption, *(f"/{page}" for page in pages), "```\n"])


def headings(pages: list[str]) -> dict[str, list[str]]:
    """The pages below each heading, in the order of its patterns."""
    found, left = {}, list(pages)
    for heading, patterns in HEADINGS.items():
        found[heading] = list(dict.fromkeys(page for pattern in patterns for page in left if fnmatch(page, pattern)))
        left = [page for page in left if page not in found[heading]]
    return found


def add_toctrees(app: Sphinx, docname: str, source: list[str]) -> None:
    """What Sphinx reads of a README ends with the list of the pages that belong to it; the file has no such list."""
    if not docname.endswith("README") or not (pages := pages_below(docname, app.env.found_docs)):
        return
    if docname == "README":
        source[0] += "".join(toctree(pages, heading) for heading, pages in headings(pages).items() if pages)
    else:
        source[0] += toctree(sorted(pages, key=lambda page: first_link(source[0], relpath(page, dirname(docname)))))


def first_link(text: str, page: str) -> int:
    """Where a README links to a page for the first time; behind its end if it doesn't."""
    place = text.find(f"]({page}.md")
    return place if place >= 0 else len(text)


def outdated_readmes(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list[str]:
    """Where a page has come or gone, its README is read again."""
    return sorted({readme_above(doc, env.found_docs) for doc in added | removed} & env.found_docs)


def copy_to_index(app: Sphinx, exception: Exception | None) -> None:
    """The root README is also the site's index page."""
    if exception is None:
        (app.outdir / "index.html").write_bytes((app.outdir / "README.html").read_bytes())


def what_is_shown(node: nodes.Node) -> str:
    """The address of a picture, or the HTML that may have one."""
    return node["uri"] if isinstance(node, nodes.image) else node.astext() if isinstance(node, nodes.raw) else ""


class FrontPage(SphinxTransform):
    """Below the race: where to go from here, a click each."""

    default_priority = 395  # before extensions/links.py looks for links

    def apply(self, **_) -> None:
        if self.env.docname != "README":
            return
        race = next((node for node in self.document.findall() if RACE.search(what_is_shown(node))), None)
        while race is not None and not isinstance(race.parent, nodes.section | nodes.document):
            race = race.parent
        if race is not None:
            links = "".join(f'<a href="{address}">{label}</a>' for address, label in WAYS.items())
            html = f'<nav class="ways" aria-label="Ways in">{links}</nav>'
            race.parent.insert(race.parent.index(race) + 1, nodes.raw("", html, format="html"))


def setup(app: Sphinx) -> dict:
    app.add_transform(FrontPage)
    app.connect("source-read", add_toctrees)
    app.connect("env-get-outdated", outdated_readmes)
    app.connect("build-finished", copy_to_index)
    return {"parallel_read_safe": True}

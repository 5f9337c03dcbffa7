"""What a published site needs: how a page is described where somebody links to it, a page for addresses that lead
nowhere, and a list of all pages. What holds the site's own address (conf.py) is left out as long as there is none.
"""

import html
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from tools import card

EMPTY_HEADER = re.compile(r"<th( [^>]*)?>(?:<p></p>)?</th>")
CARD = "_static/race.png"
MISSING = """<h1>There is no such page</h1>
<p>It may have moved. <a href="README.html">The front page</a> leads to every other one, and
<a href="search.html">the search</a> finds words.</p>"""


def tags(address: str, page: str, title: str, description: str) -> list[str]:
    """The elements of a page's head that search engines read, and programs that show a link. address: the site's, ""
    if it has none."""
    properties = {"title": title, "description": description, "type": "website", "site_name": "stagewise"}
    if address:
        width, height = card.SIZE
        properties |= {"url": f"{address}{page}.html", "image": f"{address}{CARD}", "image:alt": card.ALT}
        properties |= {"image:width": str(width), "image:height": str(height)}
    found = [("name", "description", description), ("name", "twitter:card", "summary_large_image")]
    found += [("property", f"og:{name}", value) for name, value in properties.items()]
    return [f'<meta {key}="{name}" content="{html.escape(value)}">' for key, name, value in found]


def describe(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """A page is described by its title and its first paragraph."""
    name, address = app.config.project, app.config.html_baseurl
    paragraphs = (one.astext() for one in doctree.findall(nodes.paragraph)) if doctree else iter(())
    text = context.get("description") or next((text for text in paragraphs if text.strip()), name)
    title = html.unescape(re.sub(r"<[^>]*>", "", context.get("title") or name))
    found = [context.get("metatags", ""), *tags(address, page, title, textwrap.shorten(text, 200, placeholder=" …"))]
    if page == "404" and address:  # it is shown at any address, so its links must not depend on that
        found.insert(0, f'<base href="{html.escape(address)}404.html">')
    context["metatags"] = "\n".join(found)


def without_empty_headers(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """An empty corner of a table heads nothing."""
    if doctree:
        context["body"] = EMPTY_HEADER.sub(r"<td\1></td>", context["body"])


def missing_page(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    yield "404", dict(title="There is no such page", body=MISSING), "page.html"


def sitemap(address: str, pages: list[str]) -> str:
    places = "".join(f"<url><loc>{html.escape(address + page)}</loc></url>\n" for page in pages)
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
{places}</urlset>
"""


def finish(app: Sphinx, exception: Exception | None) -> None:
    """The picture for links, and with an address the list of all pages."""
    if exception is not None:
        return
    address, found = app.config.html_baseurl, Path(app.outdir, "sitemap.xml")
    if not address:
        found.unlink(missing_ok=True)
        return
    card.write(app.outdir / CARD)
    pages = [path.relative_to(app.outdir).as_posix() for path in sorted(app.outdir.rglob("*.html"))]
    left_out = ("404.html", "search.html", "index.html")  # the last is README.html again
    found.write_text(sitemap(address, [p for p in pages if p not in left_out and not p.startswith("_")]), "utf-8")


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", describe)
    app.connect("html-page-context", without_empty_headers)
    app.connect("html-collect-pages", missing_page)
    app.connect("build-finished", finish, priority=900)  # when all pages exist
    return {"parallel_read_safe": True}

"""What else the pages need: headers that head something, and, for a site with an address, the picture that is shown
where somebody links to it."""

import re

from docutils import nodes
from sphinx.application import Sphinx

from tools import card

EMPTY_HEADER = re.compile(r"<th( [^>]*)?>(?:<p></p>)?</th>")


def without_empty_headers(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """An empty corner of a table heads nothing."""
    if doctree:
        context["body"] = EMPTY_HEADER.sub(r"<td\1></td>", context["body"])


def draw_card(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.config.html_baseurl:
        card.write(app.outdir / app.config.ogp_image)


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", without_empty_headers)
    app.connect("build-finished", draw_card)
    return {"parallel_read_safe": True}

"""Diagrams in Mermaid's language: drawn in the browser by the copy of Mermaid that `make site` has put beside the site.

Where there is none, or no script runs, the diagram's text is shown.
"""

from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms import SphinxTransform

SCRIPT = Path(__file__).resolve().parents[1] / "_build/mermaid/package/dist/mermaid.min.js"


class Diagrams(SphinxTransform):
    default_priority = 400

    def apply(self, **_) -> None:
        for node in list(self.document.findall(nodes.literal_block)):
            if node.get("language") == "mermaid":
                html = f'<pre class="mermaid">{escape(node.astext())}</pre>'
                node.replace_self(nodes.raw("", html, format="html", classes=["mermaid"]))


def add_script(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    """A page with a diagram loads Mermaid; its three megabytes are not for the others."""
    if doctree and SCRIPT.exists() and any("mermaid" in node["classes"] for node in doctree.findall(nodes.raw)):
        app.add_js_file("mermaid.min.js", loading_method="defer", priority=400)


def copy_script(app: Sphinx, config: Config) -> None:
    if SCRIPT.exists():
        config.html_static_path.append(str(SCRIPT))


def setup(app: Sphinx) -> dict:
    app.add_transform(Diagrams)
    app.connect("config-inited", copy_script)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True}

"""Diagrams in Mermaid's language, drawn when the site is built: by the copy of Mermaid that `make site` has put beside
the site, in a Chromium without a window, once for light pages and once for dark ones. So no page loads Mermaid's three
megabytes. Where one of the two is missing, the diagram's text is shown.
"""

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from html import escape, unescape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

BUILD = Path(__file__).resolve().parents[1] / "_build"
SCRIPT = BUILD / "mermaid/package/dist/mermaid.min.js"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-background-networking --virtual-time-budget=30000 --dump-dom"
)
PAGE = """<!doctype html><meta charset="utf-8"><body><script src="{script}"></script><script type="module">
const drawn = {{}};
for (const [theme, edgeLabelBackground] of [["neutral", "#ffffff"], ["dark", "#131416"]]) {{
  const themeVariables = {{ edgeLabelBackground }};
  mermaid.initialize({{ startOnLoad: false, theme, themeVariables, fontFamily: "sans-serif" }});
  drawn[theme] = (await mermaid.render(`{name}-${{theme}}`, {text})).svg;
}}
document.body.textContent = JSON.stringify(drawn);
</script>"""


def browser() -> str | None:
    """The program that draws; None if it, or Mermaid, is not there."""
    return next(filter(None, map(shutil.which, BROWSERS)), None) if SCRIPT.exists() else None


def draw(text: str, program: str) -> dict[str, str]:
    """A diagram as SVG, for the themes "neutral" and "dark". Drawn diagrams are cached next to the site.

    Raises:
        ValueError: Mermaid does not understand the text.
    """
    name = "diagram-" + hashlib.sha256((PAGE + text).encode()).hexdigest()[:12]
    kept = BUILD / "diagrams" / f"{name}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.html")
            page.write_text(PAGE.format(script=SCRIPT.as_uri(), name=name, text=json.dumps(text)), encoding="utf-8")
            command = [program, *FLAGS.split(), f"--user-data-dir={folder}/browser", page.as_uri()]
            dumped = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=True)
        found = re.search(r"<body>(\{.*\})</body>", dumped.stdout, re.DOTALL)
        if found is None:
            raise ValueError(f"Mermaid can't draw the diagram that begins {text[:60]!r}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(unescape(found[1]), encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


def html(text: str) -> str:
    """What a page shows of a diagram; it shrinks with the screen, but only as long as it can be read."""
    if (program := browser()) is None:
        return f'<pre class="mermaid">{escape(text)}</pre>'
    drawn = {
        theme: re.sub(r"max-width: ([\d.]+px);", r"max-width: \1; min-width: min(\1, 44rem);", svg, count=1)
        for theme, svg in draw(text, program).items()
    }
    sides = {"only-light": drawn["neutral"], "only-dark": drawn["dark"]}
    return f'<div class="diagram">{"".join(f"<div class={name!r}>{svg}</div>" for name, svg in sides.items())}</div>'


class Diagrams(SphinxTransform):
    default_priority = 400

    def apply(self, **_) -> None:
        for node in list(self.document.findall(nodes.literal_block)):
            if node.get("language") == "mermaid":
                node.replace_self(nodes.raw("", html(node.astext()), format="html"))


def setup(app: Sphinx) -> dict:
    app.add_transform(Diagrams)
    app.add_config_value("draws_diagrams", browser() is not None, "env")  # where this changes, all pages are made again
    return {"parallel_read_safe": True}

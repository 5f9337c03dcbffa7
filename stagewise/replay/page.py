"""One file out of the parts in page/, and traces: it needs no network, and nothing beside it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from .trace import Trace

PARTS = Path(__file__).parent / "page"
BEGIN = b"<!doctype html>\n<!-- stagewise replay:"  # of every page


def make_page(traces: Sequence[Trace]) -> str:
    html = assemble((PARTS / "page.html").read_text(encoding="utf-8"), PARTS)
    return html.replace("<!-- traces -->", "\n".join(map(embedded, traces)))


def assemble(html: str, *folders: Path) -> str:
    """A page with its stylesheets and scripts in it; each is in one of these folders."""

    def read(name: str) -> str:
        (path,) = (folder / name for folder in folders if (folder / name).exists())
        return path.read_text(encoding="utf-8")

    html = re.sub(r'<link rel="stylesheet" href="([\w.]+)">', lambda m: f"<style>\n{read(m[1])}</style>", html)
    return re.sub(r'<script src="([\w.]+)">', lambda m: f"<script>\n{read(m[1])}", html)


def embedded(trace: Trace) -> str:
    """A trace as JSON that no reader of HTML takes for anything else: ASCII, and without a "<"."""
    text = json.dumps([trace.header, *trace.steps], separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="trace">{text}</script>'

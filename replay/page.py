"""One file out of the parts in page/, and traces: it needs no network, and nothing beside it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from .trace import Trace

PARTS = Path(__file__).parent / "page"
BEGIN = b"<!doctype html>\n<!-- stagewise replay:"  # of every page


def make_page(traces: Sequence[Trace]) -> str:
    html = read("page.html")
    html = re.sub(r'<link rel="stylesheet" href="([\w.]+)">', lambda m: f"<style>\n{read(m[1])}</style>", html)
    html = re.sub(r'<script src="([\w.]+)">', lambda m: f"<script>\n{read(m[1])}", html)
    return html.replace("<!-- traces -->", "\n".join(map(embedded, traces)))


def embedded(trace: Trace) -> str:
    """A trace as JSON that no reader of HTML takes for anything else: ASCII, and without a "<"."""
    text = json.dumps([trace.header, *trace.steps], separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="trace">{text}</script>'


def read(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")

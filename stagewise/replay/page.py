"""One file out of the parts in page/, and traces: it needs no network, and nothing beside it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from .trace import Trace

PARTS = Path(__file__).parent / "page"
BEGIN = b"<!doctype html>\n<!-- stagewise replay:"  # of every page


def make_page(traces: Sequence[Trace]) -> str:
    slots = {
        "origin": "made by python -m replay; its parts are in replay/page",
        "title": "a replay",
        "heading": "A replay",
        "caption": "",
        "style": "",
        "above": "",
        "traces": "\n".join(map(embedded, traces)) + "\n",
        "start": "start.js",
    }
    return render(slots, PARTS)


def render(slots: dict[str, str], *folders: Path) -> str:
    """page.html with something in each of its slots, {{like}} this, and with its stylesheets and scripts in it, each of
    which is in one of these folders."""

    def read(name: str) -> str:
        (path,) = (folder / name for folder in folders if (folder / name).exists())
        return path.read_text(encoding="utf-8")

    template = (PARTS / "page.html").read_text(encoding="utf-8")
    wanted = re.findall(r"{{(\w+)}}", template)
    if sorted(wanted) != sorted(slots):
        raise ValueError(f"page.html has the slots {sorted(wanted)}, got {sorted(slots)}")
    html = re.sub(r"{{(\w+)}}", lambda m: slots[m[1]], template)
    html = re.sub(r'<link rel="stylesheet" href="([\w.]+)">', lambda m: f"<style>\n{read(m[1])}</style>", html)
    return re.sub(r'<script src="([\w.]+)">', lambda m: f"<script>\n{read(m[1])}", html)


def embedded(trace: Trace) -> str:
    """A trace as JSON that no reader of HTML takes for anything else: ASCII, and without a "<"."""
    text = json.dumps([trace.header, *trace.steps], separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="trace">{text}</script>'

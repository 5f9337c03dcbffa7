"""One file from the parts in page/, and traces: it needs no network and no other file."""

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..stages import IDEAS, PACKAGES
from ..trace_file import Trace

PARTS = Path(__file__).parent / "page"
BEGIN = b"<!doctype html>\n<!-- stagewise replay:"  # every page begins with this


def make_page(traces: Sequence[Trace], story: dict | None = None) -> str:
    """The page of one or two traces; `story` is what story.py tells."""
    heading = story["title"] if story else heading_of(traces)
    slots = {
        "origin": "made by python -m stagewise replay; its parts are in stagewise/replay/page",
        "title": escape(heading),
        "heading": escape(heading),
        "caption": escape(story["message"]) if story else "",
        "style": "",
        "above": "",
        "footer": footer(story.get("links", ())) if story else "",
        "traces": "\n".join([*map(embedded, traces), *([embedded_story(story)] if story else [])]) + "\n",
        "start": "start.js",
    }
    return render(slots, PARTS)


def render(slots: dict[str, str], *folders: Path) -> str:
    """page.html with its slots, {{like}} this, filled, and its stylesheets and scripts, from these folders, inlined."""

    def read(name: str) -> str:
        (path,) = (folder / name for folder in folders if (folder / name).exists())
        return path.read_text(encoding="utf-8")

    template = (PARTS / "page.html").read_text(encoding="utf-8")
    slots = {**slots, "ideas": json.dumps({number: IDEAS[package] for number, package in PACKAGES.items()})}
    wanted = re.findall(r"{{(\w+)}}", template)
    if sorted(wanted) != sorted(slots):
        raise ValueError(f"page.html has the slots {sorted(wanted)}, got {sorted(slots)}")
    html = re.sub(r"{{(\w+)}}", lambda m: slots[m[1]], template)
    html = re.sub(r'<link rel="stylesheet" href="([\w.]+)">', lambda m: f"<style>\n{read(m[1])}</style>", html)
    return re.sub(r'<script src="([\w.]+)">', lambda m: f"<script>\n{read(m[1])}", html)


def heading_of(traces: Sequence[Trace]) -> str:
    numbers = [str(int(trace.header["stage"][5:7])) for trace in traces]
    if len(set(numbers)) < len(numbers):
        return f"{len(numbers)} replays of stage {numbers[0]}"
    return f"A replay of stage{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)}"


def footer(links: Sequence[tuple[str, str]]) -> str:
    """A story's links, (address, text) each. Chapters show stories in frames, so links open in the whole window."""
    ways = "\n".join(f'  <a href="{escape(address)}" target="_top">{escape(text)}</a>' for address, text in links)
    return f'<footer class="ways">\n{ways}\n</footer>\n' if links else ""


def embedded(trace: Trace) -> str:
    return as_json("trace", [trace.header, *trace.steps])


def embedded_story(story: dict) -> str:
    return as_json("story", {name: story[name] for name in ("look", "engines", "stops", "verdict") if name in story})


def as_json(kind: str, value: object) -> str:
    """As JSON that is safe inside HTML: ASCII, and without a "<"."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="{kind}">{text}</script>'

"""The page at /: that of replay, with a playground above, and the engine as it runs instead of a trace."""

from pathlib import Path

from ..replay import page

PARTS = Path(__file__).parent / "page"


def make_page() -> str:
    slots = {
        "origin": "of a running engine; see serving/page.py",
        "title": "a running engine",
        "heading": "A running engine",
        "caption": "Ask the model, or let visitors come, and see what the engine does.\n     ",
        "style": '<link rel="stylesheet" href="live.css">\n',
        "above": (PARTS / "live.html").read_text(encoding="utf-8") + "\n",
        "traces": "",
        "start": "live.js",
    }
    return page.render(slots, page.PARTS, PARTS)

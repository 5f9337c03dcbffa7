"""The page at /: the replay page, showing the running engine instead of a trace, with a playground above it."""

import base64
import functools
import hashlib
import re
from pathlib import Path

from ..replay import page
from ..trace_file import Trace

PARTS = Path(__file__).parent / "page"


def make_page(header: dict) -> str:
    """header: of the engine's traces."""
    replay = page.make_page([Trace("run", header, [])])  # into which the page puts its steps, to save them
    slots = {
        "origin": "of a running engine; see serving/page.py",
        "title": "a running engine",
        "heading": "A running engine",
        "caption": "The engine that answers at this address, step by step, as it runs.\n     ",
        "style": '<link rel="stylesheet" href="live.css">\n',
        "above": (PARTS / "live.html").read_text(encoding="utf-8") + "\n",
        "footer": "",
        "traces": page.as_json("replay", replay) + "\n",
        "start": "live.js",
    }
    return page.render(slots, page.PARTS, PARTS)


@functools.cache
def policy(html: str) -> str:
    """A Content-Security-Policy for a page: only its own scripts run, and it talks only to its own server."""
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

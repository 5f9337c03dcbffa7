"""The page at /: that of replay, with a playground above, and the engine as it runs instead of a trace."""

from pathlib import Path

from ..replay import page

PARTS = Path(__file__).parent / "page"


def make_page() -> str:
    html = (page.PARTS / "page.html").read_text(encoding="utf-8")
    caption = '<p class="caption">'
    for there, instead in {
        "made by python -m replay; its parts are in replay/page": "of a running engine; see serving/page.py",
        "<title>stagewise: a replay</title>": "<title>stagewise: a running engine</title>",
        ">A replay</h1>": ">A running engine</h1>",
        caption: f"{caption}Ask the model, or let visitors come, and see what the engine does.\n     ",
        "</head>": '<link rel="stylesheet" href="live.css">\n</head>',
        '<nav class="transport"': (PARTS / "live.html").read_text(encoding="utf-8") + '\n<nav class="transport"',
        "<!-- traces -->\n": "",
        '<script src="start.js">': '<script src="live.js">',
    }.items():
        assert html.count(there) == 1, there
        html = html.replace(there, instead)
    return page.assemble(html, page.PARTS, PARTS)

"""A result of the benchmark as a race: a row for each engine, with a cell for each request that lights up when the
request's first token comes, in real time.

It is an SVG file that needs no script, and a narrow one for phones. `python -m bench.report --write` draws both next to
the file of a result, if a page shows both the result's table and the picture. The race repeats, with a pause. Readers
who want no motion see how far each engine was after two seconds, as tools.card shows it.
"""

import statistics
from dataclasses import dataclass

from stagewise.stages import IDEAS

TOP, BAR, MARGIN = 50, 20, 16  # pixels: above the first row, of a row of cells, at the sides
END = 92  # for the text behind the cells
PAUSE = 6.0  # seconds, after the last engine has ended
AT_REST = 2.0  # seconds after the start: what is shown when nothing moves

STYLE = """
  svg { --paper: #ffffff; --ink: #1f2328; --soft: #57606a; --dark: #eaeef2; --lit: #0969da; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --dark: #21262d; --lit: #58a6ff; }
  }
  text { font: 15px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
  .title, .end, .rest { font-weight: 600; }
  .soft { font-size: 13px; fill: var(--soft); }
  .cover { fill: var(--dark); }
  .moving, .end { display: none; }"""


@dataclass(frozen=True)
class Form:
    """How wide the picture is, where the cells of a row are, and where its texts break."""

    width: int
    left: int
    row: int  # pixels from one row to the next
    narrow: bool

    @property
    def cells(self) -> int:
        """The width of all cells in a row together."""
        return self.width - self.left - END


WIDE = Form(width=732, left=166, row=33, narrow=False)
NARROW = Form(width=360, left=MARGIN, row=39, narrow=True)  # an engine's name is above its cells


def race(result: dict) -> list[tuple[str, list[float], float]]:
    """(the engine's idea, when each request's first token came, when all were done), in seconds, of each engine's
    median run."""
    rows = []
    for engine in dict.fromkeys(run["engine"] for run in result["runs"]):
        runs = [run for run in result["runs"] if run["engine"] == engine]
        middle = statistics.median_low(run["seconds"] for run in runs)
        run = next(run for run in runs if run["seconds"] == middle)
        rows.append((IDEAS.get(engine, engine), sorted(run["ttft"]), run["seconds"]))
    return rows


def answered(first_tokens: list[float]) -> int:
    """How many have a first token when the race is at rest."""
    return sum(at <= AT_REST for at in first_tokens)


def row(form: Form, top: int, number: int, engine: tuple[str, list[float], float], seconds: float) -> tuple[str, str]:
    """(shapes, style) of an engine. The cover of its cells moves to the right, a cell at a time. seconds: how long the
    race plays before it repeats."""
    name, first_tokens, end = engine
    y, total, width = top + number * form.row, len(first_tokens), form.cells
    cell, lit = width / total, answered(first_tokens)
    bars = y + 17 if form.narrow else y
    stops = {f"{100 * at / seconds:.2f}%": count for count, at in enumerate(first_tokens, 1)}  # the last one counts
    moves = "".join(f"{at}{{transform:translateX({count * cell:g}px)}}" for at, count in stops.items())
    behind = f'x="{form.left + width + 10}" y="{bars + 15}"'
    shapes = f"""
  <text x="{MARGIN}" y="{y + (12 if form.narrow else 15)}">{number + 1} {name}</text>
  <svg x="{form.left}" y="{bars}" width="{width}" height="{BAR}">
  <rect width="{width}" height="{BAR}" fill="url(#cells)"/>
  <rect id="c{number}" class="cover" width="{width}" height="{BAR}" transform="translate({lit * cell:g})"/></svg>
  <text class="rest" {behind}>{lit} of {total}</text>
  <text id="e{number}" class="end" {behind}>{end:.1f} s</text>"""
    style = f"""
    #c{number} {{ animation: c{number} {seconds:.1f}s step-end infinite; }}
    #e{number} {{ animation: e{number} {seconds:.1f}s step-end infinite; }}
    @keyframes c{number} {{ 0%{{transform:none}}{moves}100%{{transform:translateX({width}px)}} }}
    @keyframes e{number} {{ 0%{{opacity:0}}{100 * end / seconds:.2f}%,100%{{opacity:1}} }}"""
    return shapes, style


def lines(kind: str, y: int, parts: list[str]) -> str:
    return "".join(
        f'\n  <text class="{kind}" x="{MARGIN}" y="{y + 20 * i}">{part}</text>' for i, part in enumerate(parts)
    )


def svg(result: dict, form: Form = WIDE) -> str:
    """The picture of a result of `python -m bench.throughput`."""
    rows, count = race(result), result["requests"]
    seconds = max(end for _, _, end in rows) + PAUSE
    cores = f"in real time, on {result['machine']['threads']} CPU cores."
    if form.narrow:
        moving = [f"{count} people ask at once. A cell lights up", "when a person's first word comes:", cores]
        small = ["On the right: when all were answered."]
        resting = [f"{count} people ask at once.", "Two seconds later:"]
    else:
        moving = [f"{count} people ask at once. A cell lights up when a person's first word comes."]
        small = [f"I{cores[1:-1]}. On the right: when all were answered."]
        resting = [f"{count} people ask at once. Two seconds later:"]
    top = TOP + 20 * (len(moving) - 1)
    drawn = [row(form, top, number, one, seconds) for number, one in enumerate(rows)]
    shapes, style = ("".join(parts) for parts in zip(*drawn, strict=True))
    height, cell = top + len(rows) * form.row + 32, form.cells / count
    size = f'width="{form.width}" height="{height}" viewBox="0 0 {form.width} {height}"'
    said = "; ".join(f"{name}, {end:.1f} seconds" for name, _, end in rows)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
  <title>{count} people ask at once. A cell lights up when a person's first word comes.</title>
  <desc>A row for each stage. Until all are answered it takes: {said}.</desc>
  <style>{STYLE}
  @media (prefers-reduced-motion: no-preference) {{
    .rest {{ display: none; }} .moving, .end {{ display: inline; }}{style}
  }}
  </style>
  <defs><pattern id="cells" width="{cell:g}" height="{BAR}" patternUnits="userSpaceOnUse">
  <rect x="{cell / 10:.2f}" y="1" width="{cell * 0.8:g}" height="{BAR - 2}" fill="var(--lit)"/></pattern></defs>
  <rect width="{form.width}" height="{height}" rx="8" fill="var(--paper)"/>{lines("title rest", 28, resting)}\
{lines("title moving", 28, moving)}{shapes}{lines("soft moving", height - 14, small)}
</svg>
"""

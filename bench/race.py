"""A result of the benchmark as a race: a row for each engine, with a cell for each request that lights up when the
request's first token comes, in real time.

It is an SVG file that needs no script. `python -m bench.report --write` draws it next to the file of a result, if a
page shows both the result's table and the picture. It plays twice, and then shows how far each engine was after a
second. Readers who want no motion see that from the start.
"""

import statistics

from stagewise.stages import IDEAS

LEFT, TOP, ROW, BAR, WIDTH = 176, 50, 33, 20, 480  # pixels; WIDTH: of all cells in a row together
PAUSE = 4.0  # seconds, after the last engine has ended
AT_REST = 1.0  # seconds after the start: the state that is shown when nothing moves

STYLE = """
  svg { --paper: #ffffff; --ink: #1f2328; --soft: #57606a; --dark: #eaeef2; --lit: #0969da; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --dark: #21262d; --lit: #58a6ff; }
  }
  text { font: 15px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
  .title, .end { font-weight: 600; }
  .soft { font-size: 13px; fill: var(--soft); }
  .cover { fill: var(--dark); }"""


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


def row(number: int, name: str, first_tokens: list[float], end: float, seconds: float) -> tuple[str, str]:
    """(shapes, style) of an engine. The cover of its cells moves to the right, a cell at a time. seconds: how long the
    race plays."""
    y, cell = TOP + number * ROW, WIDTH / len(first_tokens)
    stops = {f"{100 * at / seconds:.2f}%": count for count, at in enumerate(first_tokens, 1)}  # the last one counts
    moves = "".join(f"{at}{{transform:translateX({count * cell:g}px)}}" for at, count in stops.items())
    at_rest = cell * sum(at <= AT_REST for at in first_tokens)
    shapes = f"""
  <text x="16" y="{y + 15}">{number + 1} {name}</text>
  <svg x="{LEFT}" y="{y}" width="{WIDTH}" height="{BAR}"><rect width="{WIDTH}" height="{BAR}" fill="url(#cells)"/>
  <rect id="c{number}" class="cover" width="{WIDTH}" height="{BAR}" transform="translate({at_rest:g})"/></svg>
  <text id="e{number}" class="end" x="{LEFT + WIDTH + 10}" y="{y + 15}">{end:.1f} s</text>"""
    style = f"""
    #c{number} {{ animation: c{number} {seconds:.1f}s step-end 2; }}
    #e{number} {{ animation: e{number} {seconds:.1f}s step-end 2; }}
    @keyframes c{number} {{ 0%{{transform:none}}{moves}100%{{transform:translateX({WIDTH}px)}} }}
    @keyframes e{number} {{ 0%{{opacity:0}}{100 * end / seconds:.2f}%,100%{{opacity:1}} }}"""
    return shapes, style


def svg(result: dict) -> str:
    """The picture of a result of `python -m bench.throughput`."""
    rows, count = race(result), result["requests"]
    seconds = max(end for _, _, end in rows) + PAUSE
    drawn = [row(number, *one, seconds) for number, one in enumerate(rows)]
    shapes, moving = ("".join(parts) for parts in zip(*drawn, strict=True))
    height, cell = TOP + len(rows) * ROW + 32, WIDTH / count
    size = f'width="732" height="{height}" viewBox="0 0 732 {height}"'
    title = f"{count} people ask at once. A cell lights up when a person's first word comes."
    said = "; ".join(f"{name}, {end:.1f} seconds" for name, _, end in rows)
    small = f"In real time, on {result['machine']['threads']} CPU cores; at rest, the state after {AT_REST:g} second."
    small += " On the right: when all were answered."
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
  <title>{title}</title>
  <desc>A row for each stage. Until all are answered it takes: {said}.</desc>
  <style>{STYLE}
  @media (prefers-reduced-motion: no-preference) {{{moving}
  }}
  </style>
  <defs><pattern id="cells" width="{cell:g}" height="{BAR}" patternUnits="userSpaceOnUse">
  <rect x="0.5" y="1" width="{cell - 1:g}" height="{BAR - 2}" fill="var(--lit)"/></pattern></defs>
  <rect width="732" height="{height}" rx="8" fill="var(--paper)"/>
  <text class="title" x="16" y="28">{title}</text>{shapes}
  <text class="soft" x="16" y="{height - 14}">{small}</text>
</svg>
"""

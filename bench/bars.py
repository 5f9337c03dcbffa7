"""A result of the benchmark as bars: the engines side by side, in tokens per second.

`python -m bench.report --write` draws it beside a result whose table a page shows together with the picture: an SVG
file that needs no script. It doesn't move: a bar that still grows would contradict the number beside it. An axis says
how many tokens per second a whole track is.
"""

from stagewise.stages import IDEAS

LEFT, TRACK, LANE, TOP = 150, 260, 32, 44  # pixels

STYLE = """
  svg { --paper: #ffffff; --ink: #1f2328; --track: #eaeef2; --bar: #0969da; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --track: #21262d; --bar: #58a6ff; }
  }
  text { font: 15px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
  .title { font-weight: 600; }
  .axis { font-size: 13px; }
  .bar { fill: var(--bar); }"""


def lane(number: int, row: dict, most: float) -> str:
    """An engine's bar. most: tokens per second of the fastest, whose bar is full."""
    y, speed = TOP + number * LANE, row["tokens_per_second"]
    place = f'x="{LEFT}" y="{y}" height="{LANE - 12}" rx="3"'
    return f"""
  <text x="16" y="{y + 15}">{IDEAS.get(row["engine"], row["engine"])}</text>
  <rect {place} width="{TRACK}" fill="var(--track)"/>
  <rect class="bar" {place} width="{TRACK * speed / most:.1f}"/>
  <text x="{LEFT + TRACK + 12}" y="{y + 15}">{speed:.0f}</text>"""


def svg(result: dict) -> str:
    """The picture of a result of `python -m bench.throughput`."""
    rows = result["summary"]
    speeds = [row["tokens_per_second"] for row in rows]
    lanes = "".join(lane(number, row, max(speeds)) for number, row in enumerate(rows))
    bottom = TOP + len(rows) * LANE
    axis = (
        f'\n  <text class="axis" x="{LEFT}" y="{bottom + 8}">0</text>'
        f'\n  <text class="axis" x="{LEFT + TRACK}" y="{bottom + 8}" text-anchor="end">'
        f"a whole bar: {max(speeds):.0f} tokens a second</text>"
    )
    height = bottom + 22
    said = "; ".join(f"{IDEAS.get(row['engine'], row['engine'])}, {row['tokens_per_second']:.0f}" for row in rows)
    title = f"Tokens a second: from {speeds[0]:.0f} to {speeds[-1]:.0f}, {speeds[-1] / speeds[0]:.0f} times as many"
    size = f'width="480" height="{height}" viewBox="0 0 480 {height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
  <title>{title}</title>
  <desc>A bar for each stage, as long as it makes tokens in a second: {said}.</desc>
  <style>{STYLE}
  </style>
  <rect width="480" height="{height}" rx="8" fill="var(--paper)"/>
  <text class="title" x="16" y="26">{title}</text>{lanes}{axis}
</svg>
"""

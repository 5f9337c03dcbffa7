"""A result of the benchmark as a race: a moving picture in which every engine serves the same requests.

`python -m bench.report --write` draws it beside a result whose table a page shows together with the picture: an SVG
file that needs no script. A bar is full when the last request is done. After two runs, or at once where motion is not
wanted, bars rest where they are when the fastest engine is done: their lengths compare speeds.
"""

FASTER = 20  # than it was
PAUSE = 3  # seconds at the end of a run
RUNS = 2
IDEAS = {  # of the stages, for all pictures
    "stage01_single": "one at a time",
    "stage02_static_batch": "static batch",
    "stage03_kvcache": "KV cache",
    "stage04_continuous": "continuous batch",
    "stage05_paged": "paged KV",
    "stage06_fast": "fast kernels",
}
LEFT, TRACK, LANE, TOP = 150, 230, 32, 44  # pixels

STYLE = """
  svg { --paper: #ffffff; --ink: #1f2328; --soft: #57606a; --track: #eaeef2; --bar: #0969da; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9da7b3; --track: #21262d; --bar: #58a6ff; }
  }
  text { font: 15px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
  .soft { fill: var(--soft); font-size: 14px; } .end { text-anchor: end; }
  .bar { fill: var(--bar); transform-box: fill-box; transform-origin: left; }"""


def lane(number: int, row: dict, fastest: float, whole: float) -> tuple[str, str]:
    """An engine's style and its lane. fastest, whole: seconds of the fastest engine, and of the picture, as it was."""
    y, seconds, name = TOP + number * LANE, row["seconds"], f"b{number}"
    style = f"""
  .{name} {{ transform: scaleX({fastest / seconds:.3f}); }}
  @keyframes {name} {{ 0% {{ transform: scaleX(0); }} {seconds / whole:.2%}, 100% {{ transform: scaleX(1); }} }}
  @media (prefers-reduced-motion: no-preference) {{
    .{name} {{ animation: {name} {whole / FASTER:.1f}s linear {RUNS}; }}
  }}"""
    box = f'x="{LEFT}" y="{y}" width="{TRACK}" height="{LANE - 12}" rx="3"'
    body = f"""
  <text x="16" y="{y + 15}">{IDEAS.get(row["engine"], row["engine"])}</text>
  <rect {box} fill="var(--track)"/>
  <rect class="bar {name}" {box}/>
  <text class="end" x="464" y="{y + 15}">{seconds:.0f} s</text>"""
    return style, body


def svg(result: dict) -> str:
    """The picture of a result of `python -m bench.throughput`."""
    rows = result["summary"]
    all_seconds = [row["seconds"] for row in rows]
    whole = max(all_seconds) + PAUSE * FASTER
    lanes = [lane(number, row, min(all_seconds), whole) for number, row in enumerate(rows)]
    height = TOP + len(rows) * LANE + 34
    said = "; ".join(f"{IDEAS.get(row['engine'], row['engine'])}, {row['seconds']:.0f} seconds" for row in rows)
    size = f'width="480" height="{height}" viewBox="0 0 480 {height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
  <title>How far each stage gets in the same time with {result["requests"]} requests</title>
  <desc>A bar for each stage, which is full when its last request is done: {said}.</desc>
  <style>{STYLE}{"".join(style for style, _ in lanes)}
  </style>
  <rect width="480" height="{height}" rx="8" fill="var(--paper)"/>
  <text x="16" y="26">The same {result["requests"]} requests, stage by stage</text>{"".join(body for _, body in lanes)}
  <text class="soft" x="16" y="{height - 16}">Played {FASTER} times as fast. At rest: when the fastest was done</text>
</svg>
"""

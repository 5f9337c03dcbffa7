"""A replay as a moving picture, for pages that run no scripts. `python -m bench.moving` draws it, light and dark.

It shows two runs of the same requests, in static batches and with a continuous scheduler, step by step in parallel. The
traces come from the committed page of that example, so the picture and the replay show the same steps. Readers who
want no motion see the end of both runs, which says the same.
"""

import json
import re
import sys
from html import escape
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "stagewise/replay/examples/static_and_continuous.html"
TITLES = (
    "Static batching: a batch ends with its slowest request",
    "Continuous batching: a request that is done makes room at once",
)
COLORS = {  # scheme -> paper, ink, soft, track, line, prompt, token
    "light": ("#ffffff", "#1f2328", "#57606a", "#f0f3f6", "#8c959f", "#0a3069", "#54aeff"),
    "dark": ("#0d1117", "#e6edf3", "#9da7b3", "#161b22", "#6e7681", "#cae8ff", "#2f7fd6"),
}
PER_STEP, PAUSE, RUNS = 0.1, 8, 2  # seconds per step, seconds at rest, how often it plays
WIDTH, LEFT, LANE, GAP, PANEL = 640, 16, 26, 4, 144  # pixels
RIGHT = WIDTH - LEFT

Step = dict


def read_traces(page: Path = PAGE) -> list[list[Step]]:
    """The steps of each trace in a replay's page."""
    html = page.read_text(encoding="utf-8")
    found = re.findall(r'<script type="application/json" class="trace">(.*?)</script>', html, re.DOTALL)
    return [[step for step in json.loads(text)[1:] if step["rows"]] for text in found]  # no idle engine


def counts(steps: list[Step]) -> dict[str, int]:
    """What a run did: its steps, the tokens it computed, and the rows it carried along after their requests' end."""
    rows = [row for step in steps for row in step["rows"]]
    tokens = sum(row["num_tokens"] for row in rows)
    return {"steps": len(steps), "tokens": tokens, "carried": sum(not row["num_tokens"] for row in rows)}


def names(steps: list[Step]) -> dict[str, str]:
    """request_id -> its letter, as in replay: A came first."""
    queued = [event["request_id"] for step in steps for event in step["before"] if event["kind"] == "queued"]
    return {request: chr(ord("A") + i) for i, request in enumerate(queued)}


def bars(steps: list[Step]) -> list[tuple[int, int, int, str, str]]:
    """The bars to draw: (slot, first step, end, phase, letter). Phases are prefill, decode and carried."""
    letters, found = names(steps), []
    for slot in sorted({row["slot"] for step in steps for row in step["rows"]}):
        there = [(i, row) for i, step in enumerate(steps) for row in step["rows"] if row["slot"] == slot]
        phases = [(i, row["phase"] if row["num_tokens"] else "carried", letters[row["request_id"]]) for i, row in there]
        # Consecutive steps in the same phase of the same request are one bar.
        for (phase, letter, _), own in groupby(enumerate(phases), lambda one: (*one[1][1:], one[1][0] - one[0])):
            own = [i for _, (i, _, _) in own]
            found.append((slot, own[0], own[-1] + 1, phase, letter))
    return found


def panel(number: int, steps: list[Step], longest: int) -> tuple[str, str]:
    """(style, body) of one run."""
    y, scale = 20 + number * PANEL, (RIGHT - LEFT) / longest
    slots = sorted({row["slot"] for step in steps for row in step["rows"]})
    top = {slot: y + 14 + i * LANE for i, slot in enumerate(slots)}
    x = lambda step: LEFT + step * scale  # noqa: E731
    body = f'\n  <text class="title" x="{LEFT}" y="{y}">{escape(TITLES[number])}</text>'
    for slot in slots:
        body += f'\n  <rect class="track" x="{LEFT}" y="{top[slot]}" width="{RIGHT - LEFT}" height="{LANE - GAP}"/>'
    letters, widest = "", {}
    for slot, begin, end, phase, letter in bars(steps):
        place = f'x="{x(begin):.1f}" y="{top[slot] + 1}"'  # within the track, so that its cover hides all of it
        box = f'{place} width="{(end - begin) * scale - 1:.1f}" height="{LANE - GAP - 2}"'
        body += f'\n  <rect class="{phase}" {box}/>'
        if phase == "decode" and end - begin > widest.get(letter, (0,))[0]:
            widest[letter] = (end - begin, (x(begin) + x(end)) / 2, top[slot])
    for letter, (_, middle, lane) in widest.items():
        letters += f'\n  <text class="letter" x="{middle:.1f}" y="{lane + 16}">{letter}</text>'
    ended, whole = len(steps) / longest, longest * PER_STEP + PAUSE
    played, name = longest * PER_STEP / whole, f"p{number}"
    height = len(slots) * LANE
    # The cover hides the steps to come, and moves to the right.
    body += letters + (
        f'\n  <g class="cover {name}"><rect class="track" x="{LEFT}" y="{y + 14}" width="{RIGHT - LEFT}" '
        f'height="{height}"/>'
        + "".join(
            f'<rect class="paper" x="{LEFT}" y="{top[slot] + LANE - GAP}" width="{RIGHT - LEFT}" height="{GAP}"/>'
            for slot in slots
        )
        + f'<rect class="head" x="{LEFT}" y="{y + 12}" width="2" height="{height}"/></g>'
    )
    place = f'x="{x(len(steps)):.1f}" y="{y + height + 30}"'
    body += f'\n  <text class="done {name}-done" {place}>done after {len(steps)} steps</text>'
    style = f"""
    .{name} {{ animation: {name} {whole:.1f}s {RUNS}; }}
    .{name}-done {{ animation: {name}-done {whole:.1f}s step-end {RUNS}; }}
    @keyframes {name} {{
      0% {{ transform: translateX(0); animation-timing-function: steps({len(steps)}); }}
      {ended * played:.2%} {{
        transform: translateX({x(len(steps)) - LEFT:.1f}px); animation-timing-function: step-start;
      }}
      100% {{ transform: translateX({RIGHT - LEFT + 4}px); }}
    }}
    @keyframes {name}-done {{ 0% {{ opacity: 0; }} {ended * played:.2%}, 100% {{ opacity: 1; }} }}"""
    return style, body


def svg(traces: list[list[Step]], scheme: str) -> str:
    """The picture. traces: those of the static and the continuous run. scheme: light or dark."""
    paper, ink, soft, track, line, prompt, token = COLORS[scheme]
    static, continuous = map(counts, traces)
    longest = max(static["steps"], continuous["steps"])
    panels = [panel(number, steps, longest) for number, steps in enumerate(traces)]
    num_requests = len(names(traces[0]))
    verdict = (
        f"The same {num_requests} requests, {continuous['tokens']} tokens computed: "
        f"{static['steps']} steps or {continuous['steps']}."
    )
    places = sum(len(step["rows"]) for step in traces[0])
    lost = f"In the static batches {static['carried'] / places:.0%} of the places go to requests that are already done."
    y, ended = 20 + 2 * PANEL - 22, longest * PER_STEP / (longest * PER_STEP + PAUSE)
    legend, x = "", LEFT
    for phase, words, width in (
        ("prefill", "its prompt", 106),
        ("decode", "a token a step", 136),
        ("carried", "done, but its row is not free", 0),
    ):
        legend += f'\n  <rect class="{phase}" x="{x}" y="{y + 52}" width="16" height="14"/>'
        legend += f'\n  <text class="soft" x="{x + 22}" y="{y + 64}">{words}</text>'
        x += width
    height = y + 82
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
  <title>{verdict}</title>
  <desc>Three rows serve {num_requests} requests, step by step. {TITLES[0]}; {lost} {TITLES[1]}.</desc>
  <style>
  text {{ font: 15px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: {ink}; }}
  .title, .verdict {{ font-weight: 600; }}
  .soft {{ fill: {soft}; font-size: 14px; }}
  .done {{ fill: {soft}; font-size: 14px; text-anchor: end; }}
  .letter {{ text-anchor: middle; font-weight: 600; fill: {"#0d1117" if scheme == "light" else "#ffffff"}; }}
  .paper {{ fill: {paper}; }} .track {{ fill: {track}; }} .head {{ fill: {ink}; }}
  .prefill {{ fill: {prompt}; }} .decode {{ fill: {token}; }} .carried {{ fill: url(#stripes); }}
  .cover {{ transform: translateX({RIGHT - LEFT + 4}px); }}
  @media (prefers-reduced-motion: no-preference) {{{"".join(style for style, _ in panels)}
    .verdict {{ animation: verdict {longest * PER_STEP + PAUSE:.1f}s step-end {RUNS}; }}
    @keyframes verdict {{ 0% {{ opacity: 0; }} {ended:.2%}, 100% {{ opacity: 1; }} }}
  }}
  </style>
  <defs>
    <pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="6" height="6" fill="{track}"/><rect width="2" height="6" fill="{line}"/>
    </pattern>
    <clipPath id="inside"><rect x="{LEFT}" y="0" width="{RIGHT - LEFT + 2}" height="{height}"/></clipPath>
  </defs>
  <rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>
  <g clip-path="url(#inside)">{"".join(body for _, body in panels)}
  </g>
  <text class="verdict" x="{LEFT}" y="{y + 14}">{verdict}</text>
  <text class="soft" x="{LEFT}" y="{y + 36}">{lost}</text>{legend}
</svg>
"""


def main() -> int:
    traces = read_traces()
    for scheme in COLORS:
        path = PAGE.with_suffix(f".{scheme}.svg")
        path.write_text(svg(traces, scheme), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

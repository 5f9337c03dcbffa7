"""The pictures, each drawn from traces (`stagewise.trace(llm).records`) or from a benchmark's result.

They have one style. The colors are Okabe and Ito's, which color-blind readers can tell apart; what matters also differs
in brightness, hatching or marker, so it can be printed in black and white. Waste is gray. A title says what to see.
"""

import io
import re
import statistics
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from stagewise.stages import IDEAS

BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
GRAY, INK = "#D0D0D0", "#222222"
# What an SVG replaces these colors with in a dark scheme; the others are legible on both backgrounds.
DARK = {"#FFFFFF": "#0D1117", INK: "#E6EDF3", GRAY: "#4A525C", BLUE: "#58A6FF", GREEN: "#2EBD8F", RED: "#FF7B4D"}
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    "axes.grid": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 130,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "stagewise",  # the same picture is the same file
    "svg.fonttype": "none",  # letters as text, not as outlines
}
LARGE = {**STYLE, "font.size": 12, "axes.titlesize": 13, "legend.fontsize": 11}  # legible at half its size
SMALL = 10.5  # the size of the numbers in a picture, in points


class Picture(Figure):
    """A figure that a notebook displays on its own, and that no global list of figures keeps alive."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()

    def savefig(self, target, **kwargs) -> None:
        if str(target).endswith(".svg"):
            Path(target).write_text(self.svg(), encoding="utf-8")
            return
        with mpl.rc_context(STYLE):
            super().savefig(target, **kwargs)

    def __repr__(self) -> str:
        """Its message and its numbers, which a notebook saves with the picture."""
        return ", ".join([self.message, *(text.get_text() for axes in self.axes for text in axes.texts)])

    @property
    def message(self) -> str:
        """Its titles, on one line."""
        titles = [axes.get_title(loc="left") for axes in self.axes if axes.get_visible()]
        return ". ".join(" ".join(title.split()) for title in titles if title)

    def svg(self) -> str:
        """The figure as an SVG that follows the reader's color scheme, with the message as its title."""
        buffer = io.StringIO()
        with mpl.rc_context(STYLE):
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            super().savefig(buffer, format="svg", metadata=nothing)
        drawn = re.sub(r" <metadata>.*?</metadata>\n", "", buffer.getvalue(), flags=re.DOTALL)
        drawn = re.sub(r' d="[^"]*"', lambda path: " " + " ".join(path[0].split()), drawn)  # on one line
        head, rest = drawn[drawn.index("<svg") :].split(">", 1)
        for number, color in enumerate(DARK):
            rest = re.sub(color, f"var(--c{number})", rest, flags=re.IGNORECASE)
        day, night = (
            "; ".join(f"--c{number}: {tone}" for number, tone in enumerate(tones)) for tones in (DARK, DARK.values())
        )
        style = f"svg {{ {day} }} @media (prefers-color-scheme: dark) {{ svg {{ {night} }} }}"
        return f'{head} role="img">\n<title>{escape(self.message)}</title>\n<style>{style}</style>{rest}'


def styled(draw, style: Any = STYLE):
    """Make a function draw in this style, whatever the global settings are."""

    def wrapper(*args, **kwargs) -> Picture:
        with mpl.rc_context(style):
            return draw(*args, **kwargs)

    wrapper.__doc__, wrapper.__name__ = draw.__doc__, draw.__name__
    return wrapper


def large(draw):
    """`styled` with larger letters, for the pictures of results that READMEs show."""
    return styled(draw, LARGE)


def clock(trace: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """The start and end of every step, in seconds since the start of the first."""
    start = np.array([step.start for step in trace]) - trace[0].start
    return start, start + np.array([step.seconds for step in trace])


# --- From a benchmark's result ----------------------------------------------------------------------------------------


@large
def ladder(result: dict) -> Picture:
    """A benchmark's engines, each below the previous one: output tokens per second, the work it took, and how long the
    requests waited. The axes are logarithmic, so equal ratios are equally long."""
    rows = result["summary"]
    engines = [row["engine"] for row in rows]
    names = [f"{int(name[5:7])} {IDEAS[name]}" if name in IDEAS else name for name in engines]
    y = np.arange(len(rows))[::-1]
    figure = Picture(figsize=(11, 2.4 + 0.8 * len(rows)))
    axes = figure.subplots(2, 2, sharey=True).flat
    _speeds(
        axes[0],
        y,
        [row["tokens_per_second"] for row in rows],
        f"{stage_name(engines[-1])} against {stage_name(engines[0])}",
    )
    _work(axes[1], y, rows)
    _waits(axes[2], y, rows, "ttft", "The first token", "time to first token")
    _waits(axes[3], y, rows, "itl", "The next token", "time between two tokens")
    for one in axes:
        one.margins(x=0.22, y=0.12)
        one.set_yticks(y, names)
        if one.get_xscale() == "log":
            one.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            one.xaxis.set_minor_locator(NullLocator())
            one.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return figure


def stage_name(engine: str) -> str:
    """`stage 3` for stage03_kvcache; a peer's name unchanged."""
    return f"stage {int(engine[5:7])}" if engine in IDEAS else engine


def times(ratio: float, more: str, less: str) -> str:
    """A ratio as a number above 1, with the word for its direction: 0.04 is "25 × fewer"."""
    return f"{ratio:.2g} × {more}" if ratio >= 1 else f"{1 / ratio:.2g} × {less}"


def _speeds(axes, y: np.ndarray, speeds: list[float], whose: str) -> None:
    """A dot for each engine, and a line to it from the speed of the engine before."""
    ratios = [after / before for before, after in pairwise(speeds)]
    for place, before, after, ratio in zip(y[1:], speeds, speeds[1:], ratios, strict=False):
        axes.plot([before, after], [place, place], color=GREEN if ratio >= 1 else RED, linewidth=2.5, zorder=1)
        axes.scatter(before, place, marker="|", s=60, color=INK, linewidth=1, zorder=1)
    axes.scatter(speeds, y, color=BLUE, edgecolor=INK, s=45, zorder=2)
    labels = [f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}" for speed in speeds]
    labels[1:] = [f"{label} ({ratio:.2g} ×)" for label, ratio in zip(labels[1:], ratios, strict=True)]
    for place, speed, label in zip(y, speeds, labels, strict=True):
        axes.annotate(label, (speed, place), (0, 8), textcoords="offset points", ha="center", fontsize=SMALL)
    axes.set_xscale("log")
    axes.set_xlabel("output tokens per second (ratio to the engine above)")
    axes.set_title(f"{whose.capitalize()}: {times(speeds[-1] / speeds[0], 'faster', 'slower')}" if ratios else "Speed")


def _work(axes, y: np.ndarray, rows: list[dict]) -> None:
    """How many positions go through the model per output token; or, if that is the same for all engines, how many
    requests run at once."""
    stages = [
        (place, row) for place, row in zip(y, rows, strict=True) if row.get("tokens_computed") and row.get("rows_mean")
    ]
    if not stages:
        axes.set_visible(False)
        return
    places = [place for place, _ in stages]
    useful = [row["tokens_computed"] / row["output_tokens"] for _, row in stages]
    at_once = [row["rows_mean"] for _, row in stages]
    if max(useful) < 1.1 * min(useful) and max(at_once) > 1.1 * min(at_once):
        bars = axes.barh(places, at_once, height=0.6, color=GREEN, edgecolor=INK)
        axes.bar_label(bars, [f"{v:.1f}" for v in at_once], padding=3)
        axes.set_xlabel("requests at once, mean")
        axes.set_title(f"The same memory holds {times(at_once[-1] / at_once[0], 'more', 'fewer')} requests")
        return
    total = [v / (1 - row["padding_share"]) for v, (_, row) in zip(useful, stages, strict=True)]
    axes.hlines(places, useful, total, color=INK, linewidth=1, zorder=1)
    axes.scatter(total, places, color=GRAY, edgecolor=INK, marker="D", zorder=2, label="with padding")
    axes.scatter(useful, places, color=GREEN, edgecolor=INK, s=45, zorder=3, label="of live requests")
    for place, all_ in zip(places, total, strict=True):
        axes.annotate(f"{all_:.1f}", (all_, place), (7, 0), textcoords="offset points", va="center", fontsize=SMALL)
    axes.set_xscale("log")
    axes.set_xlabel("places computed per output token")
    axes.set_title(f"A token needs {times(total[-1] / total[0], 'more', 'fewer')} places" if stages[1:] else "Work")
    if max(total) > 1.001 * max(useful):
        axes.legend(loc="lower right")


def _waits(axes, y: np.ndarray, rows: list[dict], kind: str, event: str, what: str) -> None:
    """The median and the 95th percentile of a wait, for the engines that report it. event: what is waited for."""
    p50, p95 = f"{kind}_p50", f"{kind}_p95"
    timed = [(place, row[p50], row[p95]) for place, row in zip(y, rows, strict=True) if row.get(p50)]
    if not timed:
        axes.set_visible(False)
        return
    unit, factor = ("seconds", 1) if kind == "ttft" else ("milliseconds", 1000)
    for place, median, most in timed:
        median, most = factor * median, factor * most
        axes.plot([median, most], [place, place], color=INK, linewidth=1, zorder=1)
        axes.scatter(median, place, color=ORANGE, edgecolor=INK, marker="o", zorder=2, label="p50")
        axes.scatter(most, place, color=RED, edgecolor=INK, marker="D", zorder=2, label="p95")
        axes.annotate(f"{most:.3g}", (most, place), (7, 0), textcoords="offset points", va="center", fontsize=SMALL)
    axes.set_xscale("log")
    axes.set_xlabel(f"{what}, {unit}")
    first, last = timed[0], timed[-1]
    p50, p95 = (times(first[i] / last[i], "sooner", "later") for i in (1, 2))
    axes.set_title(f"{event} comes\n{p50} (p50), {p95} (p95)" if len(timed) > 1 else what.capitalize())
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:2], labels[:2], loc="best")


@styled
def latency(results: dict[str, list[dict]]) -> Picture:
    """Waits against the arrival rate.

    results: engine -> a summary of each run: `rate`, and ttft_p50 … itl_p95 in seconds.
    """
    figure = Picture(figsize=(9, 3.2))
    axes = figure.subplots(1, 2)
    looks = zip(results.items(), ((BLUE, "o"), (RED, "s"), (GREEN, "^")), strict=False)
    for (name, rows), (color, marker) in looks:
        rates = [row["rate"] for row in rows]
        for one, kind, unit in ((axes[0], "ttft", 1), (axes[1], "itl", 1000)):
            for p, line in ((50, "-"), (95, "--")):
                values = [unit * row[f"{kind}_p{p}"] for row in rows]
                one.plot(rates, values, line, color=color, marker=marker, markersize=4, label=f"{name}, p{p}")
    waits = [[row["ttft_p95"] for row in rows] for rows in results.values()]
    grown = max(max(own) / min(own) for own in waits)
    axes[0].set_title(f"At the highest rate p95 of the wait is {grown:.0f} × as long")
    slower = max(rows[-1]["itl_p50"] / rows[0]["itl_p50"] for rows in results.values())
    axes[1].set_title(f"The time between two tokens is {slower:.1f} × as long (p50)")
    for one, label in zip(axes, ("time to first token, seconds", "between two tokens, milliseconds"), strict=True):
        one.set_xlabel("requests that arrive per second")
        one.set_ylabel(label)
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes[1].set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    return figure


# --- From traces ------------------------------------------------------------------------------------------------------


def places(trace: Sequence) -> dict[str, int]:
    """The slot of each request: the lowest one free when it first appears, which it keeps until it last appears."""
    last = {row.request_id: i for i, step in enumerate(trace) for row in step.rows}
    slots: dict[str, int] = {}
    busy: dict[int, int] = {}  # slot -> the last step of the request in it
    for i, step in enumerate(trace):
        for row in step.rows:
            if row.request_id not in slots:
                slot = next(s for s in range(len(busy) + 1) if busy.get(s, -1) < i)
                slots[row.request_id], busy[slot] = slot, last[row.request_id]
    return slots


@styled
def slots(traces: dict[str, Sequence]) -> Picture:
    """Which request has which slot, and when: a bar for each request, red during its prefill, and gray where a slot
    computes nothing useful. A dotted line marks the end of a batch, after which none of its requests goes on."""
    counts = {name: 1 + max(places(trace).values()) for name, trace in traces.items()}
    figure = Picture(figsize=(9.5, 0.9 + sum(0.55 + 0.24 * n for n in counts.values())))
    axes = figure.subplots(len(traces), 1, sharex=True, squeeze=False, height_ratios=list(counts.values()))[:, 0]
    outputs = {}  # for each request and trace, whether it is live in each step; its color depends on how often it is
    for trace in traces.values():
        for step in trace:
            for row in step.rows:
                outputs.setdefault(row.request_id, {}).setdefault(id(trace), []).append(bool(row.num_tokens))
    lives = {request: max(sum(live) for live in own.values()) for request, own in outputs.items()}
    shade = mpl.colormaps["cividis_r"]
    longest = max(clock(trace)[1][-1] for trace in traces.values())
    for one, (name, trace) in zip(axes, traces.items(), strict=True):
        where, (start, end) = places(trace), clock(trace)
        one.add_patch(
            Rectangle((0, -0.5), end[-1], counts[name], facecolor=GRAY, hatch="////", edgecolor="white", linewidth=0)
        )
        live, spans, prefills = 0.0, {}, {}
        for i, step in enumerate(trace):
            until = start[i + 1] if i + 1 < len(trace) else end[i]
            for row in step.rows:
                if row.num_tokens:
                    live += end[i] - start[i]
                    spans.setdefault(row.request_id, []).append((start[i], until - start[i]))
                    if row.phase == "prefill":
                        prefills.setdefault(row.request_id, []).append((start[i], until - start[i]))
        for i in batch_ends(trace):
            one.axvline(end[i], color=INK, linestyle=":", linewidth=1)
        for request, own in spans.items():
            first, stop = own[0][0], own[-1][0] + own[-1][1]
            color = shade(0.15 + 0.85 * lives[request] / max(lives.values()))
            one.broken_barh(own, (where[request] - 0.5, 1.0), color=color)
            one.broken_barh([(first, stop - first)], (where[request] - 0.5, 1.0), facecolor="none", edgecolor="white")
            one.broken_barh(prefills[request], (where[request] + 0.25, 0.25), color=RED)
            if stop - first > 0.02 * longest:
                ink = "white" if sum(color[:3]) < 1.5 else "black"
                one.text(first + 0.003 * longest, where[request], request, va="center", fontsize=7, color=ink)
        idle = 1 - live / (counts[name] * end[-1])
        one.set_title(f"{name}: {end[-1]:.1f} s, and {idle:.0%} of the slots' time serves nobody (gray)")
        one.set_ylabel("slot")
        one.set_xlim(0, longest)
        one.set_ylim(counts[name] - 0.5, -0.5)
        one.set_yticks(range(counts[name]))
    axes[-1].set_xlabel(
        "seconds (a bar is a request: the darker, the longer its output; red: its prefill; dotted: a batch ends)"
    )
    return figure


def batch_ends(trace: Sequence) -> list[int]:
    """The steps with several rows of which none goes on: where static batches end."""
    live = [{row.request_id for row in step.rows} for step in trace]
    return [i for i, (now, then) in enumerate(pairwise(live)) if len(now) > 1 and not now & then]


@styled
def padding(traces: dict[str, Sequence]) -> Picture:
    """How much of what was computed is padding, by row and step."""
    figure = Picture(figsize=(9.5, 0.7 + 1.9 * len(traces)))
    axes = figure.subplots(len(traces), 1, squeeze=False)[:, 0]
    colors = LinearSegmentedColormap.from_list("padding", [BLUE, "#EEEEEE"])
    for one, (name, trace) in zip(axes, traces.items(), strict=True):
        image = np.full((max(len(step.rows) for step in trace), len(trace)), np.nan)
        for i, step in enumerate(trace):
            for r, row in enumerate(step.rows):
                image[r, i] = row.num_padding / (row.num_padding + row.num_tokens)
        rows = [row for step in trace for row in step.rows]
        wasted, useful = sum(row.num_padding for row in rows), sum(row.num_tokens for row in rows)
        shown = one.imshow(image, cmap=colors, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        one.set_title(f"{name}: {wasted / (wasted + useful):.0%} of {wasted + useful:,} places are padding")
        one.set_ylabel("row")
        one.set_yticks(range(0, len(image), max(1, len(image) // 8)))
    axes[-1].set_xlabel("step")
    bar = figure.colorbar(shown, ax=list(axes), pad=0.01, aspect=30)
    bar.set_label("padding in the row's places")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    return figure


@styled
def kv_memory(traces: dict[str, Sequence]) -> Picture:
    """How much of the KV cache is reserved, and how much of that is filled, over time."""
    figure = Picture(figsize=(9.5, 2.9))
    axes = figure.subplots(1, len(traces), sharex=True, sharey=True, squeeze=False)[0]
    for one, (name, trace) in zip(axes, traces.items(), strict=True):
        start, _ = clock(trace)
        reserved, used = ([getattr(step, f"kv_tokens_{kind}") for step in trace] for kind in ("reserved", "used"))
        one.fill_between(
            start,
            reserved,
            step="post",
            facecolor=GRAY,
            hatch="////",
            edgecolor="white",
            linewidth=0,
            label="reserved, empty",
        )
        one.fill_between(start, used, step="post", color=BLUE, label="filled")
        one.step(start, reserved, where="post", color=INK, linewidth=1)
        one.set_title(f"{name}: {sum(used) / sum(reserved):.0%} of what is reserved is filled")
        one.set_xlabel("seconds")
        one.set_xlim(left=0)
        one.set_ylim(bottom=0)
        one.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes[0].set_ylabel("KV cache, tokens")
    axes[-1].legend(loc="upper right", fontsize=8)
    return figure


def follow_findable(findable: set[int], events: Iterable[dict]) -> None:
    """Update the set of free blocks that the prefix cache can find, from events of a trace."""
    for event in events:
        if event["kind"] == "released" and event["cached"]:
            findable.add(event["block"])
        elif event["kind"] == "taken":
            findable.discard(event["block"])
        elif event["kind"] == "restarted":
            findable.clear()


@styled
def block_map(trace: Sequence) -> Picture:
    """Every block of the KV cache over the steps, in the color of the completion that has it; black if several do.
    Free ones are gray while the prefix cache can still find them, otherwise white. A cross is a copy (copy-on-write).
    """
    holders = list(dict.fromkeys((row.request_id, row.index) for step in trace for row in step.rows))
    num_blocks = 1 + max((block for step in trace for row in step.rows for block in row.blocks), default=0)
    palette = [to_rgb(color) for color in (BLUE, ORANGE, SKY, RED, GREEN, "#F0E442", PURPLE)]
    image = np.ones((num_blocks, len(trace), 3))
    shared, findable, any_findable = 0, set(), False
    for i, step in enumerate(trace):
        follow_findable(findable, step.before)
        image[list(findable), i] = to_rgb(GRAY)
        any_findable |= bool(findable)
        follow_findable(findable, step.after)
        owners: dict[int, list[tuple]] = {}
        for row in step.rows:
            for block in row.blocks:
                owners.setdefault(block, []).append((row.request_id, row.index))
        for block, own in owners.items():
            image[block, i] = to_rgb(INK) if len(own) > 1 else palette[holders.index(own[0]) % len(palette)]
        shared = max(shared, step.num_blocks_saved)
    figure = Picture(figsize=(9.5, 4))
    axes = figure.subplots()
    axes.imshow(image, aspect="auto", interpolation="nearest")
    copies = [(i, e["target"]) for i, step in enumerate(trace) for e in step.before if e["kind"] == "copied"]
    axes.scatter(*zip(*copies, strict=True) if copies else ((), ()), marker="x", s=30, color="white", linewidth=3)
    axes.scatter(*zip(*copies, strict=True) if copies else ((), ()), marker="x", s=30, color=INK, linewidth=1.2)
    what = f"shared ones (black) save up to {shared}" if shared else "nobody shares any"
    axes.set_title(f"{num_blocks} blocks, taken when they are needed, wherever they are free; {what}")
    axes.set_xlabel("step")
    axes.set_ylabel("block")
    if len(holders) <= len(palette):
        several = any(index for _, index in holders)
        labels = [f"request {request}{f', completion {index}' if several else ''}" for request, index in holders]
        patches = [Patch(facecolor=c, label=label) for label, c in zip(labels, palette, strict=False)]
        patches += [Patch(facecolor=INK, label="shared")] if shared else []
        patches += [Patch(facecolor=GRAY, label="free, can be found")] if any_findable else []
        patches += [Patch(facecolor="white", edgecolor=INK, label="free")]
        crosses = [Line2D([], [], color=INK, marker="x", linestyle="none", label="copied")] if copies else []
        figure.legend(handles=[*patches, *crosses], loc="outside right upper", fontsize=8)
    return figure


@styled
def time_per_token(traces: dict[str, Sequence], least: dict[str, Sequence[float]] | None = None) -> Picture:
    """The seconds of each step of a single request: what a token costs, by its position. Each dot is a step; the line
    is their running median.

    least: for some of the traces, the least seconds that each step can take on this machine (bench/machine.py).
    """
    figure = Picture(figsize=(7, 3.2))
    axes = figure.subplots()
    ends = {}
    for (name, trace), (color, line) in zip(traces.items(), ((RED, "-"), (BLUE, "--"), (GREEN, ":")), strict=False):
        milliseconds = [1000 * step.seconds for step in trace]
        # A running median hides moments in which the machine did something else.
        smooth = [statistics.median(milliseconds[max(1, i - 4) : i + 5]) for i in range(1, len(milliseconds))]
        axes.scatter(range(1, len(milliseconds) + 1), milliseconds, s=4, color=color, alpha=0.35, linewidth=0)
        axes.plot(range(2, len(milliseconds) + 1), smooth, line, color=color, label=name)
        if least and name in least:
            limit = [1000 * seconds for seconds in least[name]]
            axes.plot(range(1, len(limit) + 1), limit, color=color, linewidth=0.8, label=f"{name}, the machine's limit")
        quarter = max(1, len(smooth) // 10)
        ends[name] = statistics.median(smooth[-quarter:]) / statistics.median(smooth[:quarter])
    seen = ", ".join(f"{ratio:.1f} × as long as the first in {name}" for name, ratio in ends.items())
    axes.set_title(f"The last tokens take {seen}")
    axes.set_xlabel("output token")
    axes.set_ylabel("milliseconds for the token")
    # The first step computes the prompt and warms the machine up, so it may be far above the others.
    axes.set_ylim(0, 1.3 * max(1000 * step.seconds for trace in traces.values() for step in trace[1:]))
    axes.legend(fontsize=8)
    return figure


@styled
def batch_size(traces: dict[int, Sequence], limits: dict[int, float], bend: float | None = None) -> Picture:
    """Tokens per second of full decode steps against the batch size, under the roofline.

    Args:
        traces: batch size -> a trace with decode steps of that many rows.
        limits: batch size -> output tokens per second that the machine could reach.
        bend: the batch size from which arithmetic is the limit instead of memory.
    """
    reached = {}
    for batch, trace in traces.items():
        decodes = [s.seconds for s in trace if len(s.rows) == batch and all(row.phase == "decode" for row in s.rows)]
        reached[batch] = batch / statistics.median(decodes)
    figure = Picture(figsize=(7, 3.6))
    axes = figure.subplots()
    axes.plot(list(limits), list(limits.values()), "--", color=INK, label="roofline: the machine's limit")
    axes.plot(list(reached), list(reached.values()), "o-", color=BLUE, label="measured")
    for batch, speed in reached.items():
        axes.annotate(
            f"{speed / limits[batch]:.0%}",
            (batch, speed),
            (0, -13),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    if bend is not None:
        axes.axvline(bend, color=GRAY, linewidth=1)
        axes.annotate(f"from {bend:.2g} rows on\narithmetic is the limit", (bend, min(reached.values())), (4, 0),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    low, high = min(reached), max(reached)
    axes.set_title(f"{high // low} × the rows give {reached[high] / reached[low]:.1f} × the tokens per second")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(reached), list(map(str, reached)))
    axes.set_xlabel("rows in a decode step (percentages: measured, of the limit)")
    axes.set_ylabel("output tokens per second")
    axes.margins(y=0.15)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend()
    return figure


@styled
def guesses(tokens_a_step: dict[int, float], right: float) -> Picture:
    """Tokens per step of speculative decoding against the number of guesses.

    right: the probability that a guess is right, if all before it were; the dotted line is what follows from it.
    """
    figure = Picture(figsize=(7, 3.4))
    axes = figure.subplots()
    few, many = min(tokens_a_step), max(tokens_a_step)
    expected = {k: sum(right**i for i in range(k + 1)) for k in range(few, many + 1)}
    axes.plot(list(tokens_a_step), list(tokens_a_step.values()), "o", color=BLUE, label="measured")
    formula = f"1 + a + a² + … + a^K, a = {right:.2f}"
    axes.plot(list(expected), list(expected.values()), ":", color=INK, label=formula)
    gained = tokens_a_step[many] / tokens_a_step[few]
    axes.set_title(f"{many // few} × the guesses give {gained:.1f} × the tokens per step")
    axes.set(xlabel="guesses K", ylabel="tokens per step", ylim=(0, None))
    axes.legend()
    return figure


@styled
def gain(points: Sequence[tuple[float, Sequence, Sequence]]) -> Picture:
    """What continuous batching gains, against how much the output lengths differ.

    Args:
        points: for each workload (standard deviation of the output lengths / their mean, static trace, continuous
            trace).
    """
    points = sorted(points, key=lambda point: point[0])
    spread = [point[0] for point in points]
    total = lambda trace: sum(step.seconds for step in trace)  # noqa: E731
    times = [total(static) / total(continuous) for _, static, continuous in points]
    passes = [len(static) / len(continuous) for _, static, continuous in points]
    figure = Picture(figsize=(7, 3.4))
    axes = figure.subplots()
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.plot(
        spread, passes, "s--", color=ORANGE, markeredgecolor=INK, label="forward passes saved: static / continuous"
    )
    axes.plot(spread, times, "o-", color=BLUE, markeredgecolor=INK, label="time: static / continuous")
    axes.set_title(f"Nothing at equal lengths ({times[0]:.2f} ×), {times[-1]:.2f} × where they differ most")
    axes.set_xlabel("how much the output lengths differ: standard deviation / mean")
    axes.set_ylabel("static / continuous")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


@large
def latency_against_throughput(runs: Sequence[dict]) -> Picture:
    """Each server's waits against the tokens per second that it produced, at every rate (bench/serving.py)."""
    figure = Picture(figsize=(10, 4.6))
    engines = list(dict.fromkeys(run["engine"] for run in runs))
    looks = dict(zip(engines, zip((SKY, GREEN, BLUE, ORANGE), "s^oD", strict=True), strict=False))
    for ax, name, what in zip(figure.subplots(1, 2), ("ttft", "itl"), ("first token", "next token"), strict=True):
        ends = {}  # server -> the median wait at the highest load
        for engine, (color, marker) in looks.items():
            points = [run for run in runs if run["engine"] == engine]
            label = "vLLM" if engine == "vllm" else f"stage {engine}"
            ends[label] = points[-1][f"p50_{name}_ms"]
            for p, look in (("p50", {}), ("p99", {"linestyle": ":", "fillstyle": "none"})):
                x, y = [run["output_throughput"] for run in points], [run[f"{p}_{name}_ms"] for run in points]
                ax.plot(x, y, color=color, marker=marker, markersize=8, label=f"{label}, {p}", **look)
        best = min(ends, key=ends.__getitem__)
        peer = "vLLM" if "vLLM" in ends and best != "vLLM" else max(ends, key=ends.__getitem__)
        whose = best if best == "vLLM" else best.capitalize()
        told = f"{whose}'s {what} comes\n{times(ends[peer] / ends[best], 'sooner', 'later')} than {peer}'s"
        ax.set_title(f"{told} at the highest load")
        ax.set(xlabel="output tokens per second", ylabel="ms (filled: p50, open: p99)", yscale="log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.yaxis.set_minor_locator(NullLocator())
    handles, labels = figure.axes[0].get_legend_handles_labels()
    medians = [place for place, label in enumerate(labels) if label.endswith("p50")]
    names = [labels[place].removesuffix(", p50") for place in medians]
    figure.legend([handles[place] for place in medians], names, loc="outside lower center", ncols=len(names))
    return figure

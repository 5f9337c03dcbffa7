"""The preview image for links to the site: the ladder's race after two seconds.

python -m tools.card race.png
"""

import argparse
import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from bench.race import answered, race

RESULT = Path(__file__).parent.parent / "bench/results/ladder.json"
SIZE = 1200, 630  # pixels
INK, SOFT, DARK, LIT = "#1f2328", "#57606a", "#eaeef2", "#0969da"
LEFT, TOP, ROW, BAR, WIDTH = 320, 190, 50, 30, 680
ALT = "A row of lights for each engine. A light is on if that person has a first word after two seconds."


def draw(result: dict) -> Figure:
    """The picture of a result of `python -m bench.throughput`."""
    figure = Figure(figsize=(SIZE[0] / 100, SIZE[1] / 100), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, SIZE[0]), ylim=(SIZE[1], 0))
    axes.set_axis_off()
    total, cell = result["requests"], WIDTH / result["requests"]
    title = f"{total} people ask at once. Two seconds later:"
    axes.text(60, 85, title, fontsize=29, weight="bold", color=INK)
    axes.text(60, 135, "stagewise: LLM inference engines, each the one before plus one idea", fontsize=18, color=SOFT)
    for number, (name, first_tokens, _) in enumerate(race(result)):
        y, lit = TOP + number * ROW, answered(first_tokens)
        axes.text(60, y + BAR / 2, f"{number + 1}  {name}", fontsize=17, va="center", color=INK)
        colors = [to_rgba(LIT)] * lit + [to_rgba(DARK)] * (total - lit)
        axes.bar([LEFT + i * cell for i in range(total)], BAR, cell - 1.5, bottom=y, align="edge", color=colors)
        axes.text(LEFT + WIDTH + 20, y + BAR / 2, f"{lit} of {total}", fontsize=17, va="center", color=INK)
    return figure


def write(path: Path) -> None:
    figure = draw(json.loads(RESULT.read_text(encoding="utf-8")))
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    write(parser.parse_args().path)

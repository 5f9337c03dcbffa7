"""The preview image for links to the site: the race of the committed result, after two seconds."""

import json
import struct

from stagewise.stages import IDEAS
from tools import card


def test_it_shows_who_has_a_first_word_after_two_seconds(tmp_path):
    result = json.loads(card.RESULT.read_text(encoding="utf-8"))
    figure = card.draw(result)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert f"{result['requests']} people ask at once. Two seconds later:" in texts
    counts = [int(text.split()[0]) for text in texts if text.endswith(f" of {result['requests']}")]
    assert len(counts) == len(result["summary"])
    bars = figure.axes[0].patches
    lit = [sum(bar.get_facecolor() == card.to_rgba(card.LIT) for bar in row) for row in rows_of(bars, counts)]
    assert lit == counts
    assert counts[0] < counts[-1] == result["requests"]
    assert all(any(idea in text for text in texts) for idea in IDEAS.values())
    card.write(tmp_path / "race.png")
    assert struct.unpack(">II", (tmp_path / "race.png").read_bytes()[16:24]) == card.SIZE


def rows_of(bars, counts):
    size = len(bars) // len(counts)
    return [bars[i * size : (i + 1) * size] for i in range(len(counts))]


def test_a_row_says_what_the_runs_say():
    assert card.answered([0.1, 1.9, 2.0, 2.1]) == 3

"""The committed pages of replay: made again they show the same steps, and they are what the page is today."""

import json
import re

import pytest

from stagewise.replay.examples import EXAMPLES, FOLDER, main
from stagewise.replay.page import make_page
from stagewise.replay.trace import Trace, check_header, check_step

MOST_BYTES = 400_000


def embedded(name):
    """The traces in a committed page."""
    html = (FOLDER / f"{name}.html").read_text(encoding="utf-8")
    found = re.findall(r'<script type="application/json" class="trace">(.*?)</script>', html, re.DOTALL)
    return html, [json.loads(text) for text in found]


def timeless(steps):
    return [{name: value for name, value in s.items() if name not in ("start", "seconds", "parts")} for s in steps]


@pytest.mark.parametrize("name", EXAMPLES)
def test_made_anew_it_shows_the_same(name):
    html, traces = embedded(name)
    assert len(html.encode()) < MOST_BYTES
    for (header, *steps), run in zip(traces, EXAMPLES[name], strict=True):
        check_header(header)
        for number, step in enumerate(steps):
            check_step(step, number)
        again = run.trace()
        assert again.header == header
        assert timeless(again.steps) == timeless(steps)
    pages = [Trace(run.stage, header, steps) for (header, *steps), run in zip(traces, EXAMPLES[name], strict=True)]
    assert make_page(pages) == html, f"the page has changed: python -m stagewise.replay.examples {name}"


def test_what_each_is_for():
    """What its name says happens in it."""

    def kinds(name):
        return [
            {event["kind"] for step in steps for event in (*step["before"], *step["after"])}
            for _, *steps in embedded(name)[1]
        ]

    def count(name, field):
        return [sum(row[field] for step in steps for row in step["rows"]) for _, *steps in embedded(name)[1]]

    assert count("recomputation", "num_tokens") == [114, 15]
    assert count("padding", "num_padding") == [898, 1105]
    assert [len(steps) for _, *steps in embedded("static_and_continuous")[1]] == [76, 37]
    assert max(row["num_tokens"] for step in embedded("chunked_prefill")[1][0][1:] for row in step["rows"]) > 60
    assert max(row["num_tokens"] for step in embedded("chunked_prefill")[1][1][1:] for row in step["rows"]) <= 16
    at_once = [max(len(step["rows"]) for step in steps) for _, *steps in embedded("slots_and_blocks")[1]]
    assert at_once == [2, 8]
    hits = [
        e["num_cached_tokens"]
        for s in embedded("shared_prefix")[1][0][1:]
        for e in s["before"]
        if e["kind"] == "admitted"
    ]
    assert hits == [0, 64, 64, 64]
    assert kinds("completions")[0] >= {"forked", "copied"}
    assert kinds("preemption")[0] >= {"preempted", "refused", "evicted"}
    (names,) = (
        [[row["request_id"] for row in step["rows"]] for step in steps] for _, *steps in embedded("head_of_line")[1]
    )
    came = [next(i for i, running in enumerate(names) if name in running) for name in "01234"]
    assert came == [0, 24, 0, 0, 8]
    assert kinds("beams")[0] >= {"beams", "copied"}


def test_an_unknown_example(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"])
    assert "there is no example 'nothing'" in capsys.readouterr().err

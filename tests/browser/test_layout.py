"""Nothing overlaps and no line is cut on the examples, at six widths; test_live.py looks at the page of an engine."""

from pathlib import Path

import pytest

from tools.replay_examples import EXAMPLES

SIZES = [(390, 844), (768, 1024), (1024, 768), (1280, 800), (1440, 900), (1920, 1080)]
LAYOUT = Path(__file__).with_name("layout.js").read_text(encoding="utf-8").replace('"use strict";', "", 1)


def test_overlapping_boxes_and_cut_lines_are_found(browser, tmp_path):
    """The check itself."""
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><style>body { font: 16px/20px sans-serif; margin: 0 } p { margin: 0; height: 30px }</style>"
        "<p style='overflow: hidden'>first<br>second</p><p>under</p><p style='margin-top: -35px'>over</p>"
        "<div style='overflow: auto; height: 40px'>1<br>2<br>3</div>"
    )
    browser.open(path)
    assert browser(f"{LAYOUT} return faults()") == [["cut", "second", "P"], ["overlap", "over", "under"]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_is_too_small_to_read_on_a_phone(browser, page_of, name):
    """At each stop, all text in the document and on canvases has 10 pixels or more; and lanes have letters."""
    browser.size(390, 844, mobile=True)
    browser.open(page_of(name))
    written = browser(
        f"""{LAYOUT}
        const found = [];
        const {{ write }} = Ink.prototype;
        Ink.prototype.write = function (context, text, x, y, style) {{
          found.push([text, style.size, context.canvas.className]);
          write.call(this, context, text, x, y, style);
        }};
        for (let i = 0; i < page.story.stops.length; i++) {{
          page.story.go(i);
          for (const film of page.films) film.drawn = "";
          page.renderNow();
          for (const {{ node, text }} of boxesOf(document.body)) {{
            const shown = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
            found.push([text, parseFloat(getComputedStyle(shown).fontSize), ""]);
          }}
        }}
        Ink.prototype.write = write;
        return found"""
    )
    assert {text for text, _, canvas in written if canvas == "letters"} & {"A", "A1"}
    assert [(text, size) for text, size, _ in written if size < 10] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_layout_of_an_example(browser, page_of, name):
    """At each of its stops, with either clock, and with all tools shown."""
    found = {}
    browser.open(page_of(name))
    for width, height in SIZES:
        browser.size(width, height, mobile=width < 500)
        found[width] = browser(
            f"""{LAYOUT}
            page.measure();
            const found = [];
            for (const clock of page.replays.length > 1 ? ["steps", "time"] : ["steps"]) {{
              page.setClock(clock);
              for (let i = 0; i < page.story.stops.length; i++) {{
                page.story.go(i);
                page.renderNow();
                found.push(...faults().map((fault) => [`stop ${{i + 1}}`, ...fault]));
              }}
              found.push(...page.films.flatMap((film) => labelsOf(film).map((fault) => [clock, ...fault])));
            }}
            page.setClock("steps");
            const button = document.getElementById("help-button");
            button.click();
            found.push(...faults().map((fault) => ["help", ...fault]));
            button.click();
            return found"""
        )
    assert {width: faults for width, faults in found.items() if faults} == {}

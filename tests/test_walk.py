"""The walks through the stages' differences: every stop leads to code that is there, and that its stage changed."""

import re
import sys
from html import unescape

import pytest

from tests.adapter import ROOT

sys.path.insert(0, str(ROOT / "tools"))  # a tool finds its neighbors as when it is run
import walk
from stage_diff import python_functions
from sync_stages import read_stages

STAGES = list(read_stages())


@pytest.mark.parametrize("stage", STAGES[1:])
def test_every_stop_leads_to_a_change(stage):
    assert walk.problems(walk.read_walk(stage)) == []


def test_each_stage_but_the_first_has_a_walk():
    assert sorted((ROOT / "docs/site/walks").iterdir()) == [walk.walk_file(stage) for stage in STAGES[1:]]


@pytest.mark.parametrize("stage", STAGES[1:])
def test_stops_are_short(stage):
    """A few sentences and one idea; there is more in the chapter."""
    there = walk.read_walk(stage)
    for stop in there.stops:
        assert stop.title
        assert len(stop.title) <= 45
        assert len(stop.says.split()) <= 50, stop.title
        assert len(stop.text().splitlines()) <= 60, stop.title
    assert len({stop.title for stop in there.stops}) == len({stop.code for stop in there.stops}) == len(there.stops)


def made(code, count=6):
    stop = walk.Stop("stage03_kvcache", "stage02_static_batch", "A title", code, "It says something.")
    return walk.Walk("stage03_kvcache", "An introduction.", [stop] * count)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("kv_cash.py KVCache.update", "stage03_kvcache, stop 1: there is no file stage03_kvcache/kv_cash.py"),
        ("kv_cache.py KVCache.renew", "kv_cache.py has no function KVCache.renew"),
        ("sampler.py choose", "stage03_kvcache, stop 1: sampler.py choose is as in stage02_static_batch"),
        ("engine.py Engine.commit", "stage03_kvcache, stop 1: engine.py Engine.commit is as in stage02_static_batch"),
    ],
)
def test_a_stop_that_leads_nowhere_is_told(code, problem):
    assert problem in walk.problems(made(code))[0]


def test_a_walk_is_neither_short_nor_long():
    told = walk.problems(made("engine.py Engine.step", count=5))
    assert told == ["stage03_kvcache has 5 stops; a walk has 6 to 10"]
    assert len(walk.problems(made("engine.py Engine.step", count=11))) == 1


def test_new_lines_are_marked():
    stop = made("engine.py Engine.run").stops[0]
    new = [line for line, new in zip(stop.text().splitlines(), stop.changes()[0], strict=True) if new]
    assert [line.strip() for line in new] == [
        "cache = self.runner.new_cache(len(rows), self.cache_len(rows))",
        "updated = self.step(rows, cache)",
        "del cache  # before the next one is made",
    ]
    assert stop.changes()[1] == 1
    html = walk.code_html(stop)
    assert html.count('class="line new"') == 3
    assert unescape(re.sub(r"<[^>]*>", "", html)).rstrip("\n") == stop.text()
    assert "+3 −1" in walk.stop_html(stop, 1, 6, "engine.py")
    whole = made("kv_cache.py KVCache.update").stops[0]
    assert all(whole.changes()[0])
    assert "new</span></figcaption>" in walk.stop_html(whole, 1, 6, "kv_cache.py")


def test_a_class_is_code_too():
    stop = walk.Stop("stage04_continuous", "stage03_kvcache", "A title", "scheduler.py Row", "It says something.")
    assert stop.text().startswith("class Row(NamedTuple):")
    lines = (ROOT / "stage04_continuous/scheduler.py").read_text(encoding="utf-8").splitlines()
    assert lines[stop.line - 1] == "class Row(NamedTuple):"
    found = python_functions("@mark\nclass A:\n    @mark\n    def b(self): ...\n")
    assert found == {"A": (0, 4), "A.b": (2, 4), "b": (2, 4)}


def test_words():
    assert walk.words_html("`a < b` is *less* & <more>") == "<code>a &lt; b</code> is <em>less</em> &amp; &lt;more&gt;"

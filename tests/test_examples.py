"""The committed traces: running the examples again gives the same steps, and what the stories say happens in them."""

import functools
import json
import re
from html import escape

import pytest

from stagewise.replay.story import tomllib
from stagewise.trace_file import read_traces
from tests.adapter import ROOT
from tests.test_registry import NUMBERS
from tools.replay_examples import EXAMPLES, FOLDER, main, make

MOST_BYTES = 400_000


STORIES = tomllib.loads((FOLDER / "stories.toml").read_text(encoding="utf-8"))


@functools.cache
def example(name):
    """The page of an example, and the traces in it, as they are committed."""
    html = make(name)
    found = re.findall(r'<script type="application/json" class="trace">(.*?)</script>', html, re.DOTALL)
    return html, [json.loads(text) for text in found]


def timeless(steps):
    return [{name: value for name, value in s.items() if name not in ("start", "seconds", "parts")} for s in steps]


@pytest.mark.parametrize("name", EXAMPLES)
def test_run_again_it_shows_the_same(name):
    html, traces = example(name)
    assert len(html.encode()) < MOST_BYTES
    committed = read_traces(FOLDER / f"{name}.jsonl")
    assert [[trace.header, *trace.steps] for trace in committed] == traces
    for trace, run in zip(committed, EXAMPLES[name], strict=True):
        again = run.trace()
        assert again.header == trace.header
        assert timeless(again.steps) == timeless(trace.steps)


def test_each_has_a_trace_and_a_story():
    assert sorted(EXAMPLES) == sorted(STORIES) == sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def test_an_unknown_example(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"])
    assert "there is no example 'nothing'" in capsys.readouterr().err


# --- Their stories ----------------------------------------------------------------------------------------------------


def story_of(name):
    html, traces = example(name)
    (text,) = re.findall(r'<script type="application/json" class="story">(.*?)</script>', html, re.DOTALL)
    return json.loads(text), [[step for step in steps if step["rows"]] for _, *steps in traces], html


def letters(steps):
    """The requests by the letters that they have on the page."""
    events = [event for step in steps for event in step["before"] + step["after"]]
    queued = dict.fromkeys(event["request_id"] for event in events if event["kind"] == "queued")
    return {chr(ord("A") + i): request_id for i, request_id in enumerate(queued)}


def happens(step, kind, request_id):
    """Whether something happens to a request in a step, found without the code that made the story."""
    if kind == "carried":
        return any(row["request_id"] == request_id and not row["num_tokens"] for row in step["rows"])
    if kind in ("right", "wrong"):
        guessed = [row for row in step["rows"] if row["request_id"] == request_id and row.get("drafts")]
        new = [e["token_id"] for e in step["after"] if e["kind"] == "token" and e["request_id"] == request_id]
        return any((new[:-1] == row["drafts"]) == (kind == "right") for row in guessed)
    events = step["before"] + step["after"]
    return any(event["kind"] == kind and event.get("request_id") == request_id for event in events)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_a_stop_names_happens_there(name):
    (told, traces, html), story = story_of(name), STORIES[name]
    assert 4 <= len(told["stops"]) <= 6
    for stop, source in zip(told["stops"], story["stops"], strict=True):
        kind, who, *_ = source["at"]
        steps = traces[stop["trace"]]
        assert happens(steps[stop["step"]], kind, letters(steps)[who[0]]), f"{source['at']} at step {stop['step']}"
        assert who[0] in stop["says"] + stop["text"] or kind in ("admitted", "finished", "token")
    places = [stop["step"] for stop in told["stops"]]
    assert places == sorted(set(places)), "the stops come in the order of the run, each at a step of its own"
    pieces = {
        name: "[0-9,]+".join(map(re.escape, re.split("{.*?}", escape(story[name])))) for name in ("title", "message")
    }
    assert re.search(f"<title>stagewise: {pieces['title']}</title>", html)
    assert re.search(f'<h1 id="heading">{pieces["title"]}</h1>', html)
    assert re.search(pieces["message"], html)


# What else a stop says: (example, stop) -> (trace, event, requests), of its step; with "before", of an earlier one.
ALSO = {
    ("padding", 1): [(0, "admitted", "ECB"), (1, "admitted", "ABC")],
    ("padding", 4): [(0, "admitted", "AFD"), (1, "admitted", "DEF")],
    ("static_and_continuous", 1): [(0, "admitted", "ABC"), (1, "admitted", "ABC")],
    ("static_and_continuous", 2): [(0, "finished", "A"), (1, "finished", "A")],
    ("static_and_continuous", 3): [(0, "carried", "A"), (1, "admitted", "D")],
    ("static_and_continuous", 4): [(0, "before finished", "B"), (0, "carried", "AB")],
    ("static_and_continuous", 5): [(0, "admitted", "DEF"), (1, "finished", "F")],
    ("head_of_line", 1): [(0, "admitted", "A")],
    ("head_of_line", 4): [(0, "before finished", "B"), (0, "admitted", "CDE")],
    ("chunked_prefill", 2): [(0, "finished", "A"), (1, "finished", "A")],
    ("chunked_prefill", 3): [(0, "admitted", "D"), (1, "admitted", "D")],
    ("slots_and_blocks", 1): [(0, "admitted", "AB"), (1, "admitted", "ABCDEFGH")],
    ("slots_and_blocks", 3): [(0, "before finished", "A")],
    ("shared_prefix", 1): [(0, "admitted", "AB")],
    ("preemption", 1): [(0, "admitted", "ABCDE")],
    ("preemption", 5): [(0, "before finished", "AB"), (0, "admitted", "CDE")],
}


@pytest.mark.parametrize(("name", "number"), ALSO)
def test_what_a_stop_says_of_others_is_so(name, number):
    told, traces, _ = story_of(name)
    for trace, what, who in ALSO[name, number]:
        steps, at = traces[trace], told["stops"][number - 1]["step"]
        some = steps[:at] if what.startswith("before ") else steps[at : at + 1]
        for letter in who:
            assert any(happens(step, what.split()[-1], letters(steps)[letter]) for step in some), f"{letter}: {what}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_number_of_a_story_is_typed(name):
    """The source has no digits except in names of stages and completions; in the page, all braces are filled."""
    story, (told, _, _) = STORIES[name], story_of(name)
    assert "→" not in story["title"], "a title says the result in words"
    for text in [story["title"], story["message"], story["verdict"], *(stop["text"] for stop in story["stops"])]:
        plain = re.sub(r"{[^}]*}|[Ss]tage \d|\b[A-H]\d\b", "", text)
        assert not re.search(r"\d", plain), plain
    assert not re.search(r"[{}]", told["verdict"] + "".join(stop["text"] for stop in told["stops"]))


def test_verdicts_are_what_the_traces_say():
    """Counted here from the rows and events, and not as stagewise/replay/story.py does."""

    def words(name):
        return re.findall(r"\d+", story_of(name)[0]["verdict"])

    def rows(name):
        return [[row for step in steps for row in step["rows"]] for steps in story_of(name)[1]]

    def events(name, kind):
        return [e for steps in story_of(name)[1] for s in steps for e in s["before"] + s["after"] if e["kind"] == kind]

    output = [sum(run.lengths) for run in (EXAMPLES[name][0] for name in ("recomputation", "static_and_continuous"))]
    computed = [sum(row["num_tokens"] for row in some) for some in rows("recomputation")]
    assert words("recomputation") == [str(n) for n in (*computed, output[0])]
    idle = [sum(row["num_padding"] for row in some) for some in rows("padding")]
    assert words("padding")[:2] == [str(n) for n in idle]
    carried = sum(not row["num_tokens"] for row in rows("static_and_continuous")[0])
    steps = [len(steps) for steps in story_of("static_and_continuous")[1]]
    assert words("static_and_continuous") == [str(n) for n in (*steps, output[1], 3, carried, 4, 0)]
    title = re.search(r"<h1 id=\"heading\">(.*)</h1>", story_of("static_and_continuous")[2])[1]
    assert title.endswith(f": {steps[1]} steps instead of {steps[0]}")
    runs = story_of("chunked_prefill")[1]
    largest = [max(sum(row["num_tokens"] for row in step["rows"]) for step in steps[1:]) for steps in runs]
    assert words("chunked_prefill")[:2] == [str(n) for n in largest]
    hits = sum(event["num_cached_tokens"] for event in events("shared_prefix", "admitted"))
    assert words("shared_prefix")[0] == str(hits)
    found = [event["num_cached_tokens"] for event in events("completions", "admitted")]
    assert found == [0, 64, 64, 64]
    computed, completions, cached, held = map(int, words("completions"))
    assert (completions, cached) == (len(found), sum(found))
    (passes,) = rows("completions")
    assert computed == sum(row["num_tokens"] for row in passes)
    (steps,) = story_of("completions")[1]
    assert held == max(len({block for row in step["rows"] for block in row["blocks"]}) for step in steps)
    assert words("preemption")[:2] == [str(len(events("preemption", kind))) for kind in ("finished", "preempted")]


def test_who_waits_for_memory_waits_by_arithmetic():
    """Blocks taken and free add up to the pool, B needs more than are free, and those after it would have fit."""
    (told, ((*steps,),), _), story = story_of("head_of_line"), example("head_of_line")[1][0]
    (event,) = (event for event in steps[0]["before"] if event["kind"] == "refused")
    taken, blocks, free, needed, prompt, more, than = map(int, re.findall(r"\d+", told["stops"][0]["text"]))
    assert taken + free == blocks == story[0]["num_blocks"]
    assert (needed, free) == (more, than) == (event["needed"], event["free"])
    assert more > than
    assert prompt == len(
        next(e for e in steps[0]["before"] if e["kind"] == "queued" and e["request_id"] == "1")["prompt_token_ids"]
    )
    chapter = " ".join((ROOT / "stage05_paged/README.md").read_text(encoding="utf-8").split())
    assert (
        f"so it needs {NUMBERS[needed]} more, and at most {NUMBERS[free]} are free. C, D and E need one each" in chapter
    )
    together = {block for row in steps[28]["rows"] for block in row["blocks"]}
    alone = [story[0]["num_blocks"] - len(step["rows"][0]["blocks"]) for step in steps[:24]]
    assert len(together) <= min(alone)  # C, D and E next to A, at any time


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_story_leads_on(name):
    """To its chapter, the next story, all of them and the project."""
    links = re.findall(r"<a href=.([\w./]*). target=._top.>", example(name)[0])
    sources = [link.replace(".html", ".md" if "/" in link else ".jsonl") for link in links]
    assert all((FOLDER / source).exists() for source in sources), links
    assert len(set(links) - {f"{name}.html"}) == 4

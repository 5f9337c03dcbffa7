"""The replay of a trace: what its reader accepts and refuses, the states during the steps, the page's file, and the
command line. What the page shows is tested in tests/browser (`make test-browser`)."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from stagewise.replay import page
from stagewise.replay.cli import main, webbrowser
from stagewise.replay.state import states
from stagewise.trace_file import Trace, read_traces
from tests import made_traces
from tests.adapter import ROOT, refusal


@pytest.fixture(params=made_traces.RUNS)
def trace(request):
    return Trace(request.param, *made_traces.run_of(*made_traces.RUNS[request.param]))


# --- The reader -----------------------------------------------------------------------------------------------------


def write_lines(path, *records):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def check_refusal(path, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_traces(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


HEADER, (FIRST, *_) = made_traces.run_of("preemption")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "is empty"),
        (["Once upon a time"], "line 1: not JSON: Expecting value at column 1"),
        (["[1, 2]"], "line 1: not a trace"),
        ([{"prompt": "Once"}], "line 1: not a trace"),
        ([{"step": 0, "start": 1.0, "seconds": 0.1, "rows": []}], "line 1: a version 1 trace, which has no header: r"),
        ([HEADER], "a header and no steps"),
        ([HEADER, FIRST, "{]"], "line 3: not JSON: Expecting property name enclosed"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path, records, message):
    check_refusal(write_lines(tmp_path / "trace.jsonl", *records), message)


@pytest.mark.parametrize(
    ("where", "changes", "message"),
    [
        ("header", dict(trace=3), "line 1: a trace of version 3, but this program reads 4"),
        ("header", dict(stage="stage09_dreams"), "line 1: unknown stage 'stage09_dreams'"),
        ("header", dict(model=...), "line 1: the header lacks 'model'"),
        ("header", dict(num_blocks=3 * 10**9), "line 1: the header: num_blocks can't be 3000000000, over 10,000,000"),
        ("header", dict(num_slots=10**7 + 1), "line 1: the header: num_slots can't be 10000001, over 10,000,000"),
        ("header", dict(free=[[1]], num_findable=0), "line 1: the header: free is a list of blocks' numbers"),
        ("header", dict(num_blocks=2), "line 2: block 2 is taken, and is not a free block"),
        ("header", dict(free=[0, 1], num_findable=0), "line 2: block 2 is taken, and is not a free block"),
        ("step", dict(rows=...), "line 2: the step lacks 'rows'"),
        ("step", dict(mood="good"), "line 2: the step has an unknown field, 'mood'"),
        ("step", dict(step=4), "line 2: step 4 where step 0 is expected"),
        ("step", dict(parts={"dream": 1.0}), "line 2: unknown part 'dream'"),
        ("step", dict(rows=["A"]), "line 2: a row is not a JSON object"),
        ("row", dict(num_tokens="3"), 'line 2: a row: num_tokens can\'t be "3"'),
        ("row", dict(num_tokens=True), "line 2: a row: num_tokens can't be true"),
        ("row", dict(phase="sleep"), "line 2: unknown phase 'sleep'"),
        ("event", dict(kind="vanished"), "line 2: unknown event 'vanished'"),
        ("event", dict(kind=[]), "line 2: unknown event []"),
        ("event", dict(place=...), "line 2: the event 'queued' lacks 'place'"),
        ("event", dict(kind="released", block=0, cached=True), "line 2: the event 'released' has an unknown field"),
        ("event", dict(color="red"), "line 2: the event 'queued' has an unknown field, 'color'"),
    ],
)
def test_what_is_wrong_in_a_trace_is_named(tmp_path, where, changes, message):
    header, steps = made_traces.run_of("preemption")
    step = steps[0]
    record = {"header": header, "step": step, "row": step["rows"][0], "event": step["before"][0]}[where]
    for name, value in changes.items():
        if value is ...:
            del record[name]
        else:
            record[name] = value
    check_refusal(made_traces.write(tmp_path / "trace.jsonl", header, steps), message)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_number_that_is_not_finite(tmp_path, number):
    step = json.dumps({**FIRST, "start": 1.0}).replace('"start": 1.0', f'"start": {number}')
    check_refusal(write_lines(tmp_path / "trace.jsonl", HEADER, step), f"line 2: {number} is not finite")


def test_a_torn_last_line_is_left_out(tmp_path):
    path = made_traces.write(tmp_path / "trace.jsonl", *made_traces.run_of("preemption"))
    whole = read_traces(path)[0]
    assert not whole.torn
    path.write_bytes(path.read_bytes()[:-20])
    torn = read_traces(path)[0]
    assert torn.torn
    assert torn.steps == whole.steps[:-1]
    path.write_bytes(path.read_bytes().split(b"\n")[0])  # its header alone, and no end of the line
    with pytest.raises(ValueError, match="no steps"):
        read_traces(path)


def test_two_runs_in_one_file(tmp_path):
    """Each has its header; the second one's steps, requests and blocks count from the beginning again."""
    runs = [made_traces.run_of("preemption"), made_traces.run_of("recomputation")]
    lines = [line for header, steps in runs for line in (header, *steps)]
    path = write_lines(tmp_path / "two.jsonl", *lines)
    assert [(trace.header, trace.steps) for trace in read_traces(path)] == runs
    write_lines(path, *lines, runs[0][0])
    with pytest.raises(ValueError, match="a header and no steps"):
        read_traces(path)


# --- States ---------------------------------------------------------------------------------------------------------


def drafts_of(row):
    return row.get("drafts", [])


def accepted_of(row):
    return drafts_of(row)[: row.get("num_accepted", 0)]


def test_states_agree_with_the_trace(trace):
    """The states follow from the events, whereas the numbers in the steps were counted by the engine."""
    for state, step in zip(states(trace), trace.steps, strict=True):
        seen = made_traces.snapshot(state)
        assert not set(seen["waiting"]) & set(seen["running"])
        assert {f"{row['request_id']}/{row['index']}" for row in step["rows"]} <= set(seen["running"])
        if "num_blocks" in trace.header:
            held = {block for table in seen["tables"].values() for block in table}
            assert sorted([*held, *seen["free"]]) == list(range(trace.header["num_blocks"]))
            assert set(seen["findable"]) <= set(seen["free"])
            tables = [block for table in seen["tables"].values() for block in table]
            assert step["num_blocks_saved"] == len(tables) - len(held)
            size = trace.header["options"]["block_size"]
            accepted = {f"{row['request_id']}/{row['index']}": accepted_of(row) for row in step["rows"]}
            for key in seen["running"]:  # what a table leads to is the sequence, as far as it is computed
                found = [token for block in seen["tables"][key] for token in seen["contents"][str(block)]]
                sequence = seen["tokens"][key] + accepted.get(key, [])  # no token of a refused guess
                assert found == sequence[: seen["num_computed"][key]]
                assert all(len(seen["contents"][str(block)]) <= size for block in seen["tables"][key])
        tokens = [event for event in step["after"] if event["kind"] == "token"]
        for row in filter(drafts_of, step["rows"]):
            new = [event["token_id"] for event in tokens if event["request_id"] == row["request_id"]]
            assert new[:-1] == accepted_of(row)
    counts = state.counts
    assert counts["output"] == sum(len(completion.output) for completion in state.completions.values())
    assert {completion.status for completion in state.completions.values()} == {"finished"}
    rows = [row for step in trace.steps for row in step["rows"]]
    guessed, right = (sum(len(of(row)) for row in rows) for of in (drafts_of, accepted_of))
    assert counts["refused"] == guessed - right
    assert counts["useful"] + counts["recomputed"] == sum(row["num_tokens"] for row in rows) + right
    assert counts["padding"] + counts["carried"] == sum(row["num_padding"] for row in rows)


def test_what_was_lost_is_computed_again():
    """By every step of stage 1, by a preemption, and by a step that failed, after which all requests wait again."""
    header, steps = made_traces.run_of("recomputation")
    *_, last = states(Trace("recomputation", header, steps))
    rows = [row["num_tokens"] for step in steps for row in step["rows"]]
    assert (last.counts["recomputed"], last.counts["useful"]) == (sum(rows) - max(rows), max(rows))
    *_, last = states(Trace("preemption", *made_traces.run_of("preemption")))
    assert last.counts["preemptions"] >= 1
    assert last.counts["recomputed"] > 0
    header, (first, *_) = made_traces.run_of("speculation")
    (queued, *memory), (row,), (token,) = (first[name] for name in ("before", "rows", "after"))
    queued = {**queued, "output_token_ids": [token["token_id"]]}
    row = {**row, "num_tokens": row["num_tokens"] + 1}
    again = {**first, "step": 1, "before": [{"kind": "restarted"}, queued, *memory], "rows": [row]}
    *_, last = states(Trace("restarted", header, [first, again]))
    assert (last.counts["recomputed"], last.counts["useful"]) == (row["num_tokens"] - 1, row["num_tokens"])


def test_beams_replace_each_other():
    header, steps = made_traces.run_of("beams")
    prompt, beams = steps[0]["before"][0]["prompt_token_ids"], [[]]
    for state, step in zip(states(Trace("beams", header, steps)), steps, strict=True):
        shown = [completion.tokens for _, completion in sorted(state.completions.items())]
        assert shown == [[*prompt, *beam] for beam in beams]
        for event in step["after"]:
            if event["kind"] == "beams" and event["parents"]:
                beams = [[*beams[p], t] for p, t in zip(event["parents"], event["token_ids"], strict=True)]
    assert len(beams) == 3
    assert {completion.finish_reason for completion in state.completions.values()} == {"beams"}


# --- The page's file --------------------------------------------------------------------------------------------------


def test_page_is_one_file_with_the_trace_in_it(tmp_path):
    path = made_traces.write(tmp_path / "trace.jsonl", *made_traces.hostile(*made_traces.run_of("preemption")))
    trace = read_traces(path)[0]
    html = page.make_page([trace, trace])
    assert html.isascii() or html.encode("utf-8")  # no lone surrogates
    found = re.findall(r'<script type="application/json" class="trace">(.*?)</script>', html)
    assert [json.loads(text) for text in found] == 2 * [[trace.header, *trace.steps]]
    assert all("<" not in text and text.isascii() for text in found)
    rest = re.sub(r'<script type="application/json".*?</script>', "", html)
    assert not re.search(r'(src|href)="(?!data:)|url\(|@import|https?://', rest)
    assert len(rest) < 164_000


# --- Colors ----------------------------------------------------------------------------------------------------------

# How color-blind eyes see linear RGB: Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency", severity 1.0 of protanomaly, deuteranomaly, tritanomaly.
EYES = {
    "all cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # of linear sRGB


def linear(color):
    """#rrggbb as linear RGB."""
    parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear RGB, white as in sRGB."""
    f = np.cbrt(np.maximum(XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(axis=1), 0.008856))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one, other):
    """By WCAG 2."""
    dark, light = sorted(XYZ[1] @ linear(color) for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


def colors(pattern):
    css = (page.PARTS / "page.css").read_text(encoding="utf-8")
    return re.findall(rf"--{pattern}: (#[0-9a-f]{{6}});", css)


@pytest.mark.parametrize("eyes", EYES)
def test_requests_are_told_apart_by_color_blind_eyes(eyes):
    """The colors of two requests differ by at least 20 in CIELAB (about 2 can be seen), and from each gray of what is
    counted; the letters on them can be read."""
    own, grays = colors(r"c\d"), colors("(?:waste|waste-line|kept|again|again-line|work|card|paper)")
    assert len(own) == 8
    seen = [lab(np.array(EYES[eyes]) @ linear(color)) for color in own]
    for (i, one), (j, other) in itertools.combinations(enumerate(seen), 2):
        assert np.linalg.norm(one - other) > 20, f"{own[i]} and {own[j]}"
    if eyes == "all cones":
        for color, gray in itertools.product(own, grays):
            assert np.linalg.norm(lab(linear(color)) - lab(linear(gray))) > 20, f"{color} and {gray}"
    (ink,) = colors("on-own")
    for color in own:
        assert contrast(color, ink) > 4.5


def test_requests_are_told_from_the_page():
    """In the dark by their colors, on white by the edge around them: graphics need a contrast of 3:1."""
    own, (edge,) = colors(r"c\d"), colors("edge")
    for day, night in (colors("card"), colors("paper")):
        assert contrast(edge, day) >= 3
        assert min(contrast(color, night) for color in own) >= 3


# --- The command line -----------------------------------------------------------------------------------------------


def test_command_line(tmp_path, capsys):
    one, html = tmp_path / "one.jsonl", tmp_path / "run.html"
    made_traces.write(one, *made_traces.run_of("recomputation"))
    for _ in range(2):  # what it made it may replace
        assert main([str(one), "-o", str(html)]) == 0
    assert html.read_bytes().startswith(page.BEGIN)
    assert main([str(one), str(one), "-o", str(html)]) == 0
    assert capsys.readouterr() == ("", "")
    one.write_bytes(one.read_bytes()[:-9])
    assert main([str(one), "-o", str(html)]) == 0
    assert "the last line is incomplete and left out" in capsys.readouterr().err


def test_a_page_with_its_story_is_opened(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    trace = ROOT / "docs/examples/traces/padding.jsonl"
    assert main([str(trace), "--open"]) == 0
    (address,) = opened
    made = Path(address.removeprefix("file://"))
    assert f"the page is {made}" in capsys.readouterr().err
    html = made.read_text(encoding="utf-8")
    assert html.count('class="trace"') == 2
    assert "Sorting by length saves padding: 898 places are computed for nothing instead of 1,105" in html
    (tmp_path / "stories.toml").write_text("[other]")
    made_traces.write(tmp_path / "one.jsonl", *made_traces.run_of("recomputation"))
    assert main([str(tmp_path / "one.jsonl"), "-o", str(tmp_path / "run.html")]) == 0
    for text, words in (("[one]", "the story one has no 'stops'"), ("[one", "stories.toml: ")):
        (tmp_path / "stories.toml").write_text(text)
        assert words in refusal(main, tmp_path / "one.jsonl", "-o", tmp_path / "run.html")


def test_command_line_refuses(tmp_path):
    one, html, own = tmp_path / "one.jsonl", tmp_path / "run.html", tmp_path / "own.html"
    made_traces.write(one, *made_traces.run_of("recomputation"))
    own.write_text("<!doctype html>\n<title>mine</title>")
    for arguments, says in (
        ([one], "say where the page goes"),
        ([one, one, one, "-o", html], "at most 2 runs"),
        ([one, "-o", own], "was not made by replay"),
        ([one, "-o", one], "is already used in this command"),
        ([one, "-o", tmp_path], "not a regular file"),
        ([tmp_path / "none.jsonl"], "No such file"),  # that comes first
        ([one, "-o", html, "--perfetto", "x"], "unrecognized arguments"),
        ([], "the following arguments are required"),
    ):
        assert says in refusal(main, *arguments)
    assert own.read_text().endswith("<title>mine</title>")
    assert not html.exists()

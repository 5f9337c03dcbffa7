"""Replays as stories: the stops of an example, its links, its end, and what is in sight; and that the widgets are to
scale. The page is made here, of the committed traces."""

import json
import re
import time

import pytest
from selenium.webdriver.common.keys import Keys

from stagewise.replay.page import make_page
from stagewise.trace_file import Trace
from tests import made_traces
from tests.browser.test_page import AXE, position
from tests.test_examples import example
from tests.test_replay import contrast
from tools.replay_examples import EXAMPLES, FOLDER

TWO = [name for name, runs in EXAMPLES.items() if len(runs) == 2]
SIZES = {"laptop": (1440, 900), "small": (1024, 768), "frame": (736, 736)}  # frame: as a chapter shows it


def told(browser):
    return browser("page.renderNow(); return document.getElementById('told').textContent")


def stops(browser):
    return browser("return page.story.stops.map(({ says, text, step, trace }) => [says, text, step, trace])")


def click(browser, selector):
    browser("document.querySelector(arguments[0]).click(); page.renderNow()", selector)


def box(browser, selector, number=0):
    return browser(
        "const b = document.querySelectorAll(arguments[0])[arguments[1]].getBoundingClientRect();"
        "return { top: b.top, bottom: b.bottom, left: b.left, right: b.right, middle: (b.left + b.right) / 2 }",
        selector,
        number,
    )


# --- Stops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_story_from_stop_to_stop_and_back(browser, page_of, name):
    browser.open(page_of(name))
    there = stops(browser)
    for says, text, step, trace in there:
        assert f"{says}. {text}" in told(browser)
        if (says, text) != tuple(there[-1][:2]):
            assert browser("return page.views[arguments[0]].number", trace) == step
            click(browser, "#story-next")
    assert position(browser) == browser("return page.clock.end")
    assert browser("return document.getElementById('story-next').disabled")
    assert browser("return document.querySelector('.stop[aria-current]').textContent") == "✓"
    for says, text, *_ in reversed(there[:-1]):
        click(browser, "#story-back")
        assert f"{says}. {text}" in told(browser)
    assert browser("return document.getElementById('story-back').disabled")
    assert browser("return document.title").endswith(browser("return document.querySelector('h1').textContent"))


def test_between_two_stops_the_last_one_stays_and_back_returns_to_it(browser, page_of):
    browser.open(page_of("preemption"))
    there = stops(browser)
    browser.go_to(there[1][2] + 3)
    assert there[1][1] in told(browser)
    assert not browser("return document.querySelector('.stop[aria-current]')")
    click(browser, "#story-back")
    assert position(browser) == there[1][2]
    browser.press(".")
    assert position(browser) == there[2][2]
    browser.press(",")
    assert position(browser) == there[1][2]


@pytest.mark.parametrize("name", ["preemption", "static_and_continuous"])
def test_links_keep_the_stop(browser, page_of, name):
    browser.open(page_of(name), "#stop=3")
    there = stops(browser)
    assert there[2][1] in told(browser)
    time.sleep(0.5)
    link = browser("return location.hash")
    assert "stop=3" in link
    browser.press(Keys.ARROW_RIGHT)
    time.sleep(0.5)
    assert "stop" not in browser("return location.hash")
    browser.open(page_of(name), link)
    assert there[2][1] in told(browser)
    for strange in ("#stop=99", "#stop=x", "#stop=0"):
        browser.open(page_of(name), strange)
        assert told(browser)


def test_play_stays_at_a_stop_and_goes_on(browser, page_of):
    browser.open(page_of("recomputation"))
    browser(
        "Object.defineProperty(page.story, 'dwell', { get: () => (page.story.here ? 2000 : 0) }); page.speed.value = 10"
    )
    second = stops(browser)[1][2]
    browser("document.activeElement.blur()")
    browser.press(Keys.SPACE)
    deadline = time.monotonic() + 90
    while position(browser) < second:
        assert time.monotonic() < deadline
    time.sleep(0.3)
    assert position(browser) == second
    while not browser("return page.position >= page.clock.end"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not browser("return Boolean(page.playing)")
    assert browser("page.renderNow(); return page.story.at") == len(stops(browser)) - 1


def test_questions_are_offered_and_play_goes_on_behind_them(browser, page_of):
    browser.open(page_of("preemption"))
    assert not browser("return page.predict.checked")
    browser("page.predict.click(); page.speed.value = 100; document.activeElement.blur()")
    browser("Object.defineProperty(page.story, 'dwell', { get: () => 0 })")
    browser(
        "page.wait = (milliseconds, act) => { clearTimeout(page.timer);"
        "page.timer = setTimeout(act, milliseconds / 20); }"
    )  # less patient
    browser("page.play()")
    deadline, answered = time.monotonic() + 60, 0
    while not browser("return page.position >= page.clock.end"):
        assert time.monotonic() < deadline
        if not answered and browser("return page.asked !== null"):
            click(browser, ".choice")  # the others are left to themselves
            answered = 1
        time.sleep(0.05)
    assert answered
    assert browser("return page.questions.size") == 0


def test_next_asks_first_too(browser, page_of):
    """The page goes up to the next event on the way to the next stop, and asks what will happen."""
    browser.open(page_of("preemption"))
    where = stops(browser)[1][2]
    browser("page.predict.click()")
    browser.press(".")
    asked = []
    while position(browser) < where:
        assert browser("return page.asked !== null"), "the page went past a question"
        asked.append(browser("return document.getElementById('question-text').textContent"))
        cover = box(browser, ".cover")  # the picture of the run doesn't give the answer away
        assert cover["left"] == pytest.approx(box(browser, ".cursor")["middle"], abs=2)
        assert cover["right"] == box(browser, ".film")["right"]
        click(browser, ".choice")
        assert browser("return document.getElementById('verdict').textContent")
        click(browser, "#go-on")
        browser.press(".")
    assert asked
    browser("page.predict.click(); page.story.go(0); page.renderNow()")
    assert box(browser, ".cover")["right"] == 0
    browser.press(".")
    assert position(browser) == where  # who does not want to be asked is not


def test_a_stop_does_not_answer_the_question_about_the_next_step(browser, page_of):
    """Its text is hidden until then, and the question says which of the two engines it is about."""
    browser.open(page_of("static_and_continuous"))
    (_, _, step, _), *_ = (there := stops(browser))[1:]
    text = there[1][1]
    browser("page.predict.click()")
    browser.press(".")
    assert browser("return page.asked.step") == step + 1  # at the stop, and not at the next press
    question = browser("return document.getElementById('question-text').textContent")
    assert question.startswith("Stage 3: A is finished.")
    assert (position(browser), text in told(browser)) == (step, False)
    click(browser, ".choice")
    click(browser, "#go-on")
    click(browser, "#story-back")
    assert (position(browser), text in told(browser)) == (step, True)
    browser.open(page_of("static_and_continuous"))
    browser("page.predict.click(); page.story.go(1)")  # without a question: not asked yet
    assert text not in told(browser)
    browser("page.predict.click()")
    assert text in told(browser)
    browser.open(page_of("padding"))
    browser("page.predict.click()")
    browser.press(".")
    question = browser("return document.getElementById('question-text').textContent")
    assert question.startswith("Sorted: B is finished.")
    browser.open(page_of("head_of_line"))  # the first step says that B waits, so the second is no question
    assert "refused" not in browser("return [...page.questions.values()].map(({ kind }) => kind)")


@pytest.mark.parametrize(("name", "words"), [("shared_prefix", "computed again"), ("beams", "computed for nothing")])
def test_legends_list_only_what_occurs(browser, page_of, name, words):
    entries = "[...document.querySelectorAll('.rows-legend > :not([hidden])')]"
    shown = f"page.renderNow(); return {entries}.map((entry) => entry.innerText)"
    browser.open(page_of(name))
    assert words not in browser(shown)
    browser.open(page_of("padding" if "nothing" in words else "preemption"))
    assert words in browser(shown)


def pixels(browser, right_of_cursor=10):
    """The pixels drawn in the first film above its lanes, to the right of the playhead and its badge."""
    return browser(
        """const [{ canvas, letters, top }] = page.films, scale = devicePixelRatio;
        const x = Math.round((page.films[0].x(page.clock.cursor(page.position)) + arguments[0]) * scale);
        const [width, height] = [canvas.width - x, Math.floor((top - 2) * scale)];
        const copy = Object.assign(document.createElement("canvas"), { width, height });
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(canvas, -x, 0);
        context.drawImage(letters, -x, 0);
        return context.getImageData(0, 0, width, height).data.some((value) => value);""",
        right_of_cursor,
    )


def test_the_picture_shows_nothing_to_come_while_asking(browser, page_of):
    browser.open(page_of("static_and_continuous"))
    browser("page.renderNow()")
    assert pixels(browser)
    browser("page.predict.click(); page.renderNow()")
    assert not pixels(browser), "badges of later stops, or the end"
    assert box(browser, ".cover")["top"] <= box(browser, ".film")["top"] + browser("return page.films[0].top") - 2
    seen = "page.renderNow(); return page.films.every(({ seen, marks }) => seen.length === marks.length)"
    assert not browser(seen)
    assert browser(f"page.turnTo(page.clock.end); {seen}")
    assert browser(f"page.turnTo(0); page.predict.click(); {seen}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_story_leads_on(browser, page_of, name):
    browser.open(page_of(name))
    links = browser("return [...document.querySelectorAll('footer a')].map((link) => link.getAttribute('href'))")
    sources = [link.replace(".html", ".jsonl" if "/" not in link else ".md") for link in links]
    assert all((FOLDER / source).exists() for source in sources), links
    assert len(links) == 4
    assert links[1] != f"{name}.html"
    assert "README.html" in links[3]


def test_forks_and_deaths_of_beams_are_drawn(browser, page_of):
    browser.open(page_of("beams"))
    curves, lines = browser(
        "let curves = 0, lines = 0;"
        "const own = CanvasRenderingContext2D.prototype; const { bezierCurveTo, lineTo } = own;"
        "own.bezierCurveTo = function (...a) { curves++; bezierCurveTo.apply(this, a) };"
        "const [film] = page.films; const queue = film.drawQueue; film.drawQueue = () => {};"
        "own.lineTo = function (...a) { lines++; lineTo.apply(this, a) };"
        "film.drawn = ''; page.renderNow(); Object.assign(own, { bezierCurveTo, lineTo }); film.drawQueue = queue;"
        "return [curves, lines]"
    )
    (_, *steps) = example("beams")[1][0]
    beams = [e["parents"] for step in steps for e in step["after"] if e["kind"] == "beams" and e["parents"]]
    assert curves == sum(parent != i for parents in beams for i, parent in enumerate(parents))
    died = sum(i not in parents for parents in beams[1:] for i in range(len(parents)))  # at first there is one
    assert lines == 2 * died
    assert not browser("return document.getElementById('legend-beams').hidden")


def test_a_lane_says_how_many_tokens_a_step_gave(browser, page_of):
    browser.open(page_of("speculation"))
    assert browser("return page.replays[0].gains") == []
    (_, *steps) = example("speculation")[1][1]
    new = [sum(event["kind"] == "token" for event in step["after"]) for step in steps]
    gains = browser("return page.replays[1].gains.map(({ step, tokens }) => [step, tokens])")
    assert gains == [[i, number] for i, number in enumerate(new) if number > 1]
    assert "tokens of one step" in browser("return document.querySelector('.film-legend').innerText")


# --- The end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_end_is_an_end(browser, page_of, name):
    browser.open(page_of(name))
    browser.press(Keys.END)
    panels = browser.shown()
    for number, (_, *steps) in enumerate(example(name)[1]):
        ids = {e["request_id"] for step in steps for e in step["before"] if e["kind"] == "queued"}
        shown = panels[number]
        assert re.match(
            f"(All {len(ids)} requests are|The request is) finished, and the engine is at rest", shown["summary"]
        )
        assert shown["rows"] == shown["waiting"] == []
        assert shown["tables"] == {}
        assert not shown["memory"] or re.match(r"0 of \d+ blocks held|all slots are free|no batch", shown["memory"])
    done, all_of_them = map(int, re.findall(r"\d+", browser("return document.querySelector('.done-note').textContent")))
    assert done == all_of_them
    assert browser("return document.getElementById('where').textContent").startswith("End: ")
    assert stops(browser)[-1][1] in told(browser)


def test_which_has_ended_says_so_and_when(browser, page_of):
    browser.open(page_of("static_and_continuous"))
    lengths = [sum(bool(step["rows"]) for step in steps) for _, *steps in example("static_and_continuous")[1]]
    chips = "page.renderNow(); return [...document.querySelectorAll('.ended')].map((node) => node.textContent)"
    browser.go_to(lengths[1])
    assert browser(chips) == ["", ""]
    browser.go_to(lengths[1] + 5)
    assert browser(chips) == ["", f"ended after {lengths[1]} steps, 5 steps ago"]
    browser("page.setClock('time'); page.turnTo(page.clock.end)")
    assert browser(chips)[1].startswith(f"ended after {lengths[1]} steps, ")


def test_an_old_trace_still_loads_and_ends_at_its_last_step(browser, make_page):
    header, steps = made_traces.paged()  # without a record of the engine at rest
    page, _ = make_page("old", (header, steps))
    browser.open(page)
    browser.press(Keys.END)
    assert position(browser) == len(steps) - 1
    assert browser("return document.getElementById('where').textContent") == f"Step {len(steps)} of {len(steps)}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_steps_count_from_1_to_the_number_in_the_end(browser, page_of, name):
    browser.open(page_of(name))
    where = "page.renderNow(); return document.getElementById('where').textContent"
    most = max(sum(bool(step["rows"]) for step in steps) for _, *steps in example(name)[1])
    assert browser(where) == f"Step 1 of {most}"
    assert told(browser).startswith("Step 1")
    assert browser("return document.querySelector('.film canvas').getAttribute('aria-label')").startswith(
        f"The run: {sum(bool(step['rows']) for step in example(name)[1][0][1:])} steps"
    )
    browser.go_to(most - 1)
    assert browser(where) == f"Step {most} of {most}"
    browser.go_to(most)
    assert browser(where) == f"End: {most} steps"


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("padding", ["sorted", "as they came"]),
        ("chunked_prefill", ["whole", "in pieces"]),
        ("slots_and_blocks", ["stage 4", "stage 5"]),
    ],
)
def test_two_engines_are_called_by_what_they_do(browser, page_of, name, labels):
    browser.open(page_of(name))
    assert browser("return page.films.map(({ label }) => label)") == labels
    buttons = browser("return [...document.querySelectorAll('.engines button')].map((node) => node.textContent)")
    assert buttons == [label.capitalize() for label in labels]


def test_beams_can_be_told_apart(browser, page_of):
    """They have one color, and each a pattern: in rows, tables and memory, and in the picture of the run."""
    browser.open(page_of("beams"), "#stop=3")
    for card in (".rows", ".tables"):
        chips = browser("return [...document.querySelectorAll(`${arguments[0]} .chip`)].map((n) => n.className)", card)
        assert chips == ["chip own c0 p0", "chip own c0 p1", "chip own c0 p2"]
    drawn = browser(
        "const drawn = []; const { fill } = Ink.prototype;"
        "Ink.prototype.fill = function (context, number, index, ...area) {"
        "  drawn.push([context.canvas.className, index]); fill.call(this, context, number, index, ...area); };"
        "for (const film of page.films) film.drawn = ''; page.renderNow(); Ink.prototype.fill = fill; return drawn"
    )
    for canvas in ("", "pool"):
        assert {index for where, index in drawn if where == canvas} == {0, 1, 2}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_bars_are_told_from_the_card(browser, page_of, dark):
    """The outermost pixels of each lane, and the edges of what has a request's color, have a contrast of 3:1 to it."""
    browser.size(1280, 800, dark=dark)
    browser.open(page_of("static_and_continuous"))
    lanes, edges, card = browser(
        """const paint = document.createElement("canvas").getContext("2d");
        const hex = (color) => Object.assign(paint, { fillStyle: color }).fillStyle;
        const film = page.films[1];
        const { replay, clock, top } = film;
        const copy = document.createElement("canvas");
        Object.assign(copy, { width: film.canvas.width, height: film.canvas.height });
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(film.canvas, 0, 0);
        const lane = film.laneHeight(replay.lanes.taken.length);
        const lanes = replay.lanes.spans.map((span) => {
          const x = Math.round((film.x(clock.share(1, span.from)) + film.x(clock.share(1, span.to, true))) / 2);
          const [red, green, blue, opacity] = context.getImageData(x, top + span.lane * lane, 1, 1).data;
          return hex(opacity === 255 ? `rgb(${red}, ${green}, ${blue})` : page.ink.card);
        });
        const own = [...document.querySelectorAll(".own")].filter((node) => node.getClientRects().length);
        const edges = own.map((node) => {
          const { boxShadow, borderColor, backgroundColor } = getComputedStyle(node);
          const colors = [...boxShadow.matchAll(/rgba?\\([^)]*\\)/g)].map(([color]) => color);
          return [...colors, node.matches(".chip") ? borderColor : "transparent", backgroundColor].map(hex);
        });
        return [lanes, edges, hex(page.ink.card)];"""
    )
    assert len(lanes) == 8
    assert len(edges) > 8
    for color in lanes:
        assert contrast(color, card) >= 3, color
    for colors in edges:
        assert max(contrast(color, card) for color in colors if color.startswith("#")) >= 3, colors


def test_each_engine_s_end_is_labelled_and_all_labels_lie_over_the_playhead(browser, page_of):
    browser.open(page_of("static_and_continuous"))
    written = browser(
        "const written = []; const write = Ink.prototype.write;"
        "Ink.prototype.write = function (context, text, x) {"
        "  written.push([text, x, context.canvas.className]); write.apply(this, arguments); };"
        "for (const film of page.films) film.drawn = ''; page.renderNow(); Ink.prototype.write = write; return written"
    )
    lengths = [sum(bool(step["rows"]) for step in steps) for _, *steps in example("static_and_continuous")[1]]
    ends = [(text, x) for text, x, _ in written if text.startswith("ends")]
    assert [text for text, _ in ends] == [f"ends after {length} steps" for length in lengths]
    assert ends[0][1] > ends[1][1]
    assert {"A", "H", "1", "stage 4"} <= {text for text, *_ in written}
    assert {canvas for *_, canvas in written if canvas != "pool"} == {"letters"}
    cursor = "return document.querySelector('.cursor').compareDocumentPosition(document.querySelector('.letters'))"
    assert browser(cursor) == 4  # the letters follow it
    assert "how many wait" in browser("return document.querySelector('.film-legend').innerText")
    carried = "return !document.getElementById('legend-carried').hidden"
    assert browser(carried)
    browser.open(page_of("head_of_line"))
    assert not browser(carried)


# --- In sight ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_play_and_what_it_is_about_are_in_sight(browser, page_of, name, size):
    """Without scrolling, at each stop: the bar with Play, and the top of the card (of both engines) that the story is
    about; and the bar stays when one scrolls."""
    width, height = SIZES[size]
    browser.size(width, height)
    browser.open(page_of(name))
    look = browser("return page.story.look")
    for number in range(len(stops(browser)) - 1):
        browser("page.story.go(arguments[0]); page.renderNow()", number)
        assert box(browser, "#play")["bottom"] < height
        for panel in range(len(EXAMPLES[name])):
            about = ".pool, .slots > :first-child" if look == "memory" else ".rows > :first-child"
            top = browser(
                "const nodes = document.querySelectorAll('.panel')[arguments[0]].querySelectorAll(arguments[1]);"
                "return [...nodes].filter((node) => node.getClientRects().length)[0]?.getBoundingClientRect().top ?? 0",
                panel,
                about,
            )
            assert top < height - 24, f"stop {number + 1}, panel {panel + 1}"
    browser("scrollTo(0, 400)")
    assert 0 <= box(browser, "#play")["top"] < height / 2
    assert box(browser, "#told")["bottom"] < height * 0.6
    assert browser("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", TWO)
def test_two_engines_side_by_side_are_aligned(browser, page_of, name):
    for width, height in [*SIZES.values(), (1920, 1080)]:
        browser.size(width, height)
        browser.open(page_of(name), "#stop=2")
        for card in (".title", ".words", ".rows-card", ".memory-card", ".queue-card", ".numbers-card"):
            one, other = box(browser, card, 0), box(browser, card, 1)
            assert one["top"] == pytest.approx(other["top"], abs=1), f"{card} at {width}"
            assert one["right"] < other["left"]


def test_one_engine_at_a_time_on_a_phone(browser, page_of):
    browser.size(390, 844, mobile=True)
    browser.open(page_of("slots_and_blocks"))
    shown = "return [...document.querySelectorAll('.panel')].map((panel) => panel.offsetHeight > 0)"
    assert browser(shown) == [True, False]
    click(browser, ".engines button:nth-child(2)")
    assert browser(shown) == [False, True]
    assert browser("return document.querySelector('.engines [aria-pressed=true]').textContent").startswith("Stage 5")
    assert browser("return document.documentElement.scrollWidth") <= 390


def test_a_stop_shows_its_engine_on_a_phone(browser, page_of):
    browser.size(390, 844, mobile=True)
    browser.open(page_of("speculation"))
    shown = "return [...document.querySelectorAll('.panel')].findIndex((panel) => panel.offsetHeight > 0)"
    traces = browser("return page.story.stops.slice(0, -1).map((stop) => stop.trace)")
    assert len(set(traces)) == 2
    for number, trace in enumerate(traces):
        browser(f"page.story.go({number}); page.renderNow()")
        assert browser(shown) == trace
    click(browser, ".engines button:nth-child(1)")  # one can still look at the other
    assert browser(shown) == 0


@pytest.mark.parametrize("clock", ["steps", "time"])
def test_the_last_stop_is_at_the_end_of_either_clock(browser, page_of, clock):
    browser.open(page_of("speculation"))
    browser(f"page.setClock({clock!r})")
    browser("page.story.go(page.story.stops.length - 1); page.renderNow()")
    assert browser("return page.position") == browser("return page.clock.end")
    assert browser("return document.getElementById('story-next').disabled")


@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_jumps_from_step_to_step(browser, page_of, name):
    """What the story is about stays in its place while the run plays."""
    browser.open(page_of(name))
    first = ".memory-card" if browser("return page.story.look") == "memory" else ".rows-card"
    tops = set()
    for step in range(browser("return page.clock.end")):
        browser.go_to(step)
        tops.add(box(browser, first)["top"])
    assert max(tops) - min(tops) < 1


# --- Honest widgets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", ["steps", "time"])
def test_thumb_and_playhead_are_at_one_place(browser, page_of, clock):
    """The slider's thumb is where its value is within its range. On the clock of steps, both are in a step's middle."""
    for width in (390, 1440):
        browser.size(width, 900)
        browser.open(page_of("recomputation"))
        browser("page.setClock(arguments[0]); page.renderNow()", clock)
        for share in (0, 0.4, 1):
            browser("page.turnTo(page.clock.mode === 'steps' ? Math.round(arguments[0] * page.clock.end) :"
                    "arguments[0] * page.clock.end); page.renderNow()", share)  # fmt: skip
            slider = box(browser, "#slider")
            part = browser("return page.slider.value / page.slider.max")
            thumb = slider["left"] + 8 + part * (slider["right"] - slider["left"] - 16)
            assert thumb == pytest.approx(box(browser, ".cursor")["middle"], abs=1)


def test_the_budget_is_to_scale(browser, page_of):
    """A part of the bar is as wide as its share of what a step may compute."""
    header, steps = made_traces.slots(budget=8192)
    for name, number in (("preemption", 40), ("chunked_prefill", 8)):
        browser.open(page_of(name), f"#step={number + 1}")
        header, *steps = example(name)[1][0]
        used = sum(row["num_tokens"] for row in steps[number]["rows"])
        bar, budget = box(browser, ".budget"), header["options"]["max_num_batched_tokens"]
        parts = browser("return [...document.querySelectorAll('.panel')][0].querySelectorAll('.budget span').length")
        last = box(browser, ".panel .budget span", parts - 1)
        assert (last["right"] - bar["left"] - 1) / (bar["right"] - bar["left"] - 2) == pytest.approx(
            used / budget, abs=0.003
        )


def test_a_long_run_shows_a_part_and_an_overview(browser, tmp_path):
    header, steps = made_traces.paged(240, 60, max_num_seqs=8, budget=256, num_blocks=96)
    path = tmp_path / "long.html"
    path.write_text(make_page([Trace("long", header, steps)]))
    browser.size(1280, 800)
    browser.open(path)
    assert len(steps) > 600
    assert browser("return page.part.zoom") > 1
    assert not browser("return document.querySelector('.overview').hidden")
    for step in (0, 317, len(steps) - 1):
        browser.go_to(step)
        film, cursor = box(browser, ".film"), box(browser, ".cursor")
        assert film["left"] <= cursor["middle"] <= film["right"]
        part = box(browser, ".part")
        overall = film["left"] + 8 + (step + 0.5) / len(steps) * (film["right"] - film["left"] - 16)
        assert part["left"] - 2 <= overall <= part["right"] + 2
    zoom = browser("return page.part.zoom")
    browser.press("-")
    assert browser("return page.part.zoom") == zoom / 2
    while browser("return page.part.zoom") > 1:
        browser.press("-")
    assert browser("page.renderNow(); return document.querySelector('.overview').hidden")
    browser.press("+")
    assert browser("return page.part.zoom") == 2


def test_the_order_of_admission_is_explained(browser, page_of):
    browser.open(page_of("padding"))
    notes = browser("return [...document.querySelectorAll('.queue-note')].map((node) => node.textContent)")
    assert "the longest prompt first (sort_by_length)" in notes[0]
    assert "first come, first served" in notes[1]
    (_, *steps), _ = example("padding")[1]
    lengths = {e["request_id"]: len(e["prompt_token_ids"]) for e in steps[0]["before"] if e["kind"] == "queued"}
    waiting = [lengths[key.split("/")[0]] for key in browser.shown()[0]["waiting"]]
    assert len(waiting) == 3
    assert waiting == sorted(waiting, reverse=True)
    assert "the longest prompts first" in " ".join(browser.shown()[0]["events"])


def test_joined_emoji_stay_whole(browser, page_of):
    browser.open(page_of("preemption"))
    for text, shown in [
        ("\U0001f469\u200d\U0001f680", "\U0001f469\u200d\U0001f680"),
        ("\U0001f44d\U0001f3fd\u200d\u2642\ufe0f", "\U0001f44d\U0001f3fd\u200d\u2642\ufe0f"),
        ("a\u200db", "a‹200D›b"),
        ("\U0001f469\u200d", "\U0001f469‹200D›"),
        ("\u202e\U0001f469", "‹202E›\U0001f469"),
    ]:
        assert browser("return visible(arguments[0])", text) == shown


# --- For all ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["preemption", "static_and_continuous"])
@pytest.mark.parametrize("width", [390, 1280])
def test_accessibility(browser, page_of, name, width, dark):
    if not AXE.exists():
        pytest.fail("no axe-core: make test-browser fetches it")
    browser.size(width, 800, dark=dark, mobile=width < 500)
    for stop in (2, 6):
        browser.open(page_of(name), f"#stop={stop}")
        browser(AXE.read_text(encoding="utf-8"))
        found = browser.driver.execute_async_script("axe.run().then((found) => arguments[0](found.violations))")
        assert [(v["id"], [node["html"] for node in v["nodes"]]) for v in found] == []


def test_a_story_prints(browser, page_of):
    browser.open(page_of("static_and_continuous"), "#stop=3")
    browser.size(1280, 800, media="print")
    shown = "return arguments[0].map((s) => document.querySelector(s).offsetHeight > 0)"
    assert browser(shown, ["h1", ".caption", "#told", ".rows", "#where"]) == [True] * 5
    assert browser(shown, [".stops", ".buttons", "#slider", ".switches"]) == [False] * 4
    pdf = browser.driver.execute_cdp_cmd("Page.printToPDF", dict(printBackground=True, landscape=True))["data"]
    assert len(pdf) > 10_000


def test_a_story_is_text(browser, tmp_path):
    """No script of a story runs, wherever it is."""
    (header, *steps), evil = example("preemption")[1][0], "</script><img src=x onerror=window.hit=1>"
    stop = {"trace": 0, "step": 3, "says": evil, "text": evil}
    story = {"title": evil, "message": evil, "look": "rows", "stops": [stop], "verdict": evil}
    path = tmp_path / "evil.html"
    path.write_text(make_page([Trace("x", header, steps)], story))
    browser.open(path, "#stop=1")
    assert evil in told(browser)
    assert browser("return [document.querySelector('h1').textContent, document.querySelectorAll('img').length]") == [
        evil,
        0,
    ]
    assert not browser("return Boolean(window.hit)")
    assert json.loads(re.search(r'class="story">(.*?)</script>', path.read_text())[1])["verdict"] == evil

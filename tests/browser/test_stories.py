"""Replays as stories: their stops, their questions, their end, and what is in sight. The page is made here, of the
committed traces."""

import re
import time

import pytest
from selenium.webdriver.common.keys import Keys

from stagewise.replay.page import make_page
from stagewise.trace_file import Trace
from tests.browser.test_page import position, text_of, violations
from tests.test_examples import example
from tests.test_replay import contrast
from tools.replay_examples import EXAMPLES

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


def drawn(browser, owner, method, what):
    """What is noted of each call of a method, with the arguments `a`, while the pictures of the run are drawn."""
    return browser(
        f"""const notes = [], made = {owner}.prototype, own = made.{method};
        made.{method} = function (...a) {{ notes.push({what}); return own.apply(this, a); }};
        for (const film of page.films) film.drawn = "";
        page.renderNow();
        made.{method} = own;
        return notes"""
    )


def num_steps(name):
    """Of each engine in an example, without the engine at rest."""
    return [sum(bool(step["rows"]) for step in steps) for _, *steps in example(name)[1]]


# --- Stops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_story_from_its_first_stop_to_its_end_and_back(browser, page_of, name):
    browser.open(page_of(name))
    *there, (_, verdict, *_) = stops(browser)
    assert text_of(browser, "#where") == f"Step 1 of {max(num_steps(name))}"
    for says, text, step, trace in there:
        assert f"{says}. {text}" in told(browser)
        assert browser("return page.views[arguments[0]].number", trace) == step
        click(browser, "#story-next")
    assert verdict in told(browser)
    check_the_end(browser, name)
    for says, text, *_ in reversed(there):
        click(browser, "#story-back")
        assert f"{says}. {text}" in told(browser)
    assert browser("return document.getElementById('story-back').disabled")


def check_the_end(browser, name):
    """All requests are finished, and no memory is held."""
    assert position(browser) == browser("return page.clock.end")
    assert browser("return document.getElementById('story-next').disabled")
    assert text_of(browser, ".stop[aria-current]") == "✓"
    assert text_of(browser, "#where").startswith(f"End: {max(num_steps(name))} steps")
    for shown, (_, *steps) in zip(browser.shown(), example(name)[1], strict=True):
        number = len({e["request_id"] for step in steps for e in step["before"] if e["kind"] == "queued"})
        all_of_them = f"All {number} requests are" if number > 1 else "The request is"
        assert shown["summary"].startswith(f"{all_of_them} finished, and the engine is at rest")
        assert shown["rows"] == shown["waiting"] == []
        assert shown["tables"] == {}
        assert not shown["memory"] or re.match(r"0 of \d+ blocks held|all slots are free|no batch", shown["memory"])
    assert len(set(re.findall(r"\d+", text_of(browser, ".done-note")))) == 1  # 5 of 5


def test_between_two_stops_the_last_one_stays_and_back_returns_to_it(browser, page_of):
    browser.open(page_of("preemption"))
    _, (_, text, second, _), (_, _, third, _), *_ = stops(browser)
    browser.go_to(second + 3)
    assert text in told(browser)
    assert not browser("return document.querySelector('.stop[aria-current]')")
    click(browser, "#story-back")
    assert position(browser) == second
    browser.press(".")
    assert position(browser) == third
    browser.press(",")
    assert position(browser) == second


def test_a_link_leads_to_its_stop(browser, page_of):
    browser.open(page_of("static_and_continuous"), "#stop=3")
    text = stops(browser)[2][1]
    assert text in told(browser)
    time.sleep(0.5)
    link = browser("return location.hash")
    assert "stop=3" in link
    browser.press(Keys.ARROW_RIGHT)
    time.sleep(0.5)
    assert "stop" not in browser("return location.hash")
    browser.open(page_of("static_and_continuous"), link)
    assert text in told(browser)
    for strange in ("#stop=99", "#stop=x", "#stop=0"):
        browser.open(page_of("static_and_continuous"), strange)
        assert told(browser)


def until(browser, condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not browser(f"return {condition}"):
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def test_play_stays_at_a_stop_and_goes_on(browser, page_of):
    browser.open(page_of("recomputation"))
    second = stops(browser)[1][2]
    browser("Object.defineProperty(page.story, 'dwell', { get: () => (page.story.here ? 2000 : 0) })")
    browser("page.speed.value = 10; document.activeElement.blur()")
    browser.press(Keys.SPACE)
    until(browser, f"page.position >= {second}")
    time.sleep(0.3)
    assert position(browser) == second
    until(browser, "page.position >= page.clock.end && !page.playing")
    assert browser("page.renderNow(); return page.story.at") == len(stops(browser)) - 1


def test_the_last_stop_is_at_the_end_of_the_clock_of_time_too(browser, page_of):
    browser.open(page_of("speculation"))
    browser("page.setClock('time'); page.story.go(page.story.stops.length - 1); page.renderNow()")
    assert position(browser) == browser("return page.clock.end")
    assert browser("return document.getElementById('story-next').disabled")


# --- Questions --------------------------------------------------------------------------------------------------------


def test_play_goes_on_behind_questions(browser, page_of):
    """Also after a question that nobody answers."""
    browser.open(page_of("preemption"))
    assert not browser("return page.predict.checked")  # questions are offered, not forced
    browser(
        """page.predict.click();
        page.speed.value = 100;
        Object.defineProperty(page.story, "dwell", { get: () => 0 });
        page.wait = (milliseconds, act) => {
          clearTimeout(page.timer);
          page.timer = setTimeout(act, milliseconds / 20); // less patient
        };
        page.play();"""
    )
    until(browser, "page.asked !== null")
    click(browser, ".choice")
    until(browser, "page.position >= page.clock.end")
    assert browser("return page.questions.size") == 0


def test_the_way_to_the_next_stop_has_questions(browser, page_of):
    """Until each is answered, the picture of the run does not give it away."""
    browser.open(page_of("preemption"))
    where = stops(browser)[1][2]
    browser("page.predict.click()")
    browser.press(".")
    assert position(browser) < where
    while position(browser) < where:
        assert browser("return page.asked !== null"), "the page went past a question"
        assert text_of(browser, "#question-text")
        assert box(browser, ".cover")["left"] == pytest.approx(box(browser, ".cursor")["middle"], abs=2)
        assert box(browser, ".cover")["right"] == box(browser, ".film")["right"]
        click(browser, ".choice")
        assert text_of(browser, "#verdict")
        click(browser, "#go-on")
        browser.press(".")
    browser("page.predict.click(); page.story.go(0); page.renderNow()")
    assert box(browser, ".cover")["right"] == 0
    browser.press(".")
    assert position(browser) == where  # who does not want to be asked is not


def test_a_stop_does_not_answer_the_question_about_the_next_step(browser, page_of):
    browser.open(page_of("static_and_continuous"))
    _, text, step, _ = stops(browser)[1]
    browser("page.predict.click()")
    browser.press(".")
    assert browser("return page.asked.step") == step + 1  # at the stop, and not at the next press
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
    browser.open(page_of("head_of_line"))  # the first step says that B waits, so the second is no question
    assert "refused" not in browser("return [...page.questions.values()].map(({ kind }) => kind)")


@pytest.mark.parametrize(("name", "engine"), [("static_and_continuous", "Stage 3"), ("padding", "Sorted")])
def test_a_question_says_which_engine_it_is_about(browser, page_of, name, engine):
    browser.open(page_of(name))
    browser("page.predict.click()")
    browser.press(".")
    assert re.match(f"{engine}: . is finished.", text_of(browser, "#question-text"))


def test_the_picture_shows_nothing_to_come_while_asking(browser, page_of):
    """Neither the badges of later stops nor the end."""
    browser.open(page_of("static_and_continuous"))

    def written():
        return {
            text
            for text, canvas in drawn(browser, "Ink", "write", "[a[1], a[0].canvas.className]")
            if canvas == "letters"
        }

    to_come = {"2", "3", *(f"ends after {number} steps" for number in num_steps("static_and_continuous"))}
    assert written() >= to_come
    browser("page.predict.click()")
    assert not written() & to_come
    browser("page.turnTo(page.clock.end)")
    assert written() >= to_come
    browser("page.turnTo(0); page.predict.click()")
    assert written() >= to_come


# --- What is drawn and said -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "where", "without"),
    [
        ("computed again", "preemption", "shared_prefix"),
        ("computed for nothing", "padding", "beams"),
        ("finished, still computed", "static_and_continuous", "head_of_line"),
        ("a beam goes on in another lane", "beams", "preemption"),
        ("tokens of one step", "speculation", "preemption"),
    ],
)
def test_legends_list_only_what_occurs(browser, page_of, words, where, without):
    legends = "page.renderNow(); return [...document.querySelectorAll('.film-legend, .rows-legend')]"
    for name in (where, without):
        browser.open(page_of(name))
        shown = " ".join(browser(f"{legends}.map((legend) => legend.innerText)"))
        assert (words in shown) == (name == where)
        assert "how many wait" in shown


def test_forks_and_deaths_of_beams_are_drawn(browser, page_of):
    browser.open(page_of("beams"))
    (_, *steps) = example("beams")[1][0]
    beams = [e["parents"] for step in steps for e in step["after"] if e["kind"] == "beams" and e["parents"]]
    forks = sum(parent != i for parents in beams for i, parent in enumerate(parents))
    died = sum(i not in parents for parents in beams[1:] for i in range(len(parents)))  # at first there is one
    assert len(drawn(browser, "CanvasRenderingContext2D", "bezierCurveTo", "1")) == forks
    browser("page.films[0].drawQueue = () => {}")  # it has lines, too
    assert len(drawn(browser, "CanvasRenderingContext2D", "lineTo", "1")) == 2 * died


def test_beams_can_be_told_apart(browser, page_of):
    """They have one color, and each a pattern: in rows, tables and memory, and in the picture of the run."""
    browser.open(page_of("beams"), "#stop=3")
    for card in (".rows", ".tables"):
        chips = browser("return [...document.querySelectorAll(`${arguments[0]} .chip`)].map((n) => n.className)", card)
        assert chips == ["chip own c0 p0", "chip own c0 p1", "chip own c0 p2"]
    filled = drawn(browser, "Ink", "fill", "[a[0].canvas.className, a[2]]")
    for canvas in ("", "pool"):
        assert {index for where, index in filled if where == canvas} == {0, 1, 2}


def test_a_lane_says_how_many_tokens_a_step_gave(browser, page_of):
    browser.open(page_of("speculation"))
    gains = "return page.replays.map(({ gains }) => gains.map(({ step, tokens }) => [step, tokens]))"
    new = [sum(event["kind"] == "token" for event in step["after"]) for step in example("speculation")[1][1][1:]]
    assert browser(gains) == [[], [[i, number] for i, number in enumerate(new) if number > 1]]
    assert f"+{max(new)}" in drawn(browser, "Ink", "write", "a[1]")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_lanes_are_told_from_the_card(browser, page_of, dark):
    """Their outermost pixels have a contrast of 3:1 to it."""
    browser.size(1280, 800, dark=dark)
    browser.open(page_of("static_and_continuous"))
    lanes, card = browser(
        """const paint = document.createElement("canvas").getContext("2d");
        const hex = (color) => Object.assign(paint, { fillStyle: color }).fillStyle;
        const [, film] = page.films;
        const { replay, clock, top, canvas } = film;
        const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(canvas, 0, 0);
        const lane = film.laneHeight(replay.lanes.taken.length);
        const colors = replay.lanes.spans.map((span) => {
          const x = Math.round((film.x(clock.share(1, span.from)) + film.x(clock.share(1, span.to, true))) / 2);
          const [red, green, blue, opacity] = context.getImageData(x, top + span.lane * lane, 1, 1).data;
          return hex(opacity === 255 ? `rgb(${red}, ${green}, ${blue})` : page.ink.card);
        });
        return [colors, hex(page.ink.card)];"""
    )
    assert len(lanes) == 8
    assert min(contrast(color, card) for color in lanes) >= 3


def test_labels_of_the_picture_lie_over_the_playhead(browser, page_of):
    browser.open(page_of("static_and_continuous"))
    written = drawn(browser, "Ink", "write", "[a[1], a[2], a[0].canvas.className]")
    labels = {text: x for text, x, canvas in written if canvas == "letters"}
    static, continuous = (labels[f"ends after {length} steps"] for length in num_steps("static_and_continuous"))
    assert static > continuous
    assert {"A", "H", "1", "stage 4"} <= labels.keys()
    follows = "return document.querySelector('.cursor').compareDocumentPosition(document.querySelector('.letters'))"
    assert browser(follows) == 4


def test_which_has_ended_says_so_and_when(browser, page_of):
    browser.open(page_of("static_and_continuous"))
    length = num_steps("static_and_continuous")[1]
    chips = "page.renderNow(); return [...document.querySelectorAll('.ended')].map((node) => node.textContent)"
    browser.go_to(length)
    assert browser(chips) == ["", ""]
    browser.go_to(length + 5)
    assert browser(chips) == ["", f"ended after {length} steps, 5 steps ago"]
    browser("page.setClock('time'); page.turnTo(page.clock.end)")
    assert browser(chips)[1].startswith(f"ended after {length} steps, ")


@pytest.mark.parametrize(
    ("name", "labels"),
    [("padding", ["sorted", "as they came"]), ("slots_and_blocks", ["stage 4", "stage 5"])],
)
def test_two_engines_are_called_by_what_they_do(browser, page_of, name, labels):
    browser.open(page_of(name))
    assert browser("return page.films.map(({ label }) => label)") == labels
    buttons = browser("return [...document.querySelectorAll('.engines button')].map((node) => node.textContent)")
    assert buttons == [label.capitalize() for label in labels]


def test_the_order_of_admission_is_explained(browser, page_of):
    browser.open(page_of("padding"))
    notes = browser("return [...document.querySelectorAll('.queue-note')].map((node) => node.textContent)")
    assert "the longest prompt first (sort_by_length)" in notes[0]
    assert "first come, first served" in notes[1]
    first = example("padding")[1][0][1]
    lengths = {e["request_id"]: len(e["prompt_token_ids"]) for e in first["before"] if e["kind"] == "queued"}
    waiting = [lengths[key.split("/")[0]] for key in browser.shown()[0]["waiting"]]
    assert len(waiting) == 3
    assert waiting == sorted(waiting, reverse=True)
    assert "the longest prompts first" in " ".join(browser.shown()[0]["events"])


def test_the_budget_is_to_scale(browser, page_of):
    """A part of the bar is as wide as its share of what a step may compute."""
    for name, number in (("preemption", 40), ("chunked_prefill", 8)):
        browser.open(page_of(name), f"#step={number + 1}")
        header, *steps = example(name)[1][0]
        used = sum(row["num_tokens"] for row in steps[number]["rows"])
        parts = browser("return document.querySelector('.panel').querySelectorAll('.budget span').length")
        bar, last = box(browser, ".budget"), box(browser, ".panel .budget span", parts - 1)
        share = (last["right"] - bar["left"] - 1) / (bar["right"] - bar["left"] - 2)
        assert share == pytest.approx(used / header["options"]["max_num_batched_tokens"], abs=0.003)


# --- In sight ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_play_and_what_it_is_about_are_in_sight(browser, page_of, name, size):
    """Without scrolling, at each stop: the bar with Play, and the top of the card (of both engines) that the story is
    about; and the bar stays when one scrolls."""
    width, height = SIZES[size]
    browser.size(width, height)
    browser.open(page_of(name))
    about = ".pool, .slots > :first-child" if browser("return page.story.look") == "memory" else ".rows > :first-child"
    for number in range(len(stops(browser)) - 1):
        browser("page.story.go(arguments[0]); page.renderNow()", number)
        assert box(browser, "#play")["bottom"] < height
        tops = browser(
            "return [...document.querySelectorAll('.panel')].map((panel) =>"
            "  [...panel.querySelectorAll(arguments[0])].filter((node) => node.getClientRects().length))"
            "  .map(([first]) => first?.getBoundingClientRect().top ?? 0)",
            about,
        )
        assert max(tops) < height - 24, f"stop {number + 1}"
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


def test_a_phone_shows_the_engine_of_the_stop_or_the_chosen_one(browser, page_of):
    browser.size(390, 844, mobile=True)
    browser.open(page_of("speculation"))
    shown = "return [...document.querySelectorAll('.panel')].map((panel) => panel.offsetHeight > 0)"
    traces = [trace for *_, trace in stops(browser)[:-1]]
    assert set(traces) == {0, 1}
    for number, trace in enumerate(traces):
        browser(f"page.story.go({number}); page.renderNow()")
        assert browser(shown) == [trace == 0, trace == 1]
    for number in (1, 2):
        click(browser, f".engines button:nth-child({number})")
        assert browser(shown) == [number == 1, number == 2]
        assert text_of(browser, ".engines [aria-pressed=true]").startswith(f"Stage {5 + number}")
    assert browser("return document.documentElement.scrollWidth") <= 390


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


@pytest.mark.parametrize("clock", ["steps", "time"])
def test_thumb_and_playhead_are_at_one_place(browser, page_of, clock):
    """The slider's thumb is where its value is within its range. On the clock of steps, both are in a step's middle."""
    for width in (390, 1440):
        browser.size(width, 900)
        browser.open(page_of("recomputation"))
        browser("page.setClock(arguments[0]); page.renderNow()", clock)
        for share in (0, 0.4, 1):
            at = "arguments[0] * page.clock.end"
            browser(f"page.turnTo({f'Math.round({at})' if clock == 'steps' else at}); page.renderNow()", share)
            slider, part = box(browser, "#slider"), browser("return page.slider.value / page.slider.max")
            thumb = slider["left"] + 8 + part * (slider["right"] - slider["left"] - 16)
            assert thumb == pytest.approx(box(browser, ".cursor")["middle"], abs=1)


# --- For all ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("name", "width"), [("preemption", 1280), ("static_and_continuous", 390)])
def test_accessibility(browser, page_of, name, width, dark):
    browser.size(width, 800, dark=dark, mobile=width < 500)
    for stop in (2, 6):
        browser.open(page_of(name), f"#stop={stop}")
        assert violations(browser) == []


def test_a_story_prints(browser, page_of):
    browser.open(page_of("static_and_continuous"), "#stop=3")
    browser.size(1280, 800, dark=True, media="print")
    shown = "return arguments[0].map((s) => document.querySelector(s).offsetHeight > 0)"
    assert browser(shown, ["h1", ".caption", "#told", ".rows", "#where"]) == [True] * 5
    assert browser(shown, [".stops", ".buttons", "#slider", ".switches", ".jump"]) == [False] * 5
    pdf = browser.driver.execute_cdp_cmd("Page.printToPDF", dict(printBackground=True, landscape=True))["data"]
    assert len(pdf) > 10_000
    for event, theme in (("beforeprint", "light"), ("afterprint", "dark")):
        browser(f"dispatchEvent(new Event('{event}'))")
        assert browser("return document.documentElement.dataset.theme") == theme


def test_a_story_is_text(browser, tmp_path):
    """No script of a story runs, wherever it is."""
    (header, *steps), evil = example("preemption")[1][0], "</script><img src=x onerror=window.hit=1>"
    stop = {"trace": 0, "step": 3, "says": evil, "text": evil}
    story = {"title": evil, "message": evil, "look": "rows", "stops": [stop], "verdict": evil}
    path = tmp_path / "evil.html"
    path.write_text(make_page([Trace("x", header, steps)], story))
    browser.open(path, "#stop=1")
    assert evil in told(browser)
    click(browser, "#story-next")
    assert evil in told(browser)
    assert text_of(browser, "h1") == evil
    assert browser("return [document.querySelectorAll('img').length, Boolean(window.hit)]") == [0, False]

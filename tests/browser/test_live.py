"""The page of a running server: asking, visitors, levers, presets, and the engine as it runs."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from selenium.webdriver.common.keys import Keys

from stagewise.replay.state import states
from stagewise.trace_file import Trace, check_header, check_step
from tests.browser.conftest import ROOT, Browser
from tests.browser.test_layout import LAYOUT, SIZES
from tests.browser.test_page import AXE
from tests.made_traces import snapshot
from tools.server import server

OPTIONS = ("--stage", "6", "--model", "tinytales", "--num-blocks", "100", "--max-num-seqs", "8", "--quiet")
# The steps that computed something: beside them there may be the engine at rest.
STEPS = "shown.steps.filter(({ rows }) => rows.length)"
NAMES = "return [...shown.replay.names.keys()].map((id) => shown.replay.name(id))"


class LivePage(Browser):
    """The browser on the page of a running server."""

    def until(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not self(f"return Boolean({condition})"):
            assert time.monotonic() < deadline, f"it did not happen: {condition}"
            time.sleep(0.05)

    def click(self, selector):
        self("document.querySelector(arguments[0]).click()", selector)

    def text(self, selector):
        return self("return document.querySelector(arguments[0]).innerText", selector)

    def content(self, selector):
        """With what is not in sight."""
        return self("return document.querySelector(arguments[0]).textContent", selector)

    def move(self, event="change", **values):
        """Move levers, or other settings."""
        script = "const input = document.getElementById(arguments[0]); input.value = arguments[1];"
        for name, value in values.items():
            self(script + "input.dispatchEvent(new Event(arguments[2]))", name.replace("__", "-"), value, event)

    def ask(self, prompt, max_tokens):
        for name, value in {"prompt": prompt, "temperature": 0, "max-tokens": max_tokens}.items():
            self("document.getElementById(arguments[0]).value = arguments[1]", name, value)
        self.click("#ask-button")

    def asked(self, prompt, max_tokens):
        """Ask, and wait until the answer is complete and the page shows the engine idle again."""
        number = self("return shown.last ?? -1")
        self.ask(prompt, max_tokens)
        self.until(f"!writing && (shown.last ?? -1) > {number} && shown.isIdle")
        self("shown.renderNow()")

    def found(self):
        """Wait until the preset has found its step, and go there."""
        self.until("document.querySelector('.found') || /press the button again/.test(find('look').innerText)")
        self.click(".found button")
        self("shown.renderNow()")

    @contextlib.contextmanager
    def tab(self, url):
        """The page in another tab."""
        own = self.driver.current_window_handle
        self.driver.switch_to.new_window("tab")
        self.driver.get(url)
        yield
        self.driver.close()
        self.driver.switch_to.window(own)


@pytest.fixture(scope="module")
def url():
    with server(*OPTIONS) as (url, _):
        yield url


@pytest.fixture
def page(driver, url):
    with opened(driver, url) as page:
        yield page


@contextlib.contextmanager
def opened(driver, url):
    """The page, at a laptop's size. At the end, the console is empty."""
    page = LivePage(driver)
    page.size(1280, 800)
    driver.get_log("browser")
    driver.get(f"{url}/")
    page.until("shown && link.isUp && shown.isIdle")
    yield page
    assert [entry["message"] for entry in driver.get_log("browser")] == []
    driver.get("about:blank")


def levers(url):
    with urllib.request.urlopen(f"{url}/live/levers") as response:
        return {name: lever["now"] for name, lever in json.load(response).items()}


def until_idle(url):
    for _ in range(2000):
        with urllib.request.urlopen(f"{url}/metrics") as response:
            if re.search(rb"^vllm:num_requests_running.* 0.0$", response.read(), re.MULTILINE):
                return
        time.sleep(0.05)


# --- What runs --------------------------------------------------------------------------------------------------------


def test_it_answers_all_of_it_to_be_read(page, url):
    asked = {"prompt": "There was once a shy bear", "max_tokens": 90}
    page.asked(*asked.values())
    body = json.dumps({"model": "tinytales", "temperature": 0, **asked}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)["choices"][0]["text"]
    assert page.content("#answers") == asked["prompt"] + answer
    assert page("const a = document.getElementById('answers'); return a.scrollHeight <= a.clientHeight")


def test_what_is_shown_is_what_happened(page):
    page.asked("Once upon a time", 40)
    check_states(page)


def check_states(page):
    """Check that the page computes the same states as Python. Returns its steps."""
    header, steps = page("return [shown.replay.header, shown.steps]")
    check_header(header)
    for number, step in enumerate(steps, steps[0]["step"]):
        check_step(step, number)
    for number, state in enumerate(states(Trace("live", header, steps))):
        if number in (0, 7, len(steps) - 1):
            assert page("return snapshot(shown.replay, arguments[0])", number) == snapshot(state)
    return steps


def test_it_follows_the_newest_step_unless_one_looks_back(page):
    """A step that one asks for stays, even if it was the newest at the time."""
    page.ask("Once upon a time", 400)
    page.until(f"{STEPS}.length > 20 && !shown.isIdle")
    number = page("shown.showStep(shown.last); return shown.last")
    page.until(f"shown.last > {number} + 20")
    page("shown.renderNow()")
    assert page("return [shown.replay.steps[shown.position].step + 1, shown.isFollowing]") == [number, False]
    thumb, cursor = page(
        "shown.renderNow(); const { value, max } = shown.slider, b = shown.slider.getBoundingClientRect();"
        "const c = document.querySelector('.cursor').getBoundingClientRect();"
        "return [b.left + 8 + (value / max) * (b.width - 16), (c.left + c.right) / 2]"
    )
    assert thumb == pytest.approx(cursor, abs=1)
    assert page.text("#follow") == "Back to LIVE"
    back = r"You are looking back at step [\d,]+; these figures are for the current step, [\d,]+."
    assert re.fullmatch(back, page.text("#live-words"))
    page.until("!writing && shown.isIdle")
    page("document.getElementById('follow').click(); shown.renderNow()")
    assert (page("return shown.position === shown.clock.end"), page.text("#follow")) == (True, "LIVE")
    page("document.getElementById('play').click(); shown.renderNow()")  # there is nothing to play
    assert page("return shown.isFollowing")


def test_the_engine_at_rest_holds_nothing(page):
    page.asked("Once upon a time", 20)
    last = page("return shown.replay.steps.findLast(({ rows }) => rows.length).step")
    rest = f"At rest after step {last + 1:,}"  # the engine counts from 0, readers from 1
    assert (page.text("#live-words"), page.text("#where")) == (f"{rest}.", rest)
    gauges = [page.text(f"#gauge-{name}") for name in ("requests", "memory", "speed")]
    assert gauges == ["none", "0 of 100 blocks", "0"]
    (shown,) = page.shown()
    assert "at rest" in shown["summary"]
    assert (shown["rows"], shown["waiting"], shown["tables"]) == ([], [], {})
    assert shown["memory"].startswith("0 of 100 blocks held")
    page.asked("A fox", 5)  # then what stood for rest is no step
    assert page(f"return {STEPS}.every(({{ step }}, i, all) => !i || step > all[i - 1].step)")


def test_my_lanes_and_latencies_are_marked(page):
    page.asked("Once upon a time", 20)
    mine = page("return shown.replay.name([...shown.mine].at(-1), 0)")
    assert mine.endswith("★")
    assert mine in page("return [...document.querySelectorAll('.done .chip')].map((chip) => chip.textContent)")
    for gauge in ("#gauge-ttft", "#gauge-itl"):
        assert re.fullmatch(r"★ yours [\d.]+ ms, median [\d.]+ ms", page.text(gauge))
    ends = page(f"return {STEPS}.slice(-20).map((step) => step.start + step.seconds)")
    gaps = sorted(b - a for a, b in itertools.pairwise(ends))
    assert page("return median(shown.rates.mine.itl)") == pytest.approx(gaps[len(gaps) // 2], rel=0.02)


def test_a_page_opened_in_the_middle_of_a_run(page, url):
    """It begins with what runs then, under the engine's numbers and the same names as on the page in the background,
    which misses nothing."""
    page.ask("Once upon a time", 900)
    page.until(f"{STEPS}.length > 20 && !shown.isIdle")
    with page.tab(f"{url}/"):
        page.until("shown && shown.last !== null && shown.isIdle")
        there, names = check_states(page), page(NAMES)
    page.until("shown.isIdle && !writing")
    here = check_states(page)
    assert here[0]["step"] < there[0]["step"] <= here[-1]["step"]
    assert there[-1]["step"] == here[-1]["step"]
    assert page(NAMES) == [f"{name}★" for name in names]
    assert page.text("#notes") == ""


def test_pages_that_one_could_go_back_to_hold_no_connection(page, url):
    """A browser has six for all its pages of a server."""
    for _ in range(7):
        page.driver.get("about:blank")
        page.driver.get(f"{url}/")
        page.until("shown && link.isUp")
    page.asked("A fox", 20)


# --- Levers and presets -----------------------------------------------------------------------------------------------


def test_visitors_and_levers(page, url):
    page.move("input", output__tokens=100, arrivals=10)
    assert page("return document.getElementById('arrivals').nextElementSibling.textContent") == "10 a second"
    page.until("shown.steps.at(-1)?.rows.length >= 7")  # more than a browser has connections
    page.move(max_num_seqs=2, num_blocks=15)
    page.until("shown.steps.at(-1).rows.length <= 2")
    page.until("shown.replay.stepsWith.preempted.length")
    page.until("/^2 run, \\d+ wait$/.test(document.getElementById('gauge-requests').textContent)")
    # Blocks are held back when they become free, and the page tells it when it draws the next step.
    page.until("document.getElementById('gauge-memory').textContent.includes('of 15 blocks, 85 held back')")
    assert levers(url) == {"max_num_seqs": 2, "num_blocks": 15}
    page.move("input", arrivals=0)
    with page.tab(f"{url}/"):  # what one page moves, the others show
        page.until("document.getElementById('num_blocks').value === '15'")
        assert page.text("#held-back").startswith("The engine uses 15 of its 100 blocks and 2 of its 8 places")
        page.click("#restore")
    page.until("document.getElementById('num_blocks').value === '100'")
    assert levers(url) == {"max_num_seqs": 8, "num_blocks": 100}
    until_idle(url)


def test_presets_bring_about_what_they_say(driver):
    """With one click, even in a small pool; and the step that they name shows it. Then the levers are as they were."""
    shows = {"rush": "refused", "memory": "preempted", "same": "admitted", "long": None}
    with server(*OPTIONS, "--num-blocks", 9) as (url, _), opened(driver, url) as page:
        page.move(max_num_seqs=7)
        for name, kind in shows.items():
            page.click(f"[data-preset={name}]")
            page.found()
            number = int(re.search(r"Step ([\d,]+):", page.text("#look"))[1].replace(",", ""))
            step = page("return shown.replay.steps[shown.position]")
            assert step["step"] + 1 == number
            assert kind is None or kind in {event["kind"] for event in step["before"]}
            until_idle(url)
            page.until("shown.isIdle && shown.presets.run === null && shown.presets.before === null")
            page.until("document.getElementById('max_num_seqs').value === '7'")
            assert levers(url) == {"max_num_seqs": 7, "num_blocks": 9}


def test_what_somebody_moves_during_a_preset_stays(page, url):
    page.click("[data-preset=same]")
    page.until("shown.presets.run")
    page.move(num_blocks=60)
    page.until("shown.presets.run === null && shown.presets.before === null && shown.isIdle")
    assert levers(url) == {"max_num_seqs": 8, "num_blocks": 60}
    page.click("#restore")
    page.until("document.getElementById('held-back').hidden")


def test_who_leaves_during_a_preset_puts_the_levers_back(page, url):
    with page.tab(f"{url}/"):  # and closes it
        page.until("shown?.isIdle")
        page.click("[data-preset=memory]")
        deadline = time.monotonic() + 60
        while levers(url)["num_blocks"] == 100:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    page.until("document.getElementById('num_blocks').value === '100'")
    until_idle(url)
    assert levers(url) == {"max_num_seqs": 8, "num_blocks": 100}


def test_a_preset_that_cannot_be_says_why(driver, page):
    page.click("[data-preset=guess]")
    assert page.text("#look").startswith("Guess ahead. Each step gives a request one token here")
    with (
        server("--stage", "4", "--model", "tinytales", "--quiet", "--grace", "0") as (url, _),
        opened(driver, url) as page,
    ):
        page.click("[data-preset=memory]")
        assert "from stage 5 on memory can run out" in page.text("#look")
        assert "Stage 4 has a slot for each request" in page.text("#no-levers")


def test_errors_go_away_when_they_are_over(page):
    page.ask("word " * 2000, 10)
    page.until("!writing")
    assert "max_model_len" in page.content(".failed")
    page.asked("A fox", 5)
    assert page("return document.querySelector('.failed')") is None
    page("window.fetch_ = fetch; fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    page.move(num_blocks=50)
    page.until("document.querySelector('.notes .levers')")
    assert page.text("#notes").startswith("The lever did not move: The server does not answer.")
    page("fetch = window.fetch_")
    page.move(num_blocks=100)
    page.until("!document.querySelector('.notes p')")
    page.ask("Once upon a time", 200)
    page.until("!shown.isIdle")
    page.move(num_blocks=2)  # less than it may need
    page.until("document.querySelector('.notes .blocks')")
    assert page.text("#notes").startswith("num_blocks is 13, not 2: a request that is here may need 13 blocks")
    page.until("!writing && shown.isIdle")
    page.move(num_blocks=100)
    page.until("!document.querySelector('.notes p')")
    page.driver.get_log("browser")  # Chromium writes down that an answer was an error


def test_the_page_keeps_its_keys_out_of_the_prompt(page):
    page.asked("A fox", 5)
    position = page("return shown.position")
    prompt = page.driver.find_element("id", "prompt")
    prompt.clear()
    prompt.send_keys("no pen? " + Keys.ARROW_LEFT + Keys.HOME)
    assert prompt.get_property("value") == "no pen? "
    assert page("return [shown.position, Boolean(shown.playing)]") == [position, False]


def test_a_run_is_saved_as_a_replay(page, tmp_path):
    """The file shows the same steps under the same numbers, without a server; markup in a prompt is text."""
    page.asked("</script><script>document.title = 'hacked'</script> é", 8)
    page.until("!document.getElementById('save').disabled")
    name, html = page(
        "let taken; const make = URL.createObjectURL; URL.createObjectURL = (blob) => (taken = blob, 'data:,');"
        "const click = HTMLAnchorElement.prototype.click; let name;"
        "HTMLAnchorElement.prototype.click = function () { name = this.download };"
        "document.getElementById('save').click();"
        "URL.createObjectURL = make; HTMLAnchorElement.prototype.click = click;"
        "return taken.text().then((text) => [name, text])"
    )
    steps = page("return shown.steps")
    assert name == f"stagewise-steps-{steps[0]['step'] + 1}-{steps[-1]['step'] + 1}.html"
    path = tmp_path / "run.html"
    path.write_text(html, encoding="utf-8")
    page.driver.get(path.as_uri())
    assert page("return page.replays[0].steps") == steps
    assert page("return document.title") != "hacked"
    page("page.turnTo(2)")
    page.until(f"document.getElementById('where').textContent.startsWith('Step {steps[2]['step'] + 1} of ')")
    page.driver.get_log("browser")


# --- The connection ---------------------------------------------------------------------------------------------------


def start(port, *options):
    """A server for one test, on a port, which may be ended in any way."""
    command = [sys.executable, "-m", "stagewise", "serve", *OPTIONS, *options, "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    assert "Serving" in line, line
    return process, line.split(" on ")[1].split()[0]


@pytest.mark.skipif(os.name != "posix", reason="a signal as POSIX has it")
def test_the_server_ends_and_comes_back(driver):
    """Ctrl-C with the page open and requests under way: it ends at once and says nothing more. The page says that it is
    not live, keeps what it has, tries again, and then offers it as a file."""
    page = LivePage(driver)
    process, url = start(0, "--grace", "0")
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        driver.get(f"{url}/")
        page.until("shown && link.isUp")
        page.ask("Once upon a time", 400)
        page.until(f"{STEPS}.length > 20")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - began < 5
        assert process.stderr.read() == ""
        page.until("!link.isUp && !writing")
        page("shown.renderNow()")
        assert page.text("#follow") == "NOT LIVE"
        assert page.text("#notes").startswith("The server has ended. The steps so far can still be viewed")
        number = page("return shown.steps.length")
        assert page("return shown.last") >= 20
        again, _ = start(url.rpartition(":")[2])
        stack.callback(again.kill)
        page.until("link.isUp")
        notes = page.text("#notes")
        assert "The server was restarted, and counts its steps from 1. This page started over at " in notes
        assert f"Save the {number} earlier steps" in notes
        assert "The server has ended" not in notes
        assert page("return shown.last") is None
        page.asked("A fox", 5)
        assert page(f"return {STEPS}.map(({{ step }}) => step)") == [0, 1, 2, 3, 4]
    driver.get_log("browser")
    driver.get("about:blank")


def test_a_page_that_lost_the_connection_begins_again(page, url):
    """And puts the levers of a preset back: it does not know how that went on."""
    page.click("[data-preset=memory]")
    lose = "(link.source.dispatchEvent(new Event('error')), true)"
    page.until(f"shown.presets.before && shown.steps.length > 5 && {lose}")
    number = page("return shown.steps.length")
    assert page("return link.isUp") is False
    page.until("link.isUp")
    begins = rf"This page started over at [\d:]+, with the requests running then\.\s*Save the {number} earlier steps"
    assert re.match(begins, page.text("#notes"))
    page.until("document.getElementById('num_blocks').value === '100'")
    until_idle(url)
    page.until("shown.isIdle")
    page.asked("A fox", 5)
    assert levers(url) == {"max_num_seqs": 8, "num_blocks": 100}


def test_only_the_scripts_of_the_page_run(page):
    """The browser obeys the policy: it runs no injected script, and connects to no other address."""
    page(
        "window.broken = []; addEventListener('securitypolicyviolation', (e) => broken.push(e.effectiveDirective));"
        "const script = document.createElement('script'); script.textContent = 'window.hacked = true';"
        "document.body.append(script); fetch('http://127.0.0.1:1/').catch(() => {})"
    )
    page.until("broken.length === 2")
    assert sorted(page("return broken")) == ["connect-src", "script-src-elem"]
    assert page("return window.hacked") is None
    page.driver.get_log("browser")


# --- The layout -------------------------------------------------------------------------------------------------------


def test_the_layout_and_what_guesses_do(driver):
    """On the server that one starts first: nothing overlaps and no line is cut, before anything ran, when memory ran
    out, at rest, and with all tools shown. Then a smaller model guesses."""
    found = {}

    def look(page, **states):
        for width, height in SIZES:
            page.size(width, height, mobile=width < 500)
            for state, act in states.items():
                found[state, width] = page(f"{LAYOUT} {act}; shown.measure(); shown.renderNow(); return faults()")
            if "help" in states:
                page.click("#help-button")

    with server("tinytales", "--quiet", "--grace", "0") as (url, _), opened(driver, url) as page:
        assert page.content(".summary") == "Nothing has run since this page was opened."
        assert page.content(".events") == "All 4096 blocks are free."
        look(page, new="")
        page.click("[data-preset=memory]")
        page.until("!document.getElementById('held-back').hidden")
        assert page.text("#held-back").startswith("The engine uses 9 of its 4,096 blocks now.")
        page.until("document.querySelector('.found') && shown.isIdle")
        page.found()
        reserved = int(re.search(r"of ([\d,]+) reserved", page.content(".picked"))[1].replace(",", ""))
        assert reserved <= 9 * 16
        assert page("return shown.views[0].pool.shown.length") == 9  # the usable ones, large enough to read
        assert re.match(r"\d of 9 blocks held", page.content(".memory-note"))
        preempted = "document.querySelector('.found button').click()"
        help = "document.getElementById('help-button').click()"
        look(page, **{"at rest": "shown.follow()", "preempted": preempted, "help": help})
        page.until("document.getElementById('held-back').hidden")
        page.click("[data-preset=guess]")
        page.until("/guess(es)? (is|are) right/.test(document.querySelector('.found')?.innerText)")
        page.found()
        right, new = map(int, re.search(r"(\d+) of \d+ guess.* gets (\d+) tokens", page.text("#look")).groups())
        guesses = page("return [...document.querySelectorAll('.guess.right')].map((node) => node.textContent)")
        assert len(guesses) == right == new - 1
        assert not any("‹" in guess for guess in guesses)
        page.until("shown.isIdle")
        guesses = page("return shown.replay.steps.flatMap((step) => step.rows.flatMap((row) => row.drafts ?? []))")
        assert guesses
        assert page("return arguments[0].every((id) => shown.replay.texts.has(id))", guesses)  # refused ones too
    assert {when: faults for when, faults in found.items() if faults} == {}


def test_on_a_phone_the_film_is_above_the_settings(page):
    page.size(390, 844, mobile=True)
    page("shown.measure(); shown.renderNow()")
    names = [".live-bar", ".transport", ".preset-card", ".ask-card", "main", ".load-card"]
    boxes = page(
        "return arguments[0].map((name) => document.querySelector(name).getBoundingClientRect().toJSON())", names
    )
    assert all(one["bottom"] <= other["top"] for one, other in itertools.pairwise(boxes))
    assert boxes[2]["bottom"] < 844  # the buttons are in sight, too
    assert page("return document.querySelector('.how').getClientRects().length") == 0  # it is about an arrow key


def test_accessibility_and_sizes(page):
    if not AXE.exists():
        pytest.fail("no axe-core: make test-browser fetches it")
    page.click("[data-preset=memory]")
    page.until("document.querySelector('.found') && shown.isIdle")
    page(AXE.read_text(encoding="utf-8"))
    for dark in (False, True):
        for width, height in [(390, 844), (1024, 768), (1440, 900), (1920, 1080)]:
            page.size(width, height, dark=dark, mobile=width < 500)
            page.until(f"document.documentElement.scrollWidth <= {width}", seconds=20)
            if width > 1000:  # the memory is in sight
                assert page("return document.querySelector('.pool').getBoundingClientRect().top") < height - 100
        found = page.driver.execute_async_script("axe.run().then((found) => arguments[0](found.violations))")
        assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []

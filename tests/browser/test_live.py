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


GUESSING = ("--stage", "7", "--model", "tinytales", "--speculate", "tinytales-draft", "--num-drafts", "4")
GUESSING += ("--quiet", "--grace", "0")


@pytest.fixture(scope="module")
def url():
    with server(*OPTIONS) as (url, _):
        yield url


@pytest.fixture
def page(driver, url):
    """The browser on the page, at a laptop's size. After the test, the console is empty."""
    yield from opened(driver, url)


def opened(driver, url):
    browser = Browser(driver)
    browser.size(1280, 800)
    driver.get_log("browser")
    driver.get(f"{url}/")
    until(browser, "shown && link.isUp && shown.isIdle")
    yield browser
    assert [entry["message"] for entry in driver.get_log("browser")] == []
    driver.get("about:blank")


def until(page, condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not page(f"return Boolean({condition})"):
        assert time.monotonic() < deadline, f"it did not happen: {condition}"
        time.sleep(0.05)


def move(page, name, value, event="input"):
    page(
        "const input = document.getElementById(arguments[0]); input.value = arguments[1];"
        "input.dispatchEvent(new Event(arguments[2]))",
        name, value, event,
    )  # fmt: skip


def ask(page, prompt, max_tokens):
    for name, value in {"prompt": prompt, "temperature": 0, "max-tokens": max_tokens}.items():
        page("document.getElementById(arguments[0]).value = arguments[1]", name, value)
    page("document.getElementById('ask-button').click()")


def asked(page, prompt, max_tokens):
    """Ask, and wait until the answer is complete and the page shows the engine idle again."""
    number = page("return shown.last ?? -1")
    ask(page, prompt, max_tokens)
    until(page, f"!writing && (shown.last ?? -1) > {number} && shown.isIdle")
    page("shown.renderNow()")


def text(page, name):
    return page("return document.getElementById(arguments[0]).innerText", name)


def text_of(page, selector):
    return page("return document.querySelector(arguments[0]).textContent", selector)


def levers(url):
    with urllib.request.urlopen(f"{url}/live/levers") as response:
        return {name: lever["now"] for name, lever in json.load(response).items()}


def until_idle(url):
    for _ in range(2000):
        with urllib.request.urlopen(f"{url}/metrics") as response:
            if re.search(rb"^vllm:num_requests_running.* 0.0$", response.read(), re.MULTILINE):
                return
        time.sleep(0.05)


# The steps that computed something: beside them there may be the engine at rest.
STEPS = "shown.steps.filter(({ rows }) => rows.length)"


def test_it_answers_all_of_it_to_be_read(page, url):
    asked(page, "There was once a shy bear", 90)
    body = {"model": "tinytales", "prompt": "There was once a shy bear", "max_tokens": 90, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)["choices"][0]["text"]
    assert page("return document.getElementById('answers').textContent") == "There was once a shy bear" + answer
    assert page("const a = document.getElementById('answers'); return a.scrollHeight <= a.clientHeight")


def test_what_is_shown_is_what_happened(page):
    """The page's states are those that Python computes for these steps. It follows the newest, unless one goes back."""
    asked(page, "Once upon a time", 40)
    header, steps = page("return [shown.replay.header, shown.steps]")
    assert "at rest" in page("return document.querySelector('.summary').textContent")
    assert re.match(r"0 of \d+ blocks held", page("return document.querySelector('.memory-note').textContent"))
    check_header(header)
    for step in steps:
        check_step(step, step["step"])
    trace = Trace("live", header, steps)
    for number, state in enumerate(states(trace)):
        if number in (0, 7, len(steps) - 1):
            assert page("return snapshot(shown.replay, arguments[0])", number) == snapshot(state)
    assert page("return shown.isFollowing && shown.position === shown.clock.end")
    page("shown.turnTo(3)")
    asked(page, "A fox", 10)
    assert page("return shown.position") == 3
    thumb = page("const b = shown.slider.getBoundingClientRect(); const { value, max } = shown.slider;"
                 "return b.left + 8 + (value / max) * (b.width - 16)")  # fmt: skip
    cursor = page("const b = document.querySelector('.cursor').getBoundingClientRect(); return (b.left + b.right) / 2")
    assert thumb == pytest.approx(cursor, abs=1)
    assert text(page, "follow") == "Back to LIVE"
    assert re.fullmatch(
        r"You are looking back at step \d+; these figures are for the current step, \d+.", text(page, "live-words")
    )
    page("document.getElementById('follow').click(); shown.renderNow()")
    assert page("return shown.position === shown.clock.end")
    assert text(page, "follow") == "LIVE"
    page("document.getElementById('play').click(); shown.renderNow()")  # there is nothing to play
    assert page("return shown.isFollowing")


def test_the_engine_at_rest_holds_nothing(page):
    asked(page, "Once upon a time", 20)
    last = page("return shown.replay.steps.findLast(({ rows }) => rows.length).step")
    assert text(page, "live-words") == f"At rest after step {last + 1:,}."  # the engine counts from 0, readers from 1
    assert text(page, "where") == f"At rest after step {last + 1:,}"
    assert "now" not in text(page, "live-words")
    assert text(page, "gauge-requests") == "none"
    assert text(page, "gauge-memory") == "0 of 100 blocks"
    assert text(page, "gauge-speed") == "0"
    shown = page.shown()[0]
    assert (shown["rows"], shown["waiting"], shown["tables"]) == ([], [], {})
    assert shown["memory"].startswith("0 of 100 blocks held")
    before = page("return shown.replay.steps.length")
    asked(page, "A fox", 5)  # then what stood for rest is no step
    assert page(f"return {STEPS}.every(({{ step }}, i, all) => !i || step > all[i - 1].step)")
    assert page("return shown.replay.steps.length") > before


def test_my_lanes_and_latencies_are_marked(page):
    asked(page, "Once upon a time", 20)
    mine = page("return shown.replay.name([...shown.mine].at(-1), 0)")
    assert mine.endswith("★")
    assert mine in page("return [...document.querySelectorAll('.done .chip')].map((chip) => chip.textContent)")
    for gauge in ("gauge-ttft", "gauge-itl"):
        assert re.fullmatch(r"★ yours [\d.]+ ms, median [\d.]+ ms", text(page, gauge))
    ends = page(f"return {STEPS}.slice(-20).map((step) => step.start + step.seconds)")
    gaps = sorted(b - a for a, b in itertools.pairwise(ends))
    assert page("return median(shown.rates.mine.itl)") == pytest.approx(gaps[len(gaps) // 2], rel=0.02)


def test_all_tabs_and_loads_have_the_same_numbers(page, url):
    """Another tab, and this one loaded again: the same steps, under the engine's numbers and the same names."""
    asked(page, "Once upon a time", 30)
    here = page("return JSON.stringify(shown.steps)")
    names = page("return [...shown.replay.names.keys()].map((id) => shown.replay.name(id))")
    page.driver.refresh()
    until(page, "shown && shown.last !== null && shown.isIdle")
    until(page, f"shown.steps.length === {len(json.loads(here))}")
    assert page("return JSON.stringify(shown.steps)") == here
    assert page("return [...shown.replay.names.keys()].map((id) => shown.replay.name(id))") == names  # ★ too
    number = page("return shown.last") - 5
    own = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.driver.get(f"{url}/#step={number}")
    until(page, f"shown && !shown.isFollowing && shown.replay.steps[shown.position].step === {number - 1}")
    assert page("return JSON.stringify(shown.steps)") == here
    assert page("return [...shown.replay.names.keys()].map((id) => shown.replay.name(id))") == [
        name.removesuffix("★") for name in names
    ]
    page.driver.close()
    page.driver.switch_to.window(own)


def test_pages_that_nobody_sees_hold_no_connection(page, url):
    """A browser has six for all its pages of a server: many tabs, or pages one could go back to, would keep the one in
    front from asking. One that comes to the front again has the steps that it did not see."""
    windows = [page.driver.current_window_handle]
    for _ in range(6):
        page.driver.get("about:blank")
        page.driver.get(f"{url}/")
        until(page, "shown && link.isUp")
    for _ in range(7):
        page.driver.switch_to.new_window("tab")
        windows.append(page.driver.current_window_handle)
        page.driver.get(f"{url}/")
        until(page, "shown && link.isUp")
    asked(page, "A fox", 20)
    last = page("return shown.last")
    for window in windows[1:]:
        page.driver.switch_to.window(window)
        page.driver.close()
    page.driver.switch_to.window(windows[0])
    until(page, f"shown.last === {last} && shown.isIdle")
    assert text(page, "notes") == ""


def test_visitors_and_levers(page, url):
    move(page, "output-tokens", 100)
    move(page, "arrivals", 10)
    assert page("return document.getElementById('arrivals').nextElementSibling.textContent") == "10 a second"
    until(page, "shown.steps.at(-1)?.rows.length >= 7")  # more than a browser has connections
    move(page, "max_num_seqs", 2, "change")
    move(page, "num_blocks", 15, "change")
    until(page, "shown.steps.at(-1).rows.length <= 2")
    until(page, "shown.replay.stepsWith.preempted.length")
    until(page, "/^2 run, \\d+ wait$/.test(document.getElementById('gauge-requests').textContent)")
    # Blocks are held back when they become free, and the page tells it when it draws the next step.
    until(page, "document.getElementById('gauge-memory').textContent.includes('of 15 blocks, 85 held back')")
    assert levers(url) == {"max_num_seqs": 2, "num_blocks": 15}
    move(page, "arrivals", 0)
    own = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.driver.get(f"{url}/")
    until(page, "document.getElementById('num_blocks').value === '15'")
    move(page, "max_num_seqs", 8, "change")
    move(page, "num_blocks", 100, "change")
    page.driver.close()
    page.driver.switch_to.window(own)
    until(page, "document.getElementById('num_blocks').value === '100'")
    until_idle(url)


def test_errors_go_away_when_they_are_over(page):
    ask(page, "word " * 2000, 10)
    until(page, "!writing")
    assert "max_model_len" in page("return document.querySelector('.failed').textContent")
    asked(page, "A fox", 5)
    assert page("return document.querySelector('.failed')") is None
    page("window.fetch_ = fetch; fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    move(page, "num_blocks", 50, "change")
    until(page, "document.querySelector('.notes .levers')")
    assert text(page, "notes").startswith("The lever did not move: The server does not answer.")
    page("fetch = window.fetch_")
    move(page, "num_blocks", 100, "change")
    until(page, "!document.querySelector('.notes p')")
    ask(page, "Once upon a time", 200)
    until(page, "!shown.isIdle")
    move(page, "num_blocks", 2, "change")  # less than it may need
    until(page, "document.querySelector('.notes .blocks')")
    assert text(page, "notes").startswith("num_blocks is 13, not 2: a request that is here may need 13 blocks")
    until(page, "!writing && shown.isIdle")
    move(page, "num_blocks", 100, "change")
    until(page, "!document.querySelector('.notes p')")
    page.driver.get_log("browser")  # Chromium writes down that an answer was an error


def test_the_page_keeps_its_keys_out_of_the_prompt(page):
    asked(page, "A fox", 5)
    position = page("return shown.position")
    prompt = page.driver.find_element("id", "prompt")
    prompt.clear()
    prompt.send_keys("no pen? " + Keys.ARROW_LEFT + Keys.HOME)
    assert prompt.get_property("value") == "no pen? "
    assert page("return [shown.position, Boolean(shown.playing)]") == [position, False]


def test_a_run_is_saved_as_a_replay(page, tmp_path):
    """The file shows the same steps under the same numbers, without a server; markup in a prompt is text."""
    asked(page, "</script><script>document.title = 'hacked'</script> é", 8)
    until(page, "!document.getElementById('save').disabled")
    saved = page(
        "let taken; const make = URL.createObjectURL; URL.createObjectURL = (blob) => (taken = blob, 'data:,');"
        "const click = HTMLAnchorElement.prototype.click; let name;"
        "HTMLAnchorElement.prototype.click = function () { name = this.download };"
        "document.getElementById('save').click();"
        "URL.createObjectURL = make; HTMLAnchorElement.prototype.click = click;"
        "return taken.text().then((text) => [name, text])"
    )
    steps = page("return shown.steps")
    name, html = saved
    assert name == f"stagewise-steps-{steps[0]['step'] + 1}-{steps[-1]['step'] + 1}.html"
    path = tmp_path / "run.html"
    path.write_text(html, encoding="utf-8")
    page.driver.get(path.as_uri())
    assert page("return page.replays[0].steps") == steps
    assert page("return document.title") != "hacked"
    page("page.turnTo(2)")
    until(page, f"document.getElementById('where').textContent.startsWith('Step {steps[2]['step'] + 1} of ')")
    page.driver.get_log("browser")


def start(port, *options):
    """A server for one test, on a port, which may be ended in any way."""
    command = [sys.executable, "-m", "stagewise.serving", *OPTIONS, *options, "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    assert "Serving" in line, line
    return process, line.split(" on ")[1].split()[0]


@pytest.mark.skipif(os.name != "posix", reason="a signal as POSIX has it")
def test_the_server_ends_and_comes_back(driver):
    """Ctrl-C with the page open and requests under way: it ends at once and says nothing more. The page says that it is
    not live, keeps what it has, tries again, and says what it missed of the new run."""
    page = Browser(driver)
    process, url = start(0, "--grace", "0")
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        driver.get(f"{url}/")
        until(page, "shown && link.isUp")
        ask(page, "Once upon a time", 400)
        until(page, f"{STEPS}.length > 20")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - began < 5
        assert process.stderr.read() == ""
        until(page, "!link.isUp")
        until(page, "!writing")
        page("shown.renderNow()")
        assert text(page, "follow") == "NOT LIVE"
        assert text(page, "notes").startswith("The server has ended. The steps so far can still be viewed")
        number = page("return shown.last")
        assert number >= 20
        again, _ = start(url.rpartition(":")[2])
        stack.callback(again.kill)
        until(page, "link.isUp")
        assert "The server was restarted, and counts its steps from 1" in text(page, "notes")
        assert "Save that run" in text(page, "notes")
        assert "The server has ended" not in text(page, "notes")
        assert page("return shown.last") is None
        asked(page, "A fox", 5)
        assert page(f"return {STEPS}.map(({{ step }}) => step)") == [0, 1, 2, 3, 4]
        again.send_signal(signal.SIGTERM)
        assert again.wait(timeout=60) == 0
    driver.get_log("browser")
    driver.get("about:blank")


def test_a_step_that_one_asks_for_stays(page):
    """Even if it was the newest step at the time."""
    ask(page, "Once upon a time", 400)
    until(page, f"{STEPS}.length > 20 && !shown.isIdle")
    number, position = page("shown.showStep(shown.last); return [shown.last, shown.position]")
    assert position == page("return shown.position")
    until(page, f"shown.last > {number} + 20")
    assert page("return [shown.replay.steps[shown.position].step + 1, shown.isFollowing]") == [number, False]
    assert text(page, "follow") == "Back to LIVE"
    page("shown.follow()")
    until(page, "!writing && shown.isIdle")


def test_a_lost_connection_says_what_was_missed(page):
    """Nothing, as long as the server has kept the steps."""
    asked(page, "A fox", 5)
    last = page("return shown.last")
    page("link.source.dispatchEvent(new Event('error'))")
    assert page("return link.isUp") is False
    until(page, "link.isUp")
    until(page, "document.querySelector('.notes .link')")
    assert re.match(r"The connection was lost for \d s. No step was missed.", text(page, "notes"))
    asked(page, "A fox", 5)
    assert page(f"return {STEPS}.at(-1).step") > last
    page("link.source.dispatchEvent(new Event('error')); link.after = shown.replay.first - 50; link.run = 'another'")
    until(page, "link.isUp")
    assert page("return shown.steps.length") > 5


@pytest.mark.parametrize("num_blocks", [9, 64, 1000])
def test_presets_bring_about_what_they_say(driver, num_blocks):
    """With one click, for a pool of any size; and the step that they name shows it."""
    shows = {"rush": "refused", "memory": "preempted", "same": "admitted", "long": None}
    with server(*OPTIONS, "--num-blocks", num_blocks) as (url, _):
        for page in opened(driver, url):
            for name, kind in shows.items():
                page("document.querySelector(`[data-preset=${arguments[0]}]`).click()", name)
                until(page, "document.querySelector('.found') || /press the button again/.test(find('look').innerText)")
                number = int(re.search(r"Step ([\d,]+):", text(page, "look"))[1].replace(",", ""))
                page("document.querySelector('.found button').click(); shown.renderNow()")
                step = page("return shown.replay.steps[shown.position]")
                assert step["step"] + 1 == number
                if kind:
                    assert kind in {event["kind"] for event in step["before"]}
                assert len(page("return shown.views[0].pool.shown")) <= 128
                until_idle(url)
                until(page, "shown.isIdle")
                until(page, "document.getElementById('held-back').hidden")
                assert levers(url) == {"max_num_seqs": 8, "num_blocks": num_blocks}


def test_after_a_preset_everything_is_as_before(page, url):
    """As it was, not as at the start; also while visitors keep coming, and after two at once. What somebody moves
    meanwhile stays."""
    before = {"max_num_seqs": 7, "num_blocks": 90}
    for name, value in before.items():
        move(page, name, value, "change")
    until(page, "find('held-back').innerText.startsWith('The engine uses 90 of its 100 blocks and 7 of its 8 places')")
    page("document.querySelector('[data-preset=rush]').click()")
    until(page, "shown.presets.run?.isSent")
    assert levers(url) == {"max_num_seqs": 4, "num_blocks": 48}
    move(page, "output-tokens", 20)
    move(page, "arrivals", 3)
    page("document.querySelector('[data-preset=memory]').click()")
    until(page, "shown.presets.run === null && shown.presets.before === null")
    move(page, "arrivals", 0)
    for name, value in before.items():
        until(page, f"document.getElementById('{name}').value === '{value}'")
    assert levers(url) == before
    until_idle(url)
    page("document.querySelector('[data-preset=same]').click()")
    until(page, "shown.presets.run")
    move(page, "num_blocks", 60, "change")
    until(page, "shown.presets.run === null && shown.isIdle")
    until(page, "document.getElementById('max_num_seqs').value === '7'")
    assert levers(url) == {"max_num_seqs": 7, "num_blocks": 60}
    for name, value in {"max_num_seqs": 8, "num_blocks": 100}.items():
        move(page, name, value, "change")
    until(page, "document.getElementById('held-back').hidden")


def test_guesses_come_true_on_the_server_that_one_starts_first(driver):
    with server("tinytales", "--quiet", "--grace", "0") as (url, _):
        for page in opened(driver, url):
            page("document.querySelector('[data-preset=guess]').click()")
            until(page, "/guess(es)? (is|are) right/.test(document.querySelector('.found')?.innerText)")
            page("document.querySelector('.found button').click(); shown.renderNow()")
            right, new = map(int, re.search(r"(\d+) of \d+ guess.* gets (\d+) tokens", text(page, "look")).groups())
            guesses = page("return [...document.querySelectorAll('.guess.right')].map((node) => node.textContent)")
            assert len(guesses) == right == new - 1
            until(page, "shown.isIdle && document.getElementById('held-back').hidden")


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


def test_a_preset_that_cannot_be_says_why(driver):
    with server("--stage", "4", "--model", "tinytales", "--quiet", "--grace", "0") as (url, _):
        for page in opened(driver, url):
            page("document.querySelector('[data-preset=memory]').click()")
            assert "from stage 5 on memory can run out" in text(page, "look")
            assert "Stage 4 has a slot for each request" in page(
                "return document.getElementById('no-levers').innerText"
            )
            page("document.querySelector('[data-preset=rush]').click()")
            until(page, "document.querySelector('.found')")


def test_the_layout_and_what_guesses_do(driver):
    """Nothing overlaps and no line is cut: before anything ran, when memory ran out, at rest, and with all tools shown.
    What a lever has changed can be restored. Then one request for which a smaller model guesses."""
    found = {}
    with server(*GUESSING) as (url, _):
        for page in opened(driver, url):
            assert page("return document.querySelector('.summary').textContent") == "Nothing has run yet."
            assert page("return document.querySelector('.events').textContent") == "All 4096 blocks are free."
            for width, height in SIZES:
                page.size(width, height, mobile=width < 500)
                found["new", width] = page(f"{LAYOUT} shown.measure(); shown.renderNow(); return faults()")
            page("document.querySelector('[data-preset=memory]').click()")
            until(page, "!document.getElementById('held-back').hidden")
            assert text(page, "held-back").startswith("The engine uses 9 of its 4,096 blocks now.")
            until(page, "document.querySelector('.found') && shown.isIdle")
            page("document.querySelector('.found button').click(); shown.renderNow()")
            reserved = int(re.search(r"of ([\d,]+) reserved", text_of(page, ".picked"))[1].replace(",", ""))
            assert reserved <= 9 * 16
            assert page("return shown.views[0].pool.shown.length") == 9  # those that can be used, large enough to read
            assert re.match(r"\d of 9 blocks held", text_of(page, ".memory-note"))
            for width, height in SIZES:
                page.size(width, height, mobile=width < 500)
                for state, act in {
                    "at rest": "shown.follow()",
                    "preempted": "document.querySelector('.found button').click()",
                    "help": "document.getElementById('help-button').click()",
                }.items():
                    found[state, width] = page(f"{LAYOUT} {act}; shown.measure(); shown.renderNow(); return faults()")
                page("document.getElementById('help-button').click()")
            until(page, "document.getElementById('held-back').hidden")
            move(page, "num_blocks", 100, "change")
            until(page, "!document.getElementById('held-back').hidden")
            page("document.getElementById('restore').click()")
            until(page, "document.getElementById('held-back').hidden")
            assert levers(url) == {"max_num_seqs": 64, "num_blocks": 4096}
            page("document.querySelector('[data-preset=guess]').click()")
            until(page, "/guesses (is|are) right/.test(document.querySelector('.found')?.innerText)")
            page("document.querySelector('.found button').click(); shown.renderNow()")
            right, new = map(int, re.search(r"(\d) of \d guesses .* gets (\d) tokens", text(page, "look")).groups())
            guesses = page("return [...document.querySelectorAll('.guess.right')].map((node) => node.textContent)")
            assert len(guesses) == right == new - 1
            assert not any("‹" in guess for guess in guesses)
            until(page, "shown.isIdle")
            guesses = page("return shown.replay.steps.flatMap((step) => step.rows.flatMap((row) => row.drafts ?? []))")
            assert guesses
            assert page("return arguments[0].every((id) => shown.replay.texts.has(id))", guesses)  # refused ones too
    assert {when: faults for when, faults in found.items() if faults} == {}


def test_who_cannot_guess_says_why(page):
    page("document.querySelector('[data-preset=guess]').click()")
    assert text(page, "look").startswith("Guess ahead. Each step gives a request one token here")


def test_only_the_scripts_of_the_page_run(page):
    """The browser obeys the policy: it runs no injected script, and connects to no other address."""
    page(
        "window.broken = []; addEventListener('securitypolicyviolation', (e) => broken.push(e.effectiveDirective));"
        "const script = document.createElement('script'); script.textContent = 'window.hacked = true';"
        "document.body.append(script); fetch('http://127.0.0.1:1/').catch(() => {})"
    )
    until(page, "broken.length === 2")
    assert sorted(page("return broken")) == ["connect-src", "script-src-elem"]
    assert page("return window.hacked") is None
    page.driver.get_log("browser")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_accessibility_and_sizes(page, dark):
    if not AXE.exists():
        pytest.fail("no axe-core: make test-browser fetches it")
    asked(page, "Once upon a time", 20)
    page("document.querySelector('[data-preset=memory]').click()")
    until(page, "document.querySelector('.found')")
    until(page, "shown.isIdle")
    for width, height in [(390, 844), (1024, 768), (1440, 900), (1920, 1080)]:
        page.size(width, height, dark=dark, mobile=width < 500)
        until(page, f"document.documentElement.scrollWidth <= {width}", seconds=20)
        if width > 1000:  # the memory is in sight
            assert page("return document.querySelector('.pool').getBoundingClientRect().top") < height - 100
    page(AXE.read_text(encoding="utf-8"))
    found = page.driver.execute_async_script("axe.run().then((found) => arguments[0](found.violations))")
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []
    move(page, "num_blocks", 100, "change")

"""The page of a running server: asking, visitors, levers, and the engine as it runs."""

import json
import re
import time
import urllib.request

import pytest
from selenium.webdriver.common.keys import Keys

from stagewise.replay.state import snapshot, states
from stagewise.replay.trace import Trace, check_header, check_step
from stagewise.serving.clients.server import server
from tests.browser.conftest import Browser
from tests.browser.test_page import AXE

OPTIONS = ("--stage", "6", "--model", "tinytales", "--num-blocks", "100", "--max-num-seqs", "8", "--quiet")


@pytest.fixture(scope="module")
def url():
    with server(*OPTIONS) as (url, _):
        yield url


@pytest.fixture
def page(driver, url):
    """The browser on the page, at a laptop's size. After the test nothing stands in the console."""
    browser = Browser(driver)
    browser.size(1280, 800)
    driver.get_log("browser")
    driver.get(f"{url}/")
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


DONE = "document.getElementById('ask-button').textContent === 'Write'"
# An answer and the steps come by two streams: that the engine is at rest may come after the last piece of text.
LAST_STEP = "shown && shown.replays[0].steps.length && !shown.replays[0].steps.at(-1).rows.length"


def test_it_says_what_to_do_and_answers(page, url):
    assert page("return document.querySelector('.transport').offsetHeight") == 0
    assert page("return document.getElementById('live-note').textContent").startswith("Nobody has asked")
    ask(page, "There was once a shy bear", 30)
    until(page, "shown && shown.replays[0].steps.length >= 30")
    until(page, DONE)
    body = {"model": "tinytales", "prompt": "There was once a shy bear", "max_tokens": 30, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        text = json.load(response)["choices"][0]["text"]
    assert page("return document.getElementById('answers').textContent") == "There was once a shy bear" + text
    assert page("return document.getElementById('live-note').hidden")
    assert page("return document.querySelector('.transport').offsetHeight > 0")


def test_what_is_shown_is_what_happened(page):
    """Its states are those that the same steps have in Python; it stays at the last step, unless one looks back."""
    ask(page, "Once upon a time", 40)
    until(page, LAST_STEP)
    until(page, DONE)
    assert "at rest" in page("return document.querySelector('.summary').textContent")
    assert re.match(r"0 of \d+ blocks held", page("return document.querySelector('.memory-note').textContent"))
    header, steps = page("return [shown.replays[0].header, shown.replays[0].steps]")
    check_header(header)
    for step in steps:
        check_step(step, step["step"])
    trace = Trace("live", header, steps)
    for number, state in enumerate(states(trace)):
        if number in (0, 7, len(steps) - 1):
            assert page("return snapshot(shown.replays[0], arguments[0])", number) == snapshot(state)
    assert page("return [shown.position, shown.clock.end]") == [len(steps) - 1, len(steps) - 1]
    page("shown.turnTo(3)")
    ask(page, "A fox", 10)
    until(page, f"shown.replays[0].steps.length >= {len(steps) + 10}")
    assert page("return shown.position") == 3


def test_visitors_and_levers(page, url):
    move(page, "output-tokens", 100)
    move(page, "arrivals", 10)
    assert page("return document.getElementById('arrivals').nextElementSibling.textContent") == "10 a second"
    until(page, "shown && shown.replays[0].steps.at(-1).rows.length >= 6")  # more than a browser has connections
    move(page, "max_num_seqs", 2, "change")
    move(page, "num_blocks", 70, "change")
    until(page, "shown.replays[0].steps.at(-1).rows.length <= 2")
    until(page, "shown.replays[0].stepsWith.preempted.length")
    with urllib.request.urlopen(f"{url}/live/levers") as response:
        assert {name: lever["now"] for name, lever in json.load(response).items()} == {
            "max_num_seqs": 2,
            "num_blocks": 70,
        }
    move(page, "arrivals", 0)
    move(page, "max_num_seqs", 8, "change")
    move(page, "num_blocks", 100, "change")
    for _ in range(2000):
        with urllib.request.urlopen(f"{url}/metrics") as response:
            if re.search(rb"^vllm:num_requests_running.* 0.0$", response.read(), re.MULTILINE):
                break
        time.sleep(0.05)
    assert page("return shown.replays[0].stepsWith.finished.length") > 3


def test_the_page_keeps_its_keys_out_of_the_prompt(page):
    ask(page, "A fox", 5)
    until(page, LAST_STEP)
    until(page, DONE)
    position = page("return shown.position")
    prompt = page.driver.find_element("id", "prompt")
    prompt.clear()
    prompt.send_keys("no pen? " + Keys.ARROW_LEFT + Keys.HOME)
    assert prompt.get_property("value") == "no pen? "
    assert page("return [shown.position, Boolean(shown.playing)]") == [position, False]


def test_a_wrong_question_is_told(page):
    ask(page, "word " * 2000, 10)
    until(page, DONE)
    assert "max_model_len" in page("return document.querySelector('.failed').textContent")
    page.driver.get_log("browser")  # Chromium writes down that an answer was an error


def test_the_end_of_the_server(driver):
    page = Browser(driver)
    with server(*OPTIONS) as (url, _):
        driver.get(f"{url}/")
        ask(page, "A fox", 5)
        until(page, "shown")
    until(page, "document.getElementById('live-note').textContent.startsWith('The server has ended')")
    driver.get_log("browser")
    driver.get("about:blank")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_accessibility_and_sizes(page, dark):
    if not AXE.exists():
        pytest.fail("no axe-core: make test-browser fetches it")
    ask(page, "Once upon a time", 20)
    until(page, "shown && shown.replays[0].steps.length >= 20")
    until(page, DONE)
    for width, height in [(390, 844), (1280, 800)]:
        page.size(width, height, dark=dark, mobile=width < 500)
        until(page, f"document.documentElement.scrollWidth <= {width}", seconds=20)
    page(AXE.read_text(encoding="utf-8"))
    found = page.driver.execute_async_script("axe.run().then((found) => arguments[0](found.violations))")
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []

"""A browser for the tests of pages: Chromium without a window and without a network. `make test-browser` runs them."""

import contextlib
import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest
from selenium import webdriver

from stagewise.replay.cli import main as replay
from tests import made_traces
from tools import replay_examples

ROOT = Path(__file__).resolve().parents[2]
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync"""
NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(directory):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=directory))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Browser:
    """A window with one page."""

    def __init__(self, driver):
        self.driver = driver

    def __call__(self, script, *arguments):
        """What a function's body returns."""
        return self.driver.execute_script(script, *arguments)

    def size(self, width, height, dark=False, mobile=False, media="", still=False):
        screen = dict(width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [
            dict(name="prefers-color-scheme", value="dark" if dark else "light"),
            dict(name="prefers-reduced-motion", value="reduce" if still else "no-preference"),
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dict(media=media, features=features))

    def open(self, path, fragment=""):
        self.driver.get("about:blank")
        self.driver.get(f"{path.as_uri()}{fragment}")
        self("typeof page === 'undefined' || page.renderNow?.()")  # a replay draws with the next frame

    def go_to(self, step):
        self("page.turnTo(arguments[0]); page.renderNow()", step)

    def press(self, *keys):
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(key).perform()
        self("page.renderNow()")

    def shown(self):
        """What the page shows, read from its elements: the queue, the rows and the tables of each trace."""
        return self(
            """
            const text = (node) => node.textContent, keys = (nodes) => [...nodes].map((node) => node.dataset.key);
            return [...document.querySelectorAll(".panel")].map((panel) => ({
              summary: text(panel.querySelector(".summary")),
              events: [...panel.querySelectorAll(".events li")].map(text),
              waiting: keys(panel.querySelectorAll(".queue > li")),
              rows: [...panel.querySelectorAll(".rows > li")].map((row) => ({
                key: row.dataset.key,
                what: text(row.querySelector(".what")),
                tokens: [...row.querySelectorAll(".tokens > :not(.gap, .fresh)")].map(text).join(""),
                now: [...row.querySelectorAll(".now, .tokens .again")].map(text),
                fresh: [...row.querySelectorAll(".fresh")].map(text),
              })),
              tables: Object.fromEntries([...panel.querySelectorAll(".tables > li")].map((table) =>
                [table.dataset.key, [...table.querySelectorAll("[data-block]")].map((b) => Number(text(b)))])),
              memory: text(panel.querySelector(".memory-note")),
              numbers: text(panel.querySelector(".numbers-note")),
              counts: Object.fromEntries([...panel.querySelectorAll(".counts:not(.part-counts) li")].map((line) =>
                [text(line.children[1]), Number(text(line.children[2]).replaceAll(",", ""))])),
            }));
            """
        )


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.fail("no chromium and chromedriver; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS.split(), NO_NETWORK]:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver):
    """The browser at a laptop's size. After the test, nothing was fetched, and the console is empty."""
    browser = Browser(driver)
    browser.size(1280, 800)
    driver.get_log("browser")
    yield browser
    assert browser("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    assert [entry["message"] for entry in driver.get_log("browser")] == []


@pytest.fixture(scope="session")
def make_page(tmp_path_factory):
    """Pages of traces, made by the command line: header and steps of each -> the paths of the page and the traces."""
    directory = tmp_path_factory.mktemp("pages")

    def make(name, *traces):
        paths = [made_traces.write(directory / f"{name}{i}.jsonl", *trace) for i, trace in enumerate(traces)]
        page = directory / f"{name}.html"
        assert replay([*map(str, paths), "-o", str(page)]) == 0
        return page, paths

    return make


@pytest.fixture(scope="session")
def page_of(tmp_path_factory):
    """A name -> the page of that example, as the site has it."""
    folder = tmp_path_factory.mktemp("stories")

    @functools.cache
    def page(name):
        path = folder / f"{name}.html"
        path.write_text(replay_examples.make(name), encoding="utf-8")
        return path

    return page

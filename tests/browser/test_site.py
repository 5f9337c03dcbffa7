"""The site that `make site` makes: no page or link is broken, nothing is fetched, and it reads well at three widths."""

import html
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser.conftest import ROOT, Browser, served
from tests.browser.test_page import violations

sys.path.insert(0, str(ROOT / "tools"))  # as docs/site/conf.py does it
sys.path.insert(0, str(ROOT / "docs" / "site"))
import notebook_heads
import walk
from sync_stages import read_stages, tomllib

WIDTHS = {1440: 900, 800: 1000, 390: 844}
BUILD = (
    "-m sphinx --quiet --fail-on-warning --keep-going -c docs/site -d docs/site/_build/doctrees . docs/site/_build/html"
)
STAGES = read_stages()


@pytest.fixture(scope="module")
def site():
    made = subprocess.run([sys.executable, *BUILD.split()], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return ROOT / "docs/site/_build/html"


@pytest.fixture(scope="module")
def texts(site):
    """Every page of the site itself: path -> its HTML."""
    pages = [page for page in site.rglob("*.html") if "_static" not in page.parts and page.parent.name != "traces"]
    return {page: page.read_text(encoding="utf-8") for page in sorted(pages)}


@pytest.fixture
def browser(driver):
    """The browser at a laptop's size, without motion: a page that still scrolls moves from under a click.
    After the test: nothing came from the network, nothing stands in the console."""
    browser = Browser(driver)
    browser.size(1280, 800, still=True)
    driver.get_log("browser")
    yield browser
    assert not fetched(browser)
    assert [entry["message"] for entry in driver.get_log("browser")] == []


def fetched(browser):
    names = browser("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    return [name for name in names if not name.startswith(("file:", "data:", "http://127.0.0.1:"))]


def until(browser, condition):
    WebDriverWait(browser.driver, 30).until(lambda _: condition())


def documents():
    """The Markdown files and notebooks in Git, or not ignored by it, but for templates."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "*.ipynb"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in names if (ROOT / name).exists() and "TEMPLATE" not in name]


def page_of(site, path):
    return site / path.relative_to(ROOT).with_suffix(".html")


def plain(code):
    return html.unescape(re.sub(r"<[^>]*>", "", code))


# --- The files --------------------------------------------------------------------------------------------------------


def test_the_root_leads_to_every_text_walk_and_difference(site, texts):
    reached, todo = set(), [site / "index.html"]
    while todo:
        page = todo.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r'href="([^"#?:]+\.html)', texts.get(page, ""))
            todo += [(page.parent / unquote(link)).resolve() for link in links]
    pages = {page for page in texts if {"walks", "differences"} & set(page.parts)}
    assert len(pages) > 2 * len(STAGES)
    assert (pages | {page_of(site, path) for path in documents()}) - reached == set()


def test_a_chapter_leads_to_its_walk(texts, site):
    for stage in list(STAGES)[1:]:
        assert f'class="walk-link"><a href="../walks/{stage}.html"' in texts[site / stage / "README.html"]


def test_the_sidebar_has_the_pages_of_a_chapter_in_their_order(site, texts):
    page = texts[page_of(site, ROOT / "stage05_paged/README.md")]
    assert 0 < page.index('href="SHARING.html">Stage 5, second') < page.index('href="KERNEL.html">Stage 5, third')


def test_no_link_is_broken(site, texts):
    ids = {page: set(re.findall(r'\b(?:id|name)="([^"]*)"', text)) for page, text in texts.items()}
    files, broken = {path for path in site.rglob("*") if path.is_file()}, []
    for page, text in texts.items():
        for address in set(re.findall(r'\b(?:href|src)="([^"]*)"', text)):
            address, fragment = urldefrag(html.unescape(address))
            if re.match(r"[a-z]+:", address):
                continue
            target = Path(os.path.normpath(page.parent / unquote(address.split("?")[0]))) if address else page
            if target not in files or (fragment and unquote(fragment) not in ids.get(target, {fragment})):
                broken.append((page.relative_to(site).as_posix(), address, fragment))
    assert broken == []


def test_links_have_words_and_hold_no_links(texts):
    wrong = re.compile(r"<a\b[^>]*\bhref[^>]*>(?:\s|</?span[^>]*>)*</a>|<a\b[^>]*>(?:(?!</a>).)*<a\b", re.DOTALL)
    found = {page.name: wrong.findall(text[text.index("<article") :]) for page, text in texts.items()}
    assert [(page, links) for page, links in found.items() if links] == []


def test_nothing_comes_from_the_network(texts):
    loaded = (
        r'<(?:script|img|iframe|source|video)\b[^>]*\b(?:src|srcset)="(?:https?:)?//|<link\b[^>]*\bhref="(?:https?:)?//'
    )
    assert [page for page, text in texts.items() if re.search(loaded, text)] == []


def folds(path):
    return len(re.findall(r"^<details>", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_folds_are_all_there(texts, site):
    assert any(map(folds, documents()))
    for path in documents():
        page = texts[page_of(site, path)]
        article = page[page.index("<article") : page.index("</article>")]
        assert article.count("<details>") == article.count("</details>") == article.count("<summary>") == folds(path)


def test_chapters_show_the_replays_they_link_to(texts, site):
    linked = re.compile(r"\]\(\.\./docs/examples/traces/(\w+)\.jsonl")
    shown = re.compile(r'<iframe src="[^"]*/(\w+)\.html"')
    chapters = {path: set(linked.findall(path.read_text(encoding="utf-8"))) for path in documents()}
    assert any(chapters.values())
    for path, replays in chapters.items():
        assert set(shown.findall(texts[page_of(site, path)])) >= replays


@pytest.mark.parametrize("folder", STAGES)
def test_every_file_of_a_stage_is_shown(texts, site, folder):
    for name in [name for name in STAGES[folder] if not name.endswith((".md", ".svg"))]:
        lines = (ROOT / folder / name).read_text(encoding="utf-8").splitlines()
        page = texts[site / folder / f"{name}.html"]
        shown = re.findall(r'<span id="line-\d+">(.*)', page)
        assert [plain(line).lstrip(" 0123456789") for line in shown] == [
            line.lstrip(" 0123456789") for line in lines or [""]
        ]


@pytest.mark.parametrize(("before", "after"), list(pairwise(STAGES)))
def test_both_sides_of_a_difference_are_the_files(texts, site, before, after):
    changed = [name for name, state in STAGES[after].items() if state == "changed" and not name.endswith(".md")]
    assert changed
    for name in changed:
        page = texts[site / "differences" / after / f"{name}.html"]
        sides = re.findall(r'<ol class="(old|new)" start="(\d+)">(.*?)</ol>', page, re.DOTALL)
        for side, folder in (("old", before), ("new", after)):
            expected = (ROOT / folder / name).read_text(encoding="utf-8").splitlines()
            shown = []
            for kind, start, items in sides:
                if kind == side:
                    assert int(start) == len(shown) + 1
                    shown += [plain(code) for code in re.findall("<li><code>(.*?)</code></li>", items, re.DOTALL)]
            assert shown == expected
        for old, new in re.findall(r'<div class="equal">(.*?</ol>)(.*?</ol>)</div>', page, re.DOTALL):
            assert plain(old) == plain(new)


# --- In the browser ---------------------------------------------------------------------------------------------------


def sample(site, texts):
    """All pages made from a Markdown file, and some of the others."""
    made = [page_of(site, path) for path in documents()] + [site / "search.html"]
    return made + [page for page in texts if page not in made][::20]


TOO_WIDE = """
    return [...document.querySelectorAll("article *")].filter((node) => node.getClientRects().length
      && node.getBoundingClientRect().right > innerWidth + 1
      && !node.closest("pre, .table-wrapper, .highlight, .diagram, .cell_output"))
      .map((node) => node.outerHTML.slice(0, 100))"""


CUT_OFF = """
    return [...document.querySelectorAll("article pre")].filter((node) => node.getClientRects().length
      && node.scrollWidth > node.clientWidth).map((node) => node.textContent.slice(0, 60))"""


def test_no_page_scrolls_sideways_and_no_code_is_cut_off(browser, site, texts):
    """No code of a text on a laptop: commands and their output, in notebooks and references too."""
    wrong, texts_of_site = [], {page_of(site, path) for path in documents()}
    for page in sample(site, texts):
        name = page.relative_to(site).as_posix()
        browser.size(1440, 900)
        browser.open(page)
        if page in texts_of_site:
            wrong += [(name, cut_off) for cut_off in browser(CUT_OFF)]
        for width, height in WIDTHS.items():
            browser.size(width, height, mobile=width < 500)
            if browser("return document.documentElement.scrollWidth") > width or browser(TOO_WIDE):
                wrong.append((name, width, browser(TOO_WIDE)))
        wrong += [(name, entry["message"]) for entry in browser.driver.get_log("browser")]
        wrong += [(name, address) for address in fetched(browser)]
    assert wrong == []


def test_search(browser, site):
    """With a server: a browser lets no script read the files next to a local one, which the results' extracts need."""
    links = "return [...document.querySelectorAll('#search-results li a')].map((link) => link.href)"
    with served(site) as address:
        browser.driver.get(f"{address}/search.html?q=preemption")
        taught = f"{address}/stage05_paged/SHARING.html"  # results arrive one by one
        until(browser, lambda: taught in [link.split("#")[0] for link in browser(links)])
        until(browser, lambda: browser("return document.querySelector('#search-results p')"))
        browser.driver.find_element(By.CSS_SELECTOR, "#search-results li a").click()
        until(browser, lambda: "search.html" not in browser.driver.current_url)
        assert "preempt" in browser("return document.querySelector('article').textContent").lower()
        browser.driver.get("about:blank")


def test_no_motion_for_who_asks_for_none(browser, site):
    browser.open(site / "README.html")
    behavior = "return getComputedStyle(document.documentElement).scrollBehavior"
    assert browser(behavior) == "auto"
    browser.size(1280, 800)
    assert browser(behavior) == "smooth"


@pytest.mark.parametrize("width", WIDTHS)
def test_an_embedded_replay_runs(browser, site, width):
    browser.size(width, WIDTHS[width], mobile=width < 500)
    browser.open(site / "stage05_paged/README.html")
    frame = browser.driver.find_element(By.TAG_NAME, "iframe")
    browser("arguments[0].scrollIntoView()", frame)
    browser.driver.switch_to.frame(frame)
    until(browser, lambda: browser("return typeof page !== 'undefined'"))
    assert browser("return page.position") == 0
    browser("page.forward(); page.renderNow()")
    assert browser("return page.position") > 0
    assert browser("return document.documentElement.scrollWidth <= innerWidth")
    browser.driver.switch_to.default_content()


def test_unchanged_lines_unfold(browser, site, texts):
    page = next(page for page, text in texts.items() if "differences" in page.parts and "unchanged line" in text)
    browser.open(page)
    shown = "return document.querySelector('.difference details .new').checkVisibility()"
    assert not browser(shown)
    browser.driver.find_element(By.CSS_SELECTOR, ".difference summary").click()
    assert browser(shown)


def test_a_difference_has_two_columns_and_on_a_phone_one(browser, site):
    """There, what is equal is shown once, and what changed has the old lines above the new ones."""
    boxes = """return ["equal", "replace"].map((tag) => [...document.querySelectorAll(`.difference > .${tag} > ol`)]
        .slice(0, 2).map((side) => side.getBoundingClientRect().toJSON()))"""
    browser.open(site / "differences/stage05_paged/engine.py.html")
    assert browser("return document.documentElement.scrollWidth <= innerWidth")
    for old, new in browser(boxes):
        assert old["right"] <= new["left"] + 1
        assert old["top"] == new["top"]
    browser.size(390, 844, mobile=True)
    (equal, again), (old, new) = browser(boxes)
    assert equal["height"] == 0 < again["height"]
    assert old["bottom"] <= new["top"] + 1
    assert old["left"] == new["left"]
    assert browser("return document.documentElement.scrollWidth") <= 390


# --- The front page, and what is needed to publish --------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_the_front_page_plays_the_race_and_opens_a_replay(browser, site, width):
    browser.size(width, WIDTHS[width], mobile=width < 500)
    browser.open(site / "index.html")
    race = "const race = document.querySelector('article img[src*=\"/ladder\"]'), box = race.getBoundingClientRect();"
    assert browser(f"{race} return race.complete && race.naturalWidth > 0 && box.bottom < innerHeight")
    link = browser.driver.find_element(By.CSS_SELECTOR, ".ways a")
    assert browser("return arguments[0].getBoundingClientRect().bottom < innerHeight", link)
    link.click()
    until(browser, lambda: browser("return typeof page !== 'undefined'"))


def test_pages_show_the_version(texts):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for page, text in texts.items():
        assert f'brand-text">stagewise {version}<' in text, page


def test_pictures_are_described(texts):
    """By words, and not by the name of a file."""
    for page, text in texts.items():
        for picture in re.findall(r"<img\b[^>]*>", text[text.index("<article") :]):
            alt = re.search(r'\balt="([^"]*)"', picture)
            assert alt, (page, picture)
            assert " " in alt[1].strip(), (page, picture)


def properties(page):
    return dict(re.findall(r'<meta (?:name|property)="([^"]*)" content="([^"]*)"', page.read_text(encoding="utf-8")))


def test_without_an_address_nothing_says_one(site):
    assert not {name for name in properties(site / "README.html") if name.startswith("og:")}
    assert not (site / "sitemap.xml").exists()


def test_with_an_address(tmp_path):
    """A site of one page, built with what publishes the real one."""
    address = "https://someone.github.io/stagewise/"
    kept = "extensions", "ogp_", "notfound_", "sitemap_", "html_baseurl", "project"
    (tmp_path / "conf.py").write_text(
        f"import runpy\nreal = runpy.run_path({str(ROOT / 'docs/site/conf.py')!r})\n"
        f"globals().update({{name: value for name, value in real.items() if name.startswith({kept})}})\n"
        "extensions = ['extensions.publish', *extensions[-3:]]; html_theme = 'furo'; root_doc = 'README'\n"
    )
    (tmp_path / "README.rst").write_text("The <title>\n===========\n\nWhat it is about: 1 < 2 & told.\n")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", tmp_path, tmp_path / "html"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "SITE_ADDRESS": address}, check=True)
    found = properties(tmp_path / "html/README.html")
    assert found["description"] == found["og:description"]
    assert found["description"].startswith("What it is about")
    assert found["og:url"] == f"{address}README.html"
    assert found["twitter:card"] == "summary_large_image"
    assert len(found["og:image:alt"]) > 40
    picture = tmp_path / "html" / found["og:image"].removeprefix(address)
    assert picture.read_bytes().startswith(b"\x89PNG")
    missing = (tmp_path / "html/404.html").read_text(encoding="utf-8")
    assert 'href="/stagewise/_static/' in missing
    listed = re.findall("<loc>(.*?)</loc>", (tmp_path / "html/sitemap.xml").read_text(encoding="utf-8"))
    assert set(listed) == {f"{address}README.html", f"{address}genindex.html"}


def test_the_site_has_one_address():
    """It follows from the repository's, in pyproject.toml, or the environment says it."""
    assert notebook_heads.site_address("https://github.com/Someone/stagewise") == "https://someone.github.io/stagewise/"
    code = "import runpy; print(runpy.run_path('docs/site/conf.py')['html_baseurl'])"
    for said, expected in (("https://example.org/", "https://example.org/"), ("", "")):
        if not said and notebook_heads.repository():
            continue
        env = {**os.environ, "SITE_ADDRESS": said}
        made = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
        )
        assert made.stdout.strip() == expected


# --- Walks ------------------------------------------------------------------------------------------------------------


SHOWN_STOP = (
    "return [...document.querySelectorAll('.stop')].filter((stop) => stop.checkVisibility()).map((stop) => stop.id)"
)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_walk_steps(browser, site, width):
    browser.size(width, WIDTHS[width], mobile=width < 500, still=True)
    browser.open(site / "walks/stage03_kvcache.html")
    back, following = browser.driver.find_elements(By.CSS_SELECTOR, ".steps button")
    assert browser(SHOWN_STOP) == ["stop-1"]
    assert not back.is_enabled()
    following.click()
    assert browser(SHOWN_STOP) == ["stop-2"]
    assert browser("return location.hash + document.querySelector('.where').textContent") == "#stop-22 of 9"
    press = webdriver.ActionChains(browser.driver)
    press.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT).perform()
    assert browser(SHOWN_STOP) == ["stop-3"]
    back.click()
    assert browser(SHOWN_STOP) == ["stop-2"]
    for _ in range(12):
        webdriver.ActionChains(browser.driver).send_keys(Keys.ARROW_RIGHT).perform()
    assert browser(SHOWN_STOP) == ["stop-9"]
    assert not following.is_enabled()
    browser.open(site / "walks/stage03_kvcache.html", "#stop-4")
    assert browser(SHOWN_STOP) == ["stop-4"]
    words, code = browser(
        """return [".words", "figure"].map((part) =>
            document.querySelector(`#stop-4 ${part}`).getBoundingClientRect().toJSON())"""
    )
    assert code["right"] <= words["left"] if width > 1100 else words["bottom"] <= code["top"]
    assert browser(f"const [last] = document.querySelectorAll('.steps'); {VISIBLE}")


VISIBLE = "const box = last.getBoundingClientRect(); return box.top < innerHeight && box.bottom > 0"


def test_an_arrow_in_code_that_scrolls_or_in_the_search_is_not_a_step(browser, site):
    browser.open(site / "walks/stage03_kvcache.html")
    browser("document.querySelector('input[type=search], .sidebar-search').focus()")
    webdriver.ActionChains(browser.driver).send_keys(Keys.ARROW_RIGHT).perform()
    assert browser(SHOWN_STOP) == ["stop-1"]


@pytest.mark.parametrize("stage", list(STAGES)[1:])
def test_a_walk_needs_no_script(texts, site, stage):
    """All stops stand below each other, and their code is that of the files."""
    page = texts[site / "walks" / f"{stage}.html"]
    there = walk.read_walk(stage)
    shown = re.findall(r"<pre><code>(.*?)</code></pre>", page[page.index('class="wide walk"') :], re.DOTALL)
    assert [plain(code).rstrip("\n") for code in shown] == [stop.text() for stop in there.stops]
    assert 'class="stop" id="stop-1"' in page
    assert 'stop" hidden' not in page


KINDS = """README.html exercises/stage1/1_1_sampler.html notebooks/02_batching.html docs/site/api.html
    differences/stage05_paged/llm.py.html stage05_paged/__main__.py.html stage05_paged/README.html
    walks/stage05_paged.html"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", KINDS.split())
def test_accessibility(browser, site, name, dark):
    """axe-core finds nothing, the replays in a chapter left to their own tests."""
    browser.size(1280, 800, dark=dark)
    browser.open(site / name)
    options = "{preload: false, rules: {'definition-list': {enabled: false}}}"  # Sphinx's own lists of parameters
    assert violations(browser, "{exclude: ['iframe']}", options) == []

"""stagewise/stages.py has the list of stages; all that counts them, lists them or names the last one agrees with it."""

import inspect
import json
import re

import pytest

from bench.report import LOSES
from stagewise.replay import page
from stagewise.serving.page import make_page
from stagewise.stages import EXACT, IDEAS, PACKAGES, SERVING, STAGES
from tests.adapter import ROOT
from tools.sync_stages import read_stages, tomllib

NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
LAST = max(PACKAGES)
KINDS = r"(?:(?:complete|small|GPT-2|LLM|other|inference) )*(?:engines|stages|directories|chapters)"
PAGES = [
    ROOT / name
    for name in ("pyproject.toml", "CITATION.cff", "README.md", "docs/USING.md", "docs/READING.md", "docs/NEXT.md")
]
PAGES += [ROOT / name for name in (".github/CONTRIBUTING.md", "docs/GLOSSARY.md", "exercises/README.md")]
PAGES += [*ROOT.glob("stagewise/*/README.md"), *(ROOT / package / "README.md" for package in IDEAS)]


def counts(text):
    """The total numbers of stages that a text mentions."""
    words = "|".join(NUMBERS[4:])
    found = re.findall(rf"(?<!first )(?<!last )\b({words}) {KINDS}\b", text, re.IGNORECASE)
    return found + re.findall(rf"\b(?:the same in all|one loop,) ({words})\b", text, re.IGNORECASE)


def test_the_list():
    assert list(PACKAGES.values()) == list(IDEAS) == list(read_stages())
    assert list(PACKAGES) == [int(package[5:7]) for package in IDEAS] == list(range(1, LAST + 1))
    assert sorted(path.name for path in ROOT.glob("stage[0-9]*")) == list(IDEAS)
    assert [number for number, stage in STAGES.items() if stage.can_serve] == list(SERVING)  # said without an import
    assert EXACT in SERVING
    assert list(LOSES) == list(IDEAS)


def test_what_is_installed():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    by_number = [stage.command for stage in STAGES.values()]
    assert [name for name, path in setuptools["package-dir"].items() if path == "stagewise/by_number"] == by_number
    folders = [path.parent for package in IDEAS for path in sorted((ROOT / package).rglob("__init__.py"))]
    names = sorted(folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in folders)
    assert sorted(name for name in setuptools["packages"] if name.startswith("stage0")) == sorted([*names, *by_number])
    with_c = {name for name in names if list((ROOT / name.replace(".", "/")).glob("*.c"))}
    assert {name for name in setuptools["package-data"] if name.startswith("stage0")} == with_c


def test_pages_of_replay_know_every_stage():
    for html in (page.make_page([]), make_page({"stage": PACKAGES[EXACT]})):
        ideas = json.loads(re.search(r"<script>const STAGE_IDEAS = (.*?);", html)[1])
        assert ideas == {str(number): IDEAS[package] for number, package in PACKAGES.items()}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_count_the_stages_right(path):
    text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    assert {number.lower() for number in counts(text)} <= {NUMBERS[LAST]}
    assert not (found := re.findall(r"stages? \d or \d", text)), f"{found}: a later one does it as well"


def test_tables_of_all_stages():
    """The README's ladder; where a stage is added."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[\d [^]]+\]\((\w+)/README.md\)", readme, re.MULTILINE) == list(IDEAS)
    new = set(
        re.findall(
            r"stage(\d\d)(?:_NAME|` as the others)", (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
        )
    )
    assert new == {f"{LAST + 1:02}"}


def test_what_counts():
    for text in (
        "Seven complete GPT-2 inference engines",
        "the same in all seven.",
        "One loop, seven times",
        "SIX stages",
    ):
        assert len(counts(text)) == 1, text
    for text in (
        "the first five stages",
        "all five requests",
        "two engines",
        "all eight prompts",
        "the last five chapters",
    ):
        assert counts(text) == [], text


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda stage: stage.command)
def test_what_a_stage_can_do(stage):
    """The registry says it without importing the stage."""
    assert stage.can_serve == hasattr(stage, "AsyncLLM")
    assert stage.can_score == hasattr(stage, "Pair")
    assert stage.has_beams == hasattr(stage.LLM, "beam_search")
    assert stage.has_priority == ("priority" in inspect.signature(stage.LLM.as_completed).parameters)

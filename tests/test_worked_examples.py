"""The worked examples in the chapters show what the stages do."""

import sys

import pytest

from tests.adapter import ROOT, STAGES

sys.path.insert(0, str(ROOT / "tools"))  # a tool finds its neighbors as when it is run
import worked_examples

PAGES = [page for stage in STAGES for page in worked_examples.pages(stage.directory)]


def test_which_chapters_have_one():
    pages = [f"{page.parent.name[:7]}/{page.stem}" for page in PAGES]
    assert pages == [f"stage0{i}/README" for i in range(1, 6)] + ["stage05/SHARING", "stage07/README"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_chapters_show_what_runs(page):
    text = page.read_text(encoding="utf-8")
    assert worked_examples.fresh(page) == text, "run `python tools/worked_examples.py --write`, and read the page"


def test_completions_that_wait_for_their_first_token():
    """A prompt's second completion that has no place yet: the table says that it waits."""
    command = "python -m stage05 --prompts a b --n 2 --max-num-seqs 2 --max-tokens 2 --temperature 0 --ignore-eos"
    rows = worked_examples.table(worked_examples.run("stage05_paged", command)).splitlines()
    assert rows[0].startswith("| step | A1 | A2 | B1 | B2 |")
    assert "waits" in rows[3]


def test_a_command_that_fails_leaves_the_chapters_as_they_are(capsys):
    with pytest.raises(ValueError, match="it fails: python -m stage01 --max-tokens 0"):
        worked_examples.run("stage01_single", "python -m stage01 --max-tokens 0")
    assert "no prompts" in capsys.readouterr().err

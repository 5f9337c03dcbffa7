"""The worked examples in the chapters show what the stages do."""

import contextlib
import io
import re
import runpy
import sys

import pytest

from tests.adapter import ROOT, STAGES

sys.path.insert(0, str(ROOT / "tools"))  # a tool finds its neighbors as when it is run
import worked_examples


@pytest.mark.parametrize("directory", [stage.directory for stage in STAGES[:5]])
def test_chapters_show_what_runs(directory):
    pages = worked_examples.pages(directory)
    assert ROOT / directory / "README.md" in pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert worked_examples.fresh(page) == text, "run `python tools/worked_examples.py --write`, and read the page"


def test_the_page_on_fairness_shows_what_its_example_prints():
    page = (ROOT / "stage05_paged/SHARING.md").read_text(encoding="utf-8").partition("## Fairness")[2]
    shown = re.search(r"`python\s+(examples/fairness.py)` prints.*?```text\n(.*?)```", page, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(ROOT / shown[1]), run_name="__main__")
    assert printed.getvalue() == shown[2]


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

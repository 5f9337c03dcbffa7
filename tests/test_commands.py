"""The Makefile, the table of its commands in CONTRIBUTING.md, and the workflows name the same commands and files."""

import re

import pytest
import yaml

from tests.adapter import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
TARGETS = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def recipe(target):
    """The extras that a target installs, and those of its commands that run a program of .venv."""
    variables = dict(re.findall(r"^(\w+) \??:?= ?(.*)$", MAKEFILE, re.MULTILINE))
    first, lines = re.search(rf"^{re.escape(target)}:(.*)\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE).groups()
    (installed,) = re.findall(r"\$\(VENV\)/(installed\S*)", first)
    (extras,) = re.findall(rf'/{installed}:.*\n.*--editable "?\.\[?([\w,]*)', MAKEFILE)
    lines = re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], ""), lines.replace("$(BIN)/", "\0"))
    commands = re.findall(r"\0([^\0\n;&>]+)", lines)
    return extras, [re.sub(r"\s+", " ", command).strip() for command in commands]


def test_commands_without_make():
    table = re.findall(
        r"^\| `make (\S+)` \| (?:`(\S+)`)? ?\| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE
    )
    assert sorted(target for target, _, _ in table) == sorted({*TARGETS} - {"mermaid"})
    for target, extras, cell in table:
        needed, commands = recipe(target)
        shown = re.findall(r"`([^`]*)`", cell)[: len(commands)]
        assert extras == needed, target
        if target == "demo":  # one of its prompts is enough
            commands = [commands[0][: len(shown[0])]]
        assert shown == commands, target


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_there_is(path):
    """zizmor, in `make test`, checks the rest of them."""
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    assert all("timeout-minutes" in job for job in jobs)
    commands = [step["run"].split() for job in jobs for step in job["steps"] if "run" in step]
    assert commands
    for program, *arguments in commands:
        if program == "make":
            assert {*arguments} <= {*TARGETS}
        for word in (program, *arguments):
            assert (not word.startswith(".ci/") and not word.endswith(".py")) or (ROOT / word).is_file(), word

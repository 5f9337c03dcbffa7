"""The commands that the pages show have the flags and arguments that they show."""

import re
import shlex

import pytest

from stagewise import convert, flags, push, score
from stagewise.replay import cli as replay
from stagewise.serving import cli as serving
from stagewise.stages import STAGES
from tests.adapter import ROOT

FOLDERS = ("bench", "docs", "exercises", "notebooks", "stage*", "tests")
PAGES = [page for name in (".", ".github", *FOLDERS) for page in ROOT.glob(f"{name}/{'**/' * (name in FOLDERS)}*.md")]
BLOCK = re.compile(r"^( *)```(?:bash|sh|shell|console|text)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:python -m )?(?:stage0\d|stagewise)\s[^`]*)`")
COMMAND = re.compile(r"(?:python -m )?(stage0\d|stagewise (?:run|serve|score|push|replay|convert))(?: (.*))?$")


def commands(text):
    """The commands of a page."""
    blocks = [block for _, block in BLOCK.findall(text)]
    indented = re.findall(r"^    (.*(?:\n    .*)*)$", text, re.MULTILINE)
    lines = "\n".join(blocks + indented).replace("\\\n", " ").split("\n")
    lines += [" ".join(line.split()) for line in INLINE.findall(text)]
    for line in lines:
        for part in re.split(r" && | \| |; ", line):
            yield from COMMAND.findall(part.strip().removesuffix(" &"))


def parser_of(name, words):
    if name.startswith("stage0"):
        return flags.build_parser(STAGES[int(name[-1])], name)
    command = name.split()[1]
    if command == "run":
        return flags.build_parser(flags.pick_stage(words), name, picks_stage=True)
    if command == "serve":
        return serving.server_parser(flags.pick_stage(words), name)
    return {"score": score, "push": push, "replay": replay, "convert": convert}[command].build_parser(name)


FOUND = {
    (str(path.relative_to(ROOT)), *command)
    for path in PAGES
    if path.name != "CHANGELOG.md" and "_build" not in path.parts
    for command in commands(path.read_text("utf-8"))
}


def test_there_are_commands():
    assert len(FOUND) > 60


@pytest.mark.parametrize(("page", "name", "rest"), sorted(FOUND))
def test_a_command_of_a_page(page, name, rest):
    words = shlex.split(rest, comments=True)
    if words and "--help" not in words:  # without arguments it is the command's name
        parser_of(name, words).parse_args(words)

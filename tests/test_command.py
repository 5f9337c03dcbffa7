"""The command `stagewise`: its subcommands are there, and say what is wrong with their input in one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stagewise
from stagewise import __main__ as command
from tests.adapter import ROOT


def run(*arguments, cwd=ROOT, **more):
    command = [sys.executable, "-m", "stagewise", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False, **more)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def run_here(monkeypatch, capsys):
    """The same in this process, which has imported torch already."""

    def run_here(*arguments):
        monkeypatch.setattr(sys, "argv", [str(Path(command.__file__)), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command.main()
        return ended.value.code, *capsys.readouterr()

    return run_here


def test_help_lists_the_commands():
    status, stdout, _ = run("--help")
    assert status == 0
    assert run() == (0, stdout, "")
    assert all(f"\n  {name} " in stdout for name in ["run", "batch", "serve", "replay", "convert", "push"])
    assert run("dance")[::2] == (2, "python -m stagewise: error: there is no command 'dance': run, batch, serve, "
                                    "replay, convert, score, push\n")  # fmt: skip


@pytest.mark.parametrize("name", ["run", "batch", "serve", "replay", "convert", "score", "push"])
def test_every_command_has_its_own_help(run_here, name):
    status, stdout, stderr = run_here(name, "--help")
    assert (status, stderr) == (0, "")
    assert stdout.startswith(f"usage: python -m stagewise {name} ")


def test_run_takes_the_stage():
    status, stdout, stderr = run(
        "run", "--stage", 1, "--prompts", "A fox", "--max-tokens", 3, "--temperature", 0, "--stats"
    )
    assert (status, stdout) == (0, "A fox and a puppy\n")
    assert "time to first token" in stderr


def test_every_command_tells_what_is_wrong(run_here, tmp_path):
    for arguments, says in (
        (("run", "--stage", 9, "--prompts", "a"), "run: error: argument --stage: invalid choice: 9"),
        (("run", "--stage", 1, "--input", "a"), "run: error: unrecognized arguments: --input a"),
        (("run", "Once upon a time"), "run: error: unrecognized arguments: Once upon a time; use --prompts for a text"),
        (("serve", "tinytales"), "serve: error: unrecognized arguments: tinytales; use --model for a model"),
        (
            ("run", "--stage", 3, "--interactive"),
            "run: error: unrecognized arguments: --interactive; --interactive is there in stages 4, 5, 6, 7, 8",
        ),
        (("run", "--stage", 6, "--num-drafts", 2), "run: error: unrecognized arguments: --num-drafts 2; --num-drafts"),
        (("run", "--prompts", "a", "--top-p", 2), "run: error: top_p must be"),
        (("convert", "nonesuch", tmp_path / "new"), "convert: error: there is no file or directory nonesuch"),
        (("batch", "--prompts", "a"), "batch: error: give --input and --output"),
        (("batch", "--input", "a"), "batch: error: a batch file needs both --input and --output"),
        (("replay", tmp_path / "none", "-o", tmp_path / "page.html"), "replay: error: "),
        (("score", tmp_path / "none"), "score: error: "),
        (("push", tmp_path / "none", "--folder", tmp_path / "folder"), "push: error: "),
        (("serve", "--port", "many"), "serve: error: argument --port"),
    ):
        status, stdout, stderr = run_here(*arguments)
        assert (status, stdout, stderr.count("\n")) == (2, "", 1), stderr
        assert stderr.startswith(f"python -m stagewise {says}")


def test_the_version(run_here):
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert stagewise.__version__ == version
    assert run_here("--version") == (0, f"stagewise {version}\n", "")

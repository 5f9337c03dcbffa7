"""The command `stagewise`: its subcommands work, and say in one line what is wrong with their input."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stagewise
from stagewise import __main__ as command
from stagewise.stages import EXACT, STAGES
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
    assert all(f"\n  {name} " in stdout for name in command.COMMANDS)
    commands = "run, serve, replay, convert, score, push"
    assert run("dance")[::2] == (2, f"python -m stagewise: error: there is no command 'dance': {commands}\n")


@pytest.mark.parametrize("words", [
    ["stage03", "--help"],
    ["stage08", "--no-such-flag"],
    ["stage05", "--prompts", "a", "--input", "b", "--output", "c"],
    ["stagewise", "run", "--stage", "6", "--tempersture", "1"],
    ["stagewise", "serve", "--help"],
    ["stagewise", "score", "--help"],
], ids=" ".join)  # fmt: skip
def test_flags_need_no_torch(words):
    """Importing it takes seconds: help and wrong flags come at once."""
    code = (
        "import runpy, sys\n"
        "del sys.argv[0]\n"
        "try:\n    runpy.run_module(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n    print(end.code, {'torch', 'numpy'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == f"{0 if '--help' in words else 2} set()", done.stderr


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_command_has_its_own_help(run_here, name):
    status, stdout, stderr = run_here(name, "--help")
    assert (status, stderr) == (0, "")
    assert stdout.startswith(f"usage: python -m stagewise {name} ")


@pytest.mark.parametrize("name", [*command.COMMANDS, *STAGES])
def test_help_is_for_who_types(monkeypatch, capsys, name):
    """It begins with what to type and what to read next; every flag is explained, in words of the command line."""
    words = [STAGES[name].command] if name in STAGES else ["stagewise", name]
    monkeypatch.setattr(sys, "argv", [*words, "--help"])
    with pytest.raises(SystemExit):
        command.run_stage(name) if name in STAGES else command.main()
    help = capsys.readouterr().out
    top = "\n".join(help.splitlines()[:13])
    assert len(re.findall(rf"^    (?:python -m )?{' '.join(words)} ", top, re.MULTILINE)) >= 2
    pages = re.findall(r"[\w/]+\.md", re.search(r"^Read next: (.*)", top, re.MULTILINE)[1])
    assert pages
    assert all((ROOT / page).is_file() for page in pages)
    assert ".py" not in help
    assert not {option.name for option in STAGES[EXACT].options if "_" in option.name} & {*re.findall(r"\w+", help)}
    assert not re.findall(r"^  -\S*(?: \S+)*\n(?! {6})", help, re.MULTILINE)  # a flag without a text


def test_run_takes_the_stage(run_here):
    status, stdout, stderr = run_here(
        "run", "--stage", 1, "--prompts", "A fox", "--max-tokens", 3, "--temperature", 0, "--stats"
    )
    assert (status, stdout) == (0, "A fox and a puppy\n")
    assert "time to first token" in stderr


def test_every_command_tells_what_is_wrong(run_here, tmp_path):
    for arguments, says in (
        (("run", "--stage", 9, "--prompts", "a"), "run: error: argument --stage: invalid choice: 9"),
        (("run", "--stage", 1, "--input", "a"), "run: error: unrecognized arguments: --input; --input exists in "),
        (("serve", "tinytales", "gpt2"), "serve: error: unrecognized arguments: gpt2; use --model for a model"),
        (("serve", "nonesuch", "--model", "gpt2"), "serve: error: give one model, not both nonesuch and --model gpt2"),
        (("serve", "nonesuch", "--port", 0), "serve: error: model "),
        (
            ("run", "--stage", 3, "--interactive"),
            "run: error: unrecognized arguments: --interactive; --interactive exists in stages 4, 5, 6, 7, 8",
        ),
        (("run", "--stage", 6, "--num-drafts", 2), "run: error: unrecognized arguments: --num-drafts; --num-drafts"),
        (("run", "--prompts", "a", "--top-p", 2), "run: error: top_p must be"),
        (("convert", "nonesuch", tmp_path / "new"), "convert: error: there is no file or directory nonesuch"),
        (("run", "--input", "a"), "run: error: --input needs --output"),
        (("run", "--output", "a"), "run: error: --output needs --input"),
        (("run", "a", "--length-penalty", 1), "run: error: --length-penalty needs --beam-width"),
        (("run", "a", "--early-stopping", "true"), "run: error: --early-stopping needs --beam-width"),
        (("run", "a", "--actors", 1), "run: error: --actors needs --ray"),
        (("run", "a", "--logprobs", 1), "run: error: --logprobs needs --json or --input"),
        (("run", "a", "--stats", "--quiet"), "run: error: --stats can't be combined with --quiet"),
        (("run", "a", "--choices", "b"), "run: error: --choices needs --input"),
        (("run", "--stage", 3, "--score", "text"), "run: error: unrecognized arguments: --score; --score exists in "),
        (("run", "--config", tmp_path / "none"), "run: error: " + str(tmp_path / "none") + ": No such file"),
        (("score", tmp_path / "none", "--config"), "score: error: argument --config: expected one argument"),
        (("replay", tmp_path / "none", "-o", tmp_path / "page.html"), "replay: error: "),
        (("score", tmp_path / "none"), "score: error: "),
        (("push", tmp_path / "none", "--folder", tmp_path / "folder"), "push: error: "),
        (("serve", "--log-prompts", "--quiet"), "serve: error: --log-prompts can't be combined with --quiet"),
        (("serve", "--speculate", "off", "--num-drafts", 2), "serve: error: --num-drafts can't be combined with"),
        (("serve", "--port", "many"), "serve: error: argument --port: must be a whole number, got 'many'"),
        (("run", "a", "--top-p", "x"), "run: error: argument --top-p: must be a number, got 'x'"),
        (("run", "a", "--logit-bias", "x"), "run: error: argument --logit-bias: must be ID=X, such as 50256=-100, got"),
        (
            ("run", "a", "--structured-outputs", "[]"),
            "run: error: argument --structured-outputs: must be a JSON object",
        ),
        (("run", "--stage", 3), "run: error: no prompts: add one in quotes, such as 'Once upon a time'; --help shows"),
        (("run",), "run: error: no prompts: add one in quotes, such as 'Once upon a time', or --interactive to type"),
        (("run", "--quiet", "a", "b " * 2000), "run: error: prompt 2: 2001 tokens leave no room"),
    ):
        status, stdout, stderr = run_here(*arguments)
        assert (status, stdout, stderr.count("\n")) == (2, "", 1), stderr
        assert stderr.startswith(f"python -m stagewise {says}")


def test_texts_and_models_need_no_flag(run_here, monkeypatch):
    """Also from stdin."""
    more = ("--max-tokens", 3, "--temperature", 0, "--quiet", "--stage", 2)
    expected = run_here("run", "--prompts", "A fox", "One day", *more)
    assert expected[0] == 0
    assert (
        run_here("run", "A fox", "One day", *more)
        == run_here("run", "A fox", *more, "--prompts", "One day")
        == expected
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfA fox\n\nOne day\n")))
    assert run_here("run", "--prompts-file", "-", *more) == expected
    monkeypatch.setattr(sys, "stdin", None)
    assert "reads stdin, which is closed" in run_here("run", "--prompts-file", "-", *more)[2]


def test_flags_from_a_file(run_here, tmp_path):
    """The command line takes precedence over the file, which can also name the stage."""
    path = tmp_path / "run.toml"
    path.write_text(
        'stage = 2\nmax_tokens = 3\ntemperature = 0.0\nquiet = true\nprompts = ["A fox"]\nno-sort = false\n'
    )
    flags = ("--max-tokens", 3, "--temperature", 0, "--quiet", "--stage", 2)
    assert run_here("run", "--config", path) == run_here("run", "A fox", *flags)
    assert run_here("run", f"--config={path}", "--max-tokens", 5) == run_here("run", "A fox", *flags, "--max-tokens", 5)
    for content, says in (
        ("max_token = 3", f"{path}: there is no flag --max-token; is --max-tokens meant?"),
        ("num_drafts = 3\nstage = 2", f"{path}: there is no flag --num-drafts; --num-drafts exists in stages 7, 8"),
        ('max_tokens = "many"', "argument --max-tokens: must be a whole number, got 'many'"),
        ("max_tokens", f"--config {path} is not TOML: "),
        ('config = "a"', f"--config {path} contains another --config"),
        ('structured-outputs = {regex = "("}\nprompts = ["a"]', "unclosed group"),
    ):
        path.write_text(content)
        status, stdout, stderr = run_here("run", "--config", path)
        assert (status, stdout) == (2, "")
        assert says in stderr.splitlines()[-1]
    path.write_bytes(b"\xff")
    assert f"--config {path} is not TOML" in run_here("score", "--config", path)[2]


def test_the_version(run_here):
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert stagewise.__version__ == version
    (released,) = re.findall(
        rf"^## \[{version}\] \((.*)\)$", (ROOT / "docs" / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    cited = re.findall(r"^date-released: (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert cited == ([] if released == "unreleased" else [released])
    assert run_here("--version") == (0, f"stagewise {version}\n", "")

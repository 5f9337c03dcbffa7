"""The staging rules: stages.toml is right, and each stage stands alone."""

import ast
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest

from stagewise import cli, flags, stages
from stagewise.__main__ import run
from tests.adapter import ROOT, STAGES, TINYTALES

sys.path.insert(0, str(ROOT / "tools"))  # a tool finds its neighbors as when it is run
import stage_diff
import sync_stages


def test_stages_are_as_listed():
    assert sync_stages.check() == []


def test_readmes_have_fresh_tables_and_code(stage):
    readme = (ROOT / stage.directory / "README.md").read_text(encoding="utf-8")
    is_new = sync_stages.read_stages()[stage.directory]["engine.py"] != "same"
    assert ("<!-- code: engine.py" in readme) == is_new
    for page in stage_diff.pages(stage.directory):
        text = page.read_text(encoding="utf-8")
        assert stage_diff.fresh(page, stage.directory) == text, "run `python tools/stage_diff.py --write`"


def test_the_front_page_shows_the_loops_as_they_are():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("<!-- code: stage0") == 3
    assert stage_diff.with_code(readme, ".") == readme, "run `python tools/stage_diff.py --write`"


def test_a_stage_imports_nothing_of_its_neighbors(stage):
    """And the scheduler, which is plain Python, no tensors."""
    ours = (
        {s.directory for s in STAGES}
        | {s.command for s in STAGES}
        | {"tools", "tests", "bench", "exercises", "stagewise"}
    )
    for path in (ROOT / stage.directory).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            elif isinstance(node, ast.ImportFrom):
                depth = len(path.relative_to(ROOT / stage.directory).parents)
                assert node.level <= depth, f"{path} reaches outside its stage"
            forbidden = ours | ({"torch", "numpy"} if path.name in ("scheduler.py", "request.py") else set())
            assert not forbidden & {name.split(".")[0] for name in names}, path


def test_support_stands_below_the_top_level(stage):
    """Nothing in support/ imports a file that a chapter teaches."""
    for path in (ROOT / stage.directory / "support").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.ImportFrom) or node.level <= 1, path


def test_a_stage_names_no_later_stage(stage):
    later = [s for s in STAGES if s.number > stage.number]
    for path in (ROOT / stage.directory).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for other in later:
            assert other.command not in text, f"{path} names {other.command}"
            assert not re.search(rf"\bstage {other.number}\b", text, re.IGNORECASE), (
                f"{path} names stage {other.number}"
            )


FROM_COPIES = """
import importlib, sys
for directory in sys.argv[2:]:
    main = importlib.import_module(directory + ".__main__").main
    for model in (["--model", sys.argv[1]], []):
        print(directory, main([*model, "--prompts", "A fox", "--max-tokens", "4"]), flush=True)
"""


def test_stages_run_from_a_copy_elsewhere(tmp_path):
    """Under another name, in another place, without the repository: with --model they still work, and only with it."""
    copies = [f"copy{stage.number}" for stage in STAGES]
    for stage, copy in zip(STAGES, copies, strict=True):
        shutil.copytree(ROOT / stage.directory, tmp_path / copy, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", FROM_COPIES, TINYTALES, *copies]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    ends = [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("copy")]
    assert ends == ["0", "2"] * len(STAGES), result.stderr
    assert result.stdout.count("A fox") == result.stderr.count("model 'tinytales'") == len(STAGES), result.stderr


@pytest.fixture
def project(tmp_path):
    """A small project of three stages under git."""

    def git(*arguments):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "stages.toml").write_text(
        '[s1]\n"a.py" = "new"\n"b.py" = "new"\n[s2]\n"a.py" = "same"\n"b.py" = "changed"\n[s3]\n"a.py" = "same"\n'
        '"b.py" = "same"\n'
    )
    for stage, b in {"s1": "b", "s2": "b2", "s3": "b2"}.items():
        (tmp_path / stage).mkdir()
        (tmp_path / stage / "a.py").write_text("a")
        (tmp_path / stage / "b.py").write_text(b)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "all")
    return tmp_path


def test_sync_carries_a_fix_from_wherever_it_was_made(project):
    assert sync_stages.check(project) == []
    (project / "s2" / "a.py").write_text("a fixed")
    assert len(sync_stages.check(project)) == 2
    written, conflicts = sync_stages.write(project)
    assert (sorted(written), conflicts) == (["s1/a.py", "s3/a.py"], [])
    assert sync_stages.check(project) == []
    (project / "s3" / "b.py").write_text("b3")
    assert sync_stages.write(project) == (["s2/b.py"], [])
    assert (project / "s1" / "b.py").read_text() == "b"


def test_sync_does_not_choose_between_two_fixes(project):
    (project / "s1" / "a.py").write_text("one way")
    (project / "s3" / "a.py").write_text("another way")
    written, conflicts = sync_stages.write(project)
    assert written == []
    assert "s1/a.py, s3/a.py" in conflicts[0]
    assert (project / "s2" / "a.py").read_text() == "a"


def test_check_names_what_is_wrong(project):
    (project / "s1" / "extra.py").write_text("")
    (project / "s3" / "a.py").unlink()
    (project / "s2" / "b.py").write_text("b")
    problems = "\n".join(sync_stages.check(project))
    assert "s1/extra.py is not listed" in problems
    assert "s3/a.py is listed in stages.toml but not there" in problems
    assert "s2/b.py is 'changed' in stages.toml but 'same'" in problems


def test_stage_diff_of_a_file(capsys):
    assert stage_diff.main(["3", "kv_cache.py"]) == 0
    assert capsys.readouterr().out.startswith(
        "\n--- stage02_static_batch/kv_cache.py\n+++ stage03_kvcache/kv_cache.py\n"
    )
    with pytest.raises(SystemExit):
        stage_diff.main(["3", "tokenizer.py"])
    assert "stage03_kvcache changed no tokenizer.py; it changed" in capsys.readouterr().err


def test_stage_diff_shows_functions_of_c(tmp_path):
    (tmp_path / "x.h").write_text(
        "int one(void); /* later */\n#define ONE(x) (x)\nstatic int twice(int x,\n          int y) {\n"
        "    return 2 * x;\n}\nint one(void) { return f(1); }\n"
    )
    shown = stage_diff.source(tmp_path / "x.h", ["one", "twice"])
    assert shown.split("\n\n\n") == [
        "int one(void) { return f(1); }",
        "static int twice(int x,\n          int y) {\n    return 2 * x;\n}",
    ]
    with pytest.raises(ValueError, match="no function ONE"):
        stage_diff.source(tmp_path / "x.h", ["ONE"])


def test_chapters_take_as_long_as_they_say():
    """200 words a minute, including code but not tables; in the dense chapters, 4 and 5, readers needed twice as
    long. A chapter rounds it to five minutes."""
    pages = [page for stage in STAGES for page in stage_diff.pages(stage.directory) if page.parent.name != "support"]
    timed = [page for page in pages if page.name != "MEASURED.md"]
    assert len(timed) == len(STAGES) + 4  # chapters 4 and 6 have two sittings, chapter 5 three
    for page in timed:
        text = page.read_text(encoding="utf-8")
        said = int(re.search(r"(\d+) minutes to read|this page\) \| (\d+) min", text).expand(r"\1\2"))
        words = len(re.sub(r"<!--[^>]*-->|^\|[^\n]*$", "", text, flags=re.MULTILINE).split())
        pace = 100 if page.parent.name in ("stage04_continuous", "stage05_paged") else 200
        assert abs(said - words / pace) < 5, f"{page}: {words} words, {said} minutes"


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {title.strip().replace(" ", "-") for title in titles}


def test_documents_link_to_what_is_there():
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("*/*.md"),
        *ROOT.glob("stagewise/models/*/*.md"),
        *ROOT.glob("stagewise/*/*.md"),
        *ROOT.glob("exercises/*/*.md"),
    ]:
        text = path.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", text):
            page = path.parent / target if target else path
            assert page.exists(), f"{path} links to {target}"
            assert not anchor or page.suffix != ".md" or anchor in anchors(page), f"{path}: {target}#{anchor}"
        assert not re.search(r"^[A-Z]{4,}$", text, re.MULTILINE), f"{path} has a place that was never filled"


def test_the_front_page_shows_what_make_demo_writes(capsys):
    """The quoted tale is one that the demo's prompts get. If the bundled model is a new one, quote it again."""
    page, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile"))
    block = re.search(r"```bash\n(.*?)```", page, re.DOTALL)[1]
    assert re.match(
        r"git clone \S+ stagewise && cd stagewise\n# On Linux without an NVIDIA GPU.*\n#.*\nmake demo ", block
    )
    assert "\nmake test " in page
    recipe = re.search(r"^demo:.*?\n\n", makefile, re.MULTILINE | re.DOTALL)[0]
    command = re.search(r"-m stage05 (.*)", recipe.replace("\\\n", " "))[1]
    assert cli.main(stages.STAGES[5], [*shlex.split(command), "--quiet"], "x") == 0
    quoted = " ".join(line[2:] for line in page.splitlines() if line.startswith("> "))
    assert quoted
    assert quoted in " ".join(capsys.readouterr().out.split())


def test_who_names_no_stage_gets_the_checkpoints_tokens(capsys):
    """The newest stage that does not round weights: on the command line, in batch runs, and in the server."""
    assert max(number for number, stage in stages.STAGES.items() if not stage.has_option("weights")) == stages.EXACT
    assert flags.pick_stage([]) is flags.pick_stage([], stages.SERVING) is stages.STAGES[stages.EXACT]
    for command in ("run", "serve"):
        with pytest.raises(SystemExit):
            run(command, ["--help"], "x")
        assert f"whose engine (default: {stages.EXACT})" in " ".join(capsys.readouterr().out.split())


def test_only_the_registry_looks_into_stages():
    """Code outside the stages uses what they export; everything else it asks stages.py for."""
    inside = re.compile(
        r"\bllm\.(engine|_\w+)|\._part\(|\bstage0\d_\w+\.\w+ import|^(from|import) stage0", re.MULTILINE
    )
    for path in (ROOT / "stagewise").rglob("*.py"):
        if path.name not in ("stages.py", "tracing.py"):
            assert not inside.search(path.read_text(encoding="utf-8")), path


def test_a_stage_starts_from_the_root_and_by_its_own_name(stage, capsys, monkeypatch):
    """`python -m stage03` and `python -m stage03_kvcache` tell the same tale."""
    tales = []
    for module in (stage.command, stage.directory):
        monkeypatch.setattr(sys, "argv", [module, "--prompts", "A fox", "--max-tokens", "9"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__")
        assert ended.value.code == 0
        tales.append(capsys.readouterr().out)
    assert tales[0] == tales[1]
    assert tales[0].startswith("A fox")

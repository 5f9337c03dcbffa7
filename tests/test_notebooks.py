"""The notebooks run from top to bottom, in a quick setting; as committed, they were run in order, with pictures, and
show what bench/results says today."""

import importlib
import importlib.metadata
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from bench import plots
from tests.adapter import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import notebook_heads

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def has_picture(cell) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def test_all_are_there():
    names = ["01_throughput", "02_batching", "03_paging", "04_guesses_and_int8"]
    assert [path.stem for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", NOTEBOOKS[2:], ids=lambda path: path.stem)
def test_its_cells_run(path, monkeypatch):
    """From top to bottom, in this process, with a few tokens from the bundled model in place of each run."""
    monkeypatch.setenv("STAGEWISE_QUICK", "1")
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.chdir(ROOT)
    start = importlib.import_module("start")  # of the notebooks
    run = start.run

    def few(number, workload, model=None, **arguments):
        return run(number, [(prompt[:90], min(n, 6)) for prompt, n in workload], **arguments)

    def small(model, load_format="auto", **arguments):
        return own("tinytales" if model == "gpt2" else model, **arguments)

    monkeypatch.setattr(start, "run", few)
    own = start.STAGES[7].LLM
    monkeypatch.setitem(vars(start.STAGES[7]), "LLM", small)
    names: dict = {}
    try:
        for cell in code_cells(nbformat.read(path, as_version=4)):
            exec(compile(cell.source, path.name, "exec"), names)
    finally:
        del sys.modules["start"]


@pytest.mark.soak
@by_notebook
def test_runs_from_top_to_bottom(path, monkeypatch):
    monkeypatch.setenv("STAGEWISE_QUICK", "1")
    committed, fresh = (nbformat.read(path, as_version=4) for _ in range(2))
    for cell in code_cells(fresh):
        cell.outputs, cell.execution_count = [], None
    NotebookClient(fresh, timeout=1800, kernel_name="python3", resources={"metadata": {"path": path.parent}}).execute()
    drawn = [[has_picture(cell) for cell in code_cells(notebook)] for notebook in (fresh, committed)]
    assert drawn[0] == drawn[1]
    assert any(drawn[0])


@by_notebook
def test_is_committed_as_it_ran(path):
    """In order, with pictures in one style, and without errors, warnings or paths of the machine."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "python tools/run_notebooks.py"
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.get("text")
        assert not has_picture(cell) or cell.source.splitlines()[-1].startswith("plots."), "bench/plots.py draws it"
    assert str(ROOT) not in path.read_text(encoding="utf-8")


@by_notebook
def test_the_question_comes_first(path):
    """Before any code there is a question, and the code begins with the one line that a notebook needs."""
    notebook = nbformat.read(path, as_version=4)
    before = [cell.source for cell in notebook.cells[: notebook.cells.index(code_cells(notebook)[0])]]
    assert "?" in before[0].split("\n")[0]
    assert any("**Predict" in text or "## The question" in text for text in before[1:])
    assert code_cells(notebook)[0].source.startswith(notebook_heads.LAST_LINE)


def test_what_comes_from_results_is_what_they_say(monkeypatch):
    """The cells that read bench/results give the committed outputs again. All other cells measure."""
    monkeypatch.chdir(ROOT)
    read = [cell for path in NOTEBOOKS for cell in code_cells(nbformat.read(path, as_version=4))
            if "bench/results" in cell.source]  # fmt: skip
    assert read
    for cell in read:
        *lines, last = cell.source.splitlines()
        exec("\n".join(lines), names := {"plots": plots})
        (committed,) = cell.outputs
        assert repr(eval(last, names)) == committed.data["text/plain"], "python tools/run_notebooks.py"


# --- Badges, and the first cell ---------------------------------------------------------------------------------------

ADDRESS = "https://github.com/OWNER/stagewise"


def test_heads_are_fresh(capsys):
    assert notebook_heads.main([]) == 0, capsys.readouterr().out


@by_notebook
def test_badge_where_there_is_an_address(path):
    notebook = nbformat.read(path, as_version=4)
    notebook_heads.write_head(notebook, path.name, None)
    bare = nbformat.writes(notebook)
    assert "colab.research" not in bare
    for _ in range(2):  # the second time changes nothing
        notebook_heads.write_head(notebook, path.name, ADDRESS)
        assert nbformat.writes(notebook).count("colab.research.google.com/github") == 1
    colab = f"https://colab.research.google.com/github/OWNER/stagewise/blob/main/notebooks/{path.name}"
    title, badge, *_ = notebook.cells[0].source.split("\n\n")
    assert title.startswith("# ")
    assert badge.endswith(f"]({colab})")
    first = next(cell.source for cell in code_cells(notebook))
    assert f"!git clone --quiet --depth 1 {ADDRESS} stagewise\n" in first
    notebook_heads.write_head(notebook, path.name, None)
    assert nbformat.writes(notebook) == bare


def test_the_readme_has_ways_in_where_there_is_an_address():
    bare = notebook_heads.with_entries((ROOT / "README.md").read_text(encoding="utf-8"), None)
    assert "codespaces.new" not in bare
    page = notebook_heads.with_entries(bare, ADDRESS)
    assert page == notebook_heads.with_entries(page, ADDRESS)
    for way in (
        "https://owner.github.io/stagewise/",
        "https://codespaces.new/OWNER/stagewise",
        "colab.research.google.com/github/OWNER",
    ):
        assert page.count(way) == 1
    assert f"git clone {ADDRESS} stagewise" in page
    assert page.index("**Learn") < page.index("codespaces.new") < page.index("ladder.svg")
    assert notebook_heads.with_entries(page, None) == bare


def test_the_citation_says_where_the_code_is():
    bare = notebook_heads.with_code((ROOT / "CITATION.cff").read_text(encoding="utf-8"), None)
    cited = notebook_heads.with_code(bare, ADDRESS)
    assert yaml.safe_load(cited) == {**yaml.safe_load(bare), "repository-code": ADDRESS}
    assert notebook_heads.with_code(cited, ADDRESS) == cited
    assert notebook_heads.with_code(cited, None) == bare


def test_address_is_one_of_github(tmp_path):
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[project.urls]\nRepository = "https://example.org/stagewise"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"must be https://github.com/OWNER/NAME, got 'https://example.org/stagewise'"):
        notebook_heads.repository(pyproject)


@pytest.mark.parametrize("installed", [True, False])
def test_start_installs_what_is_missing(installed, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append((command[1:4], check)))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: iter([name] * installed))
    monkeypatch.chdir(tmp_path)
    given = runpy.run_path(str(ROOT / "notebooks/start.py"))
    assert ran == [] if installed else ran == [(["-m", "pip", "install"], True)]
    assert sys.path[0] == str(Path.cwd()) == str(ROOT)
    assert {"QUICK", "STAGES", "plots", "run", "workloads"} <= given.keys()


@pytest.mark.parametrize("alone", [True, False])
def test_a_notebook_that_stands_alone_fetches_the_project(alone, tmp_path, monkeypatch):
    """As on Colab; in a clone, where start.py is next to it, it fetches nothing."""
    from IPython.core.inputtransformer2 import TransformerManager

    code = TransformerManager().transform_cell(notebook_heads.FETCH.format(address=ADDRESS))
    ran = []
    shell = SimpleNamespace(system=ran.append, run_line_magic=lambda name, line: ran.append(f"{name} {line}"))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(ROOT / "notebooks")])
    if not alone:
        monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    monkeypatch.chdir(tmp_path)
    exec(code, {"get_ipython": lambda: shell})
    clone = [f"git clone --quiet --depth 1 {ADDRESS} stagewise", "cd -q stagewise/notebooks"]
    assert ran == (clone if alone else [])

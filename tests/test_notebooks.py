"""The notebooks run from top to bottom, in a quick setting; as committed, they were run in order, with pictures, and
show what bench/results says today."""

import copy
import importlib
import importlib.metadata
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from tests.adapter import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import notebook_heads

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(notebook) -> int:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


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

    monkeypatch.setattr(start, "run", few)
    names: dict = {}
    try:
        for cell in code_cells(nbformat.read(path, as_version=4)):
            exec(compile(cell.source, path.name, "exec"), names)
    finally:
        del sys.modules["start"]


@pytest.mark.soak
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_top_to_bottom(path, monkeypatch):
    monkeypatch.setenv("STAGEWISE_QUICK", "1")
    committed = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    for cell in code_cells(fresh):
        cell.outputs, cell.execution_count = [], None
    NotebookClient(fresh, timeout=1800, kernel_name="python3", resources={"metadata": {"path": path.parent}}).execute()
    assert pictures(fresh) == pictures(committed) > 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_as_it_ran(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "python tools/run_notebooks.py"
    for output in [output for cell in cells for output in cell.outputs]:
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.get("text")
    assert str(ROOT) not in path.read_text(encoding="utf-8")


def told(outputs) -> list[str]:
    """What outputs say in words: what is printed, and pictures by their messages and numbers."""
    return [output.get("text") or output.data["text/plain"] for output in outputs]


def test_what_comes_from_results_is_what_they_say():
    """The cells that read bench/results give the committed outputs again. All other cells measure."""
    read = [cell for path in NOTEBOOKS for cell in code_cells(nbformat.read(path, as_version=4))
            if "bench/results" in cell.source]  # fmt: skip
    assert read
    start = nbformat.v4.new_code_cell("from start import plots")
    again = nbformat.v4.new_notebook(cells=[start, *map(copy.deepcopy, read)])
    NotebookClient(again, kernel_name="python3", resources={"metadata": {"path": ROOT / "notebooks"}}).execute()
    for committed, cell in zip(read, again.cells[1:], strict=True):
        assert told(committed.outputs) == told(cell.outputs), "python tools/run_notebooks.py"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_have_one_style(path):
    """They are drawn in bench/plots.py."""
    for cell in code_cells(nbformat.read(path, as_version=4)):
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            assert cell.source.splitlines()[-1].startswith("plots.")


# --- Badges, and the first cell ---------------------------------------------------------------------------------------

ADDRESS = "https://github.com/OWNER/stagewise"


def test_heads_are_fresh(capsys):
    assert notebook_heads.main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
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
    assert page.index("**Eight") < page.index("codespaces.new") < page.index("ladder.svg")
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


def test_a_codespace_installs_what_there_is():
    """The container's files are complete, and name extras and make targets that exist."""
    folder = ROOT / ".devcontainer"
    container = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))
    _, script = container["postCreateCommand"].split()
    subprocess.run(["bash", "-n", ROOT / script], check=True)
    extras = re.search(r'"\.\[(.*?)\]"', (ROOT / script).read_text(encoding="utf-8"))[1].split(",")
    project = notebook_heads.tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras) <= project["optional-dependencies"].keys()
    workflow = (ROOT / ".github/workflows/pages.yml").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"run: make (\w+)", workflow):
        assert f"\n{target}:" in makefile
    assert "path: docs/site/_build/html" in workflow


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_question_comes_first(path):
    """Before any code there is a question, and the code begins with the one line that a notebook needs."""
    notebook = nbformat.read(path, as_version=4)
    before = [cell.source for cell in notebook.cells[: notebook.cells.index(code_cells(notebook)[0])]]
    assert "?" in before[0].split("\n")[0]
    assert any("**Predict" in text or "## The question" in text for text in before[1:])
    assert code_cells(notebook)[0].source.startswith(notebook_heads.LAST_LINE)


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

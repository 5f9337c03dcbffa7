"""The notebooks run from top to bottom, in a quick setting; those committed were run, in order, with their pictures."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
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
    assert [path.name for path in NOTEBOOKS] == ["01_throughput.ipynb", "02_batching.ipynb", "03_paging.ipynb"]


@pytest.mark.soak
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_top_to_bottom(path, monkeypatch):
    monkeypatch.setenv("STAGEWISE_QUICK", "1")
    committed = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    for cell in code_cells(fresh):
        cell.outputs, cell.execution_count = [], None
    NotebookClient(fresh, timeout=1800, kernel_name="python3", resources={"metadata": {"path": path.parent}}).execute()
    assert pictures(fresh) == pictures(committed) >= 3


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
    assert ADDRESS in notebook.cells[1].source
    notebook_heads.write_head(notebook, path.name, None)
    assert nbformat.writes(notebook) == bare


def test_address_is_one_of_github(tmp_path):
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[project.urls]\nRepository = "https://example.org/stagewise"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"must be https://github.com/OWNER/NAME, got 'https://example.org/stagewise'"):
        notebook_heads.repository(pyproject)


@pytest.fixture
def run_setup(monkeypatch):
    """Runs the first cell's setup in a folder: (address, installed) -> the programs that it ran."""

    def run_setup(folder, address=None, installed=True):
        ran = []

        def run(command, check):
            assert check
            ran.append(command[:2] if command[0] == "git" else command[1:4])
            if command[0] == "git":
                assert ADDRESS in command
                Path(command[-1]).mkdir()

        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(importlib.metadata, "distributions", lambda name: iter([name] * installed))
        monkeypatch.chdir(folder)
        exec(notebook_heads.SETUP.format(address=address), {})
        return ran

    return run_setup


def test_setup_in_a_clone(run_setup):
    assert run_setup(ROOT / "notebooks") == []  # nothing to do
    assert sys.path[0] == str(Path.cwd()) == str(ROOT)
    assert run_setup(ROOT / "notebooks", installed=False) == [["-m", "pip", "install"]]


def test_setup_alone(run_setup, tmp_path):
    with pytest.raises(FileNotFoundError, match="open the notebook within a clone"):
        run_setup(tmp_path)
    assert run_setup(tmp_path, ADDRESS, installed=False) == [["git", "clone"], ["-m", "pip", "install"]]
    assert sys.path[0] == str(Path.cwd()) == str(tmp_path / "stagewise")

"""The notebooks run from top to bottom, in a quick setting; those committed were run, in order, with their pictures."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.adapter import ROOT

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

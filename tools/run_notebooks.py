"""Run the notebooks from top to bottom, and save their outputs in place.

python tools/run_notebooks.py                             # all of notebooks/
python tools/run_notebooks.py notebooks/03_paging.ipynb
"""

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or sorted((ROOT / "notebooks").glob("*.ipynb"))
    if lost := [path for path in paths if not path.is_file()]:
        sys.exit(f"there is no notebook {lost[0]}")
    for path in paths:
        notebook, started = nbformat.read(path, as_version=4), time.perf_counter()
        place = {"metadata": {"path": path.parent}}
        client = NotebookClient(
            notebook, kernel_name="python3", resources=place, record_timing=False, coalesce_streams=True
        )
        client.execute()
        notebook.metadata.pop("widgets", None)
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

#!/usr/bin/env bash
# What a codespace has when it opens: .venv with the tests, the server and the notebooks.
set -euo pipefail
cd "$(dirname "$0")/.."
python -m venv .venv
.venv/bin/pip install --quiet uv # it finds torch's CPU build; pip's torch brings 5 GB of CUDA, and there is no GPU
.venv/bin/uv pip install --quiet --torch-backend cpu --requirements pyproject.toml
.venv/bin/pip install --quiet --requirement tests/requirements.txt
.venv/bin/pip install --quiet --editable ".[notebooks]"
activate="source '$PWD/.venv/bin/activate'" # with this directory's name, because a shell may open in a subfolder
grep -qxF "$activate" ~/.bashrc || echo "$activate" >> ~/.bashrc # once, even if this script runs again

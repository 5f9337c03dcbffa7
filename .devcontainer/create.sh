#!/usr/bin/env bash
# What a codespace has when it opens: .venv with the tests, the server and the notebooks.
set -euo pipefail
cd "$(dirname "$0")/.."
python -m venv .venv
.venv/bin/pip install --quiet --editable ".[test,serve,notebooks]"
echo 'source "$PWD/.venv/bin/activate"' >> ~/.bashrc

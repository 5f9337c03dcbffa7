"""Run vLLM's tests: `python -m stagewise.serving.clients.vllm_tests [arguments of pytest]`."""

import os
import subprocess
import sys

from ..environments import ENVIRONMENTS, ROOT, make, python_of
from .fetch import NAME, SHA256, VERSION

FOLDERS = ("openai", "serve/tokenize", "serve/instrumentator")
INI = """[pytest]
addopts = -q -p no:cacheprovider
asyncio_mode = strict
filterwarnings = ignore
"""


def main(arguments: list[str]) -> int:
    make("vllm-tests")
    folder, python = ENVIRONMENTS / f"{NAME}-{VERSION}", python_of("vllm-tests")
    fetched = folder / "fetched"
    if not fetched.exists() or fetched.read_text(encoding="utf-8") != SHA256:
        subprocess.run([python, ROOT / "stagewise/serving/clients/vllm_tests/fetch.py", folder], check=True)
        (folder / "pytest.ini").write_text(INI, encoding="utf-8")
        fetched.write_text(SHA256, encoding="utf-8")
    plugin = ["-p", "stagewise.serving.clients.vllm_tests.plugin"]
    where = [f"tests/entrypoints/{name}" for name in FOLDERS]
    command = [python, "-m", "pytest", "-c", "pytest.ini", *plugin, *where, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=folder, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

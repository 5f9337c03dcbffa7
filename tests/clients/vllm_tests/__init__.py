"""vLLM's own tests of its OpenAI server, against this one."""

import os
import subprocess

from tools.environments import ENVIRONMENTS, ROOT, make, python_of

NAME, VERSION = "vllm", "0.32.0"
SHA256 = "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"  # of its sdist
FOLDERS = ("openai", "serve/tokenize", "serve/instrumentator")  # of tests/entrypoints
INI = """[pytest]
addopts = -q -p no:cacheprovider -p tests.clients.vllm_tests.plugin -n 2 --dist loadfile
asyncio_mode = strict
filterwarnings = ignore
"""


def run(arguments: list[str]) -> int:
    """Fetch them, unless they are there, and run them; arguments of pytest. Returns its exit status."""
    make("vllm-tests")
    folder, python = ENVIRONMENTS / f"{NAME}-{VERSION}", python_of("vllm-tests")
    fetched, environment = folder / "fetched", os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    if not fetched.exists():
        command = [python, "-m", "tests.clients.vllm_tests.fetch", NAME, VERSION, SHA256, folder]
        subprocess.run(command, env=environment, check=True)
        fetched.touch()
    (folder / "pytest.ini").write_text(INI, encoding="utf-8")
    command = [python, "-m", "pytest", "-c", folder / "pytest.ini"]
    command += [folder / "tests/entrypoints" / name for name in FOLDERS]
    return subprocess.run([*command, *arguments], cwd=ROOT, env=environment).returncode

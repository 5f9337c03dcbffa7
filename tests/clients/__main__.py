"""Run the tests of clients, each in an environment of its own.

    python -m tests.clients openai lm-eval       # these
    python -m tests.clients --all --keep-none    # all; an environment goes when its tests are done

The environments are below .clients. Exits with 1 if a client failed; the others run anyway.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.environments import ENVIRONMENTS, ROOT, make, python_of

from . import vllm_tests

HERE = Path(__file__).parent
TESTS = {
    "openai": "test_openai.py",
    "openai-npm": "test_openai_npm.py",  # npm makes the environment of these two
    "ai-sdk-npm": "test_ai_sdk_npm.py",
    "litellm": "test_litellm.py",
    "langchain": "test_langchain.py",
    "lm-eval": "test_lm_eval.py",
    "vllm-tests": None,  # vLLM's own
}


def run(name: str) -> int:
    """The exit status of a client's tests."""
    path = TESTS[name]
    if path is None:
        return vllm_tests.run([])
    if name.endswith("-npm"):
        python = Path(sys.executable)
    else:
        make(name)
        python = python_of(name)
    return subprocess.run([python, "-m", "pytest", "--confcutdir", HERE, HERE / path], cwd=ROOT).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(TESTS)}")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--keep-none", action="store_true", help="delete each environment after its tests")
    args = parser.parse_args()
    names = list(TESTS) if args.all else args.clients
    if not names:
        parser.error("name the clients, or --all")
    if unknown := [name for name in names if name not in TESTS]:
        parser.error(f"there is no client {unknown[0]!r}: there are {', '.join(TESTS)}")
    os.environ.setdefault("STAGEWISE_PYTHON", sys.executable)  # runs the servers
    failed = []
    for name in names:
        print(f"--- {name}", flush=True)
        if run(name):
            failed.append(name)
        if args.keep_none:
            shutil.rmtree(ENVIRONMENTS / name, ignore_errors=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

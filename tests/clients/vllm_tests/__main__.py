"""Run vLLM's tests: `python -m tests.clients.vllm_tests [arguments of pytest]`."""

import sys

from . import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

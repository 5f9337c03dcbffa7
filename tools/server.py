"""Start the server as a user would, for a client that may run in another environment."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def server(*arguments: str | int | Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """Start a server, and yield its URL and its process. It has to end with status 0 on SIGTERM."""
    python = os.environ.get("STAGEWISE_PYTHON", sys.executable)  # a client's tests run in another environment
    command = [python, "-m", "stagewise", "serve", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"on (http://\S+)", line):
                break
        else:
            raise RuntimeError(f"the server did not start:\n{''.join(lines)}")
        threading.Thread(target=process.stderr.read, daemon=True).start()  # or its log would fill the pipe
        yield found[1], process
        process.send_signal(signal.SIGTERM)
        if process.wait(timeout=120):
            raise RuntimeError(f"the server ended with status {process.returncode}")
    finally:
        process.kill()
        process.wait()

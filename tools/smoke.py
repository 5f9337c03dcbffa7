"""Does the project work on this machine? The demo, each stage from the command line, and the server.

    python tools/smoke.py

It needs the extra `serve`, but neither make nor a C compiler, and runs what is installed: a checkout, or a wheel. Exits
with 1 if something failed; the last line says what.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request

from stagewise.stages import STAGES

EMPTY = tempfile.TemporaryDirectory()  # to run in
PROMPT = "Once upon a time"
LIMIT = 300  # seconds for each command


def complete(*arguments: str) -> None:
    """Run a module of the project, whose output has to continue the prompt."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--prompts", PROMPT],
        cwd=EMPTY.name,
        capture_output=True,
        encoding="utf-8",
        timeout=LIMIT,
    )
    if done.returncode or not re.search(f"{PROMPT}.*\\w", done.stdout):
        raise RuntimeError(f"status {done.returncode}\n{done.stdout}{done.stderr}")


def serve() -> None:
    """Start the server, send a request, stop the server."""
    command = [sys.executable, "-m", "stagewise", "serve", "--model", "tinytales", "--port", "0"]
    with subprocess.Popen(command, cwd=EMPTY.name, stderr=subprocess.PIPE, encoding="utf-8") as server:
        assert server.stderr is not None
        try:
            said = ""
            while not (found := re.search(r"on (http://\S+)", said)):
                if not (line := server.stderr.readline()):
                    raise RuntimeError(f"it did not start\n{said}")
                said += line
            body = json.dumps({"model": "tinytales", "prompt": PROMPT, "max_tokens": 8}).encode()
            request = urllib.request.Request(f"{found[1]}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=LIMIT) as response:
                if not json.load(response)["choices"][0]["text"]:
                    raise RuntimeError("its answer has no text")
            server.terminate()
            if server.wait(LIMIT) and os.name != "nt":  # Windows has no signal that asks a process to end
                raise RuntimeError(f"it ended with status {server.returncode}")
        finally:
            server.kill()


def main() -> int:
    checks = {"demo": lambda: complete("stage05", "--temperature", "0.8", "--max-tokens", "1000")}
    for stage in STAGES.values():
        checks[stage.command] = lambda name=stage.command: complete(name, "--max-tokens", "8")
    checks["server"] = serve
    failed = []
    for name, check in checks.items():
        try:
            check()
        except Exception as error:
            print(f"{name}: {error}", flush=True)
            failed.append(name)
        else:
            print(f"{name}: works", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all of it works")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

"""Clients for JavaScript: npm makes an environment, and a script in it says what it got, as JSON."""

import json
import shutil
import subprocess
from typing import Any

from tools.environments import ENVIRONMENTS


def run(name: str, packages: list[str], script: str, url: str) -> Any:
    """What a script prints when it is called with the server's URL."""
    folder, requirements = ENVIRONMENTS / name, "\n".join(packages)
    done = folder / "installed"
    if not done.exists() or done.read_text(encoding="utf-8") != requirements:
        folder.mkdir(parents=True, exist_ok=True)
        npm = shutil.which("npm")
        assert npm, "no npm; on Debian: apt-get install npm"
        subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", *packages], cwd=folder, check=True)
        done.write_text(requirements, encoding="utf-8")
    (folder / "script.mjs").write_text(script, encoding="utf-8")
    ran = subprocess.run(["node", "script.mjs", url], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)

"""Environments for clients of the server, such as .clients/openai, because the clients' requirements conflict.

    python -m tools.environments openai lm-eval

What is installed in each is in tests/clients/NAME.txt. They also see the packages of the
environment that makes them, and so share its torch, which alone takes most of a gigabyte.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".clients"


def python_of(name: str) -> Path:
    return ENVIRONMENTS / name / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def make(name: str) -> None:
    """Make an environment, unless it exists with the same requirements."""
    file = ROOT / "tests/clients" / f"{name}.txt"
    if not file.is_file():
        raise ValueError(f"there is no client {name!r}: tests/clients has no {name}.txt")
    requirements, done = file.read_text(encoding="utf-8"), ENVIRONMENTS / name / "installed"
    if done.exists() and done.read_text(encoding="utf-8") == requirements:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENTS / name], check=True)
    where = [python_of(name), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site_packages = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    Path(site_packages, "shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    subprocess.run([python_of(name), "-m", "pip", "install", "--quiet", "--requirement", file], check=True)
    done.write_text(requirements, encoding="utf-8")


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            make(name)
    except ValueError as error:
        sys.exit(str(error))

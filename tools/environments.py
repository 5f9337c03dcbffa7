"""Environments for clients, such as .clients/openai, because the clients' requirements conflict.

    python -m tools.environments openai lm-eval guidellm

What is installed in each is an extra in pyproject.toml, `clients-NAME`. They also see the packages of the environment
that makes them, and so share its torch, which alone takes most of a gigabyte.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

try:
    import tomllib  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".clients"
UNFIT = {"vllm-bench": ("torchvision", "torchaudio", "torchcodec")}  # built for a different torch


def python_of(name: str) -> Path:
    return ENVIRONMENTS / name / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def make(name: str) -> None:
    """Make an environment, unless it exists with the same requirements."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    if f"clients-{name}" not in extras:
        raise ValueError(f"there is no client {name!r}: pyproject.toml has no extra clients-{name}")
    requirements, done = "\n".join(extras[f"clients-{name}"]), ENVIRONMENTS / name / "installed"
    if done.exists() and done.read_text(encoding="utf-8") == requirements:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENTS / name], check=True)
    where = [python_of(name), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site_packages = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    Path(site_packages, "shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    subprocess.run([python_of(name), "-m", "pip", "install", "--quiet", *requirements.split("\n")], check=True)
    if name in UNFIT:
        subprocess.run([python_of(name), "-m", "pip", "uninstall", "--quiet", "--yes", *UNFIT[name]], check=True)
    done.write_text(requirements, encoding="utf-8")


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            make(name)
    except ValueError as error:
        sys.exit(str(error))

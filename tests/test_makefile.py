"""The Makefile, the workflows and the codespace name the same commands, files and packages."""

import json
import os
import re
import shutil
import subprocess

import pytest
import yaml

from tests.adapter import ROOT
from tools.sync_stages import tomllib

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
TARGETS = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def recipe(target):
    """What a target gives to `pip install`, and those of its commands that run a program of .venv."""
    variables = dict(re.findall(r"^(\w+) \??:?= ?(.*)$", MAKEFILE, re.MULTILINE))
    first, lines = re.search(rf"^{re.escape(target)}:(.*)\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE).groups()
    (installed,) = re.findall(r"\$\(VENV\)/(installed\S*)", first)
    (packages,) = re.findall(rf"/{installed}:.*\n.* pip install --quiet (?:--no-compile )?(.*)", MAKEFILE)
    for path in re.findall(r"--requirement (\S+)", packages):
        assert (ROOT / path).is_file(), path
    lines = re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], ""), lines.replace("$(BIN)/", "\0"))
    commands = re.findall(r"\0([^\0\n;&>]+)", lines)
    return packages, [re.sub(r"\s+", " ", command).strip() for command in commands]


def commands_of(job):
    """What a job of a workflow runs, for each entry of its matrix."""
    for entry in job.get("strategy", {}).get("matrix", {}).get("include", [{}]):
        for step in job["steps"]:
            if "run" in step and ("if" not in step or step["if"].removeprefix("matrix.") in entry):
                command = step["run"]
                for name, value in entry.items():
                    command = command.replace(f"${{{{ matrix.{name} }}}}", str(value))
                yield command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_there_is(path):
    """zizmor, in `make test`, checks the rest of them."""
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    assert all("timeout-minutes" in job for job in jobs)
    commands = [command.split() for job in jobs for command in commands_of(job)]
    assert commands
    for program, *arguments in commands:
        if program == "make":
            assert {argument for argument in arguments if "=" not in argument} <= {*TARGETS}
        for word in (program, *arguments):
            assert (not word.startswith(".ci/") and not word.endswith(".py")) or (ROOT / word).is_file(), word


def test_the_site_that_is_published_is_the_one_that_make_site_builds():
    workflow = yaml.safe_load((ROOT / ".github/workflows/pages.yml").read_text(encoding="utf-8"))
    uploaded = [
        step["with"]["path"]
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "path" in step.get("with", {})
    ]
    assert uploaded == [recipe("site")[1][-1].split()[-1]]


def test_every_command_of_the_makefile_runs_once_a_week():
    """So that none fails unseen. A GPU is rare, and `make test` finds what `make lint` mends."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert "schedule" in workflow[True]  # which YAML makes of "on"
    run = [command for job in workflow["jobs"].values() for command in commands_of(job)]
    run += (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    made = {command.split()[1] for command in run if command.startswith("make ")}
    assert made == {*TARGETS} - {"test-cuda", "lint"}
    for_arm = re.findall(r":(\S+)", re.search(r"^ARM := (.*)$", MAKEFILE, re.MULTILINE)[1])
    assert f"sudo apt-get update && sudo apt-get install --yes {' '.join(for_arm)}" in run


@pytest.mark.skipif(os.name != "posix", reason="make's recipes are for a POSIX shell")
def test_make_names_the_packages_that_are_missing(tmp_path):
    """And no others: NodeSource's nodejs brings npm, and can't be installed together with Debian's."""
    (tmp_path / "there").touch()
    needed = f"sh:dash {tmp_path}/there:a /not/*:b {tmp_path}/th*:c no-such-program:d"
    rules = f"some:\n\t@$(call need,{needed})\nnone:\n\t@$(call need,sh:dash)\n"
    (tmp_path / "Makefile").write_text(f"include {ROOT}/Makefile\n{rules}")
    some, none = (
        subprocess.run(["make", "-s", name], cwd=tmp_path, capture_output=True, text=True) for name in ("some", "none")
    )
    assert (some.returncode, some.stdout) == (2, "on Debian: apt-get install b d\n")
    assert (none.returncode, none.stdout, none.stderr) == (0, "", "")


@pytest.mark.skipif(os.name != "posix", reason="a codespace has Linux")
def test_every_shell_of_a_codespace_has_its_python(tmp_path):
    """Also in a subfolder, and if the script runs twice. Here `python` and pip do nothing."""
    project, home = tmp_path / "a project", tmp_path / "home"
    shutil.copytree(ROOT / ".devcontainer", project / ".devcontainer")
    (project / "docs").mkdir()
    home.mkdir()
    (home / ".bashrc").touch()
    (home / "python").write_text(
        "#!/bin/sh\nmkdir -p .venv/bin && echo 'echo activated' > .venv/bin/activate && "
        "for name in pip uv; do printf '#!/bin/sh' > .venv/bin/$name && chmod +x .venv/bin/$name; done\n"
    )
    (home / "python").chmod(0o755)
    environment = {**os.environ, "HOME": str(home), "PATH": f"{home}:{os.environ['PATH']}"}
    for _ in range(2):
        subprocess.run(["bash", project / ".devcontainer/create.sh"], env=environment, check=True)
    shell = subprocess.run(
        ["bash", "--rcfile", home / ".bashrc", "-i", "-c", ":"],
        cwd=project / "docs", env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert shell.stdout == "activated\n", shell.stderr


@pytest.mark.skipif(os.name != "posix", reason="a codespace has Linux")
def test_a_codespace_installs_what_there_is():
    """Its files are complete, and name extras that exist."""
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    _, script = container["postCreateCommand"].split()
    subprocess.run(["bash", "-n", ROOT / script], check=True)
    extras = re.search(r'"\.\[(.*?)\]"', (ROOT / script).read_text(encoding="utf-8"))[1].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*extras} <= project["optional-dependencies"].keys()

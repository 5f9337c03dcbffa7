"""How much memory is free, in the system and within the limits of control groups, which containers are."""

import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.adapter import ROOT, STAGES

pytestmark = pytest.mark.covers("support/memory.py")
GB = 1 << 30


@pytest.fixture
def free_memory(stage, tmp_path, monkeypatch):
    """The stage's function, in a system with 64 GB free and these control groups: (path, limit, used, cached files)."""
    memory = stage.part("memory")

    def free(*groups, own="a/b", version=""):
        system = memory.psutil.virtual_memory()._replace(available=64 * GB)
        monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: system)
        monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
        monkeypatch.setattr(memory, "GROUP", tmp_path / "cgroup")
        (tmp_path / "cgroup").write_text(f"1:name=systemd:/elsewhere\n4:memory:/{own}\n0::/{own}\n")
        for path, limit, used, cached in groups:
            folder = tmp_path / "groups" / version / path
            folder.mkdir(parents=True, exist_ok=True)
            limit_file, used_file, cached_name = memory.FILES[version]
            (folder / limit_file).write_text(f"{limit}\n")
            (folder / used_file).write_text(f"{used}\n")
            (folder / "memory.stat").write_text(f"anon 5\n{cached_name} {cached}\nactive_file 7\n")
        return memory.free_memory(torch.device("cpu"))

    return free


# What of 4 GB with 3 GB in use, half a GB of it cached files (such as a checkpoint after reading), can be had.
MOST = (4 * GB, 3 * GB, GB // 2)
NO_LIMIT = 2**63 - 4096  # in version 1 of control groups, which has other files, too


@pytest.mark.parametrize(
    ("groups", "where", "free"),
    [
        pytest.param([("a/b", "max", GB, 0)], {}, 64 * GB, id="no limit"),
        pytest.param([("a/b", *MOST)], {}, 1.5 * GB, id="a limit"),
        pytest.param([("a/b", *MOST), ("", NO_LIMIT, 9 * GB, 0)], {"version": "memory"}, 1.5 * GB, id="version 1"),
        pytest.param([("a/b", "max", GB, 0), ("a", 8 * GB, 3 * GB, 0)], {}, 5 * GB, id="a limit of the group around"),
        pytest.param([("", 4 * GB, 3 * GB, 0)], {}, GB, id="a limit of the root"),
        pytest.param([("", 3 * GB, 4 * GB, 0)], {}, 0, id="more than the limit"),
        pytest.param([("", 4 * GB, 3 * GB, 0)], {"own": "docker/1f2e"}, GB, id="a namespace that hides the name"),
    ],
)
def test_free_memory_in_a_container(free_memory, groups, where, free):
    assert free_memory(*groups, **where) == free


def test_on_another_system(free_memory, stage, monkeypatch, tmp_path):
    free_memory()
    monkeypatch.setattr(stage.part("memory"), "GROUP", tmp_path / "nowhere")
    assert stage.part("memory").free_memory(torch.device("cpu")) == 64 * GB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_a_limit_of_the_process(free_memory, stage, monkeypatch):
    """As `ulimit -v` sets it. What is mapped already counts; the groups' limits still hold."""
    psutil = stage.part("memory").psutil
    monkeypatch.setattr(psutil.Process, "rlimit", lambda self, kind: (kind == psutil.RLIMIT_AS and 6 * GB, -1))
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: SimpleNamespace(vms=2 * GB))
    assert free_memory() == 4 * GB
    assert free_memory(("a/b", *MOST)) == 1.5 * GB
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: SimpleNamespace(vms=7 * GB))
    assert free_memory() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this limit")
@pytest.mark.parametrize("stage", STAGES[:1], ids=str)
def test_too_little_to_load_a_model(stage):
    """One line, whatever the system as a whole has free."""
    command = f"ulimit -v 2000000; exec {shlex.quote(sys.executable)} -m {stage.command} --model gpt2-large"
    command += " --load-format dummy --prompts x --max-tokens 1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "the weights take 3,096,120,320 bytes of memory, but only" in done.stderr


def test_on_cuda(stage, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))  # free, all
    assert stage.part("memory").free_memory(torch.device("cuda")) == 1000

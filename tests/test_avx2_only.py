"""bench.avx2_only: a command on a CPU that seems to have no more than AVX2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import machine

ROOT = Path(__file__).parent.parent
CPUINFO = Path("/proc/cpuinfo")
FLAGS = set(CPUINFO.read_text().split()) if CPUINFO.exists() else set()
HIDES = pytest.mark.skipif(not {"cpuid_fault", "avx2"} <= FLAGS, reason="this CPU, or its hypervisor, hides nothing")


def run(*command, **options):
    command = [sys.executable, "-m", "bench.avx2_only", *command]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, **options)


@HIDES
def test_a_program_and_what_it_starts_see_avx2_and_no_more():
    code = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.cpu._is_avx512_supported())"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True); {code}"
    done = run(sys.executable, "-c", nested)
    assert (done.returncode, done.stdout) == (0, "AVX2 False\n" * 2), done.stderr


@HIDES
def test_a_result_says_so():
    done = run(sys.executable, "-c", "from bench.machine import cpu_name; print(cpu_name())")
    assert done.stdout.endswith(" held to AVX2\n") == ("avx512f" in FLAGS), done.stderr


@pytest.mark.skipif(not CPUINFO.exists(), reason="no /proc/cpuinfo")
@pytest.mark.parametrize(
    ("flags", "capability", "name"),
    [
        ("avx2", "AVX2", "A CPU with AVX2"),
        ("avx2 avx512f", "AVX2", "A CPU held to AVX2"),
        ("avx2 avx512f", "AVX512", "A CPU"),
    ],
)
def test_the_name_of_a_cpu_says_whether_it_has_or_is_held_to_avx2(monkeypatch, flags, capability, name):
    monkeypatch.setattr(machine.Path, "read_text", lambda _: f"model name : A CPU\nflags : fpu {flags} sse\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert machine.cpu_name() == name


@HIDES
def test_a_compiler_asks_too_and_handles_the_signal_itself():
    done = run("cc", "-march=native", "-Q", "--help=target")
    assert done.returncode == 0, done.stderr
    switches = dict(line.split()[:2] for line in done.stdout.splitlines() if line.strip().startswith("-mavx"))
    assert (switches["-mavx2"], switches["-mavx512f"]) == ("[enabled]", "[disabled]")


@HIDES
def test_any_other_fault_ends_the_program():
    assert run(sys.executable, "-X", "faulthandler", "-c", "import ctypes; ctypes.string_at(0)").returncode == -11


@HIDES
def test_no_such_program():
    done = run("no-such-program")
    assert (done.returncode, done.stderr) == (1, "no-such-program: No such file or directory\n")


def test_without_a_compiler():
    done = run("true", env={**os.environ, "PATH": ""})
    assert done.returncode == 1
    assert done.stderr.startswith("bench.avx2_only needs ")
    assert done.stderr.count("\n") == 1


def test_help():
    done = run()
    assert done.returncode == 0
    assert "python -m bench.avx2_only" in done.stdout

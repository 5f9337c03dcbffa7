"""The kernels of stages 6 and 8 without Python and torch, as a C program that checks itself (kernels/check.c): on this
CPU, for ARM in an emulator, and by Clang, which is macOS's compiler. Nothing here says how fast they are there.

Stage 7's kernels are stage 6's, and stage 8's are these and more, so stage 6's, and kernels compiled for lesser CPUs
than this one, are left to `make soak`."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stage06_fast.support.compiler import OPTIMIZE
from tests.adapter import EMULATED, ROOT, STAGES, cpu_flags

SIX, INT8 = (next(stage for stage in STAGES if stage.number == number) for number in (6, 8))
KERNELS = pytest.mark.parametrize("kernels", [SIX, INT8], ids=str)
OF_INT8 = {"pairs_int8", "dot_int8", "tiles_int8"}
ARM = "aarch64-linux-gnu"


def sources(stage) -> list[str]:
    return [str(ROOT / "tests/kernels/check.c"), *map(str, sorted((ROOT / stage.directory / "kernels").glob("*.c")))]


def flags(stage) -> list[str]:
    with_int8 = ["-DWITH_INT8"] if stage is INT8 else []
    return [*OPTIMIZE, "-fno-math-errno", *with_int8, "-I", str(ROOT / stage.directory / "kernels")]


def build(directory: Path, stage, compiler: str, *more: str, libraries: tuple[str, ...] = ()) -> Path:
    """Build the program. If something is missing, the message names the Debian package to install."""
    assert shutil.which(compiler), f"there is no {compiler}; `make test-arm` says what to install"
    program = directory / "check"
    command = [compiler, *flags(stage), *more, *sources(stage), *libraries, "-lm", "-o", str(program)]
    compiled(*command)
    return program


def compiled(*command: str | Path, directory: Path | None = None) -> None:
    made = run(*command, directory=directory)
    assert made.returncode == 0, made.stderr[-2000:]


def run(*command: str | Path, directory: Path | None = None) -> subprocess.CompletedProcess:
    """Run a program for at most ten minutes of CPU time, so a busy machine fails none; an hour ends one that hangs."""
    limited = ["sh", "-c", 'ulimit -t 600 && exec "$@"', "sh", *map(str, command)]
    # Its threads are many and its work is small: those that wait shall not take the cores from the others.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(limited, cwd=directory, capture_output=True, text=True, timeout=3600, env=environment)


def check(stage, *command: str | Path) -> tuple[set[str], set[str]]:
    """Run the program: (the kinds of product that it checked, and the ones that the CPU lacks)."""
    ran = run(*command)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    lines = [line.split() for line in ran.stdout.splitlines()]
    checked = {words[3].rstrip(":") for words in lines if words[:3] == ["ok", "linear", "layer"]}
    missing = {words[1].rstrip(":") for words in lines if words[0] == "--"}
    assert len(checked | missing) == len(checked) + len(missing) == (8 if stage is INT8 else 5)
    assert sum(words[:2] == ["ok", "attention"] for words in lines) >= 6
    assert sum(words[:3] == ["ok", "bits", "of"] for words in lines) >= 6
    exact = {words[4].rstrip(":") for words in lines if words[:4] == ["ok", "sums", "of", "integers"]}
    assert exact == checked & OF_INT8
    return checked, missing


# Levels of x86-64, and what each brings.
LEVELS = {"native": "all that it has", "x86-64-v4": "AVX-512, no bfloat16", "x86-64-v3": "AVX2", "": "SSE, or NEON"}
NEEDS = {"x86-64-v4": {"avx512f", "avx512bw", "avx512vl"}, "x86-64-v3": {"avx2", "fma"}}


@pytest.mark.parametrize(
    "march", [pytest.param(name, id=LEVELS[name], marks=[pytest.mark.soak] * (name != "native")) for name in LEVELS]
)
@pytest.mark.parametrize("kernels", [pytest.param(SIX, marks=pytest.mark.soak), INT8], ids=str)
@pytest.mark.parametrize("optimize", ["-O1", pytest.param("-O3", marks=pytest.mark.soak)])
def test_on_this_cpu(tmp_path, kernels, march, optimize):
    """With all of its instructions, and with fewer. The compiler takes three times as long to optimize everything."""
    if needed := NEEDS.get(march, set()) - cpu_flags():
        pytest.skip(f"this CPU has no {', '.join(sorted(needed))}")
    flags = [optimize, *([f"-march={march}"] if march and platform.machine() == "x86_64" else [])]
    program = build(tmp_path, kernels, os.environ.get("CC") or "cc", "-fopenmp", *flags)
    checked, missing = check(kernels, program)
    assert {"fma_float32", "fma_bfloat16", *(["pairs_int8"] if kernels is INT8 else [])} <= checked
    if march != "native" and platform.machine() == "x86_64":
        assert {"dot_bfloat16", *(["dot_int8"] if kernels is INT8 else [])} <= missing


@pytest.mark.soak
@pytest.mark.parametrize("march", ["native", "x86-64-v3"])
@KERNELS
def test_instructions_that_this_cpu_lacks(tmp_path, kernels, march):
    """Products of bfloat16s and of int8, and tiles, in plain C: the kernels use them correctly, and in one order."""
    if march != "native" and (needed := NEEDS[march] - cpu_flags()):
        pytest.skip(f"this CPU has no {', '.join(sorted(needed))}")
    program = build(tmp_path, kernels, "cc", "-fopenmp", f"-march={march}", "-include", str(EMULATED))
    checked, _ = check(kernels, program)
    assert {"dot_bfloat16", "tiles_bfloat16", "tiles_split", *(OF_INT8 if kernels is INT8 else [])} <= checked


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
@pytest.mark.parametrize(
    "cpu", ["sapphirerapids", *(pytest.param(cpu, marks=pytest.mark.soak) for cpu in ("alderlake", "znver3"))]
)
def test_what_is_compiled_for_other_cpus(tmp_path, cpu):
    """Their own instructions, spelled as the compiler wants them: AMX, AVX-VNNI, AVX2."""
    for file in ("product.c", "quantize.c"):
        command = ["cc", *flags(INT8), f"-march={cpu}", "-S", str(ROOT / INT8.directory / "kernels" / file), "-o", file]
        compiled(*command, directory=tmp_path)
    text = (tmp_path / "product.c").read_text()
    own = {"sapphirerapids": ("tdpbssd", "vpdpbusd"), "alderlake": ("vpdpbusd",), "znver3": ()}[cpu]
    assert "vpmaddwd" in text
    assert tuple(name for name in ("tdpbssd", "vpdpbusd") if name in text) == own


@pytest.mark.soak
def test_tiles_that_add_in_another_order(tmp_path):
    """Decodes then take the tiles as well, and have their bits."""
    own, others = "sum + emulated_normal(even + odd)", "emulated_normal(sum + even) + odd"
    other = EMULATED.read_text().replace(own, others)
    assert other != EMULATED.read_text()
    (tmp_path / "other.h").write_text(other)
    check(INT8, build(tmp_path, INT8, "cc", "-fopenmp", "-march=native", "-include", str(tmp_path / "other.h")))


@pytest.mark.covers("support/compiler.py")
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage.number >= 5], ids=lambda stage: stage.directory)
def test_which_threads_a_compiler_can_use(stage):
    compiler = stage.part("compiler")
    gnu, llvm, intel = (Path(f"/lib/{name}") for name in ("libgomp-a34b.so.1", "libomp.dylib", "libiomp5.so"))
    gcc, clang = "gcc (Debian 12.2.0-14) 12.2.0", "Apple clang version 15.0.0 (clang-1500.3.9.4)"
    assert compiler.openmp_flags(gcc, gnu) == compiler.openmp_flags(gcc, intel) == ["-fopenmp"]
    assert compiler.openmp_flags(clang, llvm) == compiler.openmp_flags(clang, intel) == ["-Xclang", "-fopenmp"]
    with pytest.raises(RuntimeError, match=r"Clang can't use libgomp-a34b.so.1, which torch has; CC=gcc can"):
        compiler.openmp_flags(clang, gnu)
    with pytest.raises(RuntimeError, match="torch's OpenMP library was not found"):
        compiler.openmp_flags(gcc, None)


# --- With compilers and an emulator that are installed for it: make test-arm ------------------------------------------


@pytest.mark.arm
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@KERNELS
def test_on_arm(tmp_path, kernels, compiler):
    """By NEON's vectors, which every 64-bit ARM CPU has."""
    if compiler == "gcc":
        program = build(tmp_path, kernels, f"{ARM}-gcc", "-fopenmp")
    else:
        program = build(tmp_path, kernels, "clang", f"--target={ARM}", "-I", f"/usr/{ARM}/include")
    assert shutil.which("qemu-aarch64"), "there is no qemu-aarch64; `make test-arm` says what to install"
    checked, _ = check(kernels, "qemu-aarch64", "-L", f"/usr/{ARM}", "-cpu", "cortex-a72", program)
    assert checked == {"fma_float32", "fma_bfloat16", *(["pairs_int8"] if kernels is INT8 else [])}


@pytest.mark.arm
@KERNELS
def test_by_clang_with_its_own_threads(tmp_path, kernels):
    """As on macOS: OpenMP's library is there, its header is not, and the flag is hidden."""
    library = max(Path("/usr/lib").glob("llvm-*/lib/libomp.so"))
    threads = ("-Xclang", "-fopenmp")
    program = build(tmp_path, kernels, "clang", *threads, libraries=(str(library), f"-Wl,-rpath,{library.parent}"))
    check(kernels, program)
    symbols = subprocess.run(["nm", "-D", str(program)], capture_output=True, text=True, check=True).stdout
    assert "__kmpc_fork_call" in symbols


@pytest.mark.arm
@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3", "native"])
@KERNELS
def test_by_clang_without_openmp(tmp_path, kernels, march):
    check(kernels, build(tmp_path, kernels, "clang", f"-march={march}"))


@pytest.mark.arm
@pytest.mark.covers("support/compiler.py")
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage.number >= 5], ids=lambda stage: stage.directory)
def test_a_stage_by_clang(stage, tmp_path):
    """It answers as with GCC, but without the kernels if torch's threads are GNU's, and says how to get them."""
    environment = {"CC": "clang", "XDG_CACHE_HOME": str(tmp_path)}
    prompt = ("--prompts", "Once upon a time", "--max-tokens", 20, "--temperature", 0)
    _, expected, _ = stage.run(*prompt)
    status, out, err = stage.run(*prompt, **environment)
    assert (status, out) == (0, expected), err
    slow = r"^attention_backend is torch, the slow one: Clang can't use libgomp\S+, which torch has; CC=gcc can$"
    assert len(re.findall(slow, err, re.MULTILINE)) == 1, err

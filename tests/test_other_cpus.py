"""Stage 6's kernels without Python and torch, as a C program that checks itself (kernels/check.c): on this CPU, for ARM
under an emulator, and by Clang, which is macOS's compiler. Nothing here says how fast they are there."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from stage06_fast.support.compiler import OPTIMIZE
from tests.adapter import ROOT, STAGES, cpu_flags

FILES = ("support/compiler.py",)
SOURCES = [ROOT / "tests/kernels/check.c", *sorted((ROOT / "stage06_fast/kernels").glob("*.c"))]
FLAGS = [*OPTIMIZE, "-fno-math-errno", "-I", str(ROOT / "stage06_fast/kernels")]
EMULATED = ROOT / "tests/kernels/emulated.h"
ARM = "aarch64-linux-gnu"


def build(directory: Path, compiler: str, *flags: str, libraries: tuple[str, ...] = ()) -> Path:
    """The program. What it needs is told by name where it is missing: on Debian, apt-get install it."""
    assert shutil.which(compiler), f"there is no {compiler}; `make test-arm` says what to install"
    program = directory / "check"
    command = [compiler, *FLAGS, *flags, *map(str, SOURCES), *libraries, "-lm", "-o", str(program)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr[-2000:]
    return program


def check(*command: str | Path) -> tuple[set[str], set[str]]:
    """Run the program: (the kinds of product that it checked, those that the CPU does not have)."""
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    lines = [line.split() for line in ran.stdout.splitlines()]
    checked = {words[3].rstrip(":") for words in lines if words[:3] == ["ok", "linear", "layer"]}
    assert sum(words[:2] == ["ok", "attention"] for words in lines) >= 6
    assert sum(words[:3] == ["ok", "bits", "of"] for words in lines) >= 6
    return checked, {words[1].rstrip(":") for words in lines if words[0] == "--"}


# Levels of x86-64, and what each brings.
LEVELS = {"native": "all that it has", "x86-64-v4": "AVX-512, no bfloat16", "x86-64-v3": "AVX2", "": "SSE, or NEON"}
NEEDS = {"x86-64-v4": {"avx512f", "avx512bw", "avx512vl"}, "x86-64-v3": {"avx2", "fma"}}


@pytest.mark.parametrize("march", LEVELS, ids=list(LEVELS.values()))
def test_on_this_cpu(tmp_path, march):
    """With all that it has, and as a CPU with less."""
    if needed := NEEDS.get(march, set()) - cpu_flags():
        pytest.skip(f"this CPU has no {', '.join(sorted(needed))}")
    flags = [f"-march={march}"] if march and platform.machine() == "x86_64" else []
    checked, missing = check(build(tmp_path, os.environ.get("CC") or "cc", "-fopenmp", *flags))
    assert {"fma_float32", "fma_bfloat16"} <= checked
    assert len(checked | missing) == 6
    if march != "native" and platform.machine() == "x86_64":
        assert "dot_bfloat16" in missing


def test_instructions_that_this_cpu_lacks(tmp_path):
    """Products of bfloat16s and tiles, in plain C: that the kernels use them rightly, and in one order."""
    checked, _ = check(build(tmp_path, "cc", "-fopenmp", "-march=native", "-include", str(EMULATED)))
    assert {"dot_bfloat16", "tiles_bfloat16", "tiles_split"} <= checked


@pytest.mark.soak
def test_tiles_that_add_in_another_order(tmp_path):
    """Decodes then take the tiles as well, and have their bits."""
    other = EMULATED.read_text().replace("sum += even + odd;", "sum += even; sum += odd;")
    assert other != EMULATED.read_text()
    (tmp_path / "other.h").write_text(other)
    check(build(tmp_path, "cc", "-fopenmp", "-march=native", "-include", str(tmp_path / "other.h")))


# What is wrong in the kernels, and the line of the program that has to tell it.
WRONG = {
    "one input of each product is left out": (
        "product.c",
        "k = round_up(end, GROUP);",
        "k = round_up(end, GROUP) - 4;",
        "linear layer fma_float32",
    ),
    "a single row adds in another way": (
        "product.c",
        "sum[0][v] = multiply_add(sum[0][v], one, WEIGHTS(v));",
        "sum[0][v] = multiply_add(sum[0][v] + 0.5f, one, WEIGHTS(v)) - 0.5f;",
        "bits of a linear layer fma_float32",
    ),
    "rows take turns in a layer norm": (
        "layer_norm.c",
        "const float mean = sum_of(sums) / (float)n_embd;",
        "const float mean = sum_of(sums) / (float)n_embd + (t % 2 ? 1e-6f : 0);",
        "bits of a layer norm",
    ),
    "scores of decodes begin with the last dimension": (
        "attention.c",
        "for (int64_t first = 0; first < DIM; first += SOME) {",
        "for (int64_t first = DIM - SOME; first >= 0; first -= SOME) {",
        "bits of attention float32, fma_float32",
    ),
    "values of decodes are added from behind": (
        "attention.c",
        "for (int j = 0; j < count && kind != DOT_BFLOAT16; j++)",
        "for (int j = count - 1; j >= 0 && kind != DOT_BFLOAT16; j--)",
        "bits of attention bfloat16, fma_float32",
    ),
    "a sum of weights depends on the other queries": (
        "prefill_attention.c",
        "return sum_of(sum);",
        "return sum_of(sum) * (padded % 64 ? 1 : 1.000001f);",
        "bits of attention float32, fma_float32",
    ),
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """The program's files, compiled quickly."""
    directory = tmp_path_factory.mktemp("objects")
    subprocess.run(
        ["cc", *FLAGS, "-O1", "-march=native", "-c", *map(str, SOURCES)], cwd=directory, check=True, timeout=300
    )
    return directory


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(objects, tmp_path, name):
    file, right, wrong, line = WRONG[name]
    source = (ROOT / "stage06_fast/kernels" / file).read_text()
    assert source.count(right) == 1
    (tmp_path / file).write_text(source.replace(right, wrong))
    others = [one for one in objects.glob("*.o") if one.stem != Path(file).stem]
    command = ["cc", *FLAGS, "-O1", "-march=native", str(tmp_path / file), *map(str, others), "-lm", "-o", "check"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    ran = subprocess.run([str(tmp_path / "check")], capture_output=True, text=True, timeout=300)
    assert ran.returncode > 0
    assert f"WRONG {line}" in ran.stdout


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage.number >= 5], ids=lambda stage: stage.directory)
def test_which_threads_a_compiler_can_use(stage, caplog):
    compiler = stage.part("compiler")
    gnu, llvm, intel = (Path(f"/lib/{name}") for name in ("libgomp-a34b.so.1", "libomp.dylib", "libiomp5.so"))
    gcc, clang = "gcc (Debian 12.2.0-14) 12.2.0", "Apple clang version 15.0.0 (clang-1500.3.9.4)"
    assert compiler.openmp_flags(gcc, gnu) == compiler.openmp_flags(gcc, intel) == ["-fopenmp"]
    assert compiler.openmp_flags(clang, llvm) == compiler.openmp_flags(clang, intel) == ["-Xclang", "-fopenmp"]
    assert not caplog.messages
    assert compiler.openmp_flags(clang, gnu) == []
    assert caplog.messages == [
        "the C kernels run on one core: Clang can't use libgomp-a34b.so.1, which torch has; CC=gcc can"
    ]
    assert compiler.openmp_flags(gcc, None) == []
    assert caplog.messages[1:] == ["the C kernels run on one core: torch's OpenMP library is not to be found"]


# --- With compilers and an emulator that are installed for it: make test-arm ------------------------------------------


@pytest.mark.arm
@pytest.mark.parametrize(
    ("cpu", "has"),
    [("cortex-a72", set()), ("max", {"dot_bfloat16", "matrix_bfloat16"})],
    ids=["plain NEON", "with bfloat16"],
)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_on_arm(tmp_path, compiler, cpu, has):
    """One build for both CPUs: what one of them lacks is found out when it runs."""
    if compiler == "gcc":
        program = build(tmp_path, f"{ARM}-gcc", "-fopenmp")
    else:
        program = build(tmp_path, "clang", f"--target={ARM}", "-I", f"/usr/{ARM}/include")
    assert shutil.which("qemu-aarch64"), "there is no qemu-aarch64; `make test-arm` says what to install"
    checked, missing = check("qemu-aarch64", "-L", f"/usr/{ARM}", "-cpu", cpu, program)
    assert checked == {"fma_float32", "fma_bfloat16"} | has
    assert missing == {"dot_bfloat16", "matrix_bfloat16", "tiles_bfloat16", "tiles_split"} - has


@pytest.mark.arm
def test_by_clang_with_its_own_threads(tmp_path):
    """As on macOS: OpenMP's library is there, its header is not, and the flag is hidden."""
    library = max(Path("/usr/lib").glob("llvm-*/lib/libomp.so"))
    program = build(tmp_path, "clang", "-Xclang", "-fopenmp", libraries=(str(library), f"-Wl,-rpath,{library.parent}"))
    check(program)
    symbols = subprocess.run(["nm", "-D", str(program)], capture_output=True, text=True, check=True).stdout
    assert "__kmpc_fork_call" in symbols


@pytest.mark.arm
def test_by_clang_without_openmp(tmp_path):
    check(build(tmp_path, "clang"))


@pytest.mark.arm
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage.number >= 5], ids=lambda stage: stage.directory)
def test_a_stage_by_clang(stage, tmp_path):
    """It answers as with GCC, on one core if torch's threads are GNU's, and says so."""
    environment = {"CC": "clang", "XDG_CACHE_HOME": str(tmp_path)}
    prompt = ("--prompts", "Once upon a time", "--max-tokens", 20, "--temperature", 0)
    _, expected, _ = stage.run(*prompt)
    status, out, err = stage.run(*prompt, **environment)
    assert (status, out) == (0, expected), err
    assert "attention_backend is torch" not in err
    assert "the C kernels run on one core: Clang can't use libgomp" in err

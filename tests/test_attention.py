"""From stage 5 on: attention over a paged cache, every backend against dense attention; which one is picked."""

import itertools
import math
import random
import subprocess
import sys

import pytest
import torch

from tests.adapter import ROOT, stages_that_change

pytestmark = pytest.mark.covers("attention.py", "kernels/attention.c", "kernels/triton_kernel.py")
PAGED = stages_that_change("attention.py", "kernels/attention.c")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # of the largest number
CPU = torch.device("cpu")
DEVICES = {"torch": CPU, "c": CPU, "triton": torch.device("cuda" if torch.cuda.is_available() else "cpu")}


# Stage 6 has a C kernel of its own; torch's and Triton's are those of stage 5.
WITH_TRITON = stages_that_change("kernels/triton_kernel.py")
KERNELS = [(PAGED[0], "torch"), *((stage, "c") for stage in PAGED), *((stage, "triton") for stage in WITH_TRITON)]


@pytest.fixture(params=PAGED, ids=lambda stage: stage.directory)
def stage(request):
    return request.param


def make_step(sizes, n_head, head_dim, block_size, dtype, seed=0):
    """A step over requests of (n_new, n_seq) sizes in shuffled blocks, and dense attention's answer in float64.

    What no request has written is NaN, and the block tables end with block numbers that belong to other requests."""
    torch.manual_seed(seed)
    needed = [-(-n_seq // block_size) for _, n_seq in sizes]
    num_blocks = sum(needed) + 3
    k_cache = torch.full((num_blocks, n_head, head_dim, block_size), math.nan, dtype=dtype)
    v_cache = torch.full((num_blocks, n_head, block_size, head_dim), math.nan, dtype=dtype)
    free = torch.randperm(num_blocks).tolist()
    tables, queries, expected = torch.randint(0, num_blocks, (len(sizes), max(needed) + 2)), [], []
    for i, (n_new, n_seq) in enumerate(sizes):
        keys, values = (torch.randn(n_seq, n_head, head_dim).to(dtype) for _ in range(2))
        q = (2 * torch.randn(n_new, n_head, head_dim)).to(dtype)
        blocks = torch.tensor([free.pop() for _ in range(needed[i])])
        tables[i, : needed[i]] = blocks
        where, rows = blocks[torch.arange(n_seq) // block_size], torch.arange(n_seq) % block_size
        k_cache[where, :, :, rows], v_cache[where, :, rows] = keys, values
        scores = torch.einsum("qhd,khd->hqk", q.double(), keys.double()) / math.sqrt(head_dim)
        hidden = torch.arange(n_seq) > torch.arange(n_seq - n_new, n_seq)[:, None]
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        expected.append(torch.einsum("hqk,khd->qhd", weights, values.double()))
        queries.append(q)
    starts = torch.tensor([0, *(n_new for n_new, _ in sizes)]).cumsum(0)
    seq_lens = torch.tensor([n_seq for _, n_seq in sizes])
    return (torch.cat(queries), k_cache, v_cache, tables, starts, seq_lens), torch.cat(expected)


def check(attention, step, expected, device=CPU):
    out = attention(*(tensor.to(device) for tensor in step)).cpu()
    assert out.dtype == step[0].dtype
    assert out.shape == step[0].shape
    assert (out.double() - expected).abs().max() <= TOLERANCES[out.dtype] * expected.abs().max()


# Decodes, whole prompts, pieces of prompts, all in one step; lengths around a block's, a tile's and a chunk's edges.
MIXED = [(1, 1), (1, 17), (5, 5), (1, 64), (9, 40), (1, 65), (16, 16), (3, 130), (17, 33), (1, 15), (8, 8)]


SHAPES = [  # heads, their dimensions, and tokens in a block
    (12, 64, 16),
    (2, 64, 64),
    (1, 64, 48),
    (3, 16, 16),
    (2, 8, 1),
    (1, 24, 2),
    (2, 100, 32),
    (2, 64, 1),
    (1, 5, 7),
]
ALL = list(itertools.product(KERNELS, DTYPES, SHAPES))
IN_TEST = {torch.float32: [(3, 16, 16), (1, 5, 7)], torch.bfloat16: [(2, 8, 1)], torch.float16: [(1, 24, 2)]}


def slow(kernel, dtype, shape) -> list:
    """Triton's interpreter takes half a second for what the others do almost instantly."""
    return [pytest.mark.soak] * (kernel[1] == "triton" and shape not in IN_TEST[dtype])


@pytest.mark.parametrize(
    ("stage", "backend", "dtype", "n_head", "head_dim", "block_size"),
    [pytest.param(*kernel, dtype, *shape, marks=slow(kernel, dtype, shape)) for kernel, dtype, shape in ALL],
    ids=str,
)
def test_against_dense_attention(stage, backend, dtype, n_head, head_dim, block_size):
    name, attention = stage.part("attention").pick_backend(backend, DEVICES[backend], head_dim)
    assert name == backend
    sizes = MIXED if backend != "triton" or n_head < 2 else MIXED[1:6]  # its interpreter is slow
    check(attention, *make_step(sizes, n_head, head_dim, block_size, dtype), DEVICES[backend])


@pytest.mark.parametrize(("stage", "backend"), [pair for pair in KERNELS if pair[1] != "triton"], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_random_steps(stage, backend, seed):
    rng = random.Random(seed)
    sizes = [(n_new := rng.choice([1, 1, rng.randrange(1, 40)]), n_new + rng.randrange(200)) for _ in range(12)]
    shape = rng.choice([(2, 64, 16), (3, 64, 32), (2, rng.randrange(1, 80), rng.randrange(1, 70))])
    attention = stage.part("attention").pick_backend(backend, torch.device("cpu"), shape[1])[1]
    check(attention, *make_step(sizes, *shape, rng.choice(DTYPES), seed))


@pytest.mark.parametrize(("stage", "backend"), KERNELS, ids=str)
def test_large_scores_and_a_query_that_is_a_view(stage, backend):
    """Scores in the thousands must not overflow, with one, a few and many queries: stage 6 has a way for each;
    and the model hands in slices of a wider tensor."""
    attention = stage.part("attention").pick_backend(backend, DEVICES[backend], 64)[1]
    (query, *rest), _ = make_step([(1, 70), (4, 20), (40, 70)], 2, 64, 16, torch.float32)
    rest[0].mul_(300)
    wide = torch.randn(len(query), 3, 2, 64)
    wide[:, 0] = query
    expected = stage.part("attention").paged_attention(query, *rest)
    assert expected.isfinite().all()
    step = [tensor.to(DEVICES[backend]) for tensor in (wide, *rest)]
    assert (attention(step[0][:, 0], *step[1:]).cpu() - expected).abs().max() < 1e-4


NOT_FINITE = {
    "NaN": (range(37, 38), math.nan),
    "the last is NaN": (range(69, 70), math.nan),
    "infinity": (range(37, 38), math.inf),
    "a whole block of -infinity": (range(20), -math.inf),
    "all -infinity": (range(70), -math.inf),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", NOT_FINITE)
@pytest.mark.parametrize("head_dim", [64, 24])
@pytest.mark.parametrize(("stage", "backend"), [pair for pair in KERNELS if pair[1] == "c"], ids=str)
def test_scores_that_are_not_finite(stage, backend, head_dim, case, dtype):
    """NaN stays NaN, for one, a few and many queries, so that the engine sees it; -infinity is a weight of zero."""
    part, (positions, what) = stage.part("attention"), NOT_FINITE[case]
    step, _ = make_step([(1, 70), (4, 70), (40, 70)], 2, head_dim, 16, dtype)
    query, k_cache, _, tables, *_ = step
    query.abs_()  # so that the scores are what the keys are
    for table, position in itertools.product(tables, positions):
        k_cache[table[position // 16], :, 5, position % 16] = what
    expected, out = (one(*step) for one in (part.paged_attention, part.pick_backend(backend, CPU, head_dim)[1]))
    finite = expected.isfinite()
    assert finite.all() == (case == "a whole block of -infinity")
    assert torch.equal(out.isfinite(), finite)
    assert not finite.any() or (out - expected)[finite].abs().max() <= TOLERANCES[dtype] * expected[finite].abs().max()


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7])
@pytest.mark.parametrize("stage", WITH_TRITON, ids=str)
def test_splits_of_the_triton_kernel(stage, num_splits):
    """The keys of a sequence over several programs; some of them get none."""
    stage.part("attention").pick_backend("triton", DEVICES["triton"], 16)
    attention = stage.part("kernels.triton_kernel").paged_attention
    step, expected = make_step([(1, 400), (20, 300), (1, 3)], 2, 16, 16, torch.float32)
    check(lambda *args: attention(*args, num_splits=num_splits), step, expected, DEVICES["triton"])


def test_threads_of_the_c_kernel(stage, any_threads):
    """It takes as many threads as torch does, and its answer does not depend on how many."""
    attention = stage.part("attention").pick_backend("c", torch.device("cpu"), 64)[1]
    step, expected = make_step([(1, 200)] * 6, 3, 64, 16, torch.float32)
    answers = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        check(attention, step, expected)
        answers.append(attention(*step))
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def test_one_openmp_runtime():
    """The kernels bring no second set of threads into the process."""
    code = (
        "import importlib, torch\n"
        f"for directory in {[stage.directory for stage in PAGED]}:\n"
        "    importlib.import_module(directory + '.kernels.c_kernel').load_kernel()\n"
        "paths = {line.split()[-1] for line in open('/proc/self/maps')}\n"
        "print(sum(any(s in p for s in ('libgomp', 'libomp', 'libiomp')) for p in paths))"
    )
    if sys.platform == "linux":
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "1\n"


# --- Which one is picked --------------------------------------------------------------------------------------------


def test_auto_is_c(stage, small_checkpoint):
    assert stage.LLM(small_checkpoint, device="cpu").engine.runner.attention_backend == "c"


@pytest.mark.parametrize(
    ("name", "device", "head_dim", "says"),
    [
        ("c", "cuda", 64, "'c' does not run here: it runs on a CPU, not on cuda"),
        ("c", "cpu", 300, "heads of up to 256 dimensions, not 300"),
        ("triton", "cuda", 200, "heads of up to 128 dimensions, not 200"),
    ],
)
def test_a_backend_that_can_not_be(stage, name, device, head_dim, says):
    with pytest.raises(ValueError, match=says):
        stage.part("attention").pick_backend(name, torch.device(device), head_dim)


def test_the_largest_heads(stage):
    for name, device, head_dim in (("c", "cpu", 256), ("triton", "cuda", 128)):
        assert stage.part("attention").pick_backend(name, torch.device(device), head_dim)[0] == name


def test_auto_on_a_gpu(stage, monkeypatch, caplog):
    """It picks Triton, or torch if Triton is missing."""
    part, cuda = stage.part("attention"), torch.device("cuda")
    stage.part("kernels.triton_kernel")  # for the interpreter, which the other tests need
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert part.pick_backend("auto", cuda, 64)[0] == "triton"
    monkeypatch.delattr(sys.modules[part.__package__ + ".kernels"], "triton_kernel")
    monkeypatch.setitem(sys.modules, f"{part.__package__}.kernels.triton_kernel", None)  # it can't be imported
    assert part.pick_backend("auto", cuda, 64) == ("torch", part.paged_attention)
    assert "the package triton can't be imported: " in caplog.text


def test_triton_needs_cuda_or_its_interpreter(stage, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="'triton' does not run here: it needs CUDA; on a CPU set TRITON_INTERPRET=1"):
        stage.part("attention").pick_backend("triton", torch.device("cpu"), 64)


def complete(stage, *arguments):
    return stage.main("--prompts", "Once upon a time", "--max-tokens", 4, "--temperature", 0, *arguments)


def test_without_a_compiler(stage, tmp_path, monkeypatch, caplog):
    """A log line says so, and torch is used; asking for C explicitly is an error."""
    _, expected, _ = complete(stage)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernels = stage.part("kernels.c_kernel")
    monkeypatch.setattr(kernels, "load_kernel", kernels.load_kernel.__wrapped__)  # as in a new process
    status, stdout, stderr = complete(stage, "--quiet")
    assert (status, stdout, stderr) == (0, expected, "")
    says = "attention_backend is torch, the slow one: there is no C compiler (cc, gcc, clang)"
    assert [record.message for record in caplog.records] == [says]
    status, _, stderr = complete(stage, "--attention-backend", "c")
    assert status == 2
    assert "attention_backend 'c' does not run here: there is no C compiler" in stderr

"""From stage 6 on: every kernel against torch, with every way to multiply; whole steps with every optimization off."""

import contextlib
import ctypes
import gc
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.nn.functional as F

from bench import ablation, profile
from tests.adapter import ROOT, STAGES, kernels_with, random_prompts, stages_that_change, write_checkpoint
from tests.test_same_bits import Memory

FAST = stages_that_change("fast_model.py", "kernels/forward.c")
about_the_model = pytest.mark.covers("fast_model.py", "runner.py")
KINDS = ["fma_float32", "fma_bfloat16", "dot_bfloat16", "tiles_bfloat16", "tiles_split"]
# What a product of this kind may be wrong by, relative to the largest result.
TOLERANCE = dict.fromkeys(KINDS, 2e-6) | {"tiles_split": 3e-5}


@pytest.fixture(params=FAST, ids=lambda stage: stage.directory)
def stage(request):
    return request.param


@pytest.fixture
def c(stage):
    return stage.part("kernels.c_kernel")


def kinds_here(c) -> list[str]:
    return [kind for kind in KINDS if c.has_kind(kind)]


def make_rows(c, x: torch.Tensor | None, num_rows: int, width: int, format: int):
    """Rows for the kernels with x in them, and the tensor that holds them."""
    stride = -(-width // 32) * 32 * (4 if format == 0 else 2) + 64
    capacity = -(-num_rows // 32) * 32
    memory = torch.zeros(2 if format == c.SPLIT else 1, capacity, stride, dtype=torch.uint8)
    if x is not None:
        high = x if format == 0 else x.bfloat16()
        memory[0, :num_rows, : width * high.itemsize] = high.contiguous().view(torch.uint8)
        if format == c.SPLIT:
            low = (x - high.float()).bfloat16()
            memory[1, :num_rows, : width * 2] = low.contiguous().view(torch.uint8)
    return c.Rows(memory.data_ptr(), stride, capacity * stride, format), memory


def read_rows(c, memory: torch.Tensor, num_rows: int, width: int, format: int) -> torch.Tensor:
    dtype = torch.float32 if format == 0 else torch.bfloat16
    parts = memory[:, :num_rows, : width * dtype.itemsize].contiguous().view(dtype)
    return parts.float().sum(0)


def make_linear(stage, c, kind: str, in_: int, out: int, seed: int = 0):
    """(the struct, the weight that it represents in float64, the bias, what has to stay alive)"""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, in_, generator=generator) / math.sqrt(in_)
    bias = torch.randn(out, generator=generator)
    if kind.endswith("bfloat16"):
        weight = weight.bfloat16().float()
    packed = c.pack(weight, kind)
    padded = F.pad(bias, (0, -out % 32))
    linear = c.Linear(packed.data_ptr(), padded.data_ptr(), in_, out, c.KINDS[kind][0])
    return linear, weight.double(), bias.double(), (packed, padded)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("in_", "out"), [(24, 5), (64, 100), (768, 96), (131, 33), (600, 32)])
def test_linear(stage, c, kind, in_, out):
    """Every epilogue, for numbers of rows around every edge, by one thread and by two."""
    if kind not in kinds_here(c):
        pytest.skip(f"this CPU has no {kind}")
    lib = c.load_kernel()
    linear, weight, bias, _keep = make_linear(stage, c, kind, in_, out)
    operand = c.KINDS[kind][1]
    for num_rows in (1, 2, 3, 6, 7, 12, 13, 16, 17, 31, 33, 70, 600, 601):
        x = torch.randn(num_rows, in_, generator=torch.Generator().manual_seed(num_rows))
        if operand == 1:
            x = x.bfloat16().float()
        rows, _memory = make_rows(c, x, num_rows, in_, operand)
        y = x.double() @ weight.T + bias
        residual = torch.randn(num_rows, out)
        for epilogue, expected in (
            (c.STORE, y),
            (c.ADD, y + residual.double()),
            (c.TO_ROWS, y),
            (c.GELU, F.gelu(y, approximate="tanh")),
        ):
            result = residual.clone()
            to, to_memory = make_rows(c, None, num_rows, out, operand)
            lib.linear(linear, rows, num_rows, epilogue, result.data_ptr(), to, linear, 1 + num_rows % 2)
            got = result if epilogue in (c.STORE, c.ADD) else read_rows(c, to_memory, num_rows, out, operand)
            tolerance = TOLERANCE[kind] if got is result or operand != 1 else 5e-3  # a result in bfloat16
            error = (got.double() - expected).abs().max() / expected.abs().max()
            assert error <= tolerance, f"{num_rows} rows, epilogue {epilogue}: {error:.1e}"
            size = 4 if operand == 0 else 2
            assert not to_memory[:, :, out * size : -(-out // 32) * 32 * size].any(), "a row is padded with zeros"


def test_rows_behind_the_last_do_not_matter(stage, c):
    """Tiles always compute 16 rows: what follows the last row in memory must not affect the others."""
    for kind in kinds_here(c):
        linear, weight, bias, _keep = make_linear(stage, c, kind, 64, 40)
        x = torch.randn(3, 64)
        rows, memory = make_rows(c, x, 3, 64, c.KINDS[kind][1])
        memory[:, 3:] = 0xFF  # NaN in every format
        result = torch.empty(3, 40)
        c.load_kernel().linear(linear, rows, 3, c.STORE, result.data_ptr(), rows, None, 2)
        torch.testing.assert_close(result.double(), x.double() @ weight.T + bias, rtol=0, atol=0.05)


@pytest.mark.parametrize("width", [5, 64, 100, 768])
@pytest.mark.parametrize("format", ["float32", "bfloat16", "split"])
def test_layer_norm(c, width, format):
    number = {"float32": 0, "bfloat16": 1, "split": c.SPLIT}[format]
    x, weight, bias = 3 * torch.randn(20, width) + 1, torch.randn(width), torch.randn(width)
    which = torch.tensor([3, 0, 19, 19, 7])
    for index, chosen in ((None, x), (which.data_ptr(), x[which])):
        rows, memory = make_rows(c, None, 20, width, number)
        c.load_kernel().layer_norm(
            rows, x.data_ptr(), index, len(chosen), width, weight.data_ptr(), bias.data_ptr(), 1e-5, 2
        )
        expected = F.layer_norm(chosen.double(), (width,), weight.double(), bias.double(), 1e-5)
        got = read_rows(c, memory, len(chosen), width, number).double()
        tolerance = {"float32": 2e-6, "bfloat16": 4e-3, "split": 2e-5}[format]
        assert (got - expected).abs().max() <= tolerance * expected.abs().max()


def test_layer_norm_of_rows_far_from_zero(c):
    """A large mean and a small spread, in rows that end within a vector: nothing of the mean may be left."""
    width = 24
    x = 100.1 + 1e-2 * torch.randn(5, width)
    rows, memory = make_rows(c, None, 5, width, 0)
    ones, zeros = torch.ones(width), torch.zeros(width)
    c.load_kernel().layer_norm(rows, x.data_ptr(), None, 5, width, ones.data_ptr(), zeros.data_ptr(), 1e-5, 1)
    expected = F.layer_norm(x.double(), (width,), ones.double(), zeros.double(), 1e-5)
    assert (read_rows(c, memory, 5, width, 0) - expected).abs().max() <= 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_embedding(c, dtype):
    for width in (5, 32, 100):
        wte, wpe = torch.randn(50, width).to(dtype), torch.randn(40, width).to(dtype)
        ids, positions = torch.randint(50, (33,)), torch.randint(40, (33,))
        x = torch.empty(33, width)
        addresses = (t.data_ptr() for t in (wte, wpe))
        c.load_kernel().embed(
            x.data_ptr(), *addresses, c.DTYPES[dtype], ids.data_ptr(), positions.data_ptr(), 33, width, 2
        )
        assert torch.equal(x, wte[ids].float() + wpe[positions].float())


def test_float16_is_rounded_as_torch_does(c):
    """Every exponent, numbers between two float16s, the smallest ones, and those that are too large: by a layer norm of
    zeros, which gives its bias."""
    bits = torch.arange(0, 2**31 - 1, 1_000_003, dtype=torch.int64).to(torch.int32)
    special = torch.tensor([0.0, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 65519.0, 65520.0, 1e9, math.inf, 1 + 2.0**-11])
    x = torch.cat([bits.view(torch.float32), special])
    x = torch.cat([x, -x])
    x = x[~x.isnan()].contiguous()
    memory = torch.zeros(32, -(-len(x) // 32) * 64 + 64, dtype=torch.uint8)
    rows = c.Rows(memory.data_ptr(), memory.shape[1], 0, c.DTYPES[torch.float16])
    zeros = torch.zeros(len(x))
    c.load_kernel().layer_norm(rows, zeros.data_ptr(), None, 1, len(x), zeros.data_ptr(), x.data_ptr(), 1e-5, 1)
    got = memory[0, : 2 * len(x)].view(torch.float16)
    assert torch.equal(got, x.half())


@pytest.mark.covers("kv_cache.py", "kernels/attention.c", "kernels/vectors.h")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n_head", "head_dim", "block_size"), [(12, 64, 16), (2, 64, 32), (3, 5, 7), (1, 24, 1)])
def test_keys_and_values_are_written_as_kv_cache_does(stage, c, dtype, n_head, head_dim, block_size):
    KVCache = stage.part("kv_cache").KVCache
    caches = [KVCache(1, 9, block_size, n_head, head_dim, dtype, torch.device("cpu"), None) for _ in "ab"]
    for tensor in (*caches[0].keys, *caches[0].values, *caches[1].keys, *caches[1].values):
        tensor.zero_()
    slots = torch.randperm(9 * block_size)[: 5 * block_size]
    slots = torch.cat([slots.sort().values[: 3 * block_size], slots[slots > slots.sort().values[3 * block_size - 1]]])
    width, n = n_head * head_dim, len(slots)
    qkv = torch.randn(n, 3 * width).to(dtype)
    k, v = (qkv[:, i * width : (i + 1) * width].unflatten(-1, (n_head, head_dim)) for i in (1, 2))
    caches[0].write(0, slots, k, v)
    rows = c.Rows(qkv.data_ptr(), 3 * width * dtype.itemsize, 0, c.DTYPES[dtype])
    step = c.Step(slot_mapping=slots.data_ptr(), num_tokens=n)
    c.load_kernel().write_kv(c.cache_struct(caches[1].keys[0], caches[1].values[0]), rows, step, 2)
    assert torch.equal(caches[0].keys, caches[1].keys)
    assert torch.equal(caches[0].values, caches[1].values)


@pytest.mark.covers("kv_cache.py", "kernels/attention.c", "kernels/vectors.h")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 5])
def test_readers_of_a_value_that_is_not_finite_get_nan(stage, c, dtype, head_dim):
    """Its key is NaN, whatever it was; a NaN of all ones would come out of the softmax as a number."""
    cache = stage.part("kv_cache").KVCache(1, 1, 16, 1, head_dim, dtype, torch.device("cpu"), None)
    qkv = torch.ones(1, 3 * head_dim).to(dtype)
    qkv[0, 2 * head_dim + 3] = math.inf
    rows = c.Rows(qkv.data_ptr(), 3 * head_dim * dtype.itemsize, 0, c.DTYPES[dtype])
    slots = torch.tensor([0])
    step = c.Step(slot_mapping=slots.data_ptr(), num_tokens=1)
    c.load_kernel().write_kv(c.cache_struct(cache.keys[0], cache.values[0]), rows, step, 1)
    assert (cache.values[0, 0, 0, 0] == 0).all()
    query, starts, lengths = torch.ones(1, 1, head_dim), torch.tensor([0, 1]), torch.tensor([1])
    attend = stage.part("attention").pick_backend("c", torch.device("cpu"), head_dim)[1]
    assert attend(query, cache.keys[0], cache.values[0], slots[None], starts, lengths).isnan().all()


@pytest.mark.covers("support/memory.py")
@pytest.mark.parametrize("stage", [one for one in stages_that_change("support/memory.py") if one.number > 5], ids=str)
def test_memory_in_large_pages(stage):
    memory = stage.part("memory")
    for shape, dtype in (
        ((3, 1 << 20), torch.float32),
        ((1 << 21,), torch.uint8),
        ((5, 7), torch.bfloat16),
        ((0, 4), torch.int64),
    ):
        tensor = memory.empty(shape, dtype)
        assert (tensor.shape, tensor.dtype) == (shape, dtype)
        tensor.fill_(3)
        assert (tensor == 3).all()
        if sys.platform == "linux" and tensor.nbytes >= memory.PAGE:
            assert tensor.data_ptr() % memory.PAGE == 0


@pytest.mark.covers("support/memory.py")
@pytest.mark.soak
@pytest.mark.parametrize("stage", [one for one in stages_that_change("support/memory.py") if one.number > 5], ids=str)
def test_an_arena_keeps_copies(stage):
    """Of all sizes and types, also of what is longer than a chunk; none is written over by a later one."""
    memory, generator = stage.part("memory"), torch.Generator().manual_seed(0)
    sizes = [1, 16, 1000, memory.CHUNK // 4 - 16, 17, memory.CHUNK // 2, 3 * memory.CHUNK // 8, 5]
    tensors = [
        torch.randn(2, n, generator=generator).to(dtype) for n in sizes for dtype in (torch.float32, torch.bfloat16)
    ]
    arena = memory.Arena()
    places = [arena.copy(tensor.T) for tensor in tensors]
    gc.collect()
    for tensor, place in zip(tensors, places, strict=True):
        assert place % 64 == 0
        assert ctypes.string_at(place, tensor.nbytes) == tensor.T.contiguous().view(torch.uint8).numpy().tobytes()


# --- Whole steps ----------------------------------------------------------------------------------------------------

LENGTHS = [1, 3, 40, 7, 19, 64, 33, 2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    sizes = dict(vocab_size=4001, n_positions=128, n_embd=128, n_layer=3, n_head=2)  # logits are the widest rows
    return write_checkpoint(tmp_path_factory.mktemp("fast"), **sizes)


def run(stage, checkpoint, **arguments):
    """(greedy ids of every request, the logits that they were taken from)"""
    limits = {"num_blocks": 64, "max_num_batched_tokens": 48} if stage.number > 1 else {}
    llm = stage.LLM(str(checkpoint), device="cpu", **limits, **arguments)
    with stage.recorded_logits() as logits:
        outputs = llm.generate(
            random_prompts(211, LENGTHS), stage.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        )
    return [output.outputs[0].token_ids for output in outputs], logits


def switches():
    return list(FAST[0].part("config").OPTIMIZATIONS)


@about_the_model
@pytest.mark.parametrize(
    "off",
    [[], switches(), *(pytest.param([name], marks=pytest.mark.soak) for name in switches())],
    ids=lambda off: "+".join(off[:3]),
)
def test_every_optimization_can_be_turned_off(stage, checkpoint, off):
    """float32: the same tokens, the same logits to 1e-4 of the largest, as stage 1 makes."""
    expected, logits = run(STAGES[0], checkpoint)
    ids, fast_logits = run(stage, checkpoint, disable=off)
    assert ids == expected
    assert fast_logits.keys() == logits.keys()
    for key, row in logits.items():
        assert (fast_logits[key] - row).abs().max() <= 1e-4 * row.abs().max()


@about_the_model
@pytest.mark.parametrize("name", ["linear", "tiles", "prefill", "pages"])
def test_what_a_switch_turns_off(stage, checkpoint, monkeypatch, name):
    """What the engine does with it and without it; with tiles, where there are some."""
    runner, done = stage.part("runner"), {}
    if name == "tiles":
        kernels = kernels_with(stage, "AMX")
        monkeypatch.setattr(stage.part("kernels.c_kernel"), "load_kernel", lambda: kernels)
    KVCache = runner.KVCache
    monkeypatch.setattr(runner, "KVCache", lambda *a: done.update(pages=len(a) > 8 and a[8]) or KVCache(*a))

    class Spy:
        def forward(self, *arguments):
            done["prefill"] = arguments[6]
            return library.forward(*arguments)

    def what_it_does(disable):
        nonlocal library
        llm = stage.LLM(str(checkpoint), device="cpu", disable=disable, num_blocks=8)
        model = llm.engine.runner.model
        done["linear"] = type(model).__name__ == "FastGPT2"
        done["tiles"] = done["linear"] and model.kind.startswith("tiles")
        if name == "prefill":
            library, model.library = model.library, Spy()
            llm.generate([[1, 2, 3]], stage.SamplingParams(temperature=0, max_tokens=1))
        return done[name]

    library = None
    on, off = what_it_does([]), what_it_does([name])
    assert on
    assert not off


@about_the_model
@pytest.mark.parametrize(
    ("dtype", "off"),
    [("bfloat16", []), ("bfloat16", ["tiles"]), ("bfloat16", ["prefill"]), ("float16", [])],
    ids=str,
)
def test_16_bits_are_as_close_to_float32_as_with_torch(stage, checkpoint, dtype, off):
    """The logits after the same prompts, by torch and by the kernels."""
    prompts = random_prompts(211, LENGTHS)
    logits = {}
    for name, arguments in {
        "float32": {"disable": ["linear"]},
        "torch": {"dtype": dtype, "attention_backend": "torch"},
        "fast": {"dtype": dtype, "disable": off},
    }.items():
        llm = stage.LLM(str(checkpoint), device="cpu", **arguments)
        with stage.recorded_logits() as recorded:
            llm.generate(prompts, stage.SamplingParams(temperature=0, max_tokens=1))
        logits[name] = torch.stack([recorded[str(i), 0] for i in range(len(prompts))])
    error = {name: (logits[name] - logits["float32"]).square().mean().sqrt() for name in ("torch", "fast")}
    assert error["fast"] <= 1.05 * error["torch"]


def test_tiles_and_torch_do_not_disturb_each_other(stage, checkpoint):
    """Both use AMX, where there is one, from the same threads: each has to set the tiles up for itself."""
    a, b = (torch.randn(256, 256, dtype=torch.bfloat16) for _ in range(2))
    product, (ids, _) = a @ b, run(stage, checkpoint, dtype="bfloat16")
    for _ in range(3):
        assert torch.equal(a @ b, product)
        assert run(stage, checkpoint, dtype="bfloat16")[0] == ids


@pytest.mark.covers("config.py", "fast_model.py")
def test_what_may_be_turned_off(stage):
    """Any names of optimizations, in anything that has several."""
    names = ("pages",) * 9
    assert stage.part("config").EngineConfig(disable=iter(names)).disable == names
    with pytest.raises(ValueError, match="disable: there is no optimization 'speed'; there are linear, tiles, "):
        stage.LLM(device="cpu", disable=["speed"])
    with pytest.raises(ValueError, match="disable must be a list of names, got 'tiles'"):
        stage.LLM(device="cpu", disable="tiles")
    status, _, stderr = stage.main("--prompts", "a", "--disable", "tiles", "speed")
    assert (status, stderr.count("\n")) == (2, 1)
    assert "there is no optimization 'speed'" in stderr


@pytest.mark.covers("attention.py")
@pytest.mark.parametrize("on", [["prefill"], ["tiles"], []], ids=str)
def test_the_optimizations_of_attention(stage, on):
    _, attention = stage.part("attention").pick_backend("c", torch.device("cpu"), 64, on)
    assert attention.keywords == {"prompts": "prefill" in on, "tiles": "tiles" in on}


@about_the_model
def test_the_first_way_to_multiply_that_is_there_and_on(stage, monkeypatch):
    part, there = stage.part("fast_model"), set()
    monkeypatch.setattr(part.c, "has_kind", lambda kind: kind in there)

    def picked(*arguments, pick=part.pick_kind):
        """With every optimization and without tiles."""
        return [pick(*arguments, stage.part("config").enabled(off)) for off in ([], ["tiles"])]

    for dtype in (torch.float32, torch.float16):
        there.clear()
        assert picked(dtype) == ["fma_float32"] * 2
        there.update(["tiles_bfloat16", "tiles_split", "dot_bfloat16"])
        assert picked(dtype) == ["tiles_split", "fma_float32"]
    assert picked(torch.bfloat16) == ["tiles_bfloat16", "dot_bfloat16"]
    attention = [part.c.attention_kind(torch.bfloat16, tiles) for tiles in (True, False)]
    assert attention == [part.c.KINDS[kind][0] for kind in ("tiles_bfloat16", "dot_bfloat16")]
    there.remove("tiles_bfloat16")
    assert picked(torch.bfloat16) == ["dot_bfloat16"] * 2
    there.clear()
    assert picked(torch.bfloat16) == ["fma_bfloat16"] * 2
    if stage.has_option("weights"):
        assert picked(pick=part.pick_int8_kind) == ["pairs_int8"] * 2
        there.update(["tiles_int8", "dot_int8"])
        assert picked(pick=part.pick_int8_kind) == ["tiles_int8", "dot_int8"]


@about_the_model
@pytest.mark.parametrize(("count", "padded"), [(1, 32), (32, 32), (65, 96)])
def test_biases_are_padded_to_whole_panels(stage, checkpoint, monkeypatch, count, padded):
    """What the products read beyond them is there, and zero."""
    model = stage.LLM(str(checkpoint), device="cpu", num_blocks=8).engine.runner.model
    monkeypatch.setattr(model, "copied", torch.Tensor.tolist)
    assert model.padded(torch.ones(count)) == [1] * count + [0] * (padded - count)


@about_the_model
def test_what_a_runner_picks(stage, small_checkpoint, monkeypatch):
    """Its model, its sampler, and whether its threads may share their cores with other programs."""
    monkeypatch.setattr(stage.part("runner"), "WAITS_BRIEFLY", True)
    picked = {}
    for name, options in {"c": {}, "c, without linear": {"disable": ["linear"]}, "torch": {}}.items():
        options = {"attention_backend": name.split(",")[0], "num_blocks": 8, **options}
        runner = stage.LLM(str(small_checkpoint), device="cpu", **options).engine.runner
        picked[name] = type(runner.model).__name__, type(runner.sampler).__name__, runner.waits_briefly
    assert picked == {
        "c": ("FastGPT2", "CSampler", True),
        "c, without linear": ("GPT2", "CSampler", False),
        "torch": ("GPT2", "NoneType", False),
    }


@about_the_model
@pytest.mark.parametrize(("waits_briefly", "free", "limited"), [(True, 0.84, 0), (True, 0.85, 1), (False, 0.8, 1)])
def test_all_threads_where_no_core_is_free(stage, small_checkpoint, waits_briefly, free, limited):
    """If they wait briefly the system shares out the cores; else there are as many threads as free cores."""
    runner, entered = stage.LLM(str(small_checkpoint), device="cpu", num_blocks=8).engine.runner, []

    class Limit(contextlib.nullcontext):
        def __enter__(self):
            entered.append(True)

    runner.thread_limit, runner.waits_briefly, runner.model = Limit(), waits_briefly, lambda *_: "logits"
    runner.thread_limit.free = free
    assert runner.forward(SimpleNamespace(num_tokens=1, to=lambda _: None)) == "logits"
    assert len(entered) == limited


# --- The commands that measure it -----------------------------------------------------------------------------------


@pytest.mark.soak
def test_ablation(stage, tmp_path, capsys):
    """Each optimization is left out of some steps; a gain is the ratio to those with all; what is measured is kept."""
    arguments = ["--workloads", "single", "--dtypes", "float32", "--repeat", "2", "--model", "tinytales"]
    assert ablation.main([*arguments, "--json", str(tmp_path / "x.json")]) == 0
    (result,) = json.loads((tmp_path / "x.json").read_text())["runs"]
    assert set(result["seconds"]) - {"tiles"} == {"", "stage 5", *ablation.OPTIMIZATIONS} - {"tiles"}
    assert all(0 < seconds < 60 for (seconds,) in result["seconds"].values())
    out = capsys.readouterr().out
    assert f"| `linear` | {result['seconds']['linear'][0] / result['seconds'][''][0]:.2f} |" in out


def test_contest(stage):
    """Every way gets every step, in different orders; the first one's logits count, though others overwrite them."""
    order, memory = [], torch.zeros(3)

    def way(name, value):
        def run(step, cache):
            order.append(name)
            return memory.fill_(value)

        return run

    contest = ablation.Contest(None, {"a": way("a", 1.0), "b": way("b", 2.0)})
    assert [contest(None, None).tolist() for _ in range(9)] == [[1.0] * 3] * 9
    assert {"".join(order[i : i + 2]) for i in range(0, 18, 2)} == {"ab", "ba"}
    assert [len(seconds) for seconds in contest.seconds.values()] == [9, 9]


def test_profile(tmp_path, capsys):
    """Every kernel has its time, and the table shows each one's share."""
    wanted = ["--model", "tinytales", "--workloads", "single", "--dtypes", "float32"]
    assert profile.main([*wanted, "--json", str(tmp_path / "x.json")]) == 0
    seconds = json.loads((tmp_path / "x.json").read_text())["runs"][0]["seconds"]
    assert list(seconds) == [*profile.KERNELS.values(), profile.REST]
    assert all(value > 0 for value in seconds.values())
    out = capsys.readouterr().out
    assert f"| logits | {seconds['logits'] / sum(seconds.values()):.1%} |" in out


def test_the_profiled_step_is_the_engines(checkpoint):
    """The kernels one by one give the bits of one call, in prefills, decodes and pieces."""
    stage = next(stage for stage in STAGES if stage.number == 6)
    memory, params = Memory(), stage.SamplingParams(seed=1, max_tokens=6, ignore_eos=True, prompt_logprobs=1)
    for profiled in (False, True):
        llm = stage.LLM(str(checkpoint), device="cpu", max_num_batched_tokens=24, num_blocks=64)
        if profiled:
            llm.engine.runner.model.library = profile.Clock(llm.engine.runner.model.library)
        memory.watch(llm).generate(random_prompts(211, LENGTHS), params)
        llm.generate(random_prompts(211, [60]), replace(params, prompt_logprobs=None))  # steps without any logits
    assert memory.happened["logits compared"] >= 6 * (len(LENGTHS) + 1)
    assert memory.happened["pieces"] > 0


# --- Memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.covers("kv_cache.py")
def test_only_the_first_blocks_are_there_from_the_start(stage, monkeypatch, little_is_touched):
    """A pool may be far larger than what is ever used: the other blocks are touched by the steps that need them."""
    cache, page = stage.part("kv_cache"), 2 << 20
    assert little_is_touched[stage] // (2 * 12 * 768) == 7281  # tokens of GPT-2 small
    monkeypatch.setattr(cache, "PREFAULT", (32 << 20) // 4)
    before = psutil.Process().memory_info().rss
    made = cache.KVCache(2, 4096, 16, 12, 64, torch.float32, torch.device("cpu"), None, large_pages=True)
    grown, whole = psutil.Process().memory_info().rss - before, made.keys.nbytes + made.values.nbytes
    assert whole > 20 * (32 << 20)
    assert 30 << 20 < grown < (32 << 20) + 8 * page
    assert not made.keys[:, 0].any()
    if sys.platform == "linux":
        assert {made.keys.data_ptr() % page, made.values.data_ptr() % page} == {0}


HELD = """
import sys, psutil, {stage} as stage
resident, options = psutil.Process().memory_info, dict(device="cpu", num_blocks=8, max_num_batched_tokens=64)
first = stage.LLM("tinytales", **options)
before = resident().rss
llm = stage.LLM(sys.argv[1], dtype="bfloat16", **options)
print(resident().rss - before)
"""


@pytest.fixture(scope="module")
def large_checkpoint(tmp_path_factory):
    sizes = dict(n_layer=6, n_head=12, n_embd=768, n_positions=32, vocab_size=500)
    return write_checkpoint(tmp_path_factory.mktemp("large"), **sizes)


@pytest.mark.covers("runner.py", "support/weights.py")
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is asked to give memory back")
def test_a_model_is_in_memory_once(stage, large_checkpoint):
    """Each matrix is freed after it is packed, and the memory goes back to the system. (Twice it did not.)"""
    path = large_checkpoint
    weights = (path / "model.safetensors").stat().st_size
    command = [sys.executable, "-c", HELD.format(stage=stage.directory), str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    weights //= 4 if "quantize.py" in os.listdir(ROOT / stage.directory) else 2  # a byte or two for one of float32
    assert weights < int(run.stdout) < 1.3 * weights + (40 << 20)  # the engine's thread has an arena of glibc's, too

"""Stage 8: weights in int8. The formula, by torch and by every kernel, against float64; whole engines against Hugging
Face's model with that formula in it; and that a token depends on its own request alone, as in the stages before."""

import math
import random
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from stagewise import stages
from tests import test_same_bits
from tests.adapter import ROOT, STAGES, random_prompts, write_checkpoint
from tests.test_speculative import engines_that_guess, random_jobs, told

sys.path.insert(0, str(ROOT / "tools" / "tinytales"))
from tale_grammar import write_tale

pytestmark = pytest.mark.covers("quantize.py", "runner.py", "fast_model.py", "model.py", "support/weights.py")
stage = INT8 = next(stage for stage in STAGES if stage.has_option("weights"))
SEVEN = next(stage for stage in STAGES if stage.number == INT8.number - 1)
quantize = INT8.part("quantize")
c = INT8.part("kernels.c_kernel")
KINDS = ["pairs_int8", "dot_int8", "tiles_int8"]
FORMATS = {c.INT8: torch.int8, c.INT16: torch.int16}

# Nothing in them is a multiple of a vector, a panel or a tile.
SIZES = {
    "an odd one": dict(n_layer=2, n_head=3, n_embd=51, n_inner=101, n_positions=64, vocab_size=77),
    "a narrow one": dict(n_layer=1, n_head=1, n_embd=20, n_inner=7, n_positions=40, vocab_size=31),
    "GPT-2's width": dict(n_layer=1, n_head=12, n_embd=768, n_positions=70, vocab_size=211),
}


@pytest.fixture(autouse=True)
def as_users_get_it(as_is, monkeypatch):
    """In this module, "auto" means what it means outside the tests: int8."""
    monkeypatch.setattr(INT8.part("runner"), "pick_int8", as_is)


@pytest.fixture(scope="module", params=SIZES)
def odd(request, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("odd"), **SIZES[request.param])


an_odd_one = pytest.mark.parametrize("odd", ["an odd one"], indirect=True)


# --- Numbers -> integers --------------------------------------------------------------------------------------------

ROWS = {
    "all there are": ([float(i) for i in range(-127, 128)], [*range(-127, 128)], 1.0),
    "other units": ([3 * i / 127 for i in range(-127, 128)], [*range(-127, 128)], 3 / 127),
    "zeros": ([0.0] * 5, [0] * 5, None),
    "negative": ([-1.0, -2.0, -4.0], [-32, -64, -127], 4 / 127),
    "halves go to the even one": ([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5], [127, 0, 2, 2, 0, -2, 126], 1.0),
    "a huge one": ([1e30, 1.0, -7e29, 3e27], [127, 0, -89, 0], 1e30 / 127),
    "one": ([-0.3], [-127], 0.3 / 127),
}


def by_torch(x):
    """A matrix -> its integers and its scales."""
    integers, scales = quantize.quantize(x)
    assert (integers.dtype, scales.dtype, scales.shape) == (torch.int8, torch.float32, (*x.shape[:-1], 1))
    return integers.int(), scales.squeeze(-1)


def rows_of(x, format, capacity=None):
    """Rows for the kernels, and the tensor that holds them; with x in them if it has floats."""
    num_rows, width = x.shape
    kept = []
    rows = INT8.part("fast_model").rows(capacity or num_rows, width, format, kept)
    memory = kept[0][0].view(-1, rows.stride)
    if format == 0:
        memory[:num_rows, : 4 * width] = x.contiguous().view(torch.uint8)
    return rows, memory


def by_kernel(x, format=c.INT8, threads=2):
    """The same from the kernels, and the rows themselves."""
    num_rows, width = x.shape
    (given, _keep), (to, memory) = rows_of(x, 0), rows_of(x, format, -(-num_rows // 32) * 32)
    memory.fill_(0xFF)
    c.load_kernel().quantize(to, given, num_rows, width, threads)
    dtype = FORMATS[format]
    size = dtype.itemsize
    padded = c.round_up(width, 64)
    integers = memory[:num_rows, : padded * size].contiguous().view(dtype).int()
    assert not integers[:, width:].any(), "a row is padded with zeros"
    scales, sums = memory[:num_rows, -8:].contiguous().view(torch.int32).T.contiguous()
    scales = scales.view(torch.float32)
    usual = scales.isfinite() & (scales > 1e-36)
    assert torch.equal(sums[usual], integers.sum(-1, dtype=torch.int32)[usual])
    return integers[:, :width], scales, (to, memory)


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_one_can_check_by_hand(name):
    numbers, expected, unit = ROWS[name]
    x = torch.tensor([numbers, numbers[::-1]])
    for integers, scales in (by_torch(x), by_kernel(x)[:2], by_kernel(x, c.INT16)[:2]):
        assert integers.tolist() == [expected, expected[::-1]]
        if any(numbers):
            torch.testing.assert_close(scales, torch.full((2,), unit), rtol=2e-7, atol=0)
        assert scales.isfinite().all()  # for zeros, any will do


@pytest.mark.parametrize("width", [1, 15, 64, 77, 768, 3072])
def test_each_number_becomes_the_nearest_integer(width):
    """By torch and by the kernels: they may only differ where a number lies between two."""
    x = torch.randn(37, width, generator=torch.Generator().manual_seed(width)) * torch.logspace(-30, 30, 37)[:, None]
    largest = x.double().abs().amax(-1)
    for integers, scales in (by_torch(x), by_kernel(x)[:2], by_kernel(x, c.INT16, threads=3)[:2]):
        torch.testing.assert_close(scales.double(), largest / 127, rtol=2e-7, atol=0)
        assert (integers.abs().amax(-1) == 127).all()
        assert (integers - x.double() / (largest / 127)[:, None]).abs().max() <= 0.5 + 1e-4


def test_rows_in_any_number_of_dimensions():
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    for made, flat in zip(by_torch(x), by_torch(x.view(6, 5)), strict=True):
        assert torch.equal(made.flatten(), flat.flatten())


def test_numbers_too_small_for_a_unit():
    """Their scale is too small to divide by; whatever the integers are, the numbers stay practically zero."""
    x = torch.tensor([[1e-38, -3e-39, 0.0], [1e-45, 0.0, 0.0]])
    for integers, scales in (by_torch(x), by_kernel(x)[:2], by_kernel(x, c.INT16)[:2]):
        assert (integers * scales[:, None]).abs().max() < 1e-30


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_stays_so_and_the_others_do_not_notice(bad):
    x = torch.randn(5, 70, generator=torch.Generator().manual_seed(0))
    clean, weight = x.clone(), torch.randn(40, 70, generator=torch.Generator().manual_seed(1))
    x[2, 11] = bad
    layer, others = quantize.Int8Linear(weight), [0, 1, 3, 4]
    for multiply in (layer, *(lambda x, kind=kind: linear(x, kind, layer) for kind in kinds_here())):
        y = multiply(x)
        assert not y[2].isfinite().any()
        assert torch.equal(y[others], multiply(clean)[others])


# --- Products -------------------------------------------------------------------------------------------------------


def kinds_here():
    return [kind for kind in KINDS if c.has_kind(kind)]


def packed(layer, kind):
    """A layer for the kernels, and what has to stay alive."""
    out = layer.out_features
    panels, scales = c.pack(layer.weight, kind), F.pad(layer.scales, (0, -out % 32))
    bias = None if layer.bias is None else F.pad(layer.bias.float(), (0, -out % 32))
    where = None if bias is None else bias.data_ptr()
    struct = c.Linear(panels.data_ptr(), where, layer.in_features, out, c.KINDS[kind][0], scales.data_ptr())
    return struct, (panels, scales, bias)


def linear(x, kind, layer, epilogue=c.STORE, residual=None, threads=2):
    """What the kernels make of it: [n, in] -> [n, out] float32"""
    num_rows, out, lib = len(x), layer.out_features, c.load_kernel()
    struct, _keep = packed(layer, kind)
    *_, (rows, _memory) = by_kernel(x, c.KINDS[kind][1])
    result = torch.zeros(num_rows, out) if residual is None else residual.clone()
    to, to_memory = rows_of(result, 0)
    to_memory.zero_()
    lib.linear(struct, rows, num_rows, epilogue, result.data_ptr(), to, struct, threads)
    if epilogue in (c.STORE, c.ADD):
        return result
    return to_memory[:, : 4 * out].contiguous().view(torch.float32)


def some_layer(in_, out, seed=0, bias=True):
    """A layer whose channels differ in size, one of them without weights, one with a bias alone that is large."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, in_, generator=generator) * torch.logspace(-2, 1, out)[:, None] / math.sqrt(in_)
    weight[out // 2] = 0
    return quantize.Int8Linear(weight, torch.randn(out, generator=generator) if bias else None)


def formula(integers, scales, layer):
    """quantize.py's first lines in float64."""
    y = (integers.double() @ layer.weight.double().T) * scales.double()[:, None] * layer.scales.double()
    return y if layer.bias is None else y + layer.bias.double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("in_", "out"), [(24, 5), (64, 100), (768, 96), (131, 33), (3072, 40)])
def test_linear(kind, in_, out):
    """Every epilogue, for numbers of rows around every edge, by one thread and by two."""
    if kind not in kinds_here():
        pytest.skip(f"this CPU has no {kind}")
    layer = some_layer(in_, out)
    for num_rows in (1, 2, 6, 7, 9, 16, 17, 33, 601):
        x = torch.randn(num_rows, in_, generator=torch.Generator().manual_seed(num_rows))
        integers, scales, _ = by_kernel(x, c.KINDS[kind][1])
        y, residual = formula(integers, scales, layer), torch.randn(num_rows, out)
        for epilogue, expected in (
            (c.STORE, y),
            (c.ADD, y + residual.double()),
            (c.TO_ROWS, y),
            (c.GELU, F.gelu(y, approximate="tanh")),
        ):
            got = linear(x, kind, layer, epilogue, residual, 1 + num_rows % 2)
            error = (got.double() - expected).abs().max() / expected.abs().max()
            assert error <= 1e-6, f"{num_rows} rows, epilogue {epilogue}: {error:.1e}"


@pytest.mark.parametrize("in_", [33, 3072, 12800])
def test_the_sums_are_exact(in_):
    """To the last bit, also of the largest there are, and the same by every way to multiply."""
    generator = torch.Generator().manual_seed(in_)
    x, weight = (torch.randint(-127, 128, (n, in_), generator=generator).float() for n in (70, 45))
    x[0], weight[0], x[1], weight[1] = 127, 127, -127, -127
    # Large sums that no float32 holds: sums of pieces, each rounded to float32, would differ from them.
    x[2:], weight[2:] = (torch.randint(100, 128, t[2:].shape, generator=generator).float() for t in (x, weight))
    x[:, 0] = weight[:, 0] = 127  # so that an integer of 1 stands for 1
    layer = quantize.Int8Linear(weight)
    exact = x.double() @ weight.double().T
    assert exact[0, 0] == 127 * 127 * in_
    assert torch.equal(layer(x), exact.float())
    for kind in kinds_here():
        assert torch.equal(linear(x, kind, layer), exact.float()), kind


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("in_", "out"), [(20, 7), (51, 101), (768, 96), (3072, 33)])
def test_by_torch(dtype, in_, out):
    layer = some_layer(in_, out).to(dtype)
    layer.bias = layer.bias.to(dtype)
    for num_rows in (1, 2, 17, 33):
        x = torch.randn(num_rows, in_, generator=torch.Generator().manual_seed(num_rows)).to(dtype)
        y, expected = layer(x), formula(*by_torch(x), layer)
        assert y.dtype == dtype
        tolerance = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
        assert (y.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_embedding(dtype):
    """A token's vector is read from the last layer's packed weights, of every kind."""
    for width in (5, 32, 100):
        generator = torch.Generator().manual_seed(width)
        table = torch.randn(77, width, generator=generator)
        positions = torch.randn(40, width, generator=generator).to(dtype)
        wte = quantize.Int8Embedding(table)
        ids, places = (torch.randint(most, (33,), generator=generator) for most in (77, 40))
        expected = wte(ids) + positions[places].float()
        assert (wte(ids) - table[ids]).abs().max() <= wte.scales.max() * 0.50001
        torch.testing.assert_close(wte.logits(table[:9]), table[:9] @ table.T, rtol=0, atol=0.05 * math.sqrt(width))
        for kind in kinds_here():
            struct, _keep = packed(wte, kind)
            x = torch.empty(33, width)
            where = (positions.data_ptr(), c.DTYPES[dtype], ids.data_ptr(), places.data_ptr())
            c.load_kernel().embed_int8(x.data_ptr(), struct, *where, 33, 2)
            torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)  # the compiler may round once, or twice


def test_which_tensors_are_taken():
    """Every matrix and the embeddings of tokens, as they are read; norms, biases and positions stay as they are."""
    config = stage.part("model").ModelConfig(n_layer=1, n_head=2, n_embd=6, n_inner=10, n_positions=8, vocab_size=7)
    with torch.device("meta"):
        model = stage.part("model").GPT2(config)
    tensors = {name: torch.randn(p.shape) for name, p in model.state_dict().items()}
    take, matrices = quantize.quantize_on_load(model), {"wte": quantize.Int8Embedding}
    matrices |= {name: quantize.Int8Linear for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for name, tensor in tensors.items():
        path, _, part = name.rpartition(".")
        before, is_matrix = tensor.clone(), part == "weight" and path in matrices
        assert take(name, tensor) == is_matrix, name
        assert torch.equal(tensor, before)
        if is_matrix:
            layer, (integers, scales) = model.get_submodule(path), quantize.quantize(tensor)
            assert type(layer) is matrices[path]
            assert torch.equal(layer.weight, integers)
            assert torch.equal(layer.scales, scales.squeeze(-1))
    rest = {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[0] not in matrices}
    rest |= {f"{path}.bias": tensors[f"{path}.bias"] for path in matrices if path != "wte"}
    model.load_state_dict(rest, assign=True)  # each layer has kept its bias, and nothing else is missing


# --- Whole engines --------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """Hugging Face's layer with the formula, in the model's dtype."""

    def __init__(self, weight, bias=None):  # [out, in]
        super().__init__()
        self.scale = weight.abs().amax(-1) / 127
        self.integers = (weight / self.scale.clamp(min=1e-300)[:, None]).round()
        self.bias = bias

    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 127
        y = (x / scale).round() @ self.integers.T * scale * self.scale
        return y if self.bias is None else y + self.bias


def plain_model(checkpoint):
    """Hugging Face's GPT-2 in float64, in which the linear layers and the vocabulary's matrix follow the formula."""
    model = GPT2LMHeadModel.from_pretrained(checkpoint).eval().double()
    for parent in list(model.transformer.h.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, Conv1D):
                setattr(parent, name, Plain(module.weight.data.T, module.bias.data))
    model.lm_head = Plain(model.lm_head.weight.data)
    model.transformer.wte.weight.data = model.lm_head.integers * model.lm_head.scale[:, None]
    return model


def run(checkpoint, stage=INT8, max_tokens=8, **options):
    """(greedy ids of every request, the logits that they were taken from)"""
    vocab_size = stage.part("weights").read_config(str(checkpoint), checkpoint, "auto")["vocab_size"]
    prompts = random_prompts(vocab_size, [1, 3, 30, 7, 19, 2])
    llm = stage.LLM(str(checkpoint), device="cpu", num_blocks=64, max_num_batched_tokens=40, **options)
    with stage.recorded_logits() as logits:
        params = stage.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        outputs = llm.generate(prompts, params)
    return prompts, [output.outputs[0].token_ids for output in outputs], logits


@pytest.mark.parametrize("disable", [[], ["linear"]], ids=["kernels", "torch"])
def test_against_the_formula_in_hugging_faces_model(odd, disable):
    """An activation half-way between two integers may become either. Nothing else differs: few rows, and by little
    compared with int8 itself."""
    plain, exact = plain_model(odd), GPT2LMHeadModel.from_pretrained(odd).eval()
    prompts, ids, logits = run(odd, disable=disable)
    errors, changes = [], []
    for i, (prompt, output) in enumerate(zip(prompts, ids, strict=True)):
        with torch.inference_mode():
            tokens = torch.tensor([prompt + output])
            expected, checkpoints = plain(tokens).logits[0], exact(tokens).logits[0]
        for j in range(len(output)):
            row = expected[len(prompt) - 1 + j]
            errors.append(float((logits[str(i), j] - row).abs().max() / row.abs().max()))
            changes.append(float((checkpoints[len(prompt) - 1 + j] - row).abs().max() / row.abs().max()))
    errors, changes = sorted(errors), sorted(changes)
    change = changes[len(changes) // 2]
    assert errors[len(errors) * 4 // 5] < 0.02 * change
    assert errors[-1] < change


@an_odd_one
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_rounded_once(odd, dtype):
    """From the checkpoint's numbers, not from these after rounding to 16 bits."""
    models = (
        INT8.LLM(str(odd), device="cpu", dtype=t, disable=["linear"]).engine.runner.model for t in ("float32", dtype)
    )
    for a, b in zip(*(model.modules() for model in models), strict=True):
        if isinstance(a, quantize.Int8Linear):
            assert torch.equal(a.weight, b.weight)
            assert torch.equal(a.scales, b.scales)


@an_odd_one
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("disable", [[], ["linear"]], ids=["kernels", "torch"])
def test_with_16_bits_it_is_near_the_formula(odd, disable, dtype):
    """Rounding to 16 bits changes many activations' integers. Measured: 0.005 to 0.04 of a row's size, at most 0.14;
    a wrong scale or a number read as another type gives 1."""
    prompts, ids, logits = run(odd, disable=disable, dtype=dtype)
    plain, errors = plain_model(odd), []
    for i, (prompt, output) in enumerate(zip(prompts, ids, strict=True)):
        with torch.inference_mode():
            expected = plain(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        got = torch.stack([logits[str(i), j] for j in range(len(output))])
        errors += ((got - expected).square().mean(-1) / expected.square().mean(-1)).sqrt().tolist()
    assert sorted(errors)[len(errors) // 2] < 0.06
    assert max(errors) < 0.3


@an_odd_one
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_as_is_it_is_the_stage_before(odd, dtype):
    """Not one bit differs, whatever the dtype."""
    _, expected, before = run(odd, SEVEN, dtype=dtype)
    _, ids, logits = run(odd, dtype=dtype, weights="as-is")
    assert ids == expected
    assert logits.keys() == before.keys()
    assert all(torch.equal(row, before[key]) for key, row in logits.items())
    _, _, rounded = run(odd, dtype=dtype, weights="int8")
    assert not all(torch.equal(row, before[key]) for key, row in rounded.items() if key in before)


@an_odd_one
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_each_optimization_off(odd, dtype):
    """The sums are exact, so they have the same bits with any instructions and in any order. The numbers between them
    have other bits with torch, or if attention uses other instructions."""
    _, expected, logits = run(odd, dtype=dtype)
    for name in INT8.part("config").OPTIMIZATIONS:
        _, ids, others = run(odd, dtype=dtype, disable=[name])
        if name == "linear" or (name == "tiles" and dtype == "bfloat16"):
            same = sum(a == b for a, b in zip(ids, expected, strict=True))
            assert same >= (len(ids) if dtype == "float32" else len(ids) / 2), name
        else:
            assert ids == expected, name
            assert all(torch.equal(row, others[key]) for key, row in logits.items()), name


@pytest.mark.parametrize("kind", KINDS)
def test_each_way_to_multiply_gives_the_same_bits(odd, kind, monkeypatch):
    if not c.has_kind(kind):
        pytest.skip(f"this CPU has no {kind}")
    picked = INT8.LLM(str(odd), device="cpu", num_blocks=8).engine.runner.model.kind
    assert picked == kinds_here()[-1]
    _, _, expected = run(odd)
    monkeypatch.setattr(INT8.part("fast_model"), "pick_int8_kind", lambda on: kind)
    _, _, logits = run(odd)
    assert all(torch.equal(row, expected[key]) for key, row in logits.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("schedules", test_same_bits.SCHEDULES)
def test_random_schedules(tmp_path_factory, dtype, schedules, any_threads):
    """Like `test_same_bits.py`: neighbors, pieces, hits, preemptions, several completions, guesses."""
    models = test_same_bits.make_models(tmp_path_factory)
    test_same_bits.check_random_schedules(INT8, models, dtype, schedules)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpt2s_width(dtype, wide_checkpoint):
    test_same_bits.test_gpt2s_width(INT8, dtype, wide_checkpoint)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.soak) for s in range(1, 20))])
def test_any_drafter_gives_the_same_tokens(small_checkpoint, draft_checkpoint, dtype, seed):
    """Random requests of every kind, in small pools and small steps. The draft model's weights are rounded, too."""
    rng = random.Random(seed)
    prompts, params = random_jobs(INT8, rng)
    llm = INT8.LLM(small_checkpoint, device="cpu", dtype=dtype, speculate="off")
    expected, drafted = list(map(told, llm.generate(prompts, params))), 0
    for llm in engines_that_guess(INT8, small_checkpoint, draft_checkpoint, rng, dtype=dtype):
        assert list(map(told, llm.generate(prompts, params))) == expected
        if llm.engine.config.speculate != "ngram":
            assert llm.engine.speculator.drafter.runner.int8
        drafted += llm.stats.num_drafts
    assert drafted > 0 or seed  # other seeds may have nothing to look up, and no room in their steps for guesses


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_end_their_request_alone(small_checkpoint, bad):
    """From position 20 on nothing is finite: requests that get there fail, and no other one gets another token."""
    prompts, params = random_prompts(211, [3, 9, 19]), INT8.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    llm = INT8.LLM(small_checkpoint, device="cpu", speculate="off")
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    llm = INT8.LLM(small_checkpoint, device="cpu", speculate="off")
    llm.engine.runner.model.wpe.weight[20:] = bad
    done = [output.outputs[0] for output in llm.generate(prompts, params)]
    assert [one.finish_reason for one in done] == ["length", "length", "error"]
    assert [one.token_ids for one in done[:2]] == expected[:2]
    assert done[2].token_ids == expected[2][: len(done[2].token_ids)]
    assert len(done[2].token_ids) == 2
    assert "not finite" in done[2].stop_reason


# --- Memory ---------------------------------------------------------------------------------------------------------


def bytes_of(model):
    """The bytes of all tensors that a model holds, counting each piece of memory once."""
    linears = [m for m in model.modules() if isinstance(m, quantize.Int8Linear)]
    tensors = [*model.parameters(), *getattr(model, "weights", []), *(t for m in linears for t in vars(m).values())]
    found = {t.data_ptr(): t.nbytes for t in tensors if isinstance(t, torch.Tensor)}
    return sum(found.values())


@pytest.mark.parametrize("disable", [[], ["pages"], ["linear"]], ids=["kernels", "small pages", "torch"])
def test_weights_take_a_quarter(tmp_path, disable):
    """A byte each, and the vocabulary's matrix once, where as-is the kernels have it twice."""
    sizes = dict(n_layer=2, n_head=6, n_embd=384, n_positions=32, vocab_size=5000)
    path = write_checkpoint(tmp_path, **sizes)
    held = {
        weights: bytes_of(
            INT8.LLM(str(path), device="cpu", num_blocks=8, weights=weights, disable=disable).engine.runner.model
        )
        for weights in ("int8", "as-is")
    }
    matrices = 5000 * 384 + 2 * 12 * 384 * 384
    assert matrices < held["int8"] < 1.06 * matrices
    twice = 0 if disable == ["linear"] else 4 * 5000 * 384
    assert 4 * matrices + twice < held["as-is"] < 1.02 * (4 * matrices + twice)


LOADING = """
import resource, sys
import {stage}
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
{stage}.LLM("tinytales", device="cpu", num_blocks=8)  # what comes with the first engine
before = peak()
llm = {stage}.LLM("gpt2", load_format="dummy", device="cpu", num_blocks=8, speculate="off")
print(peak() - before)
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units")
def test_loading_never_holds_a_second_copy():
    """GPT-2's 124 million weights are read as float32, 498 MB, and little comes on top of them: each
    matrix goes when its integers come."""
    command = [sys.executable, "-c", LOADING.format(stage=INT8.directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.3 * 498e6


# --- What users see -------------------------------------------------------------------------------------------------


def test_what_auto_comes_to():
    pick, cpu, cuda = INT8.part("runner").pick_int8, torch.device("cpu"), torch.device("cuda")
    assert [pick(name, cpu) for name in ("auto", "int8", "as-is")] == [True, True, False]
    assert [pick(name, cuda) for name in ("auto", "as-is")] == [False, False]
    with pytest.raises(ValueError, match=r"^weights 'int8' run on a CPU, not on cuda; use 'as-is' there$"):
        pick("int8", cuda)


def test_a_wrong_value_is_named():
    for wrong in ("int4", "", None, 8, ["int8"]):
        with pytest.raises(ValueError) as error:  # noqa: PT011 (what it says is below)
            INT8.LLM(weights=wrong, device="cpu")
        assert str(error.value) == f"weights must be one of auto, int8, as-is, got {wrong!r}"
    said = INT8.refusal("--prompts", "a", "--weights", "int4")
    assert "weights must be one of auto, int8, as-is, got 'int4'" in said


def test_the_command_says_which_weights_it_has():
    """Also where "auto" is left to choose, as for users."""
    prompt = ("--prompts", "Once upon a time", "--max-tokens", "40", "--temperature", "0")
    told = {weights: INT8.main(*prompt, "--weights", weights) for weights in ("int8", "as-is")}
    assert [status for status, _, _ in told.values()] == [0, 0]
    assert "float32, weights in int8, attention: c" in told["int8"][2]
    assert "float32, attention: c" in told["as-is"][2]
    assert INT8.LLM(device="cpu").describe() in told["int8"][2]
    assert INT8.main(*prompt)[1] == told["int8"][1]


def test_a_run_is_resumed_with_the_weights_it_began_with(tmp_path):
    """A run with rounded weights must not be continued with others, nor the other way around."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "A fox"}\n{"prompt": "A bear"}\n')
    run = ("--input", source, "--output", output, "--max-tokens", 3, "--quiet")
    assert INT8.main(*run, "--weights", "int8")[0] == 0
    before = output.read_bytes()
    said = INT8.refusal(*run, "--weights", "as-is", "--resume")
    assert "--resume: dtype is 'float32' now, " in said
    assert "says 'float32, weights in int8'" in said
    assert INT8.main(*run, "--resume")[0] == 0  # "auto" is the same
    assert output.read_bytes() == before
    for weights in ("auto", "int8", "as-is"):
        made = stages.setup_of(INT8.LLM(device="cpu", weights=weights))
        assert INT8.setup({"weights": weights}, "cpu").dtype == made.dtype
    assert INT8.setup({}, "cuda").dtype == "bfloat16"
    with pytest.raises(ValueError, match="not on cuda"):
        INT8.setup({"weights": "int8"}, "cuda")


def test_tales_are_as_likely_as_before():
    """Bits for each byte of tales that the bundled model was not trained on: what int8 costs is the third digit."""
    tales, bits = [write_tale(seed) for seed in range(4)], {}
    for weights in ("int8", "as-is"):
        scores = INT8.LLM(device="cpu", weights=weights).score([""] * len(tales), tales)
        bits[weights] = -sum(score.logprob for score in scores) / math.log(2) / sum(map(len, map(str.encode, tales)))
    assert bits["int8"] == pytest.approx(bits["as-is"], abs=0.002)
    assert bits["int8"] != bits["as-is"]

"""From stage 6 on: a request's logits, and its keys and values, have the same bits whatever else is in the batch.

They depend only on the tokens of the sequence, the machine and the dtype. So the tests remember, for each sequence of
tokens, the bits that were seen first: those of a request alone in an engine, with its prompt computed in one step.
Random schedules must then never give different ones.
"""

import ctypes
import json
import platform
import random
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench import bits
from tests.adapter import random_prompts, write_checkpoint

pytestmark = pytest.mark.covers("runner.py", "fast_model.py")
NUMBERS = range(6, 9)  # of the stages that this runs on, see conftest.py
SIZES = {
    "3 heads of 16": dict(n_layer=1, n_head=3, n_embd=48, n_positions=48, vocab_size=97, n_inner=100),
    "17 positions": dict(n_layer=2, n_head=1, n_embd=24, n_positions=17, vocab_size=31),
    "heads of 64": dict(n_layer=1, n_head=2, n_embd=128, n_positions=130, vocab_size=97),
}
DTYPES = ["float32", "bfloat16", "float16"]
OTHERS = ["AMX", *(["x86-64-v3"] if platform.machine() == "x86_64" else [])]  # instructions than this CPU's
SCHEDULES = [1, pytest.param(80, marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return make_models(tmp_path_factory)


def make_models(tmp_path_factory):
    return [(write_checkpoint(tmp_path_factory.mktemp("bits"), **sizes), sizes) for sizes in SIZES.values()]


class Memory:
    """The bits of logits, and of keys and values, for each sequence of tokens that was seen; and what happened."""

    def __init__(self):
        self.logits, self.cache, self.happened = {}, {}, Counter()

    def forget(self):
        """Forget everything, before another model."""
        self.logits, self.cache = {}, {}

    def watch(self, llm):
        """Compare each step of this engine with what was seen before, from now on."""
        runner, scheduler = llm.engine.runner, llm.engine.scheduler
        forward, preempt, allocate = runner.forward, scheduler.preempt, scheduler.block_manager.allocate

        def watched(batch):
            logits = forward(batch)
            self.look(batch, logits, runner.cache)
            return logits

        def found(request):
            count = allocate(request)
            self.happened["hits"] += count > 0
            return count

        def preempted(request):
            self.happened["preemptions"] += 1
            preempt(request)

        runner.forward, scheduler.preempt, scheduler.block_manager.allocate = watched, preempted, found
        return llm

    def look(self, batch, logits, cache):
        sequences = []  # of each token of the step, up to itself
        for request, num_tokens, ready in batch.rows:
            draft = getattr(batch, "drafts", {}).get(request, [])
            self.happened["guesses"] += len(draft)
            start, tokens = request.num_computed_tokens, (*request.token_ids, *draft)
            sequences += [tokens[: start + i + 1] for i in range(num_tokens + len(draft))]
            self.happened["pieces"] += not ready or 0 < start < len(request.prompt_token_ids)
        self.happened["steps in a batch"] += len(batch.rows) > 1
        for row, where in zip(logits, batch.logits_indices.tolist(), strict=True):
            self.check(self.logits, sequences[where], row, "logits")
        blocks, rows = batch.slot_mapping // cache.block_size, batch.slot_mapping % cache.block_size
        both = [
            torch.stack([keys[blocks, :, :, rows], values[blocks, :, rows]], dim=1)
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        for sequence, kept in zip(sequences, torch.stack(both, dim=1), strict=True):
            self.check(self.cache, sequence, kept, "keys and values")

    def check(self, seen, sequence, tensor, what):
        number = {4: torch.int32, 2: torch.int16}[tensor.element_size()]
        bits = tensor.contiguous().view(number).numpy().tobytes()
        if sequence in seen:
            self.happened[f"{what} compared"] += 1
            assert seen[sequence] == bits, f"{what} behind {len(sequence)} tokens have other bits"
        seen[sequence] = bits


def make_requests(stage, sizes, generator):
    """Requests of every kind, some of which begin with the same tokens."""
    most, vocab_size = sizes["n_positions"], sizes["vocab_size"]
    lengths = [generator.randint(1, most - 6) for _ in range(5)]
    prompts = random_prompts(vocab_size, lengths, seed=generator.randrange(1000))
    shared = max(prompts, key=len)
    prompts += [[*shared[: generator.randint(1, len(shared))], i + 1] for i in range(3)]
    params = [
        stage.SamplingParams(
            temperature=generator.choice([0, 1.0]),
            seed=i,
            n=generator.choice([1, 1, 3]),
            max_tokens=generator.randint(1, 6),
            prompt_logprobs=generator.choice([None, None, 1]),
            ignore_eos=True,
        )
        for i in range(len(prompts))
    ]
    return [(prompt[: most - p.max_tokens], p) for prompt, p in zip(prompts, params, strict=True)]


def random_engine(stage, checkpoint, sizes, dtype, generator):
    block_size = generator.choice([1, 4, 16, 32])
    longest = -(-sizes["n_positions"] // block_size)
    budget = generator.choice([7, 16, 48, 64, sizes["n_positions"]])
    how, other = {}, random.Random(block_size * budget)  # the schedules stay those of the stages without guesses
    if stage.has_option("speculate"):
        how = {"speculate": other.choice(["ngram", str(checkpoint)]), "num_drafts": other.choice([1, 3, 16])}
    return stage.stepper(
        str(checkpoint),
        dtype=dtype,
        block_size=block_size,
        num_blocks=longest + generator.randint(0, longest // 4),
        max_num_seqs=generator.choice([1, 3, 8]),
        max_num_batched_tokens=budget,
        enable_prefix_caching=generator.random() < 0.7,
        policy=generator.choice(["fcfs", "priority", "shortest"]),
        disable=generator.choice([[], ["prefill"], ["pages"]]),
        **how,
    )


def run_at_random(llm, requests, generator):
    """Requests arrive, and some are aborted, at any step."""
    coming, number = generator.sample(requests, len(requests)), 0
    while coming or llm.has_unfinished_requests():
        for _ in range(generator.choice([0, 1, 4])):
            if coming:
                llm.add_request(str(number), *coming.pop())
                number += 1
        if number and generator.random() < 0.03:
            llm.abort_request(str(generator.randrange(number)))
        llm.step()


def check_random_schedules(stage, models, dtype, schedules):
    """Run random schedules, after setting the number of torch's threads."""
    memory, generator = Memory(), random.Random(12)
    for checkpoint, sizes in models:
        memory.forget()
        options = dict(enable_prefix_caching=False, max_num_batched_tokens=sizes["n_positions"], num_blocks=200)
        options |= stage.one_by_one
        alone = memory.watch(stage.LLM(str(checkpoint), device="cpu", dtype=dtype, **options))
        for _ in range(schedules):
            requests = make_requests(stage, sizes, generator)
            torch.set_num_threads(1)
            for prompt, params in requests:
                alone.generate([prompt], params)
            torch.set_num_threads(generator.choice([1, 2, 3]))
            other = memory.watch(random_engine(stage, checkpoint, sizes, dtype, generator))
            run_at_random(other, requests, generator)
            alone.beam_search([requests[0][0][:9]], beam_width=3, max_tokens=3)
    for what in ("preemptions", "hits", "pieces", "steps in a batch", *(["guesses"] if stage.number >= 7 else [])):
        assert memory.happened[what] >= schedules / 3, (what, memory.happened)
    for what in ("logits compared", "keys and values compared"):
        assert memory.happened[what] >= 30 * schedules, (what, memory.happened)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedules", SCHEDULES)
def test_random_schedules(stage, models, dtype, schedules, any_threads):
    check_random_schedules(stage, models, dtype, schedules)


@pytest.mark.covers("kernels/product.c", "kernels/linear.c")
@pytest.mark.parametrize("instructions", OTHERS, indirect=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedules", SCHEDULES)
def test_random_schedules_by_other_instructions(stage, models, dtype, schedules, instructions, any_threads):
    check_random_schedules(stage, models, dtype, schedules)


@pytest.mark.covers("fast_model.py", "kernels/forward.c")
@pytest.mark.parametrize("dtype", DTYPES)
def test_gpt2s_width(stage, dtype, wide_checkpoint):
    """GPT-2's 12 heads of 64 and its inner 3,072, with prompts of several blocks of 32 rows, cut anywhere: rests of
    fewer than 8 tokens, too, and a second layer, whose keys depend on attention."""
    prompts = random_prompts(211, [15, 38, 70])
    params = stage.SamplingParams(seed=1, max_tokens=6, ignore_eos=True)
    memory = Memory()

    def run(times=1, **options):
        wide = dict(max_num_batched_tokens=1024, enable_prefix_caching=False, num_blocks=64)
        llm = memory.watch(stage.LLM(str(wide_checkpoint), device="cpu", dtype=dtype, **(wide | options)))
        for _ in range(times):
            llm.generate(prompts, params)

    run(max_num_seqs=1)
    for budget in (64, 33):
        run(max_num_batched_tokens=budget)
    run(times=2, enable_prefix_caching=True)
    run(num_blocks=9, max_num_batched_tokens=100)
    assert memory.happened["logits compared"] >= 60
    assert memory.happened["preemptions"] > 0
    assert memory.happened["hits"] > 0


@pytest.fixture(scope="module")
def tiny_values(tmp_path_factory):
    """A checkpoint whose values are near a float32's smallest: the next layer multiplies them by 1e37."""
    sizes = dict(n_layer=2, n_head=3, n_embd=48, n_positions=64, vocab_size=97)
    directory = write_checkpoint(tmp_path_factory.mktemp("tiny"), **sizes)
    weights = load_file(directory / "model.safetensors")
    for name, tensor in weights.items():
        if "attn.c_attn" in name:
            tensor[..., 2 * 48 :] *= 1e-37
        if "attn.c_proj.weight" in name:
            tensor *= 1e37
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.mark.covers("kernels/product.c", "kernels/attention.c")
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_values_near_the_smallest(stage, tiny_values, dtype, instructions):
    """Tiles take numbers below 2^-126 as zeros, and vectors do not by themselves."""
    memory, prompts = Memory(), random_prompts(97, [1, 9, 33, 50])
    params = stage.SamplingParams(seed=3, max_tokens=6, ignore_eos=True)
    for budget in (512, 7):
        llm = stage.LLM(str(tiny_values), device="cpu", dtype=dtype, max_num_batched_tokens=budget, num_blocks=16)
        memory.watch(llm).generate(prompts, params)
    assert memory.happened["logits compared"] >= 24


def attention_of(stage, dtype, change):
    """A function of `prompts`: bits of the attention of 40 queries to 70 keys, whose queries, keys and values `change`
    has changed."""
    c, generator = stage.part("kernels.c_kernel"), torch.Generator().manual_seed(0)
    shapes = [(40, 2, 64), (5, 2, 64, 16), (5, 2, 16, 64)]
    query, keys, values = change(*(8 * torch.randn(shape, generator=generator) for shape in shapes))
    indices = torch.arange(5)[None], torch.tensor([0, 40]), torch.tensor([70])
    tensors = query.to(dtype).float(), keys.to(dtype), values.to(dtype)
    return lambda prompts: c.paged_attention(*tensors, *indices, prompts).view(torch.int32)


EXTREMES = {
    "zeros": lambda query, keys, values: (query, keys, values * (values.abs() > 13)),
    "small values": lambda query, keys, values: (query, keys, values * 1e-39),
    "small keys": lambda query, keys, values: (query * 1e37, keys * 1e-39, values),
}


@pytest.mark.covers("kernels/product.c", "kernels/attention.c")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", EXTREMES.values(), ids=EXTREMES)
def test_attention_of_extremes(stage, dtype, change, instructions):
    attention = attention_of(stage, dtype, change)
    assert torch.equal(attention(True), attention(False))


@pytest.mark.covers("kernels/product.c", "kernels/attention.c")
@pytest.mark.parametrize("instructions", OTHERS[:1], indirect=True)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="only there do vectors take subnormals as tiles do")
def test_decodes_do_not_need_tiles(stage, instructions):
    """Vectors are faster, and have the same bits."""
    attention = attention_of(stage, torch.bfloat16, EXTREMES["small values"])
    products = ctypes.c_int64.in_dll(stage.part("kernels.c_kernel").load_kernel(), "emulated_products")
    for prompts, changes in ((False, None), (False, False), (True, True)):  # the first call tries the tiles
        before = products.value
        attention(prompts)
        assert changes in (None, products.value > before)


@pytest.mark.covers("kernels/team.h")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_what_a_program_tells_its_thread(stage, dtype, any_threads):
    """It may have set subnormals to zero for its own thread, and not for the others."""
    attention = attention_of(stage, dtype, lambda *tensors: (*tensors[:2], tensors[2] * torch.finfo(dtype).tiny / 99))
    expected = attention(False)
    assert expected.any()
    torch.set_num_threads(1)
    assert torch.set_flush_denormal(True)
    try:
        assert torch.equal(attention(False), expected)
        assert not (torch.tensor([1e-39]) * 0.5).any()
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.covers("kernels/product.c", "kernels/linear.c")
@pytest.mark.parametrize("instructions", OTHERS[:1], indirect=True)
def test_what_the_sampler_makes_of_them(stage, models, instructions):
    """Log-probabilities are the same to the last digit, too, alone and in a batch."""
    checkpoint, sizes = models[0]
    prompts = random_prompts(sizes["vocab_size"], [1, 9, 3, 8])
    params = stage.SamplingParams(seed=3, max_tokens=5, logprobs=4, prompt_logprobs=2, ignore_eos=True)
    alone, together = (
        [outputs for group in groups for outputs in llm.generate(group, params)]
        for groups, llm in (
            ([[prompt] for prompt in prompts], stage.LLM(str(checkpoint), device="cpu", max_num_seqs=1)),
            ([prompts], stage.LLM(str(checkpoint), device="cpu", max_num_batched_tokens=5)),
        )
    )
    for one, other in zip(alone, together, strict=True):
        assert one.prompt_logprobs == other.prompt_logprobs
        assert one.outputs[0].logprobs == other.outputs[0].logprobs


@pytest.mark.soak
def test_the_table(tmp_path, capsys):
    """Torch's sums depend on other requests, stage 6's don't; a dash marks what a stage does not have."""
    file = tmp_path / "x.json"
    arguments = ["--model", "tinytales", "--stages", "3", "6", "--dtypes", "float32", "--json", str(file)]
    assert bits.main(arguments) == 0
    three, six = json.loads(file.read_text())["columns"].values()
    assert all((row["compared"], row["different"], row["lost"]) == (24, 0, 0) for row in six.values())
    assert three["in a batch"]["different"] > 0
    assert three["preempted"] is None
    assert "| preempted | – | 0 of 24 |" in capsys.readouterr().out

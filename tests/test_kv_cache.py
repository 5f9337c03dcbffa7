"""Stage 3's KV cache: what is computed, what is reserved, and memory that is planned before anything runs."""

import re
import weakref

import pytest
import torch

from tests.adapter import STAGES, random_prompts
from tests.test_trace import LENGTHS, OUTPUTS, run

pytestmark = pytest.mark.covers("kv_cache.py", "engine.py", "batch.py", "runner.py", "support/stats.py")
stage = STAGES[2]
BYTES_PER_TOKEN = 2 * 2 * 48 * 4  # keys and values, 2 layers, n_embd 48, float32: the small checkpoint


def batches_of(max_num_seqs):
    """The batches of stage 3: sorted by prompt length, longest first."""
    order = sorted(range(5), key=lambda i: -LENGTHS[i])
    return [order[start : start + max_num_seqs] for start in range(0, 5, max_num_seqs)]


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5])
def test_the_trace_shows_prefill_and_decode_apart(small_checkpoint, max_num_seqs):
    """A batch is one prefill of its rectangle, then decodes of one column; rows that ended are padding there."""
    llm = run(stage, small_checkpoint, max_num_seqs=max_num_seqs)
    expected = []
    for batch in batches_of(max_num_seqs):
        longest = max(LENGTHS[i] for i in batch)
        expected.append([(str(i), "prefill", LENGTHS[i], longest - LENGTHS[i]) for i in batch])
        for step in range(1, max(OUTPUTS[i] for i in batch)):
            expected.append([(str(i), "decode", int(step < OUTPUTS[i]), int(step >= OUTPUTS[i])) for i in batch])
    assert [[(r.request_id, r.phase, r.num_tokens, r.num_padding) for r in s.rows] for s in llm.trace] == expected


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5])
def test_reserved_and_used(small_checkpoint, max_num_seqs):
    """Reserved: the longest prompt and output of the batch for every row. Used: what live rows have."""
    llm = run(stage, small_checkpoint, max_num_seqs=max_num_seqs)
    expected = []
    for batch in batches_of(max_num_seqs):
        reserved = len(batch) * (max(LENGTHS[i] for i in batch) + max(OUTPUTS[i] for i in batch) - 1)
        for step in range(max(OUTPUTS[i] for i in batch)):
            expected.append((reserved, sum(LENGTHS[i] + step for i in batch if step < OUTPUTS[i])))
    assert [(step.kv_tokens_reserved, step.kv_tokens_used) for step in llm.trace] == expected
    assert llm.stats.kv_tokens_used == sum(used for _, used in expected)
    assert llm.stats.kv_tokens_reserved == sum(reserved for reserved, _ in expected)


def test_a_cache_belongs_to_its_batch(small_checkpoint):
    """Two streams taken in turns: neither sees the other's keys and values."""
    prompts = random_prompts(211, [9, 4])
    llm = stage.engine(small_checkpoint)
    params = stage.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    alone = [[event.token_ids for event in llm.stream([prompt], params)] for prompt in prompts]
    streams = [llm.stream([prompt], params) for prompt in prompts]
    together = [[next(s).token_ids for s in streams] for _ in range(8)]
    assert [list(column) for column in zip(*together, strict=True)] == alone


def test_a_batch_that_does_not_fit_is_split(small_checkpoint):
    """Room for 30 tokens: rows are batched while the rectangle of their longest prompt and output fits."""
    prompts = random_prompts(211, [8, 8, 8, 8])
    params = stage.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    expected = stage.engine(small_checkpoint).generate(prompts, params)
    llm = stage.traced(small_checkpoint, kv_cache_bytes=30 * BYTES_PER_TOKEN)
    outputs = llm.generate(prompts, params)
    assert [output.outputs for output in outputs] == [output.outputs for output in expected]
    assert [len(step.rows) for step in llm.trace] == [3] * 3 + [1] * 3
    assert max(step.kv_tokens_reserved for step in llm.trace) == 30


@pytest.mark.parametrize("room", [19, 20, 29, 30, 31, 39, 40, 49])
def test_as_many_rows_as_have_room(small_checkpoint, room):
    """Each row takes 10 tokens; what is left is not enough for a row."""
    params = stage.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    llm = stage.traced(small_checkpoint, kv_cache_bytes=room * BYTES_PER_TOKEN)
    llm.generate(random_prompts(211, [8, 8, 8, 8]), params)
    assert len(llm.trace[0].rows) == room // 10


def test_a_request_that_can_never_fit(small_checkpoint):
    """It is refused before anything runs; the message says how much it needs, to the byte."""
    prompt = random_prompts(211, [20])[0]
    params = stage.SamplingParams(max_tokens=5)
    exact = 24 * BYTES_PER_TOKEN
    assert stage.LLM(small_checkpoint, device="cpu", kv_cache_bytes=exact).generate([prompt], params)
    llm = stage.LLM(small_checkpoint, device="cpu", kv_cache_bytes=exact - 1)
    with pytest.raises(ValueError, match=r"^prompt 1: .*KV cache") as error:
        llm.generate([prompt[:3], prompt], params)
    numbers = {int(number) for number in re.findall(r"\d+", str(error.value).replace(",", ""))}
    assert numbers >= {exact, exact - 1}, f"it needs {exact} bytes, the limit is {exact - 1}: {error.value}"
    assert llm.stats.num_forwards == 0


def test_half_of_a_gpus_free_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))  # free, all
    kv_cache, device = stage.part("kv_cache"), torch.device("cuda")
    assert kv_cache.default_cache_bytes(device) == 500
    kv_cache.check_cache_bytes(1000, device)
    with pytest.raises(ValueError, match="1,001 bytes of memory, but only 1,000 are free"):
        kv_cache.check_cache_bytes(1001, device)


def test_bytes_per_token():
    """GPT-2 small in float32: 12 layers x (key + value) x 768 numbers x 4 bytes."""
    assert stage.part("kv_cache").bytes_per_token(12, 768, torch.float32) == 73_728
    assert stage.part("kv_cache").bytes_per_token(12, 768, torch.bfloat16) == 36_864


def test_rows_that_ended_are_carried_past_the_last_position(small_checkpoint):
    """A long prompt fills its context in one step; its short neighbor goes on for dozens."""
    prompts = random_prompts(211, [47, 2])
    outputs = stage.engine(small_checkpoint).generate(
        prompts, stage.SamplingParams(temperature=0, max_tokens=46, ignore_eos=True)
    )
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 46]


def test_one_cache_at_a_time(small_checkpoint, monkeypatch):
    """A batch's cache is freed before the next one's is made; two would take more memory than was planned for."""
    llm, caches = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=2), []
    new_cache = llm.engine.runner.new_cache

    def spy(*sizes):
        assert len([cache for cache in caches if cache() is not None]) == 0, "an earlier batch's cache is still held"
        made = new_cache(*sizes)
        caches.append(weakref.ref(made))
        return made

    monkeypatch.setattr(llm.engine.runner, "new_cache", spy)
    llm.generate(random_prompts(211, LENGTHS), stage.SamplingParams(max_tokens=3, ignore_eos=True))
    assert len(caches) == 3

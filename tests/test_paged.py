"""From stage 5 on: blocks are shared, found, taken away and given back, and the tokens stay the same."""

import asyncio
import itertools
import json
import math
import random
import threading

import pytest
import torch
from transformers import GPT2LMHeadModel

from tests.adapter import STAGES, random_prompts, stages_that_change, write_checkpoint
from tests.test_continuous import answers, workload  # noqa: F401 (a fixture)

pytestmark = pytest.mark.covers("block_manager.py", "scheduler.py", "engine.py", "batch.py", "request.py")
about_beams = pytest.mark.covers("beam_search.py")
about_outputs = pytest.mark.covers("support/outputs.py", "llm.py")
NUMBERS = range(5, 9)  # of the stages that this runs on, see conftest.py


def hostile(llm):
    """All of the cache is NaN until it is written, and no block lies next to its neighbor."""
    llm.engine.runner.cache.keys.fill_(math.nan)
    llm.engine.runner.cache.values.fill_(math.nan)
    blocks = list(llm.engine.block_manager._free)
    random.Random(0).shuffle(blocks)
    llm.engine.block_manager._free = type(llm.engine.block_manager._free).fromkeys(blocks)
    return llm


def engine(stage, checkpoint, **arguments):
    return hostile(stage.LLM(checkpoint, **{"device": "cpu", **arguments}))


def traced_engine(stage, checkpoint, **arguments):
    return hostile(stage.traced(checkpoint, **arguments))


def stepper(stage, checkpoint, **arguments):
    """An engine whose steps the test runs."""
    return hostile(stage.stepper(checkpoint, **arguments))


def greedy(stage, max_tokens, **arguments):
    return stage.SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens, **arguments)


def run(llm, requests, rng=None, abort=0.0):
    """Step until all are done, and check the engine's integrity after each. Requests: (id, prompt, params).

    With `rng` they arrive one by one, and some are aborted on the way. Returns the outputs of those that finished."""
    arriving, finished, steps = list(requests), {}, 0
    while arriving or llm.has_unfinished_requests():
        while arriving and (rng is None or rng.random() < 0.5):
            llm.add_request(*arriving.pop(0))
        if rng and rng.random() < abort and llm.unfinished:
            llm.abort_request(rng.choice(sorted(llm.unfinished)))
        for output in llm.step():
            if output.finished:
                assert output.request_id not in finished
                finished[output.request_id] = output
        llm.engine.scheduler.check_integrity()
        steps += 1
        assert steps < 10_000
    assert llm.engine.block_manager.num_free == llm.engine.runner.num_blocks
    return finished


# --- The same tokens, however the memory is used ---------------------------------------------------------------------

# 43 tokens (24 of a prompt, 20 of an output but the last) is the longest of the workload.
LAYOUTS = [(1, 43), (2, 22), (16, 3), (64, 1), (16, 100)]


@pytest.mark.parametrize(("stage", "backend"), [(STAGES[4], "torch"), (STAGES[4], "c"), (STAGES[5], "c")], ids=str)
@pytest.mark.parametrize(
    ("block_size", "num_blocks", "caching"), [(*layout, True) for layout in LAYOUTS] + [(1, 43, False), (16, 3, False)]
)
def test_arrivals_and_aborts_in_any_pool(
    stage, small_checkpoint, answers, backend, block_size, num_blocks, caching  # noqa: F811
):  # fmt: skip
    prompts, params = workload(stage, 24)
    llm = stepper(
        stage, small_checkpoint, max_num_seqs=6, block_size=block_size, num_blocks=num_blocks,
        enable_prefix_caching=caching, attention_backend=backend, max_num_batched_tokens=32,
    )  # fmt: skip
    requests = [(str(i), prompts[i], params[i]) for i in range(24)]
    finished = run(llm, requests, random.Random(f"{backend} {block_size} {num_blocks}"), abort=0.02)
    assert len(finished) > 12
    assert all(answers[int(i)] == output.outputs[0].token_ids for i, output in finished.items())
    if num_blocks * block_size < 50:
        assert llm.stats.num_preemptions > 0
    again = run(llm, requests)  # the cache is full of what the first run left
    assert {i: output.outputs[0].token_ids for i, output in again.items()} == {
        str(i): ids for i, ids in enumerate(answers)
    }


@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.soak)])
@pytest.mark.parametrize("stage", stages_that_change("kernels/triton_kernel.py"), ids=str)
def test_arrivals_and_aborts_with_triton(stage, small_checkpoint, answers, count):  # noqa: F811
    """On a CPU in its interpreter, so with fewer requests."""
    prompts, params = workload(stage, 24)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    llm = stepper(
        stage,
        small_checkpoint,
        device=device,
        dtype="float32",
        max_num_seqs=6,
        block_size=8,
        num_blocks=6,
        attention_backend="triton",
    )
    finished = run(llm, [(str(i), prompts[i], params[i]) for i in range(count)], random.Random(0))
    assert {int(i): o.outputs[0].token_ids for i, o in finished.items()} == dict(enumerate(answers[:count]))
    assert count < 8 or llm.stats.num_preemptions > 0


class OutOfOrderError(Exception):
    pass


@pytest.fixture(scope="module")
def roomy(small_checkpoint):
    """An engine of each stage with room for all requests, and no prefix cache: what the others are compared with."""
    return {
        stage: stage.LLM(small_checkpoint, device="cpu", max_num_seqs=64, enable_prefix_caching=False)
        for stage in STAGES[4:]
    }


@pytest.mark.parametrize("seed", range(5))
def test_everything_at_once(stage, small_checkpoint, roomy, seed):
    """Forks, shared prefixes, arrivals, aborts and steps that fail, in an engine of random sizes: nothing is lost, and
    requests that finish have the tokens that they get in a roomy one."""
    rng = random.Random(seed)
    heads = random_prompts(211, [20, 24], seed)
    prompts = [rng.choice(heads)[: rng.randrange(25)] + [rng.randrange(3) for _ in range(4)] for _ in range(14)]
    params = [
        stage.SamplingParams(
            n=rng.choice([1, 1, 2, 5]), max_tokens=rng.randrange(1, 16), seed=i, temperature=rng.choice([0, 0.8]),
            ignore_eos=True, stop_token_ids=rng.sample(range(211), 6),
        )
        for i in range(14)
    ]  # fmt: skip
    expected = [[c.token_ids for c in output.outputs] for output in roomy[stage].generate(prompts, params)]
    block_size = rng.choice([1, 2, 3, 4, 8, 16])
    longest = max(len(prompt) + p.max_tokens - 1 for prompt, p in zip(prompts, params, strict=True))
    policy = rng.choice(["fcfs", "shortest", "priority"])
    llm = stepper(
        stage, small_checkpoint, block_size=block_size, policy=policy,
        num_blocks=-(-longest // block_size) + rng.choice([0, 1, 10]), max_num_seqs=rng.choice([1, 3, 16]),
        max_num_batched_tokens=rng.choice([1, 5, 64]), enable_prefix_caching=rng.random() < 0.75,
        watermark=rng.choice([0, 0.01, 0.3]),
    )  # fmt: skip
    forward, finished, aborted, arriving = llm.engine.runner.model.forward, {}, set(), list(range(14))

    def sometimes_fails(*arguments):
        if rng.random() < 0.05:
            raise OutOfOrderError
        return forward(*arguments)

    llm.engine.runner.model.forward = sometimes_fails
    while arriving or llm.has_unfinished_requests():
        if arriving and rng.random() < 0.4:
            i = arriving.pop()
            llm.add_request(str(i), prompts[i], params[i], priority=rng.randrange(3) if policy == "priority" else 0)
        if rng.random() < 0.02 and llm.unfinished:
            victim = rng.choice(sorted(llm.unfinished))
            llm.abort_request(victim)
            aborted.add(int(victim))
        try:
            outputs = llm.step()
        except OutOfOrderError:
            outputs = []
        for output in outputs:
            if output.finished:
                finished[int(output.request_id)] = [completion.token_ids for completion in output.outputs]
        llm.engine.scheduler.check_integrity()
    assert llm.engine.block_manager.num_free == llm.engine.runner.num_blocks
    assert sorted([*finished, *aborted]) == list(range(14))
    assert all(tokens == expected[i] for i, tokens in finished.items())


def test_the_watermark(stage, small_checkpoint):
    """A request by itself may take all blocks; a second one has to leave the reserve."""
    prompts = random_prompts(211, [20, 20])
    together = {}
    for watermark in (0.0, 0.5):
        llm = traced_engine(stage, small_checkpoint, block_size=4, num_blocks=12, watermark=watermark)
        llm.generate(prompts, greedy(stage, 3))
        llm.generate(random_prompts(211, [40]), greedy(stage, 3))
        together[watermark] = max(len(step.rows) for step in llm.trace)
    assert together == {0.0: 2, 0.5: 1}
    assert engine(stage, small_checkpoint, num_blocks=3, watermark=0.99).generate([[1]], greedy(stage, 3))[0].finished


def test_a_request_that_can_never_fit(stage, small_checkpoint):
    """It is refused at once, and the message says what it needs and what there is; one that just fits runs."""
    llm = engine(stage, small_checkpoint, block_size=4, num_blocks=3)
    prompt = random_prompts(211, [9])[0]
    assert len(llm.generate([prompt], greedy(stage, 4))[0].outputs[0].token_ids) == 4
    forwards = llm.stats.num_forwards
    with pytest.raises(ValueError, match=r"prompt 1: 14 tokens of prompt and output need 4 blocks .* there are 3"):
        llm.generate([[1], prompt], greedy(stage, 5))
    assert llm.stats.num_forwards == forwards


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_requests_lose_no_block(stage, small_checkpoint, count):
    llm = engine(stage, small_checkpoint, max_num_seqs=64, block_size=4, num_blocks=150, max_num_batched_tokens=256)
    rng, heads = random.Random(0), random_prompts(211, [8] * 5)
    prompts = [rng.choice(heads) + [rng.randrange(211)] * rng.randrange(1, 6) for _ in range(count)]
    params = [stage.SamplingParams(max_tokens=rng.randrange(1, 5), n=1 + (i % 50 == 0)) for i in range(count)]
    outputs = llm.generate(prompts, params)
    assert all(output.finished and len(output.outputs) == p.n for output, p in zip(outputs, params, strict=True))
    llm.engine.scheduler.check_integrity()
    assert llm.engine.block_manager.num_free == 150
    assert llm.stats.num_requests == sum(p.n for p in params)
    assert llm.stats.num_cached_tokens > 5 * count


# --- Prefix caching --------------------------------------------------------------------------------------------------


def cached(outputs):
    return [output.num_cached_tokens for output in outputs]


def test_hits_between_requests_and_calls_and_within_a_step(stage, small_checkpoint):
    head = random_prompts(211, [32])[0]
    prompts = [[*head, 1], [*head, 2], head[:20], head, [*head, 1, 2, 3]]
    llm = traced_engine(stage, small_checkpoint)
    outputs = llm.generate(prompts, greedy(stage, 3))
    assert cached(outputs) == [0, 32, 16, 16, 32]  # all in one step; of `head` itself the last token has to be computed
    assert [row.num_tokens for row in llm.trace[0].rows] == [33, 1, 4, 16, 3]
    assert cached(llm.generate(prompts, greedy(stage, 3))) == [32, 32, 16, 16, 32]
    plain = engine(stage, small_checkpoint, enable_prefix_caching=False)
    expected = plain.generate(prompts, greedy(stage, 3))
    assert cached(expected) == [0] * 5
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in expected]
    assert llm.stats.num_cached_tokens == sum([0, 32, 16, 16, 32, 32, 32, 16, 16, 32])
    assert llm.stats.num_prompt_tokens == 2 * sum(map(len, prompts))


def test_what_was_generated_is_found_too(stage, small_checkpoint):
    """In the second turn of a conversation, the first turn's prompt and answer are found."""
    llm = engine(stage, small_checkpoint)
    prompt = random_prompts(211, [10])[0]
    answer = llm.generate([prompt], greedy(stage, 23))[0].outputs[0].token_ids
    assert cached(llm.generate([prompt + answer + [5, 6]], greedy(stage, 2))) == [32]


def test_a_prompt_in_pieces_is_found_as_far_as_it_is_computed(stage, small_checkpoint):
    """Two equal prompts of 40 tokens, 24 tokens a step: the second waits for no one and computes nothing twice."""
    llm = traced_engine(stage, small_checkpoint, block_size=4, max_num_batched_tokens=24)
    prompt = random_prompts(211, [40])[0]
    outputs = llm.generate([prompt, prompt], greedy(stage, 2))
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids
    assert cached(outputs) == [0, 36]
    assert llm.stats.num_tokens_computed == 40 + 4 + 2


def test_hits_under_pressure(stage, small_checkpoint, answers):  # noqa: F811
    """Prompts that share heads, in pools where blocks are evicted all the time."""
    rng = random.Random(5)
    heads = random_prompts(211, [8, 12])
    prompts = [rng.choice(heads)[: rng.randrange(1, 12)] + [rng.randrange(4) for _ in range(6)] for _ in range(60)]
    params = greedy(stage, 6)
    expected = STAGES[0].engine(small_checkpoint).generate(prompts, greedy(STAGES[0], 6))
    for num_blocks in (12, 20, 60):
        llm = stepper(stage, small_checkpoint, block_size=2, num_blocks=num_blocks, max_num_seqs=5)
        finished = run(llm, [(str(i), prompt, params) for i, prompt in enumerate(prompts)], random.Random(num_blocks))
        assert [finished[str(i)].outputs[0].token_ids for i in range(60)] == [o.outputs[0].token_ids for o in expected]
        assert llm.stats.num_cached_tokens > 0


def test_a_failed_step_leaves_nothing_to_be_found(stage, small_checkpoint, monkeypatch):
    """The second request counted on what the first was to compute in the step that failed; the first is aborted."""
    prompt = random_prompts(211, [40])[0]
    (expected,) = engine(stage, small_checkpoint).generate([prompt], greedy(stage, 5))
    llm = stepper(stage, small_checkpoint)
    llm.add_request("a", prompt, greedy(stage, 5))
    llm.add_request("b", prompt, greedy(stage, 5))
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.runner.model, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.step()
    llm.engine.scheduler.check_integrity()
    llm.abort_request("a")
    finished = run(llm, [])
    assert finished["b"].outputs[0].token_ids == expected.outputs[0].token_ids
    assert finished["b"].num_cached_tokens == 0


# --- n > 1 -----------------------------------------------------------------------------------------------------------


def test_n_completions_share_their_prompt(stage, small_checkpoint):
    """20 tokens of a prompt, 4 completions of 5: its full block is computed once, in the same step, and shared."""
    llm = traced_engine(stage, small_checkpoint)
    (output,) = llm.generate([random_prompts(211, [20])[0]], stage.SamplingParams(n=4, max_tokens=5, ignore_eos=True))
    assert llm.stats.num_tokens_computed == 20 + 3 * 4 + 4 * 4
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 4
    assert output.num_cached_tokens == 0
    assert [step.num_blocks_shared for step in llm.trace] == [1] * 5
    assert [step.num_blocks_saved for step in llm.trace] == [3] * 5
    assert [step.kv_tokens_reserved for step in llm.trace] == [16 * 5] * 5
    assert [[row.num_tokens for row in step.rows] for step in llm.trace] == [[20, 4, 4, 4], *[[1] * 4] * 4]
    blocks = [row.blocks for row in llm.trace[1].rows]
    assert len({table[0] for table in blocks}) == 1
    assert len({table[1] for table in blocks}) == 4
    assert [row.index for row in llm.trace[1].rows] == [0, 1, 2, 3]


def test_one_completion_scores_the_prompt(stage, small_checkpoint):
    params = stage.SamplingParams(n=3, max_tokens=2, prompt_logprobs=0, ignore_eos=True)
    llm = traced_engine(stage, small_checkpoint)
    (output,) = llm.generate([random_prompts(211, [20])[0]], params)
    (alone,) = engine(stage, small_checkpoint).generate([output.prompt_token_ids], params)
    assert len(output.prompt_logprobs) == 20
    assert list(output.prompt_logprobs) == list(alone.prompt_logprobs)
    assert [row.num_tokens for row in llm.trace[0].rows] == [20, 4, 4]


@pytest.mark.parametrize(
    ("num_blocks", "max_num_seqs", "budget", "caching"),
    [(100, 8, 512, True), (100, 2, 512, True), (100, 8, 3, True), (14, 8, 512, True), (14, 8, 5, False)],
)
def test_completions_do_not_notice_each_other(stage, small_checkpoint, num_blocks, max_num_seqs, budget, caching):
    """Index 0 is what n=1 gives, and every index is the same with room for all, for two, and with preemption."""
    prompts = random_prompts(211, [5, 17, 9])
    params = [stage.SamplingParams(n=n, max_tokens=9, seed=n, ignore_eos=True, logprobs=1) for n in (3, 5, 1)]
    roomy = engine(stage, small_checkpoint, max_num_seqs=32).generate(prompts, params)
    alone = STAGES[3].engine(small_checkpoint).generate(prompts, one_of(STAGES[3]))
    assert [o.outputs[0].token_ids for o in roomy] == [o.outputs[0].token_ids for o in alone]
    single = engine(stage, small_checkpoint).generate(prompts, one_of(stage))
    assert [o.outputs[0].token_ids for o in single] == [o.outputs[0].token_ids for o in alone]
    llm = stepper(
        stage, small_checkpoint, block_size=2, num_blocks=num_blocks, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget, enable_prefix_caching=caching,
    )  # fmt: skip
    finished = run(llm, [(str(i), prompts[i], params[i]) for i in range(3)])
    for i, expected in enumerate(roomy):
        assert [c.token_ids for c in finished[str(i)].outputs] == [c.token_ids for c in expected.outputs]
        assert [c.finish_reason for c in finished[str(i)].outputs] == ["length"] * params[i].n
        assert all(len(c.logprobs) == 9 for c in finished[str(i)].outputs)
        assert len(finished[str(i)].metrics.inter_token_latencies) == 8 * params[i].n  # each has its own times


def one_of(stage):
    return [stage.SamplingParams(max_tokens=9, seed=n, ignore_eos=True, logprobs=1) for n in (3, 5, 1)]


@about_outputs
def test_texts_of_completions_with_broken_characters(stage, babble):
    """Each has its own decoder: half a character of one is not completed by another."""
    llm = stage.engine(babble)
    params = stage.SamplingParams(n=5, max_tokens=60, temperature=2.0, ignore_eos=True)
    (output,) = llm.generate([[5, 6]], params)
    for completion in output.outputs:
        assert completion.text == llm.engine.tokenizer.decode(completion.token_ids)
    assert any("\ufffd" in completion.text for completion in output.outputs)


def test_completions_that_end_at_different_times(stage, small_checkpoint):
    """The end of one is not taken for the end of all."""
    params = stage.SamplingParams(n=6, max_tokens=25, seed=1, ignore_eos=True, stop_token_ids=list(range(0, 211, 9)))
    (expected,) = engine(stage, small_checkpoint).generate([[1, 2]], params)
    assert len({len(completion.token_ids) for completion in expected.outputs}) > 2
    tokens, ends = {i: [] for i in range(6)}, []
    for event in engine(stage, small_checkpoint).stream([[1, 2]], params):
        tokens[event.completion_index] += event.token_ids
        ends += [event.completion_index] * (event.finish_reason is not None)
    assert list(tokens.values()) == [completion.token_ids for completion in expected.outputs]
    assert sorted(ends) == list(range(6))


def test_closing_ends_each_completion_once(stage, small_checkpoint):
    """Some have ended by themselves when the engine is closed: those are not ended again, the others all are."""
    params = stage.SamplingParams(n=6, max_tokens=40, seed=1, ignore_eos=True, stop_token_ids=list(range(0, 211, 9)))

    async def collect(engine):
        ends, closing = [], None
        async for event in engine.generate([1, 2], params):
            if event.finish_reason:
                ends.append((event.completion_index, event.finish_reason))
            if len(ends) == 2 and closing is None:
                closing = asyncio.get_running_loop().run_in_executor(None, lambda: engine.close(abort=True))
        await closing
        return ends

    ends = asyncio.run(collect(stage.AsyncLLM(model=small_checkpoint, device="cpu")))
    assert sorted(index for index, _ in ends) == list(range(6))


def test_each_completion_has_its_own_seed(stage):
    seed = stage.part("philox").completion_seed
    assert seed(5, 0) == 5
    assert len({seed(5, index) for index in range(50)}) == 50
    assert not {seed(5, index) for index in range(1, 50)} & {stage.part("philox").derive_seed(5, i) for i in range(50)}


def test_a_completion_is_a_request(stage, small_checkpoint):
    """Completion 2 of 3 is what a request with its seed gives."""
    params = stage.SamplingParams(n=3, max_tokens=9, seed=5, ignore_eos=True)
    (output,) = engine(stage, small_checkpoint).generate([[1, 2, 3]], params)
    own = stage.SamplingParams(max_tokens=9, seed=stage.part("philox").completion_seed(5, 2), ignore_eos=True)
    (alone,) = engine(stage, small_checkpoint).generate([[1, 2, 3]], own)
    assert output.outputs[2].token_ids == alone.outputs[0].token_ids


@about_outputs
def test_completions_of_the_async_engine(stage):
    params = stage.SamplingParams(n=3, max_tokens=12, seed=4)
    (expected,) = stage.engine().generate(["Once upon a time"], params)

    async def collect(engine):
        texts = ["", "", ""]
        async for event in engine.generate("Once upon a time", params):
            texts[event.completion_index] += event.text
        return texts

    with stage.AsyncLLM(device="cpu") as engine:
        assert asyncio.run(collect(engine)) == [completion.text for completion in expected.outputs]
        (output,) = engine.llm.generate("Once upon a time", params)
        assert [c.text for c in output.outputs] == [completion.text for completion in expected.outputs]
        assert output.finished
        assert engine.llm.loop.callbacks == {}


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, 1025])
def test_bad_n(stage, n):
    with pytest.raises(ValueError, match="n must be a whole number from 1 to 1024"):
        stage.SamplingParams(n=n)


@about_outputs
def test_the_command_line_shows_all_completions(stage, tmp_path):
    arguments = ("--prompts", "Once upon a time", "--n", 2, "--max-tokens", 5, "--seed", 3)
    status, stdout, _ = stage.main(*arguments, "--quiet")
    assert status == 0
    assert "--- 1 of 1, completion 1: length, 5 tokens\nOnce upon a time" in stdout
    assert "--- 1 of 1, completion 2: length, 5 tokens\nOnce upon a time" in stdout
    status, stdout, _ = stage.main(*arguments, "--json", "--quiet")
    assert [completion["index"] for completion in json.loads(stdout)["outputs"]] == [0, 1]
    (tmp_path / "in").write_text('{"prompt": "A", "sampling": {"n": 2}}\n{"prompt": "A"}\n')
    batch = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--max-tokens", 3, "--quiet")
    assert stage.main(*batch)[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    both, single = sorted(lines, key=lambda line: line["id"])
    assert [len(completion["token_ids"]) for completion in both["outputs"]] == [3, 3]
    assert "outputs" not in single
    assert stage.main(*batch, "--resume")[0] == 0  # and it is a result that can be resumed from
    assert len((tmp_path / "out").read_text().splitlines()) == 2


@pytest.mark.parametrize(("num_scored", "expected"), [(None, 4), (1, 0), (2, 1), (3, 4)])
def test_how_many_tokens_may_be_found(stage, num_scored, expected):
    """All but the last; if the prompt's log-probabilities are wanted, those before the next one that needs them."""
    params = stage.SamplingParams(prompt_logprobs=None if num_scored is None else 0)
    request = stage.make_request(params, [1, 2, 3], [4, 5] if num_scored in (None, 3) else [])
    if num_scored is not None:
        request.prompt_logprobs.num_scored = num_scored - 1
    assert request.num_cacheable == expected


def test_a_batch_is_made_on_its_device(stage):
    manager = stage.part("block_manager").BlockManager(2, 4, True)
    request = stage.make_request(stage.SamplingParams(), [1, 2])
    manager.allocate(request)
    rows = [stage.part("scheduler").Row(request, 2, True)]
    batch = stage.part("batch").Batch.of(rows, manager, torch.device("meta"))
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert [(tensor.device.type, tensor.dtype) for tensor in tensors] == [("meta", torch.int64)] * 7


def test_what_starts_over_after_a_step_that_failed(stage, small_checkpoint):
    """All requests that have not ended. It is as if one without a token had not been admitted yet."""
    llm, params = stepper(stage, small_checkpoint), stage.SamplingParams(n=3, max_tokens=4, ignore_eos=True)
    llm.add_request("begun", [1, 2], params)
    llm.step()
    llm.add_request("new", [3], params)
    llm.engine.scheduler.schedule()
    begun, new = llm.unfinished["begun"], llm.unfinished["new"]
    admitted, new[0].num_cached_tokens = begun[0].first_scheduled_time, 1
    begun[1].finish("length")
    new[2].add_or_fail(ValueError())
    llm.engine.restart([*begun, *new])
    assert llm.engine.scheduler.waiting == [begun[0], begun[2], new[0], new[1]]
    assert [one.num_computed_tokens for one in llm.engine.scheduler.waiting] == [0] * 4
    assert [one.first_scheduled_time for one in (begun[0], new[0])] == [admitted, None]
    assert new[0].num_cached_tokens == 0
    llm.abort_request("begun")
    assert [one.finish_reason for one in begun] == ["abort", "length", "abort"]
    run(llm, [])


# --- Beam search -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ending_checkpoint(tmp_path_factory):
    """A small vocabulary, flat logits, and two end tokens: beams end often, and overtake each other."""
    directory = tmp_path_factory.mktemp("beams")
    sizes = dict(n_layer=2, n_head=2, n_embd=32, n_positions=64, vocab_size=40, eos_token_id=[0, 7])
    return write_checkpoint(directory, seed=3, **sizes)


def batch_of(prompt):
    return {"input_ids": torch.tensor([prompt]), "attention_mask": torch.ones(1, len(prompt), dtype=torch.int64)}


def reference_beams(model, prompt, beam_width, max_tokens, length_penalty):
    """Hugging Face's beams: (output tokens, score), the best first."""
    result = model.generate(
        **batch_of(prompt), do_sample=False, num_beams=beam_width, num_return_sequences=beam_width,
        max_new_tokens=max_tokens, pad_token_id=39, length_penalty=length_penalty, output_scores=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    eos = model.generation_config.eos_token_id
    eos, beams = eos if isinstance(eos, list) else [eos], []
    for row, score in zip(result.sequences[:, len(prompt) :].tolist(), result.sequences_scores.tolist(), strict=True):
        end = next((i + 1 for i, token in enumerate(row) if token in eos), len(row))
        beams.append((row[:end], score))
    return beams


# With a single beam it is greedy search, which has no scores.
BEAMS = [(1, 1.0), (2, 0.0), (2, 2.0), (4, 1.0), (4, -1.0), (7, 1.0), (7, 0.0), (7, 2.0)]


@about_beams
@pytest.mark.parametrize(("beam_width", "length_penalty"), BEAMS)
def test_beams_equal_hugging_face(stage, ending_checkpoint, beam_width, length_penalty):
    model = GPT2LMHeadModel.from_pretrained(ending_checkpoint).eval()
    prompts = random_prompts(40, [3, 17, 32, 9, 16])
    llm = engine(stage, ending_checkpoint, max_num_seqs=15, block_size=4, num_blocks=150, max_num_batched_tokens=20)
    outputs = llm.beam_search(prompts, beam_width, 14, length_penalty)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert (output.finished, [c.index for c in output.outputs]) == (True, list(range(beam_width)))
        if beam_width == 1:
            ids = model.generate(**batch_of(prompt), do_sample=False, max_new_tokens=14, pad_token_id=39)
            assert output.outputs[0].token_ids == ids[0, len(prompt) :].tolist()
            continue
        expected = reference_beams(model, prompt, beam_width, 14, length_penalty)
        assert [c.token_ids for c in output.outputs] == [tokens for tokens, _ in expected]
        for completion, (tokens, score) in zip(output.outputs, expected, strict=True):
            assert completion.cumulative_logprob / len(tokens) ** length_penalty == pytest.approx(score, rel=1e-4)
            assert completion.finish_reason == ("stop" if tokens[-1] in (0, 7) else "length")
    assert {c.finish_reason for output in outputs for c in output.outputs} >= {"stop"}
    llm.engine.scheduler.check_integrity()
    assert llm.engine.block_manager.num_free == 150


@about_beams
def test_end_tokens_take_no_beams_place(stage):
    """Each beam has as many candidates as it has end tokens, and one more; with two for each, one beam would go on."""
    request = stage.make_request(stage.SamplingParams(max_tokens=10), [5], eos_token_ids=[0, 1, 2, 3])
    search = stage.part("beam_search").BeamSearch(request, 2, 1.0)
    search.advance(torch.tensor([[0.11, 0.10, 0.09, 0.08, 0.05, 0.50, 0.07]]).log())
    assert [beam.output_token_ids for beam in search.beams] == [[5], [6]]
    assert [tokens for *_, tokens in search.finished] == [[0]]


@pytest.mark.covers("beam_search.py", "block_manager.py")
def test_beams_share_blocks(stage, small_checkpoint):
    """4 beams of a prompt of 33 tokens: its two full blocks are shared, so three times two are saved."""
    llm = traced_engine(stage, small_checkpoint, enable_prefix_caching=False)
    llm.beam_search(random_prompts(211, [33]), 4, 3)
    assert [row.num_tokens for row in llm.trace[0].rows] == [33]
    assert min(step.num_blocks_saved for step in llm.trace[1:]) >= 6
    assert llm.stats.num_tokens_computed == 33 + 4 * 2
    assert llm.stats.num_output_tokens == 1 + 4 * 2  # a token per beam and step
    assert llm.stats.num_requests == 1


@pytest.mark.covers("beam_search.py", "block_manager.py")
def test_beams_in_the_smallest_pool(stage, ending_checkpoint):
    """As many blocks as the beams of one prompt can need, and open streams; all get their results."""
    prompts = random_prompts(40, [9, 6, 10])
    expected = engine(stage, ending_checkpoint).beam_search(prompts, 3, 8)
    llm = engine(stage, ending_checkpoint, block_size=2, num_blocks=5 + 3 * 4, max_num_seqs=4)
    stream = llm.stream([[1, 2, 3]], greedy(stage, 9))
    tokens = list(next(stream).token_ids)
    outputs = llm.beam_search(prompts, 3, 8)
    assert [[c.token_ids for c in o.outputs] for o in outputs] == [[c.token_ids for c in o.outputs] for o in expected]
    tokens += [token for event in stream for token in event.token_ids]
    assert tokens == engine(stage, ending_checkpoint).generate([[1, 2, 3]], greedy(stage, 9))[0].outputs[0].token_ids
    llm.engine.scheduler.check_integrity()
    with pytest.raises(ValueError, match="prompt 1: its 3 beams may need 20 blocks of the KV cache, there are 17"):
        llm.beam_search([[1], prompts[2] + [1]], 3, 9)


@pytest.mark.covers("beam_search.py", "block_manager.py")
def test_a_beam_search_that_fails_leaves_nothing_to_be_found(stage, ending_checkpoint, monkeypatch):
    llm, prompt = engine(stage, ending_checkpoint), random_prompts(40, [40])[0]
    (first,) = llm.beam_search([[1, 2]], 2, 5)
    assert first.metrics.ttft is None
    assert first.metrics.e2e > 0

    forward, calls = llm.engine.runner.model.forward, itertools.count(1)

    def fails(*arguments):
        if next(calls) == 4:  # when there are beams that share blocks
            raise KeyboardInterrupt
        return forward(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.runner.model, "forward", fails)
        with pytest.raises(KeyboardInterrupt):
            llm.beam_search([prompt], 2, 5)
    llm.engine.scheduler.check_integrity()
    assert llm.engine.block_manager.num_free == llm.engine.runner.num_blocks
    assert cached(llm.beam_search([prompt], 2, 5)) == [0]
    assert cached(llm.beam_search([prompt], 2, 5)) == [32]


@about_beams
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(beam_width=0), "beam_width must be a whole number from 1 to 8"),
        (dict(beam_width=9), "beam_width must be a whole number from 1 to 8"),
        (dict(beam_width=2.0), "beam_width"),
        (dict(length_penalty=math.nan), "length_penalty"),
        (dict(length_penalty="1"), "length_penalty"),
        (dict(max_tokens=0), "max_tokens"),
    ],
)
def test_bad_beam_search(stage, small_checkpoint, arguments, says):
    with pytest.raises(ValueError, match=says):
        stage.engine(small_checkpoint, max_num_seqs=8).beam_search([[1, 2]], **arguments)


@about_beams
@pytest.mark.parametrize("at", [0, 2])
def test_logits_that_are_not_finite_end_one_beam_search(stage, small_checkpoint, monkeypatch, at):
    """And no other: in its first step, or when it has several beams."""
    llm, prompts = engine(stage, small_checkpoint), random_prompts(211, [2, 5, 9])
    expected = [[c.token_ids for c in output.outputs] for output in llm.beam_search(prompts, 2, 5)]
    forward, num_done = llm.engine.runner.forward, llm.stats.num_requests

    def damaged(batch):
        logits = forward(batch)
        bad = [i for i, beam in enumerate(batch.ready) if beam.request_id == "4" and len(beam.output_token_ids) == at]
        logits[bad] = math.nan
        return logits

    monkeypatch.setattr(llm.engine.runner, "forward", damaged)
    first, failed, last = llm.beam_search(prompts, 2, 5)
    assert [[c.token_ids for c in output.outputs] for output in (first, last)] == expected[::2]
    (completion,) = failed.outputs
    assert (completion.finish_reason, completion.token_ids) == ("error", [])
    assert "logits are not finite" in completion.stop_reason
    assert llm.stats.num_requests == num_done + 2
    llm.engine.scheduler.check_integrity()


@about_beams
def test_closing_an_engine_aborts_a_beam_search(stage, small_checkpoint, monkeypatch):
    """The search ends after the step in which the engine is closed, and its caller learns that it was aborted."""
    llm, closing, num_steps = engine(stage, small_checkpoint), threading.Event(), []
    loop_close, step = llm.loop.close, llm.beams.step

    def watched():
        num_steps.append(1)
        threading.Thread(target=llm.close, kwargs={"abort": True}).start()
        assert closing.wait(60)
        return step()

    monkeypatch.setattr(llm.beams, "step", watched)
    monkeypatch.setattr(llm.loop, "close", lambda **how: (loop_close(**how), closing.set()))
    (output,) = llm.beam_search([[1, 2]], 2, 40)
    assert [completion.finish_reason for completion in output.outputs] == ["abort"]
    assert num_steps == [1]


@about_beams
def test_a_search_that_is_not_run_costs_nobody_anything(stage, small_checkpoint):
    """Without prompts, or if its caller has left: no request is preempted, and the prefix cache keeps its blocks."""
    llm, prompt = engine(stage, small_checkpoint), random_prompts(211, [40])[0]
    llm.generate([prompt], greedy(stage, 2))
    searches = stage.part("beam_search").make_searches(llm.engine, [llm.inputs.request([5], greedy(stage, 9))], 2, 1.0)
    running = llm.engine.scheduler.running

    def none_runs():
        before = list(running)
        llm.beams.run([], lambda: False)
        llm.beams.run(searches, lambda: True)
        return before, list(running)

    stream = llm.stream([[1, 2, 3]], greedy(stage, 40))
    next(stream)
    before, after = llm.loop.call(none_runs)
    assert before == after
    assert len(before) == 1
    stream.close()
    assert searches[0].output().outputs[0].finish_reason == "abort"
    assert cached(llm.generate([prompt], greedy(stage, 2))) == [32]


@about_beams
def test_a_search_that_is_left_gives_its_blocks_back(stage, small_checkpoint):
    """In the middle. What others have computed can still be found."""
    llm, prompt, steps = engine(stage, small_checkpoint), random_prompts(211, [40])[0], iter([False] * 4 + [True] * 9)
    llm.generate([prompt], greedy(stage, 2))
    requests = [llm.inputs.request(prompt, greedy(stage, 9)) for prompt in ([5], [6, 7])]
    searches = stage.part("beam_search").make_searches(llm.engine, requests, 2, 1.0)
    llm.loop.call(lambda: llm.beams.run(searches, lambda: next(steps)))
    llm.engine.scheduler.check_integrity()
    assert llm.beams.active == llm.beams.waiting == []
    assert cached(llm.generate([prompt], greedy(stage, 2))) == [32]


@about_beams
def test_beams_are_counted_and_timed(stage, small_checkpoint):
    """As other requests are: each by its own end, and with what the prefix cache had."""
    llm, prompts = engine(stage, small_checkpoint, max_num_seqs=2), [[1, 2], [3, 4], random_prompts(211, [20])[0]]
    outputs = llm.beam_search([*prompts, prompts[2]], 2, 8)
    for before, after in itertools.pairwise(outputs):
        assert before.metrics.finished_time < after.metrics.first_scheduled_time
    assert llm.stats.seconds > 0
    assert (llm.stats.num_requests, llm.stats.num_prompt_tokens, llm.stats.num_cached_tokens) == (4, 44, 16)


@about_beams
def test_a_beam_search_that_just_fits(stage, small_checkpoint):
    """Three beams share the prompt's block of 16 tokens, and have one each for the 16 that are read after it."""
    make = lambda num_blocks: stage.LLM(small_checkpoint, device="cpu", block_size=16, num_blocks=num_blocks)  # noqa: E731
    prompt = random_prompts(40, [16])[0]
    assert len(make(4).beam_search([prompt], 3, 17)[0].outputs) == 3
    with pytest.raises(ValueError, match="may need 4 blocks of the KV cache, there are 3"):
        make(3).beam_search([prompt], 3, 17)
    with pytest.raises(ValueError, match="may need 7 blocks of the KV cache, there are 6"):  # with the first of a third
        make(6).beam_search([prompt], 3, 18)


@about_beams
def test_searches_take_their_turns(stage, small_checkpoint):
    """All requests that run are preempted for them, then they start in order. A prompt that has no tokens left in a
    step has no row in it."""
    part, params, told, rows = stage.part("beam_search"), greedy(stage, 4), [], []
    llm = stepper(stage, small_checkpoint, block_size=4, num_blocks=28, max_num_batched_tokens=12)
    beams = part.BeamEngine(llm.engine)
    llm.add_request("a", [1, 2, 3], params)
    llm.add_request("b", [4, 5], params)
    llm.step()
    llm.engine.scheduler.emit = lambda kind, request, **_: told.append((kind, request.request_id))
    beams.schedule = lambda own=beams.schedule: rows.extend(made := own()) or made
    prompts = random_prompts(211, [20, 9, 9])
    requests = [llm.inputs.request(prompt, params, number=i) for i, prompt in enumerate(prompts)]
    with torch.inference_mode():
        beams.run(part.make_searches(llm.engine, requests, 2, 1.0), lambda: False)
    assert [request_id for kind, request_id in told if kind == "preempted"] == ["a", "b"]
    assert [request_id for kind, request_id in told if kind == "admitted"] == ["0", "1", "2"]
    assert all(row.num_tokens for row in rows)


# --- The size of the pool --------------------------------------------------------------------------------------------

BLOCK_BYTES = 16 * 2 * 2 * 48 * 4  # block_size x (key + value) x layers x n_embd x float32


@pytest.mark.covers("kv_cache.py", "runner.py")
def test_the_size_of_the_pool(stage, small_checkpoint, monkeypatch):
    llm = lambda **arguments: stage.LLM(small_checkpoint, device="cpu", **arguments).engine.runner  # noqa: E731
    assert llm(max_num_seqs=5).num_blocks == 5 * 3  # as much as five requests of 48 tokens fill
    assert llm(num_blocks=7).kv_cache_bytes == 7 * BLOCK_BYTES
    told = llm(num_blocks=7).describe()
    assert told.startswith("cpu (")
    assert told.endswith("7 blocks in 0 MB of KV cache")
    assert [llm(kv_cache_bytes=n * BLOCK_BYTES + 5 * (n > 1)).num_blocks for n in (1, 7)] == [1, 7]
    assert llm(kv_cache_bytes=7 * BLOCK_BYTES, dtype="bfloat16").num_blocks == 14
    with pytest.raises(ValueError, match=f"a block of 16 tokens needs {BLOCK_BYTES:,} bytes, .* {BLOCK_BYTES - 1:,}"):
        llm(kv_cache_bytes=BLOCK_BYTES - 1)
    monkeypatch.setattr(stage.part("kv_cache"), "free_memory", lambda device: 8 * BLOCK_BYTES)
    monkeypatch.setattr(stage.part("weights"), "check_memory", lambda *_: None)  # which are larger
    assert llm(max_num_seqs=5).num_blocks == 4  # half of what is free


@pytest.mark.covers("config.py")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(block_size=16.0), "block_size"),
        (dict(num_blocks="9"), "num_blocks"),
        (dict(num_blocks=3, kv_cache_bytes=10**6), "num_blocks or kv_cache_bytes, not both"),
        (dict(watermark=1.0), "watermark must be a number from 0 to less than 1, got 1.0"),
        (dict(watermark=-0.1), "watermark"),
        (dict(attention_backend="flash"), "attention_backend must be one of auto, torch, c, triton, got 'flash'"),
    ],
)
def test_bad_arguments(stage, small_checkpoint, arguments, says):
    with pytest.raises(ValueError, match=says):
        stage.LLM(small_checkpoint, device="cpu", **arguments)


@pytest.mark.covers("kv_cache.py")
def test_blocks_are_copied_in_every_layer(stage):
    """What a block held before the step, though it is the target of another copy."""
    sizes = (4, 2, 3, torch.float32, torch.device("cpu"), None)  # block_size, n_head, head_dim
    cache = stage.part("kv_cache").KVCache(2, 6, *sizes)
    for tensor in (cache.keys, cache.values):
        tensor.copy_(torch.randn(tensor.shape))
    before = cache.keys.clone(), cache.values.clone()
    cache.copy_blocks([])
    assert torch.equal(cache.keys, before[0])
    cache.copy_blocks([(0, 1), (0, 4), (1, 5)])
    for now, old in zip((cache.keys, cache.values), before, strict=True):
        assert torch.equal(now, old[:, [0, 0, 2, 3, 0, 1]])


@pytest.mark.covers("kv_cache.py", "runner.py")
def test_what_a_gpu_has_for_the_cache(stage, monkeypatch):
    """Nine tenths of what is free without the 400 bytes that a full step takes besides the model's 1,000."""
    calls, kv_cache, device = [], stage.part("kv_cache"), torch.device("cuda")
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: 10_000)
    runner = object.__new__(stage.part("runner").Runner)
    runner.device, runner.try_step = device, lambda num_tokens, cache: calls.append("step")
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1400 if calls == ["reset", "step"] else 9000)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    assert runner.measure_step(512, None) == 400
    assert calls == ["reset", "step", "empty"]
    assert kv_cache.default_cache_bytes(device, 400) == 9600 * 9 // 10


@pytest.mark.covers("kv_cache.py", "runner.py")
@pytest.mark.parametrize("num_tokens", [300, 1])
def test_the_step_that_is_run_to_see_what_it_takes(stage, small_checkpoint, monkeypatch, num_tokens):
    """One request's, with all its logits. On CUDA the default size of the pool depends on it; here it must at least
    run, over the model's limits or not, on a cache of a single block."""
    steps, runner = [], stage.LLM(small_checkpoint, device="cpu", num_blocks=1).engine.runner
    runner.try_step(num_tokens, runner.cache)
    monkeypatch.setattr(runner, "model", lambda batch, _: steps.append(batch))
    runner.try_step(num_tokens, runner.cache)
    (step,) = steps
    assert step.query_start_loc.tolist() == [0, num_tokens]
    assert step.seq_lens.tolist() == [num_tokens]
    assert step.block_tables.tolist() == [[0] * -(-num_tokens // 16)]
    assert step.token_ids.tolist() == step.slot_mapping.tolist() == step.logits_indices.tolist() == [0] * num_tokens


@about_outputs
def test_the_closing_line(stage):
    prompt = "Once upon a time, " * 10
    _, _, stderr = stage.main("--prompts", prompt, prompt, "--max-tokens", 3, "--num-blocks", 8, "--stats")
    assert "prefix cache:         47% of the prompts' tokens found" in stderr, stderr
    arguments = ("--prompts", "Once", "There", "--max-tokens", 70, "--ignore-eos", "--num-blocks", 6)
    _, _, stderr = stage.main(*arguments, "--no-prefix-caching", "--stats")
    assert "prefix cache:         0% of the prompts' tokens found\n  preemptions:          1\n" in stderr
    _, _, stderr = stage.main(*arguments, "--json")
    assert json.loads(stderr.splitlines()[-1])["preemptions"] == 1


@pytest.mark.parametrize("backend", ["c", "torch"])
def test_a_value_that_is_not_finite_spoils_no_prefix(stage, small_checkpoint, backend):
    """From position 20 on nothing is finite. A prompt that gets there fails, and the block before it, computed in the
    same step, serves the next prompt."""
    bad, good = [1] * 16 + [3] * 9, [1] * 16 + [2] * 2
    llm = stage.LLM(small_checkpoint, device="cpu", attention_backend=backend, **stage.one_by_one)
    (expected,) = llm.generate([good], greedy(stage, 2))
    llm = stage.LLM(small_checkpoint, device="cpu", attention_backend=backend, **stage.one_by_one)
    llm.engine.runner.model.wpe.weight[20:] = math.nan
    assert llm.generate([bad], greedy(stage, 2))[0].outputs[0].finish_reason == "error"
    (output,) = llm.generate([good], greedy(stage, 2))
    assert (output.num_cached_tokens, output.outputs[0].token_ids) == (16, expected.outputs[0].token_ids)

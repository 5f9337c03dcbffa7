"""How likely a text is: prompt log-probabilities, and continuations of prompts. Every engine agrees with Hugging Face's
model, however the prompt is cut up."""

import asyncio
import copy
import math
import pickle

import pytest
import torch

from tests.adapter import STAGES, random_prompts, unfinished

pytestmark = pytest.mark.covers("support/scoring.py", "engine.py", "scheduler.py", "batch.py", "request.py")
NUMBERS = range(4, 9)  # of the stages that this runs on, see conftest.py
LENGTHS = [1, 2, 17, 40, 5]
PROMPTS = random_prompts(211, LENGTHS)


@pytest.fixture(scope="module")
def reference(small_checkpoint):
    """token ids -> log-probabilities of what follows each, [n_seq, vocab_size]"""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(small_checkpoint).eval()

    @torch.no_grad()
    def logprobs(token_ids):
        return model(torch.tensor([token_ids])).logits[0].log_softmax(-1)

    return logprobs


def check(output, reference, count):
    """One entry per token: the token's own log-probability and rank, and those of the best `count`."""
    expected, entries = reference(output.prompt_token_ids), output.prompt_logprobs
    assert len(entries) == len(output.prompt_token_ids)
    assert entries[0] is None
    for row, token_id, entry in zip(expected, output.prompt_token_ids[1:], entries[1:], strict=False):
        assert next(iter(entry)) == token_id
        assert set(entry) == {token_id, *row.topk(count).indices.tolist()}
        for i, one in entry.items():
            assert one.logprob == pytest.approx(row[i].item(), abs=1e-4)
        assert abs(entry[token_id].rank - int((row > row[token_id]).sum()) - 1) <= 1  # near-ties


CUTS = [
    dict(max_num_batched_tokens=512),
    dict(max_num_batched_tokens=3, max_num_seqs=2),
    dict(max_num_batched_tokens=1),
]


@pytest.mark.parametrize("options", CUTS, ids=str)
def test_prompt_logprobs_equal_the_reference(stage, small_checkpoint, reference, options):
    """Next to requests that ask for none, whole or in pieces; the completions are the same as without them."""
    llm = stage.LLM(small_checkpoint, device="cpu", **options)
    counts = [3, None, 0, 1, 2]
    params = [
        stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, prompt_logprobs=count) for count in counts
    ]
    plain = stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    for output, other, count in zip(llm.generate(PROMPTS, params), llm.generate(PROMPTS, plain), counts, strict=True):
        assert output.outputs[0].token_ids == other.outputs[0].token_ids
        assert other.prompt_logprobs is None
        if count is None:
            assert output.prompt_logprobs is None
        else:
            check(output, reference, count)
    llm.engine.scheduler.check_integrity()


def test_nothing_is_generated_with_max_tokens_0(stage, small_checkpoint, reference):
    """Even for a prompt that fills the whole context, and next to a request that generates."""
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_batched_tokens=16)
    (full,) = random_prompts(211, [48])  # n_positions
    scored = stage.SamplingParams(max_tokens=0, prompt_logprobs=1)
    generating = stage.SamplingParams(max_tokens=5, ignore_eos=True)
    outputs = llm.generate([full, [7], PROMPTS[3]], [scored, generating, scored])
    for output in (outputs[0], outputs[2]):
        check(output, reference, 1)
        (completion,) = output.outputs
        assert (completion.token_ids, completion.text, completion.finish_reason) == ([], "", "length")
    assert len(outputs[1].outputs[0].token_ids) == llm.stats.num_output_tokens == 5
    assert llm.stats.num_requests == 3
    assert llm.stats.latencies.percentiles()["ttft"]


def test_what_is_refused(stage, small_checkpoint):
    Params = stage.SamplingParams
    with pytest.raises(ValueError, match="prompt_logprobs must be a whole number from 0 to 20, got 21"):
        Params(prompt_logprobs=21)
    llm = stage.LLM(small_checkpoint, device="cpu")
    with pytest.raises(ValueError, match="prompt 1: 49 tokens are more than max_model_len 48"):
        llm.generate([[1], [1] * 49], Params(max_tokens=0, prompt_logprobs=0))
    with pytest.raises(ValueError, match="48 tokens leave no room for an output within max_model_len 48"):
        llm.generate([[1] * 48], Params(max_tokens=1, prompt_logprobs=0))
    for prompts, continuations, says in (
        (["a"], [""], "prompt 0: an empty continuation"),
        ([[1]], [[]], "prompt 0: an empty continuation"),
        (["a"], [[1]], "two texts, or two lists of token ids"),
        ([None], [None], "two texts, or two lists of token ids"),
        ([[]], [[1]], "an empty list of token ids"),
        ([[1], [2]], [[1]], "got 2 prompts but 1 continuations"),
        ([[1]], [[500]], "token 500 is outside the model's vocabulary"),
    ):
        with pytest.raises(ValueError, match=says):
            llm.score(prompts, continuations)
    assert llm.stats.num_forwards == 0


@pytest.mark.parametrize("stage", STAGES[4:], ids=lambda stage: stage.directory)
def test_in_a_pool_that_is_too_small(stage, small_checkpoint, reference):
    """Preempted in the middle of a prompt, and again; several completions of a prompt that is scored."""
    llm = stage.LLM(small_checkpoint, device="cpu", num_blocks=28, block_size=2, max_num_batched_tokens=5)
    params = [stage.SamplingParams(max_tokens=15, ignore_eos=True, prompt_logprobs=1, n=n) for n in (1, 3, 1, 1, 2)]
    for output in llm.generate(PROMPTS, params, priority=[0] * 5):
        check(output, reference, 1)
    assert llm.stats.num_preemptions > 0
    llm.engine.scheduler.check_integrity()


@pytest.mark.parametrize("stage", STAGES[4:], ids=lambda stage: stage.directory)
def test_it_fills_the_prefix_cache_but_does_not_read_it(stage, small_checkpoint, reference):
    llm = stage.LLM(small_checkpoint, device="cpu", block_size=4)
    scored = stage.SamplingParams(max_tokens=1, prompt_logprobs=0)
    for _ in range(2):
        (output,) = llm.generate([PROMPTS[3]], scored)
        check(output, reference, 0)
        assert output.num_cached_tokens == 0
    (output,) = llm.generate([PROMPTS[3]], stage.SamplingParams(max_tokens=1))
    assert output.num_cached_tokens == 36  # 40, but for the block with the last token
    before = llm.stats.num_tokens_computed
    context, choices = PROMPTS[3], [[5], [6, 7], [8]]
    scores = llm.score([context] * 3, choices)  # the context need not be computed again, but for its last token
    assert llm.stats.num_tokens_computed - before == 3 * 4 + 4
    for choice, score in zip(choices, scores, strict=True):
        expected = reference(context + choice)
        rows = expected[len(context) - 1 : -1]
        assert score.logprob == pytest.approx(sum(rows[i, t].item() for i, t in enumerate(choice)), abs=1e-4)
        assert score.num_tokens == len(choice)
        assert score.is_greedy == (rows.argmax(-1).tolist() == choice)


def test_the_first_event_of_a_stream_has_them(stage, small_checkpoint, reference):
    params = stage.SamplingParams(max_tokens=3, ignore_eos=True, prompt_logprobs=1)
    only = stage.SamplingParams(max_tokens=0, prompt_logprobs=1)
    (output,) = stage.LLM(small_checkpoint, device="cpu").generate([PROMPTS[2]], params)
    check(output, reference, 1)

    async def collect(engine, params):
        return [event async for event in engine.generate(PROMPTS[2], params)]

    with stage.AsyncLLM(model=small_checkpoint, device="cpu") as engine:
        first, *rest = asyncio.run(collect(engine, params))
        (last,) = asyncio.run(collect(engine, only))
        (again,) = engine.llm.generate([PROMPTS[2]], params)
        assert again.prompt_logprobs == first.prompt_logprobs
    assert [len(entry) for entry in first.prompt_logprobs[1:]] == [len(entry) for entry in output.prompt_logprobs[1:]]
    assert all(event.prompt_logprobs is None for event in rest)
    assert (last.token_ids, last.finish_reason, len(last.prompt_logprobs)) == ([], "length", len(PROMPTS[2]))


def test_score_of_texts(stage):
    """The words of a text are scored as the text has them, wherever it is cut; without a prompt it is scored after
    the end token, so that all of it counts."""
    llm = stage.engine()
    text = "Once upon a time, there was a young girl"
    (whole,) = llm.score([""], [text])
    token_ids = llm.engine.tokenizer.encode(text)
    assert whole.num_tokens == len(token_ids)
    assert llm.score([[50256]], [token_ids]) == [whole]
    spaces = llm.score(["Once upon", "Once upon ", "Once "], [" a time", "a time", "upon a time"])
    assert spaces[0] == spaces[1]
    parts = llm.score([[50256], [50256, *token_ids[:5]]], [token_ids[:5], token_ids[5:]])
    assert sum(part.logprob for part in parts) == pytest.approx(whole.logprob, abs=1e-3)
    cut = llm.score(["The answer is wal"], ["king is here"])  # the harness's rule: behind as many tokens as it has
    token_ids = llm.engine.tokenizer.encode("The answer is walking is here")
    context = llm.engine.tokenizer.encode("The answer is wal")
    assert cut == llm.score([context], [token_ids[len(context) :]])
    assert llm.score("Once upon a", " time") == llm.score(["Once upon a"], [" time"])
    (merged,) = llm.score(["Once up"], ["on"])  # "upon" is one token: each by itself
    assert (merged.num_tokens, math.isfinite(merged.logprob)) == (1, True)
    scores = llm.score(["Once upon a"] * 3, [" time", " fox", " time fox"])
    assert [score.is_greedy for score in scores] == [True, False, False]


def test_one_that_can_not_be_scored_leaves_the_others(stage, small_checkpoint, monkeypatch):
    """Logits are NaN in the middle of one prompt: that request ends with an error, and no other."""
    llm, bad = stage.LLM(small_checkpoint, device="cpu"), PROMPTS[2][9]
    forward = llm.engine.runner.forward

    def damaged(batch):
        logits = forward(batch)
        for request, rows in batch.score_slices:
            token_ids = request.prompt_token_ids[len(request.prompt_logprobs) :][: rows.stop - rows.start]
            logits[rows][[token_id == bad for token_id in token_ids]] = torch.nan
        return logits

    monkeypatch.setattr(llm.engine.runner, "forward", damaged)
    good = [PROMPTS[4], [t for t in PROMPTS[3] if t != bad]]
    params = [stage.SamplingParams(max_tokens=n, prompt_logprobs=0, ignore_eos=True) for n in (3, 3, 0)]
    outputs = llm.generate([PROMPTS[2], *good], params)
    assert [output.outputs[0].finish_reason for output in outputs] == ["error", "length", "length"]
    assert [len(output.prompt_logprobs) for output in outputs[1:]] == [len(prompt) for prompt in good]
    assert "the model's logits are not finite" in outputs[0].outputs[0].stop_reason
    assert llm.stats.num_output_tokens == 3  # its first token was sampled, but is not part of an output
    llm.engine.scheduler.check_integrity()
    with pytest.raises(RuntimeError, match="failed: no token can be sampled"):
        llm.score([PROMPTS[2][:5]], [PROMPTS[2][5:]])
    assert not unfinished(llm)


def test_results_can_be_kept_but_not_changed(stage, small_checkpoint):
    """The prompt's log-probabilities read like a list, but nothing is made before somebody reads it."""
    llm = stage.stepper(small_checkpoint, max_num_batched_tokens=4)
    llm.add_request("a", PROMPTS[4], stage.SamplingParams(max_tokens=3, prompt_logprobs=0, ignore_eos=True))
    outputs = []
    while llm.has_unfinished_requests():
        for output in llm.step():
            outputs.append(output.prompt_logprobs)
    assert [len(entries) for entries in outputs] == [len(PROMPTS[4])] * 3
    entries = outputs[0]
    kept = list(entries)
    assert entries == kept == entries[:] == pickle.loads(pickle.dumps(entries))
    assert (entries[-1], entries[1:3], entries[::-1]) == (kept[-1], kept[1:3], kept[::-1])
    assert entries != kept[:-1]
    assert repr(entries) == repr(kept)
    assert type(copy.deepcopy(entries)) is list
    with pytest.raises(IndexError):
        entries[len(kept)]
    with pytest.raises(TypeError):
        entries[1] = None


def rows_of_each_step(llm, monkeypatch):
    """How many tokens each request has in each step from now on."""
    schedule, steps = llm.engine.scheduler.schedule, []

    def noted():
        rows = schedule()
        steps.append([row.num_tokens for row in rows])
        return rows

    monkeypatch.setattr(llm.engine.scheduler, "schedule", noted)
    return steps


def test_a_scored_prompt_is_cut_like_any_other(stage, small_checkpoint, reference, monkeypatch):
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_batched_tokens=24)
    steps = rows_of_each_step(llm, monkeypatch)
    params = [stage.SamplingParams(max_tokens=0, prompt_logprobs=1), stage.SamplingParams(max_tokens=1)]
    output, _ = llm.generate([PROMPTS[3], PROMPTS[2]], params, priority=[0, 0])
    check(output, reference, 1)
    assert steps == [[24], [16, 8], [9]]


def test_the_command_line():
    arguments = ["--prompts", "Once upon a time", "--json", "--quiet", "--prompt-logprobs", 1, "--max-tokens", 0]
    status, stdout, stderr = STAGES[3].main(*arguments)
    assert (status, stderr) == (0, "")
    assert '"prompt_logprobs": [null, {' in stdout

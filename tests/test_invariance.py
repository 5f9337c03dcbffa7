"""A request gives the same tokens alone and in any batch, order and company."""

import math
import random

import pytest

from stagewise import allowed_token_ids, logit_bias
from tests.adapter import STAGES, random_prompts

pytestmark = pytest.mark.covers(
    "engine.py", "batch.py", "runner.py", "kv_cache.py", "model.py", "sampler.py", "support/inputs.py"
)
LENGTHS = [1, 9, 3, 30, 2, 14, 6, 21, 4, 4, 11]


def every_other_token(prompt_token_ids, token_ids, logits):
    """A logits processor: even tokens at even positions."""
    logits[(len(token_ids) + 1) % 2 :: 2] = -math.inf
    return logits


def mixed_params(stage):
    """A request of every kind, several at once in any batch."""
    kinds = [
        dict(temperature=0),
        dict(temperature=1.0, seed=1),
        dict(temperature=0.5, top_k=3, seed=2, logprobs=2),
        dict(top_p=0.8, seed=3, min_tokens=4),
        dict(min_p=0.1, seed=4, repetition_penalty=1.2),
        dict(temperature=2.0, top_p=0.9, top_k=50, frequency_penalty=0.5, presence_penalty=0.1, seed=5),
        dict(logits_processors=[logit_bias({3: 9.5, 200: -100, 7: 4})], seed=6, repetition_penalty=1.5),
        dict(logits_processors=[allowed_token_ids(range(20, 120, 3))], temperature=1.5, seed=7, min_tokens=2),
        dict(temperature=0, logits_processors=[every_other_token, logit_bias({8: 3})]),
    ]
    return [stage.SamplingParams(**kinds[i % len(kinds)], max_tokens=3 + i) for i in range(len(LENGTHS))]


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def test_alone_shuffled_and_mixed(stage, small_checkpoint):
    prompts, params = random_prompts(211, LENGTHS), mixed_params(stage)
    llm = stage.engine(small_checkpoint, max_num_seqs=4)
    alone = [tokens(llm.generate([prompt], p))[0] for prompt, p in zip(prompts, params, strict=True)]
    assert tokens(llm.generate(prompts, params)) == alone
    for seed in range(2):
        order = random.Random(seed).sample(range(len(prompts)), len(prompts))
        shuffled = tokens(llm.generate([prompts[i] for i in order], [params[i] for i in order]))
        assert shuffled == [alone[i] for i in order]


def test_batch_size_and_order_do_not_matter(batched_stage, small_checkpoint):
    prompts, params = random_prompts(211, LENGTHS), mixed_params(batched_stage)
    one_by_one = tokens(batched_stage.engine(small_checkpoint, max_num_seqs=1).generate(prompts, params))
    for arguments in [dict(max_num_seqs=3), dict(max_num_seqs=64), dict(max_num_seqs=4, sort_by_length=False)]:
        assert tokens(batched_stage.engine(small_checkpoint, **arguments).generate(prompts, params)) == one_by_one


def test_every_stage_gives_the_same(small_checkpoint):
    """Seeded and unseeded requests of every kind: fresh engines with the same seed draw the same."""
    prompts = random_prompts(211, LENGTHS) * 2
    results = []
    for stage in STAGES:
        llm = stage.LLM(small_checkpoint, device="cpu", seed=7)
        params = [stage.SamplingParams(max_tokens=10)] * len(LENGTHS) + mixed_params(stage)
        results.append(tokens(llm.generate(prompts, params)))
    assert all(result == results[0] for result in results)


def test_seeds(stage, small_checkpoint):
    """A seed repeats a request; without one, requests differ from each other, and whole runs repeat."""
    prompt = random_prompts(211, [5])[0]
    params = stage.SamplingParams(max_tokens=12, ignore_eos=True)
    seeded = stage.SamplingParams(max_tokens=12, ignore_eos=True, seed=3)
    first, second = (stage.LLM(small_checkpoint, device="cpu", seed=5) for _ in range(2))
    runs = [[tokens(llm.generate([prompt] * 3, params)) for _ in range(2)] for llm in (first, second)]
    assert runs[0] == runs[1]
    assert len({tuple(t) for run in runs[0] for t in run}) == 6
    assert tokens(first.generate([prompt] * 2, seeded)) == tokens(second.generate([prompt], seeded)) * 2
    other = stage.LLM(small_checkpoint, device="cpu", seed=6)
    assert tokens(other.generate([prompt] * 3, params)) != runs[0][0]


def test_results_come_in_the_order_of_the_prompts(stage, small_checkpoint):
    prompts = random_prompts(211, LENGTHS)
    outputs = stage.engine(small_checkpoint, max_num_seqs=3).generate(prompts, stage.SamplingParams(max_tokens=2))
    assert [output.prompt_token_ids for output in outputs] == prompts

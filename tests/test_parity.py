"""The same numbers as Hugging Face's GPT-2: logits of every step, and greedy tokens."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.adapter import STAGES, TINYTALES, random_prompts

pytestmark = pytest.mark.covers("model.py", "batch.py", "runner.py", "fast_model.py")


def reference_logits(model, token_ids):
    """Hugging Face's logits after every token: [n_seq, vocab_size]."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].float()


def check_against_reference(model, prompt, output, logits):
    """Every step's logits within 1e-4 of the largest; every greedy token the reference's, unless two were as good."""
    reference = reference_logits(model, prompt + output)
    for position, token in enumerate(output):
        expected = reference[len(prompt) - 1 + position]
        error = (logits[position] - expected).abs().max() / expected.abs().max()
        assert error < 1e-4, f"output position {position}: logits off by {error:.1e} of the largest"
        best, second = expected.topk(2).values
        if best - second > 1e-3:
            assert token == int(expected.argmax()), f"output position {position}: another token than the reference's"


def test_logits_and_greedy_tokens(stage, checkpoint):
    """Prompts of unequal lengths, one of them filling the context to its last position."""
    model = GPT2LMHeadModel.from_pretrained(checkpoint).eval()
    n_positions = model.config.n_positions
    prompts = random_prompts(model.config.vocab_size, [1, 2, 7, 19, n_positions - 1, n_positions - 6, 5, 3])
    params = stage.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    llm = stage.engine(checkpoint, max_num_seqs=5)
    with stage.recorded_logits() as recorded:
        outputs = llm.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        completion = output.outputs[0]
        assert len(completion.token_ids) == min(12, n_positions - len(prompt))
        assert completion.finish_reason == "length"
        logits = [recorded[output.request_id, i] for i in range(len(completion.token_ids))]
        check_against_reference(model, prompt, completion.token_ids, logits)


def test_the_default_sizes_are_gpt2s(stage):
    ours, theirs = stage.part("model").ModelConfig(), GPT2Config()
    for name in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "layer_norm_epsilon"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert (ours.n_inner, ours.eos_token_ids) == (4 * theirs.n_embd, (theirs.eos_token_id,))


@pytest.fixture(scope="module")
def stories():
    """Prompts, and how Hugging Face's own `generate` continues them, greedily, with the bundled model."""
    model = GPT2LMHeadModel.from_pretrained(TINYTALES, dtype=torch.float32).eval()
    texts = ["Once upon a time", "A fox", "In the days when the winters were long, a boy named Tom"]
    prompts = [STAGES[0].tokenizer().encode(text) for text in texts]
    generated = [
        model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=30, pad_token_id=50256)
        for prompt in prompts
    ]
    return prompts, [ids[0, len(prompt) :].tolist() for ids, prompt in zip(generated, prompts, strict=True)]


def test_greedy_stories_equal_generate(stage, stories):
    prompts, expected = stories
    outputs = stage.engine().generate(prompts, stage.SamplingParams(temperature=0, max_tokens=30))
    assert [output.outputs[0].token_ids for output in outputs] == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(stage, small_checkpoint, dtype):
    """16-bit logits are as close to float32 as Hugging Face's own are."""
    exact = GPT2LMHeadModel.from_pretrained(small_checkpoint, dtype=torch.float32).eval()
    half = GPT2LMHeadModel.from_pretrained(small_checkpoint, dtype=getattr(torch, dtype)).eval()
    prompts = random_prompts(exact.config.vocab_size, [2, 9, 23])
    with stage.recorded_logits() as recorded:
        outputs = stage.engine(small_checkpoint, dtype=dtype).generate(
            prompts, stage.SamplingParams(temperature=0, max_tokens=1)
        )
    ours, theirs = [], []
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = reference_logits(exact, prompt)[-1]
        ours.append((recorded[output.request_id, 0] - expected).abs().mean())
        theirs.append((reference_logits(half, prompt)[-1] - expected).abs().mean())
    assert sum(ours) < 1.5 * sum(theirs)

"""On a GPU, stages make the same tokens as on the CPU. `make test-cuda` runs this, and the tests of Triton's kernel."""

import random

import pytest
import torch

from tests.adapter import BATCHED, STAGES, TINYTALES

pytestmark = pytest.mark.cuda
PAGED = [stage for stage in STAGES if stage.number >= 5]
GUESSING = [stage for stage in STAGES if stage.has_option("speculate")]


def requests(stage, count=12, **fields):
    """Prompts of several lengths, and sampling parameters."""
    draw = random.Random(0)
    prompts = [[draw.randrange(200) for _ in range(draw.randrange(1, 20))] for _ in range(count)]
    return prompts, [stage.SamplingParams(max_tokens=5 + i, ignore_eos=True, seed=i, **fields) for i in range(count)]


def token_ids(stage, checkpoint, device, sampling, **options):
    llm = stage.LLM(str(checkpoint), device=device, dtype="float32", **options)
    prompts, params = requests(stage, **sampling)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


SAMPLING = {
    "greedy": dict(temperature=0),
    "penalties": dict(temperature=0, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2),
    "sampled": dict(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01),
}


@pytest.mark.parametrize("how", SAMPLING)
def test_tokens_are_those_of_the_cpu(stage, small_checkpoint, how):
    cpu, cuda = (token_ids(stage, small_checkpoint, device, SAMPLING[how]) for device in ("cpu", "cuda"))
    assert cuda == cpu


@pytest.mark.parametrize("stage", PAGED, ids=str)
def test_preempted_requests_go_on(stage, small_checkpoint):
    """With too few blocks for all."""
    options = dict(block_size=8, num_blocks=10, max_num_seqs=6)
    expected = token_ids(stage, small_checkpoint, "cpu", SAMPLING["greedy"])
    assert token_ids(stage, small_checkpoint, "cuda", SAMPLING["greedy"], **options) == expected


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_backends(small_checkpoint, backend):
    expected = token_ids(STAGES[4], small_checkpoint, "cpu", SAMPLING["greedy"])
    options = {"attention_backend": backend}
    assert token_ids(STAGES[4], small_checkpoint, "cuda", SAMPLING["greedy"], **options) == expected


@pytest.mark.parametrize("guesses", ["ngram", "tinytales-draft"])
@pytest.mark.parametrize("stage", GUESSING, ids=str)
def test_guesses_change_nothing(stage, guesses):
    expected, guessed = (
        stage.LLM("tinytales", device="cuda", dtype="float32", speculate=speculate).generate(
            "Once upon a time", stage.SamplingParams(temperature=0, max_tokens=60)
        )[0]
        for speculate in ("off", guesses)
    )
    assert guessed.outputs[0].token_ids == expected.outputs[0].token_ids


def test_a_gpu_is_the_default_and_its_dtype_is_bfloat16(stage, small_checkpoint):
    """Logits are then as close as 8 bits of precision allow."""
    llm, exact = stage.LLM(str(small_checkpoint)), stage.LLM(str(small_checkpoint), device="cpu", dtype="float32")
    assert "bfloat16" in llm.describe()
    params = stage.SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True)
    (ours,), (expected,) = (one.generate([list(range(20))], params) for one in (llm, exact))
    mine, other = (dict(output.outputs[0].logprobs[0]) for output in (ours, expected))
    both = mine.keys() & other.keys()
    assert len(both) > 15
    assert all(mine[token].logprob == pytest.approx(other[token].logprob, abs=0.1) for token in both)


@pytest.mark.parametrize("stage", BATCHED, ids=str)
def test_a_sentence(stage):
    """The bundled model writes English there, too."""
    llm = stage.LLM(TINYTALES, device="cuda")
    outputs = llm.generate(["Once upon a time", "There was once"], stage.SamplingParams(temperature=0, max_tokens=30))
    assert all(" the " in o.outputs[0].text or " a " in o.outputs[0].text for o in outputs)
    assert torch.cuda.memory_allocated() > 0

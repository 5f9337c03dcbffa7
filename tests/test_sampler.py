"""The sampler against Hugging Face's logits processors, against exact distributions, and against itself."""

import math
import platform
import random

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.adapter import STAGES, cpu_flags, kernels_with

FAST = [stage for stage in STAGES if stage.number >= 6]
pytestmark = pytest.mark.covers("sampler.py", "kernels/c_sampler.py", "support/logprobs.py", "support/philox.py")

VOCABULARY = 199
SETTINGS = [
    dict(temperature=0.7),
    dict(temperature=3.0, top_k=7),
    dict(top_k=1),
    dict(top_k=198),
    dict(top_k=5000),
    dict(top_p=0.9),
    dict(top_p=0.01),
    dict(temperature=1.7, top_p=0.9),
    dict(temperature=1.7, top_p=0.5, top_k=40),
    dict(min_p=0.05),
    dict(min_p=1.0),
    dict(temperature=2.0, top_k=60, top_p=0.95, min_p=0.02),
    dict(repetition_penalty=1.3),
    dict(repetition_penalty=0.8, temperature=0.9, top_p=0.8),
    dict(),
]


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def reference_scores(logits, settings, token_ids):
    """The scores that Hugging Face's processors give for a row, in the contract's order."""
    processors = LogitsProcessorList()
    if settings.get("repetition_penalty", 1) != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    processors.append(TemperatureLogitsWarper(float(settings.get("temperature", 1.0))))
    if settings.get("top_k"):
        processors.append(TopKLogitsWarper(settings["top_k"]))
    if settings.get("top_p", 1) < 1:
        processors.append(TopPLogitsWarper(settings["top_p"]))
    if settings.get("min_p"):
        processors.append(MinPLogitsWarper(settings["min_p"]))
    return processors(torch.tensor([token_ids]), logits[None])[0]


def test_filters_equal_hugging_face(stage):
    """All settings side by side in one batch: each row filtered by its own parameters, as if it were alone."""
    logits = random_logits(len(SETTINGS))
    prompt, output = [5, 6, 7, 5], [100, 5, 101, 100, 100]
    requests = [stage.make_request(stage.SamplingParams(**s), prompt, output) for s in SETTINGS]
    filtered = stage.filtered(logits, requests)
    for row, scores, settings in zip(logits, filtered, SETTINGS, strict=True):
        expected = reference_scores(row, settings, prompt + output)
        kept, theirs = (~scores.isinf()).nonzero()[:, 0].tolist(), (~expected.isinf()).nonzero()[:, 0].tolist()
        assert kept == theirs, f"{settings}: {len(kept)} tokens are kept, Hugging Face keeps {len(theirs)}"
        scores, expected = scores.log_softmax(-1), expected.log_softmax(-1)
        torch.testing.assert_close(scores, expected, msg=f"{settings}: other probabilities")


def test_ties_at_the_kth_place_stay(stage):
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    filtered = stage.filtered(logits, [stage.make_request(stage.SamplingParams(top_k=2))])
    assert (~filtered.isinf()).tolist() == [[False, True, True, True, False]]


@pytest.mark.parametrize("top_p", [0.2, 0.4, 0.6, 0.8, 0.3, 0.7])
def test_ties_at_the_edge_of_top_p(stage, top_p):
    """Of 5 and of 10 equally likely tokens, as many are kept as by Hugging Face. In float64, sums of weights that are
    exp(score - best) meet the threshold exactly; sums of rounded probabilities don't."""
    params = stage.SamplingParams(top_p=top_p)
    for number in (5, 10):
        logits = torch.zeros(1, number)
        kept = int((~stage.filtered(logits, [stage.make_request(params)]).isinf()).sum())
        expected = int((~TopPLogitsWarper(top_p)(None, logits).isinf()).sum())
        assert kept == expected, f"of {number} tokens"


def test_presence_and_frequency_penalties(stage):
    """As in OpenAI's API: over the output alone, once per token and once per occurrence; rows keep to themselves."""
    logits = random_logits(3)
    params = [
        stage.SamplingParams(presence_penalty=0.5, frequency_penalty=0.25),
        stage.SamplingParams(frequency_penalty=-1.0),
        stage.SamplingParams(),
    ]
    outputs = [[8, 8, 9], [3], [4, 4, 4, 4]]
    requests = [stage.make_request(p, [8, 3, 4], o) for p, o in zip(params, outputs, strict=True)]
    expected = logits.clone()
    expected[0, 8] -= 0.5 + 2 * 0.25
    expected[0, 9] -= 0.5 + 0.25
    expected[1, 3] += 1.0
    filtered = stage.filtered(logits, requests)
    torch.testing.assert_close(filtered.log_softmax(-1), expected.log_softmax(-1))


def test_penalties_before_there_is_output(stage):
    params = stage.SamplingParams(presence_penalty=1.0, frequency_penalty=1.0)
    logits = random_logits(1)
    filtered = stage.filtered(logits, [stage.make_request(params)])
    torch.testing.assert_close(filtered.log_softmax(-1), logits.log_softmax(-1))


def test_greedy_takes_penalties_but_no_filter(stage):
    logits = torch.tensor([[0.0, 2.0, 1.9]])
    greedy = stage.make_request(stage.SamplingParams(temperature=0), [0], [1])
    penalized = stage.make_request(stage.SamplingParams(temperature=0, presence_penalty=0.5), [0], [1])
    assert [token for token, _ in stage.sample(logits.repeat(2, 1), [greedy, penalized])] == [1, 2]


@pytest.mark.parametrize("temperature", [1e-5, 1e5])
def test_extreme_temperatures(stage, temperature):
    """The smallest is greedy, the largest is uniform; neither overflows."""
    logits = random_logits(1) * 1000
    request = stage.make_request(stage.SamplingParams(temperature=temperature))
    probs = stage.filtered(logits, [request]).softmax(-1)
    assert torch.isfinite(probs).all()
    assert probs.argmax() == logits.argmax()
    if temperature < 1:
        assert probs.max() > 0.99
    else:
        assert probs.max() < 0.01


@pytest.mark.parametrize("by", ["seed", "position"])
def test_frequencies_follow_the_distribution(stage, by):
    """Chi-squared over 4,000 draws, by as many seeds or along one stream; the bound is passed by 1 run in 10,000."""
    draws, logits = 4000, torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, 0.3, -math.inf, 0.9])
    params = stage.SamplingParams(temperature=1.3, top_k=6)
    requests = []
    for i in range(draws):
        seed, position = (i, 0) if by == "seed" else (42, i)
        request = stage.make_request(params, seed=seed)
        request.output_token_ids = range(position)  # only its length is read
        requests.append(request)
    counts = np.bincount([token for token, _ in stage.sample(logits.repeat(draws, 1), requests)], minlength=len(logits))
    probs = stage.filtered(logits[None], requests[:1]).softmax(-1)[0].double().numpy()
    kept = probs > 0
    assert kept.sum() == 6
    assert counts[~kept].sum() == 0
    chi_squared = ((counts[kept] - draws * probs[kept]) ** 2 / (draws * probs[kept])).sum()
    assert chi_squared < 25.7  # the 0.9999 quantile at 5 degrees of freedom


def test_a_draw_never_takes_what_was_dropped(stage):
    """Numbers at the very ends of (0, 1), and a kept token next to dropped ones on either side."""
    draw = stage.part("sampler").draw
    weights = torch.zeros(50, dtype=torch.float64)
    weights[20] = 1.0
    for u in (2.0**-53, 0.5, 1 - 2.0**-53):
        assert draw(weights, u) == 20


def test_top_p_comes_before_min_p(stage):
    """In the other order the second-best token would be dropped: of 0.5 and 0.2 alone, 0.5 is over 0.69."""
    logits = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.05, 0.05]]).log()
    params = stage.SamplingParams(top_p=0.69, min_p=0.3)
    drawn = {stage.sample(logits, [stage.make_request(params, seed=seed)])[0][0] for seed in range(60)}
    assert drawn == {0, 1}


def test_every_rare_token_can_be_drawn(stage):
    """Each of 50,000 has a fifth of what float32 can add to the best one's weight."""
    samplers = [stage.sample] + ([stage.part("kernels.c_sampler").CSampler()] if stage.number >= 6 else [])
    num_rare = 50_000
    logits = torch.full((1, 1 + num_rare), math.log(2.4e-8))
    logits[0, 0] = 0
    weight = math.exp(float(logits[0, 1]))  # as float32 has it
    uniform, drawn = stage.part("philox").uniform, []
    for seed in [seed for seed in range(40_000) if uniform(seed, 0) > 0.9995][:12]:
        expected = 1 + int((uniform(seed, 0) * (1 + num_rare * weight) - 1) / weight)
        requests = [stage.make_request(stage.SamplingParams(), seed=seed)]
        assert [sample(logits, requests)[0][0] for sample in samplers] == [expected] * len(samplers)
        drawn.append(expected)
    assert len({*drawn}) > 9


def test_philox_known_answers(stage):
    """The published test vectors of Philox4x32-10 (Random123, kat_vectors)."""
    philox = stage.part("philox").philox
    vectors = [
        (0, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, (2**64 - 1, 2**64 - 1), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x299F31D0A4093822, (0x85A308D3243F6A88, 0x0370734413198A2E), "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ]
    for seed, (counter, stream), expected in vectors:
        assert " ".join(f"{int(word):08x}" for word in philox(seed, counter, stream)) == expected
    assert stage.part("philox").uniform(5, 3) == 0.6700757813391282  # as ever: a seed repeats a run of years ago
    assert stage.part("philox").derive_seed(5, 3) == 10469589261668989404


def test_logits_that_are_not_finite_are_an_error(stage):
    """It is returned, not raised: it ends one request."""
    for temperature in (0, 1.0):
        request = stage.make_request(stage.SamplingParams(temperature=temperature))
        (error,) = stage.sample(torch.full((1, 5), math.nan), [request])
        assert isinstance(error, ValueError)


def test_logprobs_are_of_the_raw_logits(stage):
    """The chosen token first, then the best; penalties and filters change what is chosen, not what is reported."""
    logits = random_logits(3)
    expected = logits.log_softmax(-1)
    worst = logits.argmin(-1)
    params = [
        stage.SamplingParams(temperature=0, logprobs=3),
        stage.SamplingParams(temperature=0, logprobs=0),
        stage.SamplingParams(temperature=0),
    ]
    requests = [stage.make_request(p) for p in params]
    sampled = stage.sample(logits, requests)
    assert list(sampled[0][1]) == logits[0].topk(3).indices.tolist()
    assert list(sampled[1][1]) == [int(logits[1].argmax())]
    assert sampled[2][1] is None
    for rank, (token, entry) in enumerate(sampled[0][1].items(), start=1):
        assert entry.rank == rank
        assert entry.logprob == pytest.approx(float(expected[0, token]), abs=1e-5)

    hot = stage.make_request(stage.SamplingParams(temperature=2.0, seed=1, logprobs=0))
    ((token, logprobs),) = stage.sample(logits[:1], [hot])
    assert logprobs[token].logprob == pytest.approx(float(expected[0, token]), abs=1e-5)

    forced = stage.SamplingParams(temperature=0, repetition_penalty=100, logprobs=2, presence_penalty=100)
    others = [t for t in range(VOCABULARY) if t != int(worst[0])]
    (token, logprobs), *_ = stage.sample(logits[:1], [stage.make_request(forced, others, others)])
    assert token == int(worst[0])
    assert logprobs[token].rank == VOCABULARY
    assert list(logprobs) == [token, *logits[0].topk(2).indices.tolist()]


# --- The sampler in C -------------------------------------------------------------------------------------------------


def logits_of(kind: str, vocab_size: int, generator: torch.Generator) -> torch.Tensor:
    """Rows of a text's shape, of a flat one, with ties, with one token left."""
    logits = torch.randn(1, vocab_size, generator=generator)[0]
    if kind == "text":  # few likely tokens, and a long tail
        top = min(vocab_size, 200)
        logits = 2.5 * logits - 5
        logits[torch.randperm(vocab_size, generator=generator)[:top]] += torch.linspace(18, 0, top)
    elif kind == "flat":
        logits *= 0.1
    elif kind == "ties":
        logits = (3 * logits).round()
    elif kind == "one left":
        logits[torch.arange(vocab_size) != vocab_size // 3] = -math.inf
    return logits


def random_params(rng: random.Random, vocab_size: int) -> dict:
    """Parameters as people set them, and the ends of their ranges."""
    return dict(
        temperature=rng.choice([0, 1e-5, 0.01, 0.3, 0.8, 1.0, 1.5, 100.0, 1e5]),
        top_k=rng.choice([0, 0, 1, 2, 40, 50, 1000, 10**6]),
        top_p=rng.choice([1.0, 1.0, 0.95, 0.9, 0.5, 0.1, 1e-6, 1 - 1e-9]),
        min_p=rng.choice([0.0, 0.0, 0.0, 0.05, 0.5, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.1, 0.7, 2.0, 100.0]),
        presence_penalty=rng.choice([0.0, 0.0, 0.6, -1.3]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.25, -100.0]),
        min_tokens=rng.choice([0, 0, 20]),
        max_tokens=64,
        logprobs=rng.choice([None, None, 0, min(5, vocab_size)]),
    )


def check_draws(stage, num_rows: int, seed: int) -> None:
    """The tokens that the kernel draws for rows of all kinds are those of `sample`, and so are their logprobs."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    kernel, vocab_size = stage.part("kernels.c_sampler").CSampler(), rng.choice([1, 5, 33, 211, 4099, 50257])
    kinds = [rng.choice(["random", "text", "flat", "ties", "one left"]) for _ in range(num_rows)]
    logits = torch.stack([logits_of(kind, vocab_size, generator) for kind in kinds])
    requests = []
    for i in range(num_rows):
        prompt, output = ([rng.randrange(vocab_size) for _ in range(rng.randrange(1, 30))] for _ in "po")
        params = stage.SamplingParams(**random_params(rng, vocab_size))
        requests.append(stage.make_request(params, prompt, output, seed=rng.randrange(2**64), eos_token_ids=[0]))
        requests[-1].index = i % 3
    expected, got = stage.sample(logits, requests), kernel(logits, requests)
    for i, (token, right) in enumerate(zip(got, expected, strict=True)):
        if isinstance(right, Exception):
            assert repr(token) == repr(right)
            continue
        assert token[0] == right[0], f"row {i} of {vocab_size} tokens, {kinds[i]}: {requests[i].params}"
        if right[1] is None:
            assert token[1] is None
            continue
        ours, theirs = ([(e.logprob, e.rank) for e in entries.values()] for entries in (token[1], right[1]))
        if kinds[i] == "ties":  # which of equal ones are among the best is torch's choice
            ours, theirs = ours[:1], theirs[:1]
        assert next(iter(token[1])) == token[0]
        assert [rank for _, rank in ours] == [rank for _, rank in theirs]
        assert [p for p, _ in ours] == pytest.approx([p for p, _ in theirs], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("stage", FAST[:1], ids=str)
def test_the_kernel_draws_what_the_rows_draw(stage, seed):
    check_draws(stage, 32, seed)


@pytest.mark.covers("kernels/c_sampler.py", "kernels/sampler.c", "support/scoring.py")
@pytest.mark.parametrize("vocab_size", [1, 33, 50257])
@pytest.mark.parametrize("stage", FAST[:1], ids=str)
def test_the_kernel_scores_prompts_as_torch_does(stage, vocab_size):
    """Three prompts in one call, one asked for no likely tokens, one with rows in the middle of the logits; of those
    with NaN or an infinity all log-probabilities are NaN."""
    rng, generator = random.Random(7), torch.Generator().manual_seed(7)
    logits = torch.stack([logits_of("text", vocab_size, generator) for _ in range(14)])
    logits[12, vocab_size // 2], logits[13, vocab_size // 2] = math.nan, math.inf
    results = []
    for score in (stage.part("scoring").score_prompts, stage.part("kernels.c_sampler").CSampler().score):
        requests = [
            stage.make_request(stage.SamplingParams(prompt_logprobs=k), [rng.randrange(vocab_size) for _ in range(9)])
            for k in (0, min(20, vocab_size), 1)
        ]
        rng.seed(7)
        score(logits, [*zip(requests, (slice(0, 3), slice(4, 12), slice(12, 14)), strict=True)])
        results.append([request.prompt_logprobs for request in requests])
        assert [entries.has_nan() for entries in results[-1]] == [False, False, True]
    for theirs, ours in zip(*results, strict=True):
        assert len(ours) == len(theirs)
    for theirs, ours in zip(results[0][:2], results[1][:2], strict=True):
        assert [*map(list, filter(None, ours))] == [*map(list, filter(None, theirs))]
        assert (ours.ranks == theirs.ranks)[: ours.num_scored].all()
        assert ours.logprobs[: ours.num_scored] == pytest.approx(theirs.logprobs[: ours.num_scored], abs=1e-5)
    assert np.isnan(results[1][2].logprobs[:2]).all()


@pytest.mark.parametrize("stage", FAST[:1], ids=str)
def test_all_rows_go_to_the_kernel_at_once(stage):
    """If there is a kernel; otherwise each row is sampled by itself."""
    sample_rows, logits = stage.part("sampler").sample_rows, random_logits(2)
    requests = [stage.make_request(stage.SamplingParams(temperature=0))] * 2
    assert sample_rows(logits, requests, lambda *given: given) == (logits, requests)
    assert sample_rows(logits, requests, None) == [(int(row.argmax()), None) for row in logits]


@pytest.mark.soak
@pytest.mark.parametrize("part", range(100))
def test_a_million_draws(part):
    for seed in range(100 + 100 * part, 200 + 100 * part):
        check_draws(FAST[0], 100, seed)


@pytest.mark.parametrize("stage", FAST, ids=str)
def test_the_kernel_takes_the_first_of_the_largest(stage):
    for vocab_size in (1, 3, 16, 511, 512, 1025, 50257):
        logits = torch.randn(9, vocab_size)
        logits[1] = 2.5  # all the same
        logits[2, -1] = logits[2].max()
        expected = logits.argmax(-1).tolist()
        logits[3] = -math.inf
        logits[4, vocab_size // 2] = math.inf
        logits[5] = math.nan
        logits[6, -1] = math.nan
        greedy = [stage.make_request(stage.SamplingParams(temperature=0, logprobs=2))] * 9
        tokens = stage.part("kernels.c_sampler").CSampler()(logits, greedy)
        for row, (token, best) in enumerate(zip(tokens, expected, strict=True)):
            if row in (3, 4, 5, 6):
                assert "not finite" in str(token)
            else:
                assert token[0] == best


@pytest.mark.parametrize("stage", FAST[:1], ids=str)
def test_the_kernel_and_the_number_of_threads(stage, any_threads):
    """Rows are divided among threads; the results are the same."""
    logits, kernel = random_logits(40), stage.part("kernels.c_sampler").CSampler()
    params = stage.SamplingParams(temperature=1.3, top_p=0.9, repetition_penalty=1.2, logprobs=4)
    requests = [stage.make_request(params, [5, 6], [7, 7], seed=seed) for seed in range(40)]
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(kernel(logits, requests))
    assert results[0] == results[1] == results[2]
    assert results[0] == [kernel(row[None], [request])[0] for row, request in zip(logits, requests, strict=True)]


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize("stage", FAST[:1], ids=str)
def test_the_kernel_with_narrower_vectors(stage, march, monkeypatch):
    """The same tokens with SSE's vectors and with AVX2's (or NEON's), in place of this CPU's widest."""
    if march == "x86-64-v3" and platform.machine() == "x86_64" and not {"avx2", "fma"} <= cpu_flags():
        pytest.skip("this CPU has no AVX2")
    kernels = kernels_with(stage, march)
    monkeypatch.setattr(stage.part("kernels.c_sampler"), "load_kernel", lambda: kernels)
    for seed in range(12):
        check_draws(stage, 32, seed)


@pytest.mark.covers("sampler.py")
@pytest.mark.parametrize("stage", STAGES[:1], ids=str)
def test_the_edges_of_a_draw(stage):
    """Of equally likely tokens, a tiny top-p keeps the first; a draw of 0 does not give a token that was dropped."""
    sampler, double = stage.part("sampler"), torch.float64
    assert sampler.keep_top_p(torch.ones(4, dtype=double), 1e-17).tolist() == [1, 0, 0, 0]
    assert sampler.draw(torch.tensor([0, 1, 1], dtype=double), 0.0) == 1

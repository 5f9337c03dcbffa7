"""From stage 7 on: whatever is drafted, the output is the same as stage 6's, which drafts nothing."""

import gc
import itertools
import random
import re
import time
import weakref
from types import SimpleNamespace

import pytest
import torch

from stagewise import allowed_token_ids, logit_bias, sampling_params
from stagewise.cli import main
from tests.adapter import STAGES, TINYTALES, random_prompts
from tests.test_serving import ask, serving, stream

pytestmark = pytest.mark.covers("speculator.py", "draft_planner.py", "drafters.py")
NUMBERS = range(7, 9)  # of the stages that this runs on, see conftest.py
SIX = next(stage for stage in STAGES if stage.number == 6)
DRAFT = "tinytales-draft"
HAS_KERNELS = SIX.part("attention").pick_backend("auto", torch.device("cpu"), 64)[0] == "c"


class Guesser:
    """A drafter made from a function of the request and of how many tokens are wanted."""

    draft_cost = 0.0

    def __init__(self, guess):
        self.guess = guess

    def draft(self, counts):
        return {request: self.guess(request, count) for request, count in counts.items() if count}


def replace_drafter(speculator, guess):
    speculator.drafter = Guesser(guess)
    if speculator.planner is not None:
        speculator.planner.drafter = speculator.drafter


def engine_with(stage, checkpoint, guess, num_drafts=4, make="LLM", **options):
    """An engine whose drafter is this function. make: the stage's method that makes the engine."""
    llm = getattr(stage, make)(str(checkpoint), device="cpu", num_drafts=num_drafts, **options)
    replace_drafter(llm.engine.speculator, guess)
    return llm


def told(output):
    """All parts of an output that can be compared, so no times. Without a C compiler torch computes, whose sums depend
    on the number of rows; then there are no log-probabilities either."""
    completions = [
        (c.index, c.text, c.token_ids, c.cumulative_logprob, repr(c.logprobs), c.finish_reason, c.stop_reason)
        for c in output.outputs
    ]
    if HAS_KERNELS:
        return completions, repr(output.prompt_logprobs)
    return [(*c[:3], None, None, *c[5:]) for c in completions], None


def drawn(rng, stage, **more):
    """Parameters of any kind."""
    params = dict(
        temperature=rng.choice([0, 0, 0.7, 1.0]),
        top_k=rng.choice([0, 0, 5]),
        top_p=rng.choice([1.0, 0.9]),
        min_p=rng.choice([0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        presence_penalty=rng.choice([0.0, 0.0, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.5, 0.5]),
        seed=rng.randrange(100),
        max_tokens=rng.choice([1, 2, 7, 24, 60]),
        min_tokens=rng.choice([0, 0, 1]),
        n=rng.choice([1, 1, 1, 3]),
        stop_token_ids=rng.choice([(), (), (5, 17, 60)]),
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice([None, None, 0, 3]),
        prompt_logprobs=rng.choice([None, None, None, 1]),
        logits_processors=[
            *rng.choice([[], [], [logit_bias({3: 2.0, 9: -100.0})]]),
            *rng.choice([[], [], [], [allowed_token_ids(range(0, 211, 2))]]),
        ],
    )
    if params["prompt_logprobs"] is not None and rng.random() < 0.3:
        params |= {"max_tokens": 0, "min_tokens": 0, "n": 1}
    return stage.SamplingParams(**(params | more))


def random_jobs(stage, rng, number=30):
    """Prompts, some of which repeat themselves or begin like another, and parameters."""
    prompts = random_prompts(211, [rng.randint(1, 40) for _ in range(number)], seed=rng.randrange(1000))
    for i in range(0, number, 3):
        prompts[i] = (prompts[i] * 8)[: rng.randint(2, 40)]
    prompts[1] = [*prompts[0][:-1], 7]
    return prompts, [drawn(rng, stage) for _ in range(number)]


def engines_that_guess(stage, checkpoint, draft_checkpoint, rng, **options):
    """With every drafter and any number of guesses, in small pools and small steps."""
    for speculate in ("ngram", str(draft_checkpoint), str(checkpoint)):
        yield stage.LLM(
            checkpoint,
            device="cpu",
            speculate=speculate,
            num_drafts=rng.choice(["auto", 1, 2, 5, 16]),
            max_num_seqs=rng.choice([1, 3, 8]),
            max_num_batched_tokens=rng.choice([9, 33, 512]),
            block_size=rng.choice([1, 4, 16]),
            num_blocks=rng.choice([110, 400]),
            policy=rng.choice(["fcfs", "priority", "shortest"]),
            enable_prefix_caching=rng.random() < 0.7,
            **options,
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.soak) for s in range(2, 40))])
def test_random_requests(stage, small_checkpoint, draft_checkpoint, dtype, seed):
    """Random requests of every kind, in small pools and small steps, with every number of guesses."""
    rng = random.Random(seed)
    prompts, params = random_jobs(SIX, rng)
    expected = list(map(told, SIX.LLM(small_checkpoint, device="cpu", dtype=dtype).generate(prompts, params)))
    again = [in_class_of(stage, p) for p in params]
    for llm in engines_that_guess(stage, small_checkpoint, draft_checkpoint, rng, dtype=dtype):
        assert list(map(told, llm.generate(prompts, again))) == expected
        assert llm.stats.num_accepted_tokens <= llm.stats.num_draft_tokens
        llm.engine.scheduler.check_integrity()
        assert llm.engine.block_manager.num_free == llm.engine.block_manager.num_blocks


def in_class_of(stage, params):
    """The same parameters in the class of another stage."""
    return stage.SamplingParams(**{name: value for name, value in vars(params).items() if not name.startswith("_")})


def answers(stage, checkpoint, prompts, params, **options):
    return [told(output) for output in stage.LLM(str(checkpoint), device="cpu", **options).generate(prompts, params)]


def oracle(expected, prompts):
    """Always guesses right, because it knows the outputs."""
    outputs = {tuple(prompt): completions[0][2] for prompt, (completions, _) in zip(prompts, expected, strict=True)}

    def guess(request, count):
        known = len(request.output_token_ids)
        return outputs[tuple(request.prompt_token_ids)][known : known + count]

    return guess


GUESSES = {
    "wrong": lambda right: lambda request, count: [(t + 1) % 211 for t in right(request, count)],
    "right and then wrong": lambda right: (
        lambda request, count: [(t + (i > 1)) % 211 for i, t in enumerate(right(request, count))]
    ),
    "the same token": lambda _: lambda request, count: [3] * count,
    "too many": lambda right: lambda request, count: [*right(request, 100), 5, 5, 5, 5, 5, 5],
    "no tokens": lambda right: lambda request, count: [*right(request, 1), 211, 10**9, -1],
    "nothing": lambda _: lambda request, count: [],
    "one for some": lambda right: lambda request, count: right(request, count)[: len(request.output_token_ids) % 2],
    "right": lambda right: right,
}


@pytest.mark.parametrize("kind", GUESSES)
def test_any_drafter(stage, small_checkpoint, kind):
    """Right, wrong, constant or no guesses: the same outputs; and right ones save as many steps as they should."""
    prompts = random_prompts(211, [3, 9, 5])
    params = stage.SamplingParams(temperature=1, seed=4, max_tokens=21, ignore_eos=True, logprobs=2)
    expected = answers(stage, small_checkpoint, prompts, params, speculate="off")
    llm = engine_with(stage, small_checkpoint, GUESSES[kind](oracle(expected, prompts)), make="traced")
    assert [told(output) for output in llm.generate(prompts, params)] == expected
    stats, rows = llm.stats, [row for step in llm.trace for row in step.rows]
    assert stats.num_drafts == sum(bool(row.drafts) for row in rows)
    assert all(len(row.drafts) <= 4 for row in rows)  # num_drafts
    assert stats.num_draft_tokens == sum(len(row.drafts) for row in rows)
    assert stats.num_accepted_tokens == sum(row.num_accepted for row in rows) == sum(stats.num_accepted_tokens_per_pos)
    if kind == "right":  # a token by the prompt, then five a step
        assert stats.num_accepted_tokens == stats.num_draft_tokens == 3 * 16
        assert stats.num_accepted_tokens_per_pos == [3 * 4] * 4
        assert stats.num_forwards == 1 + 4
    elif kind == "wrong":
        assert stats.num_accepted_tokens == 0 < stats.num_draft_tokens
        assert stats.num_forwards == 21
    elif kind == "nothing":
        assert stats.num_drafts == 0


def test_no_draft_goes_beyond_the_end(stage, small_checkpoint):
    """None goes beyond `max_tokens`, the context or an end token, and each of these ends an output amid drafts that are
    right."""
    (prompt,) = random_prompts(211, [5])
    how = dict(temperature=1, seed=1, ignore_eos=True)
    free = stage.SamplingParams(**how, max_tokens=30)
    expected = answers(stage, small_checkpoint, [prompt], free, speculate="off")
    tokens = expected[0][0][0][2]
    seen = []

    def guess(request, count):
        known = len(request.output_token_ids)
        seen.append((known, count))
        return tokens[known : known + count]

    stop = next(t for i, t in enumerate(tokens) if i > 6 and t not in tokens[:i])
    for params in (
        stage.SamplingParams(**how, max_tokens=8),
        stage.SamplingParams(**how, max_tokens=30, stop_token_ids=[stop]),
    ):
        llm = engine_with(stage, small_checkpoint, guess, num_drafts=16, make="traced")
        assert [told(o) for o in llm.generate([prompt], params)] == answers(
            stage, small_checkpoint, [prompt], params, speculate="off"
        )
        assert all(known + count < params.max_tokens for known, count in seen)
        assert all(stop not in row.drafts for step in llm.trace for row in step.rows if params.stop_token_ids)
        assert llm.stats.num_accepted_tokens > 3
        seen.clear()


def test_a_stop_text_within_accepted_tokens(stage):
    """The text ends before it, and the tokens after it were never sampled."""
    prompt, params = "Once upon a time", dict(temperature=0, max_tokens=60)
    plain = answers(stage, TINYTALES, [prompt], stage.SamplingParams(**params), speculate="off")
    tokens, text = plain[0][0][0][2], plain[0][0][0][1]
    words = text.split()
    stop = " ".join(words[8:10])
    asked = stage.SamplingParams(**params, stop=[stop])
    expected = answers(stage, TINYTALES, [prompt], asked, speculate="off")
    assert expected[0][0][0][5] == "stop"
    llm = engine_with(
        stage, TINYTALES, lambda r, count: tokens[len(r.output_token_ids) :][:count], num_drafts=16, make="traced"
    )
    events = list(llm.stream([prompt], asked))
    assert max(len(event.token_ids) for event in events) > 1
    assert "".join(event.text for event in events) == expected[0][0][0][1]
    assert [token for event in events for token in event.token_ids] == expected[0][0][0][2]
    assert sum(event["kind"] == "token" for step in llm.trace for event in step.after) == len(expected[0][0][0][2])


def test_no_guess_is_ever_findable(stage, small_checkpoint):
    """Blocks enter the prefix cache when all of their tokens are verified; then a wrong guess's keys are never read: a
    prompt that goes on as was guessed gets what it gets alone."""
    (prompt,) = random_prompts(211, [4])
    params = stage.SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    tokens = answers(stage, small_checkpoint, [prompt], params, speculate="off")[0][0][0][2]
    wrong = [(t + 1) % 211 for t in tokens]

    def right_then_wrong(request, count):
        known = len(request.output_token_ids)
        return [*tokens[known : known + 2], *wrong[known + 2 :]][:count]

    llm = engine_with(stage, small_checkpoint, right_then_wrong, num_drafts=9, block_size=2)
    manager, entered = llm.engine.block_manager, []
    cache = manager.cache_full_blocks

    def watched(sequence, start, end):
        assert start < end <= sequence.num_tokens
        entered.append(end)
        cache(sequence, start, end)

    manager.cache_full_blocks = watched
    llm.generate([prompt], params)
    assert entered
    follow = stage.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
    for known in range(1, 12):  # as was guessed from there on
        asked = prompt + tokens[:known] + wrong[known : known + 5]
        (output,) = llm.generate([asked], follow)
        assert [told(output)] == answers(stage, small_checkpoint, [asked], follow, speculate="off")
        assert output.num_cached_tokens <= len(prompt) + known


def test_shared_blocks_have_no_guesses(stage, small_checkpoint):
    """Completions of one prompt share its last block until one of them writes; guesses go into copies."""
    (prompt,) = random_prompts(211, [6])
    params = stage.SamplingParams(temperature=1, seed=2, n=5, max_tokens=20, ignore_eos=True, logprobs=1)
    expected = answers(stage, small_checkpoint, [prompt], params, speculate="off")
    rng = random.Random(1)
    for size in (4, 16):
        llm = engine_with(
            stage,
            small_checkpoint,
            lambda r, count: [rng.choice([c[2] for c in expected[0][0]])[len(r.output_token_ids)]] * (count > 0),
            block_size=size,
        )
        assert [told(output) for output in llm.generate([prompt], params)] == expected
        assert 0 < llm.stats.num_accepted_tokens < llm.stats.num_draft_tokens


@pytest.mark.parametrize("num_blocks", [7, 14])
def test_in_a_pool_that_is_too_small(stage, small_checkpoint, num_blocks):
    """Guesses take only free blocks, and give them back; preempted requests get the same tokens."""
    prompts = random_prompts(211, [9, 8, 7, 3])
    params = [
        stage.SamplingParams(temperature=t, seed=i, max_tokens=14, ignore_eos=True) for i, t in enumerate([0, 1, 0, 1])
    ]
    expected = answers(stage, small_checkpoint, prompts, params, speculate="off")
    options = dict(num_blocks=num_blocks, block_size=4, watermark=0.0)
    guess = GUESSES["right and then wrong"](oracle(expected, prompts))
    llm = engine_with(stage, small_checkpoint, guess, num_drafts=6, make="stepper", **options)
    for i, (prompt, asked) in enumerate(zip(prompts, params, strict=True)):
        llm.add_request(str(i), prompt, asked)
    done = {}
    while llm.has_unfinished_requests():
        done |= {int(output.request_id): told(output) for output in llm.step() if output.finished}
        llm.engine.scheduler.check_integrity()
        for request in llm.engine.scheduler.running:  # what was guessed has no room any more
            table = llm.engine.block_manager.tables[request]
            assert len(table) == llm.engine.block_manager.num_needed(request.num_computed_tokens)
    assert [done[i] for i in range(4)] == expected
    assert llm.stats.num_preemptions > 0 or num_blocks == 14
    assert llm.stats.num_accepted_tokens > 0


def test_functions_of_the_caller_see_each_output_once(stage, small_checkpoint):
    """A logits processor is asked about outputs that exist, once for each token, in their order."""
    calls = []

    def watch(prompt_token_ids, output_token_ids, logits):
        calls.append(list(output_token_ids))
        return logits

    (prompt,) = random_prompts(211, [5])
    params = dict(temperature=0, max_tokens=17, ignore_eos=True)
    expected = answers(stage, small_checkpoint, [prompt], stage.SamplingParams(**params), speculate="off")
    guess = GUESSES["right and then wrong"](oracle(expected, [prompt]))
    llm = engine_with(stage, small_checkpoint, guess)
    (output,) = llm.generate([prompt], stage.SamplingParams(**params, logits_processors=[watch]))
    tokens = expected[0][0][0][2]
    assert output.outputs[0].token_ids == tokens
    assert calls == [tokens[:i] for i in range(17)]
    assert llm.stats.num_accepted_tokens > 0


def test_a_request_that_fails_behind_right_guesses(stage, small_checkpoint):
    """It ends there with the tokens that it has, as without guesses; the others go on."""

    def fail(prompt_token_ids, output_token_ids, logits):
        if len(output_token_ids) == 6:
            raise ZeroDivisionError("mine")
        return logits

    prompts = random_prompts(211, [5, 4])
    plain = stage.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    params = [stage.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logits_processors=[fail]), plain]
    right = oracle(answers(stage, small_checkpoint, prompts, plain, speculate="off"), prompts)
    expected = answers(stage, small_checkpoint, prompts, params, speculate="off")
    assert len(expected[0][0][0][2]) == 6
    assert expected[0][0][0][5] == "error"
    llm = engine_with(stage, small_checkpoint, right, num_drafts=8)
    assert [told(output) for output in llm.generate(prompts, params)] == expected


@pytest.mark.parametrize("num_drafts", [3, "auto"])
def test_a_drafter_that_fails(stage, small_checkpoint, caplog, num_drafts):
    """It has no more memory, say. Its requests don't need it: they get the same tokens."""

    def fail(request, count):
        raise RuntimeError("no memory")

    prompts = random_prompts(211, [5, 4])
    params = stage.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = answers(stage, small_checkpoint, prompts, params, speculate="off")
    llm = engine_with(stage, small_checkpoint, fail, num_drafts)
    assert [told(output) for output in llm.generate(prompts, params)] == expected
    assert caplog.messages == ["goes on without speculation: RuntimeError: no memory"]
    assert llm.engine.speculator.drafter is None


@pytest.mark.parametrize(
    ("form", "speculate"),
    [({"regex": "[a-z]{3,9} (and [a-z]{2,5} )+end"}, "ngram"), ({"choice": ["one two", "one three"]}, DRAFT)],
)
def test_forms(stage, form, speculate):
    prompts = ["Say one two or one three:", "the words: and so and so and so"]

    def said(llm):
        how = dict(seed=3, max_tokens=40, structured_outputs=form)
        params = [sampling_params(llm, temperature=t, **how) for t in (0, 1.0)]
        return [told(output) for output in llm.generate(prompts, params)]

    expected = said(stage.LLM(str(TINYTALES), device="cpu", speculate="off"))
    assert said(stage.LLM(str(TINYTALES), device="cpu", speculate=speculate, num_drafts=5)) == expected


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_model_as_its_own_drafter(stage, temperature):
    """It draws with the same random number, so it is always right, even at a temperature."""
    prompts = ["Once upon a time", "There was once a shy bear", "A fox"]
    params = stage.SamplingParams(temperature=temperature, seed=1, max_tokens=41, ignore_eos=True, logprobs=1)
    expected = answers(stage, TINYTALES, prompts, params, speculate="off")
    llm = stage.LLM(str(TINYTALES), device="cpu", speculate="tinytales", num_drafts=4)
    assert [told(output) for output in llm.generate(prompts, params)] == expected
    assert llm.stats.num_accepted_tokens == llm.stats.num_draft_tokens == 3 * 32
    assert llm.stats.num_forwards == 1 + 8


def test_the_bundled_draft_model(stage):
    """At most 4 MB, of the same vocabulary, and right more often than not."""
    assert (TINYTALES.parent / DRAFT / "model.safetensors").stat().st_size < 4e6
    prompts = ["Once upon a time", "There was once a shy bear", "In a village by the sea"]
    params = stage.SamplingParams(temperature=0.8, seed=1, max_tokens=120)
    expected = answers(stage, TINYTALES, prompts, params, speculate="off")
    llm = stage.LLM(str(TINYTALES), device="cpu", speculate=DRAFT, num_drafts=4)
    assert [told(output) for output in llm.generate(prompts, params)] == expected
    assert llm.stats.num_accepted_tokens_per_pos[0] > 0.6 * llm.stats.num_drafts


def test_beams_go_without(stage, small_checkpoint):
    prompts = random_prompts(211, [5, 9])
    plain, guessing = (
        stage.LLM(small_checkpoint, device="cpu", speculate=how).beam_search(prompts, 3, 9)
        for how in ("off", small_checkpoint)
    )
    assert list(map(told, plain)) == list(map(told, guessing))


def test_a_stream_that_is_left_and_aborts(stage, small_checkpoint):
    """With a draft model, in the middle of it all: requests that go on get the same tokens, and slots are reused."""
    prompts = random_prompts(211, [5, 9, 3, 7])
    params = stage.SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    expected = answers(stage, small_checkpoint, prompts, params, speculate="off")
    llm = stage.LLM(small_checkpoint, device="cpu", speculate=small_checkpoint, num_drafts=3, max_num_seqs=2)
    for _ in range(3):
        events = llm.stream(prompts, params)
        list(itertools.islice(events, 5))
        events.close()
        assert [told(output) for output in llm.generate(prompts, params)] == expected


# --- How many ---------------------------------------------------------------------------------------------------------


def speculator_with(stage, small_checkpoint, seconds, **options):
    llm = stage.LLM(small_checkpoint, device="cpu", **options)
    llm.engine.speculator.planner.costs.seconds = seconds
    return llm.engine.speculator


def requests_of(stage, number):
    params = stage.SamplingParams(max_tokens=100)
    return [stage.make_request(params, [1, 2, 3], [4, 5]) for _ in range(number)]


FREE, FULL = [0.0] + [1.0] * 64, [0.0, *(float(n) for n in range(1, 65))]  # a step's seconds by its tokens


def test_auto_weighs_what_a_row_costs(stage, small_checkpoint):
    """Where rows are free all guesses pay, where a row costs as much as a step none does; between, the more likely."""
    free = speculator_with(stage, small_checkpoint, FREE).planner
    max_drafts = dict.fromkeys(requests_of(stage, 2), 15)
    assert list(free.best_counts(max_drafts, 2).values()) == [15, 15]
    assert speculator_with(stage, small_checkpoint, FULL).planner.best_counts(max_drafts, 2) == {}
    some = speculator_with(stage, small_checkpoint, [0.0] + [1 + 0.1 * n for n in range(64)])
    good, bad = max_drafts
    some.block_manager.trim = lambda *_: None
    for _ in range(20):
        some.update({good: [1, 2, 3]}, [good] * 4)
        some.update({bad: [1, 2, 3]}, [bad])
    counts = some.planner.best_counts(max_drafts, 2)
    assert counts.get(good, 0) > 4 > counts.get(bad, 0)


def test_auto_decides_as_in_the_chapter(stage, small_checkpoint):
    """Chapter 7's decision by hand: rows cost nothing up to four, a guess 1 ms, and four of five are right."""
    seconds = [0.0, *(max(10.0, 2.5 * rows) for rows in range(1, 65))]
    planner = speculator_with(stage, small_checkpoint, seconds).planner
    planner.drafter = SimpleNamespace(draft_cost=1.0)
    planner.overall.num_accepted, planner.overall.num_tried = 8e6, 1e7
    one, four = (dict.fromkeys(requests_of(stage, number), 8) for number in (1, 4))
    assert list(planner.best_counts(one, 1).values()) == [3]
    assert planner.best_counts(four, 4) == {}


def test_a_busy_moment_does_not_end_the_drafts(stage, small_checkpoint):
    """A time that another program made long is not measured again once nothing is drafted, so it is forgotten."""
    speculator, (request,) = speculator_with(stage, small_checkpoint, FREE), requests_of(stage, 1)
    planner = speculator.planner
    planner.drafter, planner.first_draft_cost = SimpleNamespace(draft_cost=9.0), 0.02
    planner.costs = costs = stage.part("draft_planner").Costs({1: 1.0, 2: 1.0, 8: 1.1, 32: 2.0})
    planner.overall.add(90, 100)
    for _ in range(100):
        costs.add(8, 9.0)
    assert planner.plan({request: 16}, 1) == {request: 0}
    steps = 0
    while not planner.plan({request: 16}, 1)[request]:
        costs.add(1, 2.0)  # the machine is half as fast now
        steps += 1
        assert steps < 2000
    assert steps > 100
    for _ in range(1000):
        costs.forget(1)
    assert costs.measured[1] == pytest.approx(2.0, rel=0.01)
    assert costs.measured[32] == pytest.approx(4.0, rel=0.01)


def test_auto_slows_nobody_down_for_others(stage, small_checkpoint):
    """Eight guesses for the first of six would give the most tokens in a second; but the other five would be slower."""
    costs = [0.0] + [1 + 0.08 * n for n in range(64)]
    rates = [0.95] + [0.05] * 5

    def total(counts):
        pairs = zip(max_drafts, rates, strict=True)
        tokens = sum(sum(rate**k for k in range(counts.get(r, 0) + 1)) for r, rate in pairs)
        return tokens / costs[6 + sum(counts.values())]

    planner = speculator_with(stage, small_checkpoint, costs).planner
    max_drafts = dict.fromkeys(requests_of(stage, 6), 16)
    for request, rate in zip(max_drafts, rates, strict=True):
        acceptance = planner.by_request[request] = type(planner.overall)(10**6)
        acceptance.add(10**6 * rate, 10**6)
    greedy = {next(iter(max_drafts)): 8}
    counts = planner.best_counts(max_drafts, 6)
    assert total(greedy) > 1.1 * total(counts)
    assert sum(counts.values()) <= 3


def test_alike_requests_have_alike_guesses(stage, small_checkpoint):
    planner = speculator_with(stage, small_checkpoint, [0.0] + [1 + 0.05 * n for n in range(64)]).planner
    max_drafts = dict.fromkeys(requests_of(stage, 4), 16)
    planner.overall.add(90, 100)
    few, *_, many = sorted(planner.best_counts(max_drafts, 4).values())
    assert 2 <= few <= many <= few + 1


def test_auto_tries_what_it_does_not_know(stage, small_checkpoint):
    """Eight requests, and guesses that pay if they are good: it finds out, with few, whether they are."""
    costs = [0.0] + [1.0 + 0.11 * n for n in range(64)]
    prompts = random_prompts(211, [5] * 8)
    params = stage.SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    known = {
        tuple(output.prompt_token_ids): output.outputs[0].token_ids
        for output in stage.LLM(small_checkpoint, device="cpu", speculate="off").generate(prompts, params)
    }

    def right(request, count):
        return known[tuple(request.prompt_token_ids)][len(request.output_token_ids) :][:count]

    for guess, least, most in ((right, 200, 344), (lambda r, count: [210] * count, 4, 40)):
        llm = engine_with(stage, small_checkpoint, guess, num_drafts="auto")
        planner = llm.engine.speculator.planner
        planner.costs.seconds, planner.costs.add = costs, lambda *_: None
        assert planner.best_counts(dict.fromkeys(requests_of(stage, 8), 16), 8) == {}
        llm.generate(prompts, params)
        assert least <= llm.stats.num_draft_tokens <= most


def test_auto_looks_first_only_where_looking_is_free(stage, small_checkpoint):
    """And where guesses could pay."""
    planner, looked, (request,) = speculator_with(stage, small_checkpoint, FREE).planner, [], requests_of(stage, 1)
    planner.drafter = SimpleNamespace(draft_cost=0.1, draft=lambda max_drafts: looked.append(1) or {})
    planner.plan({request: 16}, 1)
    assert looked == []
    planner.drafter.draft_cost = 0.0
    planner.plan({request: 16}, 1)
    assert looked == [1]
    planner.costs.seconds = FULL
    planner.plan({request: 16}, 1)
    assert looked == [1]


def test_auto_knows_who_has_guesses(stage, small_checkpoint, monkeypatch):
    """Lookup finds something for one of four: it gets what pays for it alone, since the others only wait."""
    speculator = speculator_with(stage, small_checkpoint, [0.0] + [1 + 0.05 * n for n in range(64)])
    requests = requests_of(stage, 4)
    speculator.planner.overall.add(90, 100)
    shared = speculator.planner.best_counts(dict.fromkeys(requests, 16), 4)
    for request in requests:
        request.output_token_ids.append(5)
    replace_drafter(speculator, lambda request, count: [7] * count if request is requests[2] else [])
    monkeypatch.setattr(speculator.block_manager, "extend", lambda request, number, reserve: number)
    drafts = speculator.draft([SimpleNamespace(request=request, num_tokens=1, ready=True) for request in requests])
    assert list(drafts) == [requests[2]]
    assert 1 <= len(drafts[requests[2]]) < min(shared.values())


def test_what_was_tried_in_vain_is_tried_again(stage, small_checkpoint):
    """When guesses have been wrong for long, none are made; after a while there is another try, but not many."""
    prompts = random_prompts(211, [5])
    params = stage.SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    wrong = engine_with(stage, small_checkpoint, lambda r, count: [210] * count, num_drafts="auto")
    costs = wrong.engine.speculator.planner.costs
    costs.seconds, costs.add = [0.0] + [1 + 0.2 * n for n in range(64)], lambda *_: None
    for _ in range(6):
        wrong.generate(prompts, params)
    assert 0 < wrong.stats.num_drafts < 60
    before = wrong.stats.num_drafts
    for _ in range(6):
        wrong.generate(prompts, params)
    assert before < wrong.stats.num_drafts


def test_a_clock_that_stands_still(stage, small_checkpoint, monkeypatch):
    """As in a user's test that freezes time."""
    params = stage.SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    expected = stage.LLM(small_checkpoint, device="cpu").generate([[1, 2, 1, 2]], params)[0].outputs
    monkeypatch.setattr(time, "perf_counter", lambda: 1.0)
    assert stage.LLM(small_checkpoint, device="cpu").generate([[1, 2, 1, 2]], params)[0].outputs == expected


def test_steps_are_timed_by_their_tokens(stage, small_checkpoint):
    costs = stage.LLM(small_checkpoint, device="cpu").engine.speculator.planner.costs
    sizes, seconds = sorted(costs.measured), costs.seconds
    assert sizes[0] == 1
    assert len(seconds) == sizes[-1] + 1
    assert all(larger <= 2 * size for size, larger in itertools.pairwise(sizes))
    assert min(seconds[1:]) > 0
    assert stage.LLM(small_checkpoint, device="cpu", speculate="off").engine.speculator.planner is None
    interpolate = stage.part("draft_planner").interpolate
    assert interpolate({1: 1.0, 2: 2.0, 4: 3.0})[1:] == [1.0, 2.0, 2.5, 3.0]
    costs = stage.part("draft_planner").Costs({1: 1.0, 2: 1.0, 4: 1.0})
    for _ in range(80):
        costs.add(3, 1.5)  # steps of three or four take longer now
    assert costs.seconds[1] == costs.seconds[2] == 1.0
    assert costs.seconds[4] == pytest.approx(1.75, abs=0.3)


def test_no_cost_contradicts_another(stage):
    """Two tokens were timed in a slow moment. Steps of four are faster than that, so two can't take that long; and four
    can't become cheaper and cheaper, which had made all drafts look free."""
    costs = stage.part("draft_planner").Costs({1: 12.0, 2: 19.0, 4: 17.0, 8: 18.0, 16: 30.0})
    assert list(costs.measured.values()) == [12, 19, 19, 19, 30]
    for _ in range(300):
        costs.add(4, 13.0)
    assert costs.seconds[1:5] == pytest.approx([12.0, 13.0, 13.0, 13.0], rel=0.01)
    assert costs.seconds[8] == 19
    for _ in range(300):
        costs.add(4, 25.0)
    assert costs.seconds[4] == costs.seconds[8] == pytest.approx(25.0, rel=0.01)
    assert costs.seconds[2] < 14
    assert costs.seconds[16] == 30
    for _ in range(300):
        costs.add(12, 20.0)
    assert costs.seconds[12] == pytest.approx(20.0, rel=0.01)
    assert costs.seconds == sorted(costs.seconds)


def test_no_step_with_drafts_is_larger_than_those_that_were_timed(stage, small_checkpoint):
    """Beyond, the costs were guessed, and never corrected: a slow moment while 24 tokens were timed made larger steps
    look free, and 32 requests ran an eighth slower than without drafts."""
    planner = speculator_with(stage, small_checkpoint, FREE).planner
    planner.overall.add(99, 100)
    assert sum(planner.best_counts(dict.fromkeys(requests_of(stage, 20), 16), 20).values()) == 12
    assert not any(planner.plan(dict.fromkeys(requests_of(stage, 32), 16), 32).values())


def test_the_draft_models_limits(stage, small_checkpoint, draft_checkpoint):
    """Drafts end with its context of 40 tokens. Its steps are as large as the engine's, so prompts may take two."""
    options = dict(speculate=draft_checkpoint, max_num_batched_tokens=60)
    drafter = stage.LLM(small_checkpoint, device="cpu", **options).engine.speculator.drafter
    params = stage.SamplingParams(max_tokens=100)
    requests = [stage.make_request(params, [1] * length, []) for length in (39, 40, 41)]
    for numbers in ([2, 0, 0], [2, 1, 0]):
        drafts = drafter.draft(dict.fromkeys(requests, 9))
        assert [len(drafts.get(request, [])) for request in requests] == numbers


def test_the_draft_models_clock(stage, small_checkpoint, monkeypatch):
    """Its cost follows the steps whose requests have at most two new tokens each, not those that read a prompt."""
    drafter = stage.LLM(small_checkpoint, device="cpu", speculate=small_checkpoint).engine.speculator.drafter
    part, clock, step = stage.part("drafters"), [100.0], [2.0]

    def next_tokens(new, _):
        clock[0] += step[0]
        return dict.fromkeys(new, 7)

    monkeypatch.setattr(part, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(drafter, "_next", next_tokens)
    first, second, third = requests_of(stage, 3)  # of five tokens each
    for counts, seen, cost in (
        ({first: 1, second: 1, third: 1}, 2, 1.0),
        ({first: 1, second: 1, third: 1}, 3, 1.1),
        ({first: 3, second: 2, third: 0}, 1, 1.19),
    ):
        drafter.draft_cost = 1.0
        for number, request in enumerate(counts):
            slot = drafter._slots[request] = part.DraftSlot(number)
            slot.tokens = request.token_ids[:seen]
        assert drafter.draft(counts) == {request: [7] * count for request, count in counts.items() if count}
        assert drafter.draft_cost == pytest.approx(cost)
    step[0], drafter.draft_cost, drafter._slots[first].tokens = 500.0, 1.0, first.token_ids[:3]
    drafter.draft({first: 1})
    assert drafter.draft_cost == pytest.approx(1.1)  # one slow step says little


@pytest.mark.covers("runner.py")
@pytest.mark.parametrize(("device", "waiting", "latest"), [("cpu", 0, (3, 7)), ("cuda", 5, (0, 0))])
def test_the_runners_clock(stage, small_checkpoint, monkeypatch, device, waiting, latest):
    """The better of two times, after a step that sets things up. CUDA is waited for, but not in every forward pass."""
    runner = stage.LLM(small_checkpoint, device="cpu", speculate="off", num_blocks=8).engine.runner
    clock, seconds, tried = [100], iter([50, 3, 2, 6, 1, 4, 5, 7]), []

    def advance(seconds):
        clock[0] += seconds

    monkeypatch.setattr(stage.part("runner"), "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: advance(waiting))
    monkeypatch.setattr(runner, "try_step", lambda size, _: tried.append(size) or advance(next(seconds)))
    monkeypatch.setattr(runner, "model", lambda *_: advance(next(seconds)))
    runner.device = torch.device(device)
    assert runner.time_steps((1, 2, 4)) == {1: 1 + waiting, 2: 2 + waiting, 4: 5 + waiting}
    assert tried == [4, 1, 2, 4, 1, 2, 4]
    assert runner.last_step == (0, 0)
    runner.forward(SimpleNamespace(num_tokens=3, to=lambda _: None))
    assert runner.last_step == latest


# --- Drafters ---------------------------------------------------------------------------------------------------------


def looked_up(stage, prompt, output, count):
    request = stage.make_request(stage.SamplingParams(max_tokens=100), prompt, output)
    return stage.part("drafters").PromptLookup().draft({request: count}).get(request)


@pytest.mark.parametrize(
    ("prompt", "output", "count", "found"),
    [
        pytest.param([1, 2, 3, 4, 5, 6, 1, 2], [3], 3, [4, 5, 6], id="what followed before"),
        pytest.param([1, 2, 3], [4], 3, None, id="nothing to find"),
        pytest.param([7, 1, 2, 8, 9, 1, 2, 5, 5], [1, 2], 2, [5, 5], id="the latest"),
        pytest.param([4, 7, 1, 2, 8, 9, 1, 2, 5, 4, 7], [1, 2], 1, [8], id="the longest"),
        pytest.param([1, 2, 3, 4, 7, 8, 2, 3, 4, 6, 1, 2, 3], [4], 1, [7], id="four are better than three"),
        pytest.param([0, 1, 2, 3, 4, 7, 5, 1, 2, 3, 4, 8, 0, 1, 2, 3], [4], 1, [8], id="five are not looked for"),
        pytest.param([4, 1], [4], 1, None, id="one token is no match"),
        pytest.param([1], [1], 1, None, id="two tokens"),
        pytest.param([1], [], 1, None, id="one token"),
        pytest.param([70_000, 70_001, 5, 70_000], [70_001], 1, [5], id="tokens of more than 16 bits"),
        pytest.param([26553, 48707, 5, 20772, 29272], [], 1, None, id="the same checksum"),
        pytest.param([0, 1, 5, 2**61 - 1, 1], [], 1, None, id="the same hash"),
        pytest.param([0, 1, 5, 2**16, 1], [], 1, None, id="the same lowest bits"),
        pytest.param([3], [3, 3], 4, [3, 3, 3, 3], id="past the end, as if the text came again"),
        pytest.param([1, 2, 1], [2], 5, [1, 2, 1, 2, 1], id="and again"),
    ],
)
def test_prompt_lookup(stage, prompt, output, count, found):
    assert looked_up(stage, prompt, output, count) == found


def test_prompt_lookup_goes_on_where_it_was(stage):
    """An index that grows with the output says what one from scratch does."""
    rng, lookup = random.Random(0), stage.part("drafters").PromptLookup()
    request = stage.make_request(stage.SamplingParams(max_tokens=1000), [rng.randrange(4) for _ in range(9)], [])
    for _ in range(200):
        request.output_token_ids += [rng.randrange(4) for _ in range(rng.randint(1, 3))]
        fresh = looked_up(stage, request.prompt_token_ids, request.output_token_ids, 5)
        assert lookup.draft({request: 5}).get(request) == fresh


@pytest.mark.parametrize(
    ("speculate", "device", "kind"),
    [("auto", "cpu", "PromptLookup"), ("auto", "cuda", "NoneType"), ("off", "cpu", "NoneType")]
    + [("ngram", device, "PromptLookup") for device in ("cpu", "cuda")],
)
def test_which_drafter_is_picked(stage, speculate, device, kind):
    pick = stage.part("drafters").pick_drafter
    config, runner = SimpleNamespace(speculate=speculate), SimpleNamespace(device=torch.device(device))
    assert type(pick(config, runner, None, 0)).__name__ == kind


def test_drafters_let_go_of_requests(stage, small_checkpoint):
    for speculate in ("ngram", small_checkpoint):
        llm = stage.stepper(small_checkpoint, speculate=speculate, num_drafts=2)
        llm.add_request("a", [1, 2, 3, 1, 2], stage.SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
        weak = weakref.ref(llm.unfinished["a"][0])
        while llm.has_unfinished_requests():
            llm.step()
        gc.collect()
        assert weak() is None


# --- Options ----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("config.py", "drafters.py")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_drafts": 0}, "num_drafts must be a whole number from 1 to 16, got 0"),
        ({"num_drafts": 17}, "num_drafts must be a whole number from 1 to 16, got 17"),
        ({"num_drafts": "many"}, "num_drafts must be auto, or a whole number from 1 to 16, got 'many'"),
        ({"speculate": "no/such"}, "speculate: model 'no/such': there is no directory no/such"),
        ({"speculate": DRAFT}, f"speculate: the vocabulary of '{DRAFT}' has 50257 tokens, that of the model 211"),
    ],
)
def test_wrong_options(stage, small_checkpoint, options, message):
    with pytest.raises(ValueError, match=message):
        stage.LLM(small_checkpoint, device="cpu", **options)


def test_dtypes_of_the_drafter(stage, small_checkpoint):
    llm = stage.LLM(small_checkpoint, device="cpu", dtype="bfloat16", speculate=small_checkpoint)
    assert llm.engine.speculator.drafter.runner.dtype == torch.bfloat16


# --- Seen -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speculate", ["tinytales-draft", "off"])
def test_the_closing_line(stage, capsys, speculate):
    flags = ["--prompts", "Once upon a time", "--speculate", speculate, "--max-tokens", "20"]
    flags += [] if speculate == "off" else ["--num-drafts", "3"]
    assert main(stage, [*flags, "--temperature", "0", "--stats"], "stage07") == 0
    said = capsys.readouterr().err
    if speculate == "off":
        assert "drafted:              nothing" in said
    else:
        drafted, accepted = re.search(r"drafted: +(\d+) tokens, (\d+) accepted \(\d+%\)", said).groups()
        assert int(drafted) > int(accepted) > 3
        assert re.search(r"tokens a step: +\d\.\d where there were drafts \(\d+ times\)", said)


def test_the_servers_metrics(stage):
    with serving(stage.number, "tinytales", speculate=DRAFT, num_drafts=3) as app:
        chunks = stream(app, prompt="Once upon a time", max_tokens=30, temperature=0)
        said = ask(app, "/metrics").text
    assert len(chunks) < 25  # an event may have several tokens
    numbers = {name: float(value) for name, value in re.findall(r"^vllm:spec_decode_(\S+?) (\S+)$", said, re.MULTILINE)}
    model = 'model_name="tales"'
    drafts, drafted, accepted = (
        numbers[f"{name}_total{{{model}}}"] for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    )
    assert drafted >= 3 * (drafts - 1) > 0
    places = [numbers[f'num_accepted_tokens_per_pos_total{{{model},position="{i}"}}'] for i in range(3)]
    assert places == sorted(places, reverse=True)
    assert sum(places) == accepted > 0


def test_a_request_without_a_slot_gets_no_drafts(stage):
    """Where memory holds one slot of the draft model, one request has drafts, and the others run as without."""
    prompts = ["Once upon a time", "There was once a shy bear", "One day"]
    params = stage.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = [output.outputs[0].token_ids for output in stage.engine().generate(prompts, params)]
    llm = stage.LLM(device="cpu", speculate="tinytales-draft", num_drafts=2, max_num_seqs=3)
    drafter, drafted = llm.engine.speculator.drafter, []
    drafter._numbers = range(1)
    draft = drafter.draft
    drafter.draft = lambda counts: drafted.append(draft(counts)) or drafted[-1]
    assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == expected
    assert max(len(drafts) for drafts in drafted) == 1


def test_a_guess_that_is_not_finite_ends_no_request(stage, small_checkpoint):
    """From position 20 on nothing is finite. A request that is guessed to get there ends where it would anyway."""
    (prompt,), params = random_prompts(211, [19]), stage.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    ends = []
    for num_guesses in (0, 4):
        llm = engine_with(stage, small_checkpoint, lambda request, count, n=num_guesses: [7] * min(n, count))
        llm.engine.runner.model.wpe.weight[20:] = float("nan")
        (output,) = llm.generate([prompt], params)
        ends.append((output.outputs[0].finish_reason, output.outputs[0].token_ids))
    assert ends[0] == ends[1]
    assert (ends[0][0], len(ends[0][1])) == ("error", 2)


def test_a_probe_stays_within_the_timed_steps(stage):
    """A step with guesses has 32 tokens at most, and only what was timed is learned."""
    part = stage.part("draft_planner")
    request = stage.make_request(stage.SamplingParams())
    seconds = dict.fromkeys(part.TIMED_SIZES, 1.0)
    planner = part.DraftPlanner(Guesser(None), SimpleNamespace(time_steps=lambda _: seconds))
    room = [sum(planner.probe({request: 5}, num_tokens).values()) for num_tokens in (8, 30, 31, 32, 40)]
    assert room == [2, 2, 1, 0, 0]


def test_guesses_ask_for_no_log_probabilities(stage):
    request = stage.make_request(stage.SamplingParams(logprobs=5, temperature=0.5))
    guessed = request.guessed([7])
    assert (guessed.params.logprobs, guessed.params.temperature, guessed.output_token_ids) == (None, 0.5, [7])
    assert request.params.logprobs == 5


def test_a_draft_model_without_room_for_a_sequence_is_refused(stage, small_checkpoint, monkeypatch):
    runner = stage.part("drafters").Runner
    monkeypatch.setattr(runner, "_pick_num_blocks", lambda *_: 1)
    with pytest.raises(ValueError, match="speculate: there is no memory for the cache of one sequence of"):
        stage.LLM(small_checkpoint, device="cpu", speculate=str(small_checkpoint), num_blocks=8)


@pytest.mark.parametrize("touched", [0, 100_000])
def test_a_draft_models_cache_leaves_the_large_models_memory(stage, small_checkpoint, monkeypatch, touched):
    """What the large model's cache has not touched yet counts as free; once, both got the same bytes."""
    part, seen = stage.part("kv_cache"), []
    monkeypatch.setattr(stage.part("drafters"), "PREFAULT", touched)

    def free(device):  # for the large model's cache twice: how large it may be, and whether there is so much
        seen.append(1)
        return 10_000_000 - (4 * touched if len(seen) > 2 else 0)

    monkeypatch.setattr(part, "free_memory", free)
    engine = stage.LLM(small_checkpoint, device="cpu", speculate=str(small_checkpoint), max_num_seqs=10_000).engine
    own, block = engine.runner.kv_cache_bytes, engine.runner.kv_cache_bytes // engine.runner.num_blocks
    assert own == 5_000_000 // block * block
    assert engine.speculator.drafter.runner.kv_cache_bytes == (10_000_000 - own) // 2 // block * block

"""4.3 Chunked prefill: plans worked out by hand, against the engine, and token by token; and the gap."""

import random

import pytest

from exercises.tiny import tiny_engine
from tools.engines import STAGES, traced


@pytest.mark.parametrize(("prompt", "decoding", "budget", "expected"), [
    pytest.param(9, 0, 6, [6, 3], id="the last chunk is what is left, not a whole or an even one"),
    pytest.param(9, 2, 6, [4, 4, 1], id="each decoding request takes a token of the budget"),
    pytest.param(8, 2, 6, [4, 4], id="a prompt that ends exactly with a chunk needs no empty step"),
    pytest.param(3, 2, 6, [3], id="a short prompt takes one step"),
    pytest.param(3, 5, 6, [1, 1, 1], id="one token of the budget is enough"),
])  # fmt: skip
def test_plan(work, prompt, decoding, budget, expected):
    assert work.plan(prompt, decoding, budget) == expected


@pytest.mark.parametrize("decoding", [6, 7])
def test_no_room(work, decoding):
    """A budget of 6 that leaves nothing for the prompt raises ValueError: it would wait forever"""
    with pytest.raises(ValueError):
        work.plan(5, decoding, 6)


def seconds(tokens):
    return 0.010 + 0.001 * tokens


@pytest.mark.parametrize(("prompt", "decoding", "chunked", "tokens"), [
    pytest.param(9, 0, True, 6, id="the longest step, not the sum of all or the last"),
    pytest.param(9, 2, True, 6, id="a step computes the chunk and a token for each decoding request"),
    pytest.param(2, 2, True, 4, id="a short prompt takes as long as its tokens need: the budget is only a limit"),
    pytest.param(9, 2, False, 11, id="without chunks the whole prompt is one step, whatever the budget"),
    pytest.param(9, 7, False, 16, id="without chunks it may be that the decoding requests fill the budget"),
    pytest.param(2, 2, False, 4, id="without chunks a short prompt takes as long as its tokens need"),
])  # fmt: skip
def test_longest_gap(work, prompt, decoding, chunked, tokens):
    assert work.longest_gap(prompt, decoding, 6, seconds, chunked) == pytest.approx(seconds(tokens))


def test_the_engine_takes_the_same_chunks(work):
    """Stage 4, with a prompt of 50 that arrives while three decode, 16 tokens a step"""
    stage = STAGES[3]
    llm = traced(tiny_engine(stage, n_positions=128, make="stepper", max_num_seqs=4, max_num_batched_tokens=16))
    params = stage.SamplingParams(max_tokens=40, ignore_eos=True)
    for name in ("a", "b", "c"):
        llm.add_request(name, [1, 2], params)
    llm.step()
    llm.add_request("long", [3] * 50, params)
    for _ in range(6):
        llm.step()
    rows = [row for step in llm.trace for row in step.rows]
    chunks = [row.num_tokens for row in rows if row.request_id == "long" and row.phase == "prefill"]
    assert work.plan(50, 3, 16) == chunks


def test_any_prompt(work):
    """Tokens put into steps one at a time, the decodes first"""
    for seed in range(200):
        choose = random.Random(seed)
        prompt, decoding = choose.randint(1, 3 + seed // 10), choose.randint(0, 5)
        budget = decoding + choose.randint(1, 6)
        steps = [["other"] * decoding]
        for _ in range(prompt):
            if len(steps[-1]) == budget:
                steps.append(["other"] * decoding)
            steps[-1].append("prompt")
        assert work.plan(prompt, decoding, budget) == [step.count("prompt") for step in steps], (
            f"plan{prompt, decoding, budget}"
        )
        case = f"longest_gap({prompt}, {decoding}, {budget}, seconds, True)"
        assert work.longest_gap(prompt, decoding, budget, seconds, True) == pytest.approx(
            seconds(max(map(len, steps)))
        ), case

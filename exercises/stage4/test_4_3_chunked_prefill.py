"""4.3 Chunked prefill: plans and gaps by hand, and prompts that are put into steps token by token."""

import random

import pytest


@pytest.mark.parametrize(("prompt", "decoding", "budget", "expected"), [
    pytest.param(7, 0, 4, [4, 3], id="no step has more than the budget, and the last chunk is what is left"),
    pytest.param(9, 0, 4, [4, 4, 1], id="the prompt gets everything that is left in a step, not an equal share"),
    pytest.param(8, 0, 4, [4, 4], id="a prompt that ends exactly with a chunk has no empty step after it"),
    pytest.param(9, 2, 6, [4, 4, 1], id="each decoding request takes a token of the budget"),
    pytest.param(2, 5, 6, [1, 1], id="one token is left for the prompt"),
])  # fmt: skip
def test_plan(work, prompt, decoding, budget, expected):
    assert work.plan(prompt, decoding, budget) == expected


@pytest.mark.parametrize("decoding", [6, 7])
def test_no_room(work, decoding):
    """If nothing is left for the prompt, plan raises ValueError."""
    with pytest.raises(ValueError):
        work.plan(5, decoding, 6)


@pytest.mark.parametrize(("prompt", "decoding", "budget", "chunked", "expected"), [
    pytest.param(9, 0, 6, True, 106, id="the longest step counts, not the sum, and not the last one"),
    pytest.param(9, 2, 6, True, 106, id="a step computes the chunk and one token for every decoding request"),
    pytest.param(2, 2, 6, True, 104, id="a step takes as long as its tokens, not as long as the budget"),
    pytest.param(9, 2, 6, False, 111, id="without chunks the whole prompt is one step, together with the decoding requests"),
    pytest.param(2, 2, 6, False, 104, id="without chunks a step takes as long as its tokens, not as long as the budget"),
    pytest.param(9, 7, 6, False, 116, id="without chunks the budget does not matter"),
])  # fmt: skip
def test_gap(work, prompt, decoding, budget, chunked, expected):
    """A step takes 100 seconds, and one second for each token."""
    assert work.longest_gap(prompt, decoding, budget, lambda n: 100 + n, chunked) == pytest.approx(expected)


def test_any_prompt(work):
    """Random prompts: the same as putting one token after another into the steps."""
    for seed in range(200):
        choose = random.Random(seed)
        prompt, decoding = choose.randint(1, 2 + seed), choose.randint(0, 1 + seed // 20)
        budget = decoding + choose.randint(1, 2 + seed // 5)
        steps = [decoding]
        for _ in range(prompt):
            if steps[-1] == budget:
                steps.append(decoding)
            steps[-1] += 1
        case = f"prompt {prompt}, {decoding} decode, {budget} tokens a step"
        assert work.plan(prompt, decoding, budget) == [step - decoding for step in steps], case
        assert work.longest_gap(prompt, decoding, budget, float, True) == max(steps), f"the longest gap, {case}"

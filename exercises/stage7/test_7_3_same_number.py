"""7.3 The same random number: guesses by position, and how often two draws agree."""

import itertools
import random

import pytest

# --- Guesses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("u", "expected"), [(0.0, 0), (0.125, 0), (0.25, 2), (0.5, 2), (0.75, 3)])
def test_a_draw(work, u, expected):
    """A draw takes the first token, in the order of ids, at which the sum including it is greater than the number u."""
    got = work.guess(lambda token_ids: [0.25, 0.0, 0.5, 0.25], lambda seed, position: u, 0, [1], [], 1)
    assert got == [expected], "drawn from 0.25, 0, 0.5, 0.25"


@pytest.mark.parametrize(("seed", "prompt", "output", "expected"), [
    pytest.param(0, [9], [], [0, 1, 2], id="the output's first token has position 0, the next guess the next one"),
    pytest.param(0, [9], [1, 2, 3], [3, 4, 5], id="a guess's position is the number of output tokens before it"),
    pytest.param(0, [9, 9], [1], [1, 2, 3], id="the prompt's tokens have no position: they were not drawn"),
    pytest.param(2, [9], [1], [3, 4, 5], id="the number is that of the seed"),
])  # fmt: skip
def test_positions(work, seed, prompt, output, expected):
    """Of eight equally likely tokens the one that is drawn is its position (plus the seed)."""
    uniform = lambda seed, position: (seed + position) % 8 / 8  # noqa: E731
    assert work.guess(lambda token_ids: [1 / 8] * 8, uniform, seed, list(prompt), list(output), 3) == expected


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_draft_model(work, count):
    """The draft model is asked once for each guess, about the prompt, the output and the guesses before it."""
    asked = []

    def distribution(token_ids):
        asked.append(list(token_ids))
        return [1 / 8] * 8

    guesses = work.guess(distribution, lambda seed, position: position / 8, 5, [7, 6], [0, 0], count)
    assert guesses == [2, 3, 4][:count]
    assert asked == [[7, 6, 0, 0, *guesses[:i]] for i in range(count)]


def drawn(probabilities, u):
    return next(token for token, total in enumerate(itertools.accumulate(probabilities)) if total > u)


def uniform(seed, position):
    return random.Random(1000 * seed + position).randrange(32) / 32


def distribution(token_ids):
    at = sum(token_ids) % 4
    return [(0.5, 0.25, 0.0, 0.25)[(token - at) % 4] for token in range(4)]


def test_any_guesses(work):
    """Random sequences; each guess is drawn with the number of its seed and position."""
    for i in range(200):
        choose = random.Random(i)
        prompt, output = (choose.choices(range(4), k=choose.randint(0, 1 + i // 50)) for _ in range(2))
        seed, count, expected = choose.randint(0, 9), choose.randint(0, 1 + i // 40), []
        for position in range(len(output), len(output) + count):
            expected.append(drawn(distribution(prompt + output + expected), uniform(seed, position)))
        got = work.guess(distribution, uniform, seed, list(prompt), list(output), count)
        assert got == expected, f"guess(distribution, uniform, {seed}, {prompt}, {output}, {count})"


# --- How often they agree ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "q", "shared", "independent"), [
    pytest.param([0.5, 0.3, 0.2], [0.6, 0.3, 0.1], 0.8, 0.41, id="the picture"),
    pytest.param([0.125, 0.5, 0.375], [0.125, 0.5, 0.375], 1, 13 / 32, id="equal distributions always agree with the same number, not with two"),
    pytest.param([0.25, 0.75], [0.75, 0.25], 0.5, 0.375, id="a token's two intervals overlap in part"),
    pytest.param([0.25, 0.5, 0.25], [0.5, 0.25, 0.25], 0.75, 0.3125, id="tokens are on the line in the order of their ids"),
    pytest.param([0.5, 0.25, 0.25, 0], [0, 0.25, 0.5, 0.25], 0, 0.1875, id="intervals that do not meet overlap by 0, not by less"),
])  # fmt: skip
def test_agreement(work, p, q, shared, independent):
    assert work.shared(list(p), list(q)) == pytest.approx(shared), "shared: both draw with the same number"
    assert work.independent(list(p), list(q)) == pytest.approx(independent), "independent: each has a separate number"


def test_any_distributions(work):
    """Random multiples of 1/16: the same as counting the draws of 16 numbers, or of 16 × 16."""
    numbers = [i / 16 for i in range(16)]
    for seed in range(200):
        choose = random.Random(seed)
        cuts = [sorted(choose.choices(range(17), k=1 + seed // 60)) for _ in range(2)]
        p, q = ([(b - a) / 16 for a, b in itertools.pairwise([0, *some, 16])] for some in cuts)
        shared = sum(drawn(p, u) == drawn(q, u) for u in numbers) / 16
        assert work.shared(p, q) == pytest.approx(shared), f"shared({p}, {q})"
        independent = sum(drawn(p, u) == drawn(q, v) for u in numbers for v in numbers) / 256
        assert work.independent(p, q) == pytest.approx(independent), f"independent({p}, {q})"


def test_loses(work):
    """loses() gives two distributions over three tokens that agree less often with the same number, by 0.05."""
    p, q = work.loses()
    assert [len(p), len(q), sum(p), sum(q)] == pytest.approx([3, 3, 1, 1]), f"lengths and sums of {p}, {q}"
    assert min(p + q) >= 0, f"{p}, {q}"
    less = work.independent(p, q) - work.shared(p, q)
    assert less >= 0.05, "what if the token that is likely in both began, in one of them, where it ends in the other?"

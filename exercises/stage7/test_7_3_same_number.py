"""Guesses by position, the sequences that the draft model was asked about, and the overlap of two lines."""

import itertools
import random

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require


def uniform(seed, position):
    """A number for each seed and position, in steps of 1/32."""
    return random.Random(1000 * seed + position).randrange(32) / 32


class Draft:
    """Probabilities of four tokens, from the sum of all tokens before. Records what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, token_ids):
        self.asked.append(list(token_ids))
        return follows(token_ids)


def follows(token_ids):
    at = sum(token_ids) % 4
    return [(0.5, 0.25, 0.0, 0.25)[(token - at) % 4] for token in range(4)]


def drawn(probabilities, u):
    return next(token for token, total in enumerate(itertools.accumulate(probabilities)) if total > u)


def slowly(
    seed,
    prompt,
    output,
    count,
    pick=drawn,
    position=lambda prompt, output, i: len(output) + i,
    before=lambda prompt, output, guesses: prompt + output + guesses,
):
    """The guesses; or those of a mistake."""
    guesses = []
    for i in range(count):
        u = uniform(seed, position(prompt, output, i))
        guesses.append(pick(follows(before(prompt, output, guesses)), u))
    return guesses


def by_rank(probabilities, u):
    order = sorted(range(4), key=lambda token: -probabilities[token])
    return order[drawn([probabilities[token] for token in order], u)]


def mistakes(seed, prompt, output, count):
    """Message -> the guesses of this mistake, where they differ."""
    at = lambda position: slowly(seed, prompt, output, count, position=position)  # noqa: E731
    behind = lambda before: slowly(seed, prompt, output, count, before=before)  # noqa: E731
    by = lambda pick: slowly(seed, prompt, output, count, pick)  # noqa: E731
    found = {
        "each guess has its own position, and so its own number": [at(lambda p, o, i: len(o))],
        "a position counts output tokens: the prompt's were not drawn": [at(lambda p, o, i: len(p) + len(o) + i)],
        "the first guess follows the output: its position is the number of output tokens": [
            at(lambda p, o, i: len(o) + i + 1), at(lambda p, o, i: len(o) + i - 1), at(lambda p, o, i: i)],
        "a guess also follows the guesses before it": [behind(lambda p, o, guesses: p + o)],
        "the draft model reads the prompt and the output": [
            behind(lambda p, o, guesses: o + guesses), behind(lambda p, o, guesses: p + guesses)],
        "the model draws, so the guess must be drawn too: don't take the likeliest token": [
            by(lambda probabilities, u: probabilities.index(max(probabilities)))],
        "the sum including the token must be greater than the number: equal is not enough": [
            by(lambda probabilities, u: drawn(probabilities, u - 1 / 64))],
        "tokens are on the line in the order of their ids, as in the model's draw": [by(by_rank)],
        "one guess too many": [slowly(seed, prompt, output, count + 1)],
    }  # fmt: skip
    right = slowly(seed, prompt, output, count)
    return {said: OneOf(answer for answer in answers if answer != right) for said, answers in found.items()}


def test_guesses(work):
    """With the same numbers that the tokens will be drawn with."""
    for prompt, output, count in (([2, 3], [0, 2], 7), ([2, 2], [], 5), ([1], [3, 3, 0], 6), ([], [1], 3)):
        draft = Draft()
        case = f"guess, seed 5, prompt {prompt}, output {output}, count {count}"
        right = slowly(5, prompt, output, count)
        got = work.guess(draft, uniform, 5, list(prompt), list(output), count)
        expect(case, got, right, mistakes(5, prompt, output, count))
        asked = [prompt + output + right[:i] for i in range(count)]
        likely = "ask the draft model once for each guess, with all tokens before it"
        expect(f"{case}: the sequences that the draft model was asked about", draft.asked, asked, likely=likely)
    expect("guess with count 0", work.guess(Draft(), uniform, 5, [1], [2], 0), [])


def test_guesses_after_a_rejection(work):
    """A position's number is the same, whatever was guessed there before."""
    prompt, model = [3, 1], [0, 1, 3, 2, 1, 1, 0, 3]
    for num in range(len(model)):
        case = f"guess, seed 9, prompt {prompt}, output {model[:num]}, count 3, called for one output after the other"
        got = work.guess(Draft(), uniform, 9, list(prompt), model[:num], 3)
        expect(
            case, got, slowly(9, prompt, model[:num], 3), likely="a number depends only on the seed and the position"
        )


def test_any_guesses(work):
    def check(choose):
        token = lambda: choose.upto(3)  # noqa: E731
        prompt, output = choose.some(token, 4), choose.some(token, 4)
        seed, count = choose.upto(9), choose.upto(5)
        example = Example(work, __file__, "from exercises.stage7.test_7_3_same_number import follows, uniform")
        expected = slowly(seed, prompt, output, count)
        example.look(f"work.guess(follows, uniform, {seed}, {prompt}, {output}, {count})", expected)

    at_random(check, 200)


def test_many_guesses(work):
    """A thousand tokens before, a thousand guesses, and a vocabulary whose last tokens are drawn."""
    prompt, output = [70_000 + i * i for i in range(1100)], [65_536 + i for i in range(70)]
    case = "guess, seed 70,000, 1,100 tokens of prompt, 70 of output, count 1,000"
    expect(case, work.guess(follows, uniform, 70_000, prompt, output, 1000), slowly(70_000, prompt, output, 1000))
    wide = [0.0] * 66_000 + [0.25] * 4
    right = [66_000 + int(4 * uniform(5, 1 + i)) for i in range(3)]
    expect(
        "guess, a vocabulary of 66,004 tokens whose last four are likely",
        work.guess(lambda _: wide, uniform, 5, [], [1], 3),
        right,
    )


# --- How often they agree ---------------------------------------------------------------------------------------------


def overlap(p, q, least=0.0):
    ends = zip(itertools.accumulate(p), itertools.accumulate(q), p, q, strict=True)
    return sum(max(least, min(a, b) - max(a - x, b - y)) for a, b, x, y in ends)


def product(p, q):
    return sum(a * b for a, b in zip(p, q, strict=True))


def most(p, q):
    return sum(min(a, b) for a, b in zip(p, q, strict=True))


CASES = (
    ([0.5, 0.3, 0.2], [0.6, 0.3, 0.1]),
    ([0.25, 0.75], [0.75, 0.25]),
    ([0.5, 0.25, 0.25, 0.0], [0.0, 0.25, 0.5, 0.25]),
    ([0.125, 0.5, 0.375], [0.125, 0.5, 0.375]),
    ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]),
)


def check_agreement(work, name, right, said):
    for p, q in CASES:
        told = {what: answer(p, q) for what, answer in said.items() if abs(answer(p, q) - right(p, q)) > 1e-9}
        expect(f"{name}({p}, {q})", getattr(work, name)(list(p), list(q)), right(p, q), told, tolerance=1e-9)


def test_shared(work):
    check_agreement(work, "shared", overlap, {
        "that is how often they agree with two numbers": product,
        "that is the best any rule can reach; with one number, a token's two intervals have to overlap": most,
        "intervals that do not meet have an overlap of 0, not a negative one":
            lambda p, q: overlap(p, q, least=-9.0)})  # fmt: skip


def test_independent(work):
    check_agreement(work, "independent", product, {
        "that is how often they agree with the same number": overlap,
        "both draws have to give the token: multiply the probabilities": most})  # fmt: skip


def test_many_tokens(work):
    """A whole vocabulary; and enough draws to show it."""
    rng = random.Random(0)
    weights = [[rng.random() ** 8 for _ in range(3000)] for _ in range(2)]
    p, q = ([weight / sum(some) for weight in some] for some in weights)
    case = "two distributions over 3,000 tokens"
    expect(f"shared, {case}", work.shared(p, q), overlap(p, q), tolerance=1e-9)
    expect(f"independent, {case}", work.independent(p, q), product(p, q), tolerance=1e-9)
    p, q = [0.125, 0.5, 0.25, 0.125], [0.25, 0.25, 0.125, 0.375]
    same = sum(drawn(p, i / 1000) == drawn(q, i / 1000) for i in range(1000)) / 1000
    expect(f"shared({p}, {q}), against 1,000 draws", work.shared(p, q), same, tolerance=1e-9)


def test_any_distributions(work):
    """Multiples of 1/16, and zeros."""

    def check(choose):
        cuts = [sorted(choose.upto(16) for _ in range(3)) for _ in range(2)]
        p, q = ([(b - a) / 16 for a, b in itertools.pairwise([0, *some, 16])] for some in cuts)
        example = Example(work, __file__)
        example.look(f"work.shared({p}, {q})", overlap(p, q), tolerance=1e-9)
        example.look(f"work.independent({p}, {q})", product(p, q), tolerance=1e-9)

    at_random(check, 200)


def test_loses(work):
    got = work.loses()
    two = isinstance(got, tuple) and len(got) == 2 and all(isinstance(one, list) and len(one) == 3 for one in got)
    require(two, "loses()", "a tuple of two lists of three probabilities", got)
    for one in got:
        fine = all(type(number) in (int, float) and number >= 0 for number in one) and abs(sum(one) - 1) < 1e-9
        require(fine, f"loses(): {one}", "probabilities, none below 0, that sum to 1", one)
    with_one, with_two = overlap(*got), product(*got)
    require(with_one <= with_two - 0.05, f"loses(): {got}", "to agree less often with the same number, by at least 0.05",
            f"{with_one:.3f} with the same number, {with_two:.3f} with two",
            "what if the token that is likely in both began, in one of them, where it ends in the other?")  # fmt: skip

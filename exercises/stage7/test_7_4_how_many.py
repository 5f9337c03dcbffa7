"""The picture, costs that rise in steps, guesses that never pay, and a simulation that counts."""

import random

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require

MACHINE = [0.0] + [max(10.0, 2.5 * rows) for rows in range(1, 17)]  # of the picture, in milliseconds
FREE = [0.0] + [10.0] * 12  # another row costs nothing
STAIRS = [0.0, 10.0, 19.0, 19.5, 20.0, 20.5, 21.0, 40.0, 41.0, 42.0]


# --- How often they are right -----------------------------------------------------------------------------------------


def rate_of(steps):
    tried = sum(right + (right < guesses) for guesses, right in steps)
    return sum(right for _, right in steps) / tried if tried else 0.0


def rate_mistakes(steps):
    right, guesses = sum(right for _, right in steps), sum(guesses for guesses, _ in steps)
    shares = [right / guesses for guesses, right in steps if guesses]
    found = {
        "guesses after a wrong one were not tried: they count neither as right nor as wrong": right / max(1, guesses),
        "the first wrong guess was tried, too": 1.0 if right else 0.0,
        "count all tries together; don't average the steps' shares": sum(shares) / max(1, len(shares)),
        "if all guesses of a step are right, none is wrong": right / max(1, right + len(steps)),
    }
    return {said: answer for said, answer in found.items() if abs(answer - rate_of(steps)) > 1e-9}


def test_rate(work):
    for steps in ([(4, 4), (4, 1), (4, 0), (2, 2)], [(3, 1), (8, 5)], [(1, 1)], [(5, 0), (5, 5), (0, 0), (1, 0)]):
        expect(f"rate({steps})", work.rate(list(steps)), rate_of(steps), rate_mistakes(steps), tolerance=1e-9)
    for steps in ([], [(0, 0), (0, 0)]):
        expect(f"rate({steps}): none was tried", work.rate(list(steps)), 0.0)


def test_rate_of_many_steps(work):
    """Guesses that are right seven times in ten, as an engine would count them."""
    rng, steps = random.Random(0), []
    for _ in range(6000):
        guesses, right = rng.randrange(1, 9), 0
        while right < guesses and rng.random() < 0.7:
            right += 1
        steps.append((guesses, right))
    got, case = work.rate(list(steps)), "rate of 6,000 steps whose guesses are right with probability 0.7"
    expect(case, got, rate_of(steps), rate_mistakes(steps), tolerance=1e-9)
    require(abs(got - 0.7) < 0.01, case, "about 0.7", got)


# --- How fast they make it --------------------------------------------------------------------------------------------


def tokens_of(a, count):
    return sum(a**k for k in range(count + 1))


def speed_of(a, count, seconds, guess, requests):
    return tokens_of(a, count) * seconds[requests] / (seconds[requests * (1 + count)] + count * guess)


def row(seconds, rows):
    return seconds[min(rows, len(seconds) - 1)]


def speed_mistakes(a, count, seconds, guess, requests):
    tokens, before = tokens_of(a, count), seconds[requests]
    after = seconds[requests * (1 + count)] + count * guess
    found = {
        "a guess counts only if all before it are right: a, then a², and so on": [
            (1 + count * a) * before / after, (1 + a) * before / after],
        "a step gives one token even if no guess is right": [(tokens - 1) * before / after],
        "with all guesses right there is one more token, after the last": [tokens_of(a, count - 1) * before / after],
        "the guesses themselves take time, one after another": [
            tokens * before / (after - count * guess), tokens * before / (after - count * guess + guess)],
        "the draft model guesses for all requests at once": [tokens * before / (after + (requests - 1) * count * guess)],
        "each request has a row for its newest token and one for each of its guesses": [
            tokens * before / (row(seconds, rows) + count * guess)
            for rows in (1 + count, requests + count, requests * count, 1 + requests * count)],
        "without guesses a step has one row per request, not only one row": [tokens * seconds[1] / after],
        "that is the time it takes: more is slower": [after / (tokens * before)],
        "that is how many tokens a step gives, but the step also takes longer": [tokens],
        "each request gets that many tokens; compare with one token each": [requests * tokens * before / after],
    }  # fmt: skip
    right = speed_of(a, count, seconds, guess, requests)
    return {said: OneOf(one for one in answers if abs(one - right) > 1e-7) for said, answers in found.items()}


def test_speed(work):
    for a, count, seconds, guess, requests in (
        (0.8, 4, MACHINE, 1.0, 1),
        (0.8, 3, MACHINE, 1.0, 1),
        (0.8, 1, MACHINE, 1.0, 4),
        (0.5, 2, MACHINE, 0.75, 3),
        (0.25, 2, STAIRS, 0.0, 3),
    ):
        case = f"speed({a}, {count}, {seconds}, {guess}, {requests})"
        got = work.speed(a, count, list(seconds), guess, requests)
        right = speed_of(a, count, seconds, guess, requests)
        expect(case, got, right, speed_mistakes(a, count, seconds, guess, requests), tolerance=1e-9)


def test_speed_at_the_ends(work):
    """No guess, none right, all right."""
    for a, count, likely in (
        (0.8, 0, "0 guesses are exactly as fast as none: 1"),
        (0.0, 3, "if none is right, each step gives the one token that it gives anyway"),
        (1.0, 3, "if all are right, each step gives one more token than guesses"),
    ):
        got, right = work.speed(a, count, list(MACHINE), 1.0, 2), speed_of(a, count, MACHINE, 1.0, 2)
        expect(f"speed({a}, {count}, {MACHINE}, 1.0, 2)", got, right, tolerance=1e-9, likely=likely)


def test_speed_is_what_is_counted(work):
    """Many tokens of one request, in steps of four guesses, with their seconds added up."""
    rng, made, steps = random.Random(1), 0, 0
    while made < 100_000:
        right = 0
        while right < 4 and rng.random() < 0.8:
            right += 1
        made, steps = made + right + 1, steps + 1
    counted = made * MACHINE[1] / (steps * (MACHINE[5] + 4 * 1.0))
    got = work.speed(0.8, 4, list(MACHINE), 1.0, 1)
    seen = f"{counted:.3f}, counted over 100,000 tokens"
    require(abs(got - counted) < 0.03, f"speed(0.8, 4, {MACHINE}, 1.0, 1)", seen, got)


# --- How many are best, and how good they must be ---------------------------------------------------------------------


def counts_of(seconds, requests):
    return range((len(seconds) - 1) // requests)


def best_of(a, seconds, guess, requests):
    return max(counts_of(seconds, requests), key=lambda count: (speed_of(a, count, seconds, guess, requests), -count))


def best_mistakes(a, seconds, guess, requests):
    speeds = [speed_of(a, count, seconds, guess, requests) for count in counts_of(seconds, requests)]
    right = best_of(a, seconds, guess, requests)
    falls = next((count for count in range(len(speeds) - 1) if speeds[count + 1] < speeds[count]), len(speeds) - 1)
    found = {
        "if all counts are slower than none, the best count is 0": max(range(1, len(speeds)), key=speeds.__getitem__, default=0),
        "of equally fast counts take the smallest: it needs fewer rows": max(range(len(speeds)), key=lambda count: (speeds[count], count)),
        "costs may rise in steps: a larger count may be faster again than a slower one before it": falls,
        "the most tokens per step are not the most tokens per second": len(speeds) - 1,
        "the number of requests matters: each brings its own guesses": best_of(a, seconds, guess, 1),
        "the guesses themselves take time": best_of(a, seconds, 0.0, requests),
    }  # fmt: skip
    return {said: answer for said, answer in found.items() if answer != right}


def test_best(work):
    for a, seconds, guess, requests in (
        (0.8, MACHINE, 1.0, 1),
        (0.8, MACHINE, 1.0, 2),
        (0.8, MACHINE, 1.0, 4),
        (0.8, FREE, 0.5, 1),
        (0.5, FREE, 0.0, 3),
        (0.875, STAIRS, 0.0, 1),
        (0.0, FREE, 0.0, 1),
        (0.3, FREE, 4.0, 1),
        (1.0, FREE, 0.25, 5),
        (0.9, MACHINE, 1.0, 16),
    ):
        case = f"best({a}, {seconds}, {guess}, {requests})"
        got = work.best(a, list(seconds), guess, requests)
        expect(case, got, best_of(a, seconds, guess, requests), best_mistakes(a, seconds, guess, requests))


def slowdown_of(count, seconds, guess, requests):
    return (seconds[requests * (1 + count)] + count * guess) / seconds[requests]


def least_of(count, seconds, guess, requests):
    slowdown, low, high = slowdown_of(count, seconds, guess, requests), 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if tokens_of(middle, count) >= slowdown else (middle, high)
    return high if slowdown <= count + 1 else None


def test_break_even(work):
    slower = "return None only if it is slower even with all guesses right"
    for count, seconds, guess, requests in (
        (1, MACHINE, 1.0, 1),
        (3, MACHINE, 1.0, 1),
        (4, MACHINE, 2.0, 1),
        (1, MACHINE, 1.0, 4),
        (2, MACHINE, 0.5, 3),
        (1, MACHINE, 0.0, 8),
        (5, FREE, 0.0, 2),
        (2, MACHINE, 25.0, 1),
        (7, STAIRS, 0.0, 1),
        (1, [0.0, 10.0, 20.005], 0.0, 1),
    ):
        slowdown = slowdown_of(count, seconds, guess, requests)
        right = least_of(count, seconds, guess, requests)
        said = {slower: 1.0 if right is None else None,
                "a guess counts only if all before it are right, so more have to be right": (slowdown - 1) / count,
                "that is how many tokens a step must give": slowdown}  # fmt: skip
        same = lambda answer, right=right: answer == right or (right and answer and abs(answer - right) < 1e-5)  # noqa: E731
        said = {what: answer for what, answer in said.items() if not same(answer)}
        case = f"break_even({count}, {seconds}, {guess}, {requests})"
        got = work.break_even(count, list(seconds), guess, requests)
        expect(case, got, right, said, tolerance=2e-6)


def test_many_rows(work):
    """Steps of a thousand rows and seconds beyond 65,535; as many requests, and as many guesses."""
    many = [0.0] + [max(100_000.0, 900.0 * rows) for rows in range(1, 1101)]
    for a, count, guess, requests in ((0.5, 900, 70_000.0, 1), (0.9375, 1, 3.0, 550), (0.9375, 99, 0.5, 11)):
        got, right = work.speed(a, count, many, guess, requests), speed_of(a, count, many, guess, requests)
        expect(f"speed({a}, {count}, seconds of 1,100 rows, {guess}, {requests})", got, right, tolerance=1e-9)
    for a, guess, requests in ((0.9921875, 9.0, 1), (0.875, 9.0, 70), (0.5, 9.0, 1100)):
        got, right = work.best(a, many, guess, requests), best_of(a, many, guess, requests)
        expect(f"best({a}, seconds of 1,100 rows, {guess}, {requests})", got, right)
    free = [0.0] + [4.0] * 400
    expect("best(1.0, 400 rows that take equally long, 0.0, 1)", work.best(1.0, free, 0.0, 1), 399)
    crowd = [0.0] + [4.0] * 70_000 + [6.0] * 70_000
    expect("best(0.25, seconds of 140,000 rows, 0.0, 70,000)", work.best(0.25, crowd, 0.0, 70_000), 0)
    got = work.break_even(1, crowd, 0.0, 70_000)
    expect("break_even(1, seconds of 140,000 rows, 0.0, 70,000)", got, 0.5, tolerance=2e-6)
    for count, requests in ((999, 1), (9, 110), (1, 300)):
        got, right = work.break_even(count, many, 0.0, requests), least_of(count, many, 0.0, requests)
        expect(f"break_even({count}, seconds of 1,100 rows, 0.0, {requests})", got, right, tolerance=2e-6)
    steps = [(70_000, 66_000), (70_000, 70_000), (3, 0)]
    expect(f"rate({steps})", work.rate(steps), rate_of(steps), tolerance=1e-9)


def test_any_machine(work):
    """Costs that rise at random, or not at all; and what one answer implies for another."""

    def check(choose):
        seconds = [0.0]
        for _ in range(choose.between(1, 12)):
            seconds.append(seconds[-1] + choose.one_of([0, 1, 2, 8]) + (len(seconds) == 1) * 4)
        a, guess = choose.upto(16) / 16, choose.one_of([0.0, 0.5, 3.0])
        requests = choose.between(1, len(seconds) - 1)
        count = choose.one_of(counts_of(seconds, requests))
        example = Example(work, __file__)
        right = speed_of(a, count, seconds, guess, requests)
        example.look(f"work.speed({a}, {count}, {seconds}, {guess}, {requests})", right, tolerance=1e-9)
        speeds = sorted(speed_of(a, c, seconds, guess, requests) for c in counts_of(seconds, requests))
        if len(speeds) == 1 or speeds[-1] - speeds[-2] > 1e-9:  # equally fast counts may differ by rounding
            example.look(f"work.best({a}, {seconds}, {guess}, {requests})", best_of(a, seconds, guess, requests))
        steps = [(g, min(g, choose.upto(6))) for g in choose.some(lambda: choose.upto(6), 5)]
        example.look(f"work.rate({steps})", rate_of(steps), tolerance=1e-9)
        for some in {count, counts_of(seconds, requests)[-1]} - {0}:
            line = f"work.break_even({some}, {seconds}, {guess}, {requests})"
            example.look(line, least_of(some, seconds, guess, requests), tolerance=2e-6)

    at_random(check, 200)

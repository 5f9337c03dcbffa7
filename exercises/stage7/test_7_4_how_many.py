"""7.4 How many guesses, and when none? The picture, costs that rise in steps, and guesses that never pay."""

import random

import pytest

MACHINE = [0.0] + [max(10.0, 2.5 * rows) for rows in range(1, 17)]  # of the picture, in milliseconds
FREE = [0.0] + [10.0] * 6  # another row costs nothing
STAIRS = [0.0, 10.0, 19.0, 19.5, 20.0, 20.5, 21.0, 40.0, 41.0, 42.0]


def case(rule, *values):
    return pytest.param(*values, id=rule)


@pytest.mark.parametrize(("steps", "expected"), [
    case("if nothing was tried: 0.0", [(0, 0)], 0.0),
    case("without any step: 0.0", [], 0.0),
    case("all guesses of a step are right: none is wrong", [(4, 4)], 1.0),
    case("the first wrong guess was tried too", [(1, 1), (1, 0)], 0.5),
    case("nothing after the first wrong guess was tried", [(4, 1)], 0.5),
    case("all tries count together: not the mean of the steps' shares", [(3, 1), (8, 5)], 6 / 8),
])  # fmt: skip
def test_rate(work, steps, expected):
    assert work.rate(list(steps)) == pytest.approx(expected)


@pytest.mark.parametrize(("a", "count", "seconds", "guess", "requests", "expected"), [
    case("no guesses: once as fast", 0.8, 0, MACHINE, 1.0, 1, 1.0),
    case("a step gives 1 + a tokens with one guess", 0.75, 1, FREE, 0.0, 1, 1.75),
    case("a guess counts only if all before it are right: 1 + a + a^2 + a^3", 0.5, 3, FREE, 0.0, 1, 1.875),
    case("a step gives one token even if no guess is right", 0.0, 2, FREE, 0.0, 1, 1.0),
    case("if all guesses are right, there is one more token", 1.0, 3, FREE, 0.0, 1, 4.0),
    case("guesses take time, one after another", 1.0, 3, FREE, 1.0, 1, 40 / 13),
    case("a step with more rows takes longer", 1.0, 4, MACHINE, 0.0, 1, 50 / 12.5),
    case("each request brings its newest token and its guesses", 1.0, 2, MACHINE, 0.0, 4, 30 / 30),
    case("without guesses a step has a row for each request", 0.5, 1, MACHINE, 0.0, 8, 30 / 40),
    case("the draft model guesses for all requests at once", 1.0, 3, MACHINE, 1.0, 2, 40 / 23),
    case("the picture: three guesses", 0.8, 3, MACHINE, 1.0, 1, 29.52 / 13),
    case("the picture: one guess for each of four requests", 0.8, 1, MACHINE, 1.0, 4, 18 / 21),
])  # fmt: skip
def test_speed(work, a, count, seconds, guess, requests, expected):
    assert work.speed(a, count, list(seconds), guess, requests) == pytest.approx(expected)


@pytest.mark.parametrize(("a", "seconds", "guess", "requests", "expected"), [
    case("the picture: three are best, the fifth row is not free", 0.8, MACHINE, 1.0, 1, 3),
    case("no guesses if all counts are slower than none", 0.3, FREE, 4.0, 1, 0),
    case("of equally fast counts the smallest", 0.0, FREE, 0.0, 1, 0),
    case("the last entry of seconds may be used", 1.0, FREE, 0.0, 1, 5),
    case("only counts for which seconds has an entry: of each request one row and its guesses", 1.0, FREE, 0.25, 3, 1),
    case("costs may rise in steps: a larger count may be faster again", 0.875, STAIRS, 0.0, 1, 5),
    case("with more requests fewer guesses pay", 0.8, MACHINE, 1.0, 4, 0),
    case("guesses take time", 0.8, FREE, 4.0, 1, 2),
    case("no row is left for a guess", 0.9, MACHINE, 1.0, 16, 0),
])  # fmt: skip
def test_best(work, a, seconds, guess, requests, expected):
    assert work.best(a, list(seconds), guess, requests) == expected


@pytest.mark.parametrize(("count", "seconds", "guess", "requests", "expected"), [
    case("one guess: 1 + a tokens in 11 ms instead of 10", 1, MACHINE, 1.0, 1, 0.1),
    case("two guesses: 1 + a + a^2 tokens in 17.5 ms instead of 10", 2, FREE, 3.75, 1, 0.5),
    case("guesses that cost nothing: 0", 2, FREE, 0.0, 2, 0.0),
    case("all must be right: 1", 1, MACHINE, 0.0, 8, 1.0),
    case("None if they are slower even when all are right", 1, MACHINE, 1.0, 4, None),
])  # fmt: skip
def test_break_even(work, count, seconds, guess, requests, expected):
    near = None if expected is None else pytest.approx(expected, abs=1e-6)
    assert work.break_even(count, list(seconds), guess, requests) == near


def speed(a, count, seconds, guess, requests):
    """From the chance of each number of right guesses."""
    chances = [a**right * (1 - a) for right in range(count)] + [a**count]
    tokens = sum(chance * (right + 1) for right, chance in enumerate(chances))
    return tokens * seconds[requests] / (seconds[requests * (1 + count)] + count * guess)


def machines(choose, size):
    """(seconds, guess, requests, possible counts): random costs that never fall."""
    seconds = [0.0, 4.0]
    for _ in range(choose.randint(0, size)):
        seconds.append(seconds[-1] + choose.choice([0, 1, 2, 8]))
    requests = choose.randint(1, len(seconds) - 1)
    return seconds, choose.choice([0.0, 0.5, 3.0]), requests, range((len(seconds) - 1) // requests)


def test_any_machine(work):
    """Random costs that never fall: the model counts the chances of 0, 1, 2 … right guesses."""
    for seed in range(300):
        choose = random.Random(seed)
        (*machine, counts), a = machines(choose, 1 + seed // 25), choose.randint(0, 16) / 16
        speeds = [speed(a, count, *machine) for count in counts]
        for count in counts:
            assert work.speed(a, count, *machine) == pytest.approx(speeds[count]), f"speed({a}, {count}, *{machine})"
        fast = [count for count in counts if speeds[count] > max(speeds) - 1e-9]  # of several, rounding decides
        assert work.best(a, *machine) in fast, f"best({a}, *{machine}), expected one of {fast}"


def test_any_break_even(work):
    """Random costs: with the smallest a that is returned, and 0.000001 more, guesses are no slower than none."""
    for seed in range(300):
        *machine, counts = machines(random.Random(seed), 1 + seed // 25)
        for count in counts[1:]:
            got, called = work.break_even(count, *machine), f"break_even({count}, *{machine})"
            if speed(1.0, count, *machine) < 1:
                assert got is None, f"{called}: slower even when all are right"
            else:
                assert got is not None, f"{called}: fast enough when all are right"
                assert speed(got + 1e-6, count, *machine) >= 1, f"{called}: {got} is too small"
                assert got < 1e-6 or speed(got - 1e-6, count, *machine) <= 1, f"{called}: {got} is not the smallest"

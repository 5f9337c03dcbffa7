"""A solution of exercise 7.4."""


def rate(steps: list[tuple[int, int]]) -> float:
    """The share of tried guesses that were right, from each step's (guesses, number right)"""
    right = sum(right for _, right in steps)
    wrong = sum(right < guesses for guesses, right in steps)  # at most one a step: nothing after it is tried
    return right / (right + wrong) if right + wrong else 0.0


def speed(a: float, count: int, seconds: list[float], guess: float, requests: int) -> float:
    """How many times as fast the engine is with this number of guesses per request as with none."""
    tokens = sum(a**k for k in range(count + 1))
    return tokens * seconds[requests] / (seconds[requests * (1 + count)] + count * guess)


def best(a: float, seconds: list[float], guess: float, requests: int) -> int:
    """The number of guesses for each request that is fastest."""
    counts = range((len(seconds) - 1) // requests)  # 1 + count rows each
    return max(counts, key=lambda count: speed(a, count, seconds, guess, requests))  # the first of equal ones


def break_even(count: int, seconds: list[float], guess: float, requests: int) -> float | None:
    """The smallest `a` with which that many guesses are no slower than none; None if there is no such `a`."""
    low, high = 0.0, 1.0
    if speed(high, count, seconds, guess, requests) < 1:
        return None
    for _ in range(30):
        middle = (low + high) / 2
        if speed(middle, count, seconds, guess, requests) < 1:
            low = middle
        else:
            high = middle
    return high


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

RATE = "return right / (right + wrong) if right + wrong else 0.0"
TOKENS = "sum(a**k for k in range(count + 1))"
BEST = "max(counts, key=lambda count: speed(a, count, seconds, guess, requests))"
NONE = "    if speed(high, count, seconds, guess, requests) < 1:\n        return None\n"
BISECT = """    for _ in range(30):
        middle = (low + high) / 2
        if speed(middle, count, seconds, guess, requests) < 1:
            low = middle
        else:
            high = middle
"""
MUTANTS = [
    ("guesses that were not tried are wrong", "wrong = sum(right < guesses for guesses, right in steps)", "wrong = sum(guesses - right for guesses, right in steps)",
     "nothing after the first wrong guess was tried"),
    ("the mean of the steps", RATE, "shares = [right / min(guesses, right + 1) for guesses, right in steps if guesses]\n    return sum(shares) / max(1, len(shares))",
     "not the mean"),
    ("a wrong one in each step", "sum(right < guesses for guesses, right in steps)", "sum(guesses > 0 for guesses, _ in steps)", "none is wrong"),
    ("nothing tried is an error", " if right + wrong else 0.0", "", "ZeroDivisionError"),
    ("guesses are independent", TOKENS, "1 + count * a", "all before it are right"),
    ("without the token that comes anyway", TOKENS, "sum(a**k for k in range(1, count + 1)) or 1", "1 + a tokens"),
    ("the closed form", TOKENS, "(1 - a ** (count + 1)) / (1 - a)", "ZeroDivisionError"),
    ("guesses at once", " + count * guess)", " + min(1, count) * guess)", "one after another"),
    ("guesses of each request", " + count * guess)", " + requests * count * guess)", "for all requests at once"),
    ("guesses of one request", "seconds[requests * (1 + count)]", "seconds[requests + count]", "its newest token and its guesses"),
    ("against one request", "tokens * seconds[requests]", "tokens * seconds[1]", "a row for each request"),
    ("at least one guess", BEST, "max(counts[1:], default=0, key=lambda count: speed(a, count, seconds, guess, requests))", "slower than none"),
    ("the most of equal ones", BEST, "max(reversed(counts), key=lambda count: speed(a, count, seconds, guess, requests))", "of equally fast counts"),
    ("up to the first that is slower", "    counts = range((len(seconds) - 1) // requests)  # 1 + count rows each\n", "    counts = range((len(seconds) - 1) // requests)\n    for count in counts[1:]:\n"
     "        if speed(a, count, seconds, guess, requests) < speed(a, count - 1, seconds, guess, requests):\n            return count - 1\n", "costs may rise in steps"),
    ("a row too few", "(len(seconds) - 1) // requests)", "max(1, (len(seconds) - 1) // requests - 1))", "the last entry of seconds"),
    ("1 where nothing is enough", NONE, "", "slower even when all are right"),
    ("None where all must be right", "speed(high, count, seconds, guess, requests) < 1:\n        return", "speed(high, count, seconds, guess, requests) <= 1:\n        return", "all must be right"),
    ("the share of what it costs", BISECT, "    high = (seconds[requests * (1 + count)] + count * guess) / seconds[requests]\n    high = (high - 1) / count\n", "two guesses: 1 + a + a^2"),
    ("to two digits", "range(30)", "range(7)", "one guess: 1 + a tokens"),
]  # fmt: skip

ALSO_RIGHT = [
    ("the cheapest step of that many rows or more", "(seconds[requests * (1 + count)] +", "(min(seconds[requests * (1 + count) :]) +"),
    ("with a closed form", TOKENS, "count + 1 if a == 1 else (1 - a ** (count + 1)) / (1 - a)"),
    ("by slowdown", BISECT, "    slowdown = (seconds[requests * (1 + count)] + count * guess) / seconds[requests]\n    for _ in range(40):\n        middle = (low + high) / 2\n"
     "        low, high = (middle, high) if sum(middle**k for k in range(count + 1)) < slowdown else (low, middle)\n"),
    ("counts what was tried", ("    wrong = sum(right < guesses for guesses, right in steps)", RATE),
     ("    tried = sum(min(guesses, right + 1) for guesses, right in steps)", "return right / max(1, tried)")),
]  # fmt: skip

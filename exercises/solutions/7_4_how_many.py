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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

RATE = "return right / (right + wrong) if right + wrong else 0.0"
TOKENS = "sum(a**k for k in range(count + 1))"
SPEED = "return tokens * seconds[requests] / (seconds[requests * (1 + count)] + count * guess)"
BEST = "max(counts, key=lambda count: speed(a, count, seconds, guess, requests))"
NONE = "    if speed(high, count, seconds, guess, requests) < 1:\n        return None\n"
BISECT = """    for _ in range(30):
        middle = (low + high) / 2
        if speed(middle, count, seconds, guess, requests) < 1:
            low = middle
        else:
            high = middle
"""
PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("guesses that were not tried are wrong", "wrong = sum(right < guesses for guesses, right in steps)", "wrong = sum(guesses - right for guesses, right in steps)", "were not tried"),
    ("the mean of the steps", RATE, "shares = [right / guesses for guesses, right in steps if guesses]\n    return sum(shares) / max(1, len(shares))", "don't average"),
    ("a wrong one in each step", "sum(right < guesses for guesses, right in steps)", "len(steps)", "none is wrong"),
    ("nothing tried is an error", " if right + wrong else 0.0", "", "ZeroDivisionError"),
    ("nothing tried is 1", "else 0.0", "else 1.0", "none was tried"),
    ("guesses are independent", TOKENS, "1 + count * a", "all before it are right"),
    ("without the token that comes anyway", TOKENS, "sum(a**k for k in range(1, count + 1))", "even if no guess is right"),
    ("without the one after the last", TOKENS, "sum(a**k for k in range(max(1, count)))", "after the last"),
    ("the closed form", TOKENS, "(1 - a ** (count + 1)) / (1 - a)", "ZeroDivisionError"),
    ("guesses cost nothing", " + count * guess)", ")", "one after another"),
    ("guesses at once", " + count * guess)", " + min(1, count) * guess)", "one after another"),
    ("guesses of each request", " + count * guess)", " + requests * count * guess)", "for all requests at once"),
    ("rows of one request", "seconds[requests * (1 + count)]", "seconds[1 + count]", "one for each of its guesses"),
    ("rows of guesses alone", "seconds[requests * (1 + count)]", "seconds[max(1, requests * count)]", "one for each of its guesses"),
    ("guesses of one request", "seconds[requests * (1 + count)]", "seconds[requests + count]", "one for each of its guesses"),
    ("against one request", "tokens * seconds[requests]", "tokens * seconds[1]", "one row per request"),
    ("tokens of all", SPEED, SPEED.replace("tokens *", "requests * tokens *"), "one token each"),
    ("how much slower", SPEED, "return (seconds[requests * (1 + count)] + count * guess) / tokens / seconds[requests]", "more is slower"),
    ("tokens a step", SPEED, "return float(tokens)", "the step also takes longer"),
    ("at least one guess", BEST, "max(counts[1:], default=0, key=lambda count: speed(a, count, seconds, guess, requests))", "the best count is 0"),
    ("the most of equal ones", BEST, "max(reversed(counts), key=lambda count: speed(a, count, seconds, guess, requests))", "of equally fast counts take the smallest"),
    ("up to the first that is slower", "    counts = range((len(seconds) - 1) // requests)  # 1 + count rows each\n", "    counts = range((len(seconds) - 1) // requests)\n    for count in counts[1:]:\n"
     "        if speed(a, count, seconds, guess, requests) < speed(a, count - 1, seconds, guess, requests):\n            return count - 1\n", "costs may rise in steps"),
    ("as many as there are rows for", "return " + BEST, "return counts[-1]", "not the most tokens per second"),
    ("one row too many", "(len(seconds) - 1) // requests)", "len(seconds) // requests)", "IndexError"),
    ("the rows of one request, for the best", BEST, "max(range(len(seconds) - 1), key=lambda count: speed(a, count, seconds, guess, 1))", "each brings its own guesses"),
    ("a row too few", "(len(seconds) - 1) // requests)", "max(1, (len(seconds) - 1) // requests - 1))", "expected:"),
    ("1 where nothing is enough", NONE, "", "slower even with all guesses right"),
    ("0 where nothing is enough", "        return None\n", "        return 0.0\n", "expected:"),
    ("None where all must be right", "speed(high, count, seconds, guess, requests) < 1:\n        return", "speed(high, count, seconds, guess, requests) <= 1:\n        return", "slower even with all guesses right"),
    ("the share of what it costs", BISECT, "    high = (seconds[requests * (1 + count)] + count * guess) / seconds[requests]\n    high = (high - 1) / count\n", "so more have to be right"),
    ("to two digits", "range(30)", "range(7)", "expected:"),
    ("not the least", BISECT, "", "expected:"),
]  # fmt: skip

ALSO_RIGHT = [
    ("the cheapest step of that many rows or more", "(seconds[requests * (1 + count)] +", "(min(seconds[requests * (1 + count) :]) +"),
    ("with a closed form", TOKENS, "count + 1 if a == 1 else (1 - a ** (count + 1)) / (1 - a)"),
    ("by slowdown", BISECT, "    slowdown = (seconds[requests * (1 + count)] + count * guess) / seconds[requests]\n    for _ in range(40):\n        middle = (low + high) / 2\n"
     "        low, high = (middle, high) if sum(middle**k for k in range(count + 1)) < slowdown else (low, middle)\n"),
    ("counts what was tried", ("    wrong = sum(right < guesses for guesses, right in steps)", RATE),
     ("    tried = sum(min(guesses, right + 1) for guesses, right in steps)", "return right / max(1, tried)")),
]  # fmt: skip

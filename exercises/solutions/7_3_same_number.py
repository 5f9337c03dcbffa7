"""A solution of exercise 7.3."""

from collections.abc import Callable

Distribution = Callable[[list[int]], list[float]]
Uniform = Callable[[int, int], float]


def guess(
    distribution: Distribution, uniform: Uniform, seed: int, prompt: list[int], output: list[int], count: int
) -> list[int]:
    """Tokens to follow the output, each drawn with the random number that the model will use at its position."""
    guesses: list[int] = []
    for position in range(len(output), len(output) + count):
        u, total = uniform(seed, position), 0.0
        for token, probability in enumerate(distribution(prompt + output + guesses)):
            total += probability
            if total > u:
                guesses.append(token)
                break
    return guesses


def shared(p: list[float], q: list[float]) -> float:
    """How often both draw the same token if they draw with the same number."""
    agreed = start_p = start_q = 0.0
    for a, b in zip(p, q, strict=True):
        end_p, end_q = start_p + a, start_q + b
        agreed += max(0.0, min(end_p, end_q) - max(start_p, start_q))
        start_p, start_q = end_p, end_q
    return agreed


def independent(p: list[float], q: list[float]) -> float:
    """How often both draw the same token if each draws with a separate number."""
    return sum(a * b for a, b in zip(p, q, strict=True))


def loses() -> tuple[list[float], list[float]]:
    """Two distributions over three tokens that agree less often with the same number than with two."""
    return [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]  # the middle one begins where it ends in the other


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

POSITIONS = "range(len(output), len(output) + count)"
ASKED = "distribution(prompt + output + guesses)"
DRAW = """        for token, probability in enumerate(distribution(prompt + output + guesses)):
            total += probability
            if total > u:
                guesses.append(token)
                break
"""
OVERLAP = "max(0.0, min(end_p, end_q) - max(start_p, start_q))"
FOUND = "[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]"
MUTANTS = [
    ("one number for all guesses", "uniform(seed, position)", "uniform(seed, len(output))", "the next guess the next one"),
    ("positions of the whole sequence", POSITIONS, "range(len(prompt + output), len(prompt + output) + count)", "has position 0"),
    ("the newest token's number again", POSITIONS, "range(len(output) - 1, len(output) + count - 1)", "has position 0"),
    ("counts the guesses alone", POSITIONS, "range(count)", "the number of output tokens before it"),
    ("a seed for all", "uniform(seed, position)", "uniform(0, position)", "that of the seed"),
    ("does not see its guesses", ASKED, "distribution(prompt + output)", "the guesses before it"),
    ("does not see the prompt", ASKED, "distribution(output + guesses)", "about the prompt"),
    ("asks for each token", DRAW, "        for token in range(len(distribution(prompt + output + guesses))):\n            total += distribution(prompt + output + guesses)[token]\n            if total > u:\n"
     "                guesses.append(token)\n                break\n", "once for each guess"),
    ("the likeliest", DRAW, "        every = distribution(prompt + output + guesses)\n        guesses.append(every.index(max(every)))\n", "takes the first token"),
    ("equal is enough", "total > u", "total >= u", "is greater than the number"),
    ("the likeliest first on the line", "enumerate(distribution(prompt + output + guesses))", "sorted(enumerate(distribution(prompt + output + guesses)), key=lambda pair: -pair[1])", "in the order of ids"),
    ("the most that is possible", OVERLAP, "min(a, b)", "both draw with the same number"),
    ("two numbers instead of one", OVERLAP, "a * b", "both draw with the same number"),
    ("a negative overlap", OVERLAP, "min(end_p, end_q) - max(start_p, start_q)", "by 0, not by less"),
    ("one number instead of two", "sum(a * b for", "sum(min(a, b) for", "each has a separate number"),
    ("they always agree more often", FOUND, "[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]", "where it ends in the other"),
    ("sums of more than 1", FOUND, "[0.5, 1.0, 0.0], [0.0, 1.0, 0.5]", "lengths and sums"),
]  # fmt: skip

ALSO_RIGHT = [
    ("from both ends", OVERLAP, "max(0.0, a + b - (max(end_p, end_q) - min(start_p, start_q)))"),
    ("by accumulated sums", DRAW, "        sums = list(__import__('itertools').accumulate(distribution([*prompt, *output, *guesses])))\n        guesses.append(__import__('bisect').bisect_right(sums, u))\n"),
    ("another loss", FOUND, "[0.4, 0.6, 0.0], [0.0, 0.4, 0.6]"),
]  # fmt: skip

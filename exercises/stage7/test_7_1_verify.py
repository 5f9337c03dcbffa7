"""7.1 Verify: guesses that are right, wrong, and right again after a wrong one; and what the sampler was asked."""

import random

import pytest


class Sampler:
    """The likeliest token that does not repeat the last one. Remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, row, token_ids):
        self.asked.append(list(token_ids))
        return likeliest(row, token_ids)


def likeliest(row, token_ids):
    return max(range(len(row)), key=lambda token: (token != token_ids[-1], row[token]))


def check(work, token_ids, drafts, rows, num_left, end, expected, said=""):
    """Expect these tokens, a sampler that was asked for each of them and nothing else, and this many valid keys."""
    sampler = Sampler()
    tokens, num_computed = work.verify(list(token_ids), list(drafts), rows, sampler, num_left, end)
    assert tokens == expected, f"the tokens{said}"
    asked = [[*token_ids, *expected[:i]] for i in range(len(expected))]
    assert sampler.asked == asked, (
        f"ask the sampler once for each token, about the sequence and the tokens it has just got{said}"
    )
    assert num_computed == len(token_ids) + len(expected) - 1, (
        f"tokens with valid keys and values: all but the last{said}"
    )


def case(rule, drafts, says, expected, num_left=9, end=0):
    return pytest.param(drafts, says, num_left, end, expected, id=rule)


@pytest.mark.parametrize(("drafts", "says", "num_left", "end", "expected"), [
    case("without guesses a step gives one token", [], [7], [7]),
    case("the newest token's row verifies the first guess", [4], [4, 7], [4, 7]),
    case("if all guesses are right, the last row gives one more token", [4, 5, 6], [4, 5, 6, 7], [4, 5, 6, 7]),
    case("where a guess is wrong, the sampled token stands, and it is the last", [4, 5, 6], [4, 8, 9, 7], [4, 8]),
    case("rows after a wrong guess are worthless, even if they agree again", [4, 5, 6], [4, 8, 6, 7], [4, 8]),
    case("the first guess may be wrong", [4, 5, 6], [8, 5, 6, 7], [8]),
    case("the last guess may be wrong", [4, 5, 6], [4, 5, 8, 7], [4, 5, 8]),
    case("a token is compared with the guess at its place, not with all", [4, 5, 6], [5, 4, 6, 7], [5]),
    case("rows before the newest token's don't count: several of the sequence's tokens may have been fed", [4, 5], [9, 8, 4, 5, 7], [4, 5, 7]),
    case("rows before the newest token's don't count, without guesses", [], [9, 8, 4], [4]),
    case("the end token is a token, and nothing follows it", [4, 5, 6], [4, 5, 6, 7], [4, 5], end=5),
    case("the first token may be the end token", [4, 5, 6], [4, 5, 6, 7], [4], end=4),
    case("the end token need not have been guessed", [4, 5, 6], [4, 8, 6, 7], [4, 8], end=8),
    case("an end token that was only guessed ends nothing", [4, 6, 6], [4, 8, 6, 7], [4, 8], end=6),
    case("the prompt may contain the end token", [4, 5], [4, 5, 7], [4, 5, 7], end=3),
    case("no more than num_left tokens, even if more guesses are right", [4, 5, 6], [4, 5, 6, 7], [4, 5], num_left=2),
    case("num_left may be 1", [4, 5, 6], [4, 5, 6, 7], [4], num_left=1),
    case("num_left may be the number of guesses: the last row is not needed", [4, 5, 6], [4, 5, 6, 7], [4, 5, 6], num_left=3),
    case("num_left counts the tokens of this step, not those of the sequence", [4, 5, 6], [4, 5, 6, 7], [4, 5, 6, 7], num_left=4),
    case("the sampler decides, not the logits alone: this one never repeats a token", [4, 4], [4, 4, 7], [4, 0], num_left=2, end=9),
])  # fmt: skip
def test_verify(work, drafts, says, num_left, end, expected):
    rows = [[float(i == token) for i in range(10)] for token in says]
    check(work, [1, 2, 3], drafts, rows, num_left, end, expected)


def slowly(token_ids, drafts, rows, num_left, end):
    """The tokens, one at a time, for as long as some row has seen exactly this sequence."""
    fed, tokens = token_ids + drafts, []
    seen = {tuple(fed[: len(fed) - i]): row for i, row in enumerate(reversed(rows))}
    while len(tokens) < num_left and end not in tokens and tuple(token_ids + tokens) in seen:
        tokens.append(likeliest(seen[tuple(token_ids + tokens)], token_ids + tokens))
    return tokens


def test_any_guesses(work):
    """Random guesses that are mostly right: as many tokens as rows have seen just this sequence."""
    for seed in range(400):
        choose = random.Random(seed)
        token_ids = choose.choices([0, 1, 2], k=choose.randint(1, 4))
        rows = [choose.choices([0.0, 1.0, 2.0], k=3) for _ in range(choose.randint(1, len(token_ids)))]
        drafts = []
        for _ in range(choose.randint(0, 1 + seed // 80)):
            drafts.append((likeliest(rows[-1], token_ids + drafts) + choose.choice([0, 0, 0, 0, 1, 2])) % 3)
            rows.append(choose.choices([0.0, 1.0, 2.0], k=3))
        num_left, end = choose.randint(1, 7), choose.randint(0, 3)
        said = (
            f" of verify({token_ids}, {drafts}, {rows}, sample, {num_left}, {end}), where sample never repeats a token"
        )
        check(work, token_ids, drafts, rows, num_left, end, slowly(token_ids, drafts, rows, num_left, end), said)

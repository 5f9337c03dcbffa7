"""7.2 Look up n-grams: matches of each length, the latest of several, the end of the sequence, and a slow search."""

import random

import pytest

from exercises.calls import Calls


def case(rule, token_ids, count, expected):
    return pytest.param(token_ids, count, expected, id=rule)


@pytest.mark.parametrize(("token_ids", "count", "expected"), [
    case("the guess is what followed the match", [7, 1, 2, 3, 5, 6, 1, 2], 3, [3, 5, 6]),
    case("a guess has at most count tokens", [7, 1, 2, 3, 5, 6, 1, 2], 1, [3]),
    case("a guess of 0 tokens is empty", [7, 1, 2, 3, 5, 6, 1, 2], 0, []),
    case("if the last two did not occur before, the guess is empty", [1, 2, 3, 4, 5, 6], 3, []),
    case("a single token is too little", [2, 8, 9, 6, 7, 2], 3, []),
    case("an empty sequence has no guess", [], 3, []),
    case("the end itself is not a match: nothing has followed it", [1, 1], 3, []),
    case("the tokens of a match are in the same order", [1, 2, 3, 1, 5, 2, 1, 3, 2], 3, []),
    case("of two matches of two the latest counts", [0, 3, 4, 8, 9, 3, 4, 7, 1, 5, 3, 4], 2, [7, 1]),
    case("a match of three counts before a later one of two", [0, 2, 3, 4, 8, 9, 3, 4, 7, 1, 2, 3, 4], 2, [8, 9]),
    case("a match of four counts before a later one of three", [1, 2, 3, 4, 8, 9, 2, 3, 4, 7, 1, 2, 3, 4], 2, [8, 9]),
    case("of two matches of four the latest counts", [1, 2, 3, 4, 8, 9, 1, 2, 3, 4, 7, 5, 1, 2, 3, 4], 2, [7, 5]),
    case("only the last four are looked up, not five", [5, 1, 2, 3, 4, 8, 6, 1, 2, 3, 4, 7, 9, 5, 1, 2, 3, 4], 2, [7, 9]),
    case("what follows may end: then it comes again, and neither the sequence nor its last token",
         [7, 1, 2, 3, 5, 1, 2, 9, 1, 2], 7, [9, 1, 2, 9, 1, 2, 9]),
    case("a match may overlap the end: something has followed it", [5, 5, 5], 3, [5, 5, 5]),
    case("a match may overlap the end by several tokens", [6, 8, 6, 8, 6], 4, [8, 6, 8, 6]),
    case("compare tokens, not digits: 1, 23 is not 12, 3", [1, 23, 7, 8, 12, 3], 2, []),
    case("a token may have more than 32 bits", [1, 2, 7, 8, 0, 2**32 + 2], 2, []),
    case("a hash is not enough: 1 and 2^61 have the same in Python", [1, 2, 7, 8, 2**61, 2], 2, []),
    case("a large token is a token", [2**64, 2**65, 7, 8, 2**64, 2**65], 2, [7, 8]),
])  # fmt: skip
def test_guess(work, token_ids, count, expected):
    assert work.Lookup(list(token_ids)).guess(count) == expected
    lookup = work.Lookup([])
    for token_id in token_ids:
        lookup.add([token_id])
    assert lookup.guess(count) == expected, "the tokens were added one by one"


def test_a_guess_may_be_wrong(work):
    """A guess adds nothing to the sequence: only add does."""
    lookup = work.Lookup([1, 2, 3, 4, 1, 2])
    assert [lookup.guess(2), lookup.guess(2)] == [[3, 4], [3, 4]], "twice guess(2) after 1 2 3 4 1 2"
    lookup.add([9, 1, 2])
    assert lookup.guess(3) == [9, 1, 2], "after 9 1 2 was added"


def slowly(token_ids, count):
    """Every position, from the last: the first one that matches the longest end of the sequence."""
    for n in (4, 3, 2):
        for place in range(len(token_ids) - 1, n - 1, -1):
            if token_ids[place - n : place] == token_ids[len(token_ids) - n :]:
                longer = list(token_ids)
                for i in range(count):
                    longer.append(longer[place + i])
                return longer[len(token_ids) :]
    return []


def test_any_sequence(work):
    """Random sequences of two or three tokens that grow, and guesses: the same as a search of all positions."""
    for seed in range(400):
        choose, call = random.Random(seed), Calls()
        tokens = lambda most, choose=choose, top=1 + seed % 2: choose.choices(range(top + 1), k=choose.randint(0, most))  # noqa: E731
        token_ids = tokens(2 + seed // 40)
        lookup = call(work.Lookup, list(token_ids))
        for _ in range(1 + seed // 60):
            count, more = choose.randint(0, 9), tokens(3)
            got = call(lookup.guess, count)
            assert got == slowly(token_ids, count), f"{call}"
            call(lookup.add, more)
            token_ids += more
        got = call(lookup.guess, 7)
        assert got == slowly(token_ids, 7), f"{call}"


class Token(int):
    """Counts how often tokens are looked at: compared or hashed."""

    looks = 0

    def __eq__(self, other):
        Token.looks += 1
        return int(self) == int(other)

    def __hash__(self):
        Token.looks += 1
        return hash(int(self))


def test_a_long_sequence(work):
    """Neither add nor guess searches the sequence: however long it is, they look at a few of its tokens."""
    choose = random.Random(0)
    tokens = lambda count: [Token(choose.randrange(1000, 2000)) for _ in range(count)]  # noqa: E731
    for length in (40, 4000):
        lookup = work.Lookup([Token(1), Token(2), *tokens(length), Token(1), Token(2)])
        Token.looks = 0
        for _ in range(30):
            lookup.guess(5)
        assert Token.looks < 30 * 100, f"tokens that 30 guesses compared or hashed, in a sequence of {length + 4}"
        Token.looks = 0
        for token in tokens(30):
            lookup.add([token])
        assert Token.looks < 30 * 100, f"tokens compared or hashed while 30 were added to a sequence of {length + 4}"

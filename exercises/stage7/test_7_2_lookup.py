"""Matches of each length, the latest of several, the end of the sequence, and a slow search of all positions."""

import random
import time

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require


def check(work, token_ids, count, expected, mistakes=None):
    """All at once, and token by token with a guess after each."""
    expect(f"guess({count}) after {token_ids}", work.Lookup(token_ids).guess(count), expected, mistakes)
    lookup = work.Lookup([])
    for token_id in token_ids:
        lookup.guess(1)
        lookup.add([token_id])
    expect(f"guess({count}) after {token_ids}, added one by one", lookup.guess(count), expected, mistakes,
           likely="tokens that are added one by one make the same sequence")  # fmt: skip


def test_a_match(work):
    said = {"the guess begins after the match, not with it": [1, 2, 3], "guess at most count tokens": [3, 5, 6, 1, 2],
            "the token right after the match is the first guess": [5, 6, 1]}  # fmt: skip
    check(work, [7, 1, 2, 3, 5, 6, 1, 2], 3, [3, 5, 6], said)
    check(work, [7, 1, 2, 3, 5, 6, 1, 2], 1, [3], {"guess at most count tokens": [3, 5, 6, 1, 2]})
    check(work, [7, 1, 2, 3, 5, 6, 1, 2], 0, [], {"guess at most count tokens": [3]})


def test_no_match(work):
    check(work, [1, 2, 3, 4, 5, 6], 3, [])
    said = {"one token is too short a match: most tokens occurred somewhere before": OneOf([[8, 9, 6], [8, 9]])}
    check(work, [2, 8, 9, 6, 7, 2], 3, [], said)
    for token_ids in ([], [1], [1, 2], [1, 1]):
        check(
            work,
            token_ids,
            3,
            [],
            {"the end itself is not a match: nothing has followed it": OneOf([[1, 1, 1], [1, 2, 1], [1]])},
        )
    check(
        work,
        [1, 2, 3, 1, 5, 2, 1, 3, 2],
        3,
        [],
        {"the tokens of a match are in the same order": OneOf([[2, 2, 2], [5, 2, 1], [1, 5, 2]])},
    )


def test_the_longest_counts(work):
    latest = "the longest match counts first, and only then the latest"
    first = "of equally long matches the latest counts"
    check(work, [1, 2, 3, 4, 8, 9, 3, 4, 7, 1, 2, 3, 4], 2, [8, 9], {latest: [7, 1]})
    check(work, [0, 2, 3, 4, 8, 9, 3, 4, 7, 1, 2, 3, 4], 2, [8, 9], {latest: [7, 1]})
    check(work, [0, 2, 3, 4, 8, 9, 3, 4, 7, 1, 5, 3, 4], 2, [7, 1], {first: [8, 9]})
    check(work, [1, 2, 3, 4, 8, 9, 1, 2, 3, 4, 7, 5, 1, 2, 3, 4], 2, [7, 5], {first: [8, 9]})
    said = {"look up at most the last four tokens: of two matches of four the latest counts": [8, 6]}
    check(work, [5, 1, 2, 3, 4, 8, 6, 1, 2, 3, 4, 7, 9, 5, 1, 2, 3, 4], 2, [7, 9], said)


def test_the_end_comes_again(work):
    said = {"where the sequence ends, the guess goes on as if the same text came again": [9, 1, 2],
            "the guess goes on with what followed the match, not with the beginning of the sequence": [9, 1, 2, 7, 1, 2, 3],
            "the guess goes on with what followed the match, not with its last token": [9, 1, 2, 2, 2, 2, 2]}  # fmt: skip
    check(work, [7, 1, 2, 3, 5, 1, 2, 9, 1, 2], 7, [9, 1, 2, 9, 1, 2, 9], said)
    said = {"a match may overlap the end: something has followed it": [],
            "where the sequence ends, the guess goes on as if the same text came again": [5]}  # fmt: skip
    check(work, [5, 5, 5], 3, [5, 5, 5], said)
    check(work, [6, 8, 6, 8, 6], 4, [8, 6, 8, 6], {
        "a match may overlap the end: something has followed it": [],
        "where the sequence ends, the guess goes on as if the same text came again": [8, 6]})  # fmt: skip


def test_a_guess_may_be_wrong(work):
    lookup = work.Lookup([1, 2, 3, 4, 1, 2])
    said = "a guess is not part of the sequence: only add extends it"
    expect("guess(2) after [1, 2, 3, 4, 1, 2]", lookup.guess(2), [3, 4])
    expect("the same guess once more", lookup.guess(2), [3, 4], likely=said)
    lookup.add([9, 1, 2])
    expect(
        "after [9, 1, 2] was added",
        lookup.guess(3),
        [9, 1, 2],
        {"of equally long matches the latest counts": [3, 4, 1]},
        likely=said,
    )
    lookup.add([])
    expect("after nothing came", lookup.guess(3), [9, 1, 2])


def test_sequences_of_their_own(work):
    one, two = work.Lookup([1, 2, 3, 1]), work.Lookup([1, 2, 4, 1])
    one.add([2])
    two.add([2])
    said = {"each sequence needs its own index": OneOf([([4], [4]), ([3], [3]), ([], [4])])}
    expect("1 2 3 1 2 and 1 2 4 1 2, one after the other", (one.guess(1), two.guess(1)), ([3], [4]), said)
    given = [1, 2, 3, 1]
    lookup = work.Lookup(given)
    lookup.add([2])
    expect(
        "the list that was given, after something was added",
        given,
        [1, 2, 3, 1],
        likely="the engine goes on using it: work on a copy",
    )
    before = lookup.guess(3)
    lookup.add([4, 1, 2])
    expect("guess(3), after 4 1 2 was added", lookup.guess(3), [4, 1, 2])
    expect("an earlier guess, after something was added", work.reread(before), [3, 1, 2])


def slowly(token_ids, count):
    """Every position, from the last: the first one that matches the longest suffix of the sequence."""
    for n in (4, 3, 2):
        for place in range(len(token_ids) - 1, n - 1, -1):
            if token_ids[place - n : place] == token_ids[len(token_ids) - n :]:
                longer = list(token_ids)
                for i in range(count):
                    longer.append(longer[place + i])
                return longer[len(token_ids) :]
    return []


def test_any_sequence(work):
    """Two or three tokens that keep recurring; some are added, one or several at a time."""

    def check(choose):
        most = choose.between(1, 2)
        token_ids = choose.some(lambda: choose.upto(most), 8)
        example = Example(work, __file__)
        example.do(f"lookup = work.Lookup({token_ids})")
        for _ in choose.each(lambda: None, 6):
            count = choose.upto(9)
            example.expect(f"lookup.guess({count})", slowly(token_ids, count))
            more = choose.some(lambda: choose.upto(most), 3)
            example.do(f"lookup.add({more})")
            token_ids = token_ids + more
        example.look("lookup.guess(7)", slowly(token_ids, 7))

    at_random(check, 300)


def test_long_sequences(work):
    """A thousand tokens, some of them beyond 65,535, and guesses of hundreds."""
    rng = random.Random(0)
    for period, count in ((700, 500), (100, 900), (900, 1200), (3, 1100), (5, 70_000)):
        repeated = [rng.choice((65_536, 0, 1, 131_072, 70_000 + i)) for i in range(period)]
        token_ids = (repeated * (2 + 1000 // period))[: 1100 + period // 2]
        got = work.Lookup(token_ids).guess(count)
        expect(
            f"guess({count}) after {len(token_ids):,} tokens, the same {period} again and again",
            got,
            slowly(token_ids, count),
        )
    far = [2_000_000, 65_537, 1, 2, *range(3, 2000), 2_000_000, 65_537]
    expect("guess(3) after 2,001 tokens, the last two equal to the first two", work.Lookup(far).guess(3), [1, 2, 3])
    near = [1, 65_537, 3, 4, *range(10, 1500), 65_537, 1]
    expect("guess(3) after 1,496 tokens, no two of which occurred before", work.Lookup(near).guess(3), [])


class Token(int):
    """A token that counts comparisons of tokens."""

    compared = 0

    def __eq__(self, other):
        Token.compared += 1
        return int(self) == int(other)

    def __lt__(self, other):
        Token.compared += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


SEARCHED = "the sequence is searched, or indexed again: each token needs to be indexed only once"


def test_nothing_is_searched(work):
    """The answer's own instructions after 400 tokens; what C does for it after 4,000: comparisons, and memory."""
    rng = random.Random(1)
    lookup = work.Lookup([rng.randrange(60) for _ in range(400)])
    for what, calls in (("add", [([rng.randrange(60)],) for _ in range(30)]), ("guess", [(5,)] * 30)):
        with work.measured() as measured:
            work.each(lookup, what, calls)
        require(measured.instructions < 1000 * 30, f"30 times {what} after 400 tokens: Python instructions",
                f"fewer than {1000 * 30:,}", measured.instructions, SEARCHED)  # fmt: skip
    lookup = work.Lookup(
        [Token(token) for token in (1, 2, *(rng.randrange(70_000, 70_060) for _ in range(4000)), 1, 2)]
    )
    copied = {"add": "the sequence or its index is copied: append to it",
              "guess": "the rest of the sequence is copied: five tokens of it are enough"}  # fmt: skip
    for what, calls in (("guess", [5] * 30), ("add", [[Token(rng.randrange(70_000, 70_060))] for _ in range(30)])):
        Token.compared, taken = 0, []
        for argument in calls:
            with work.measured() as measured:
                getattr(lookup, what)(argument)
            taken.append(measured.allocated)
        case = f"30 times {what} after 4,004 tokens"
        require(Token.compared < 1000 * 30, f"{case}: comparisons of tokens", f"fewer than {1000 * 30:,}",
                Token.compared, SEARCHED)  # fmt: skip
        usual = sorted(taken)[15]  # a growing list or dictionary is reallocated now and then
        require(usual < 10_000, f"{case}: bytes allocated by most of them", "fewer than 10,000", usual, copied[what])


def test_two_lengths(work):
    """What C does without a comparison or a copy shows in the time: side by side after 500 tokens and after 50,000. The
    match is in the middle. The fastest of several times counts, so that other programs do not."""
    rng, calls, fastest = random.Random(2), 100, {}
    lengths = {
        count: work.Lookup([*some(rng, count // 2), 1, 2, 3, *some(rng, count // 2), 1, 2]) for count in (500, 50_000)
    }
    for what in ("guess", "add"):
        for _ in range(9):
            for count, lookup in lengths.items():
                started = time.process_time()
                work.each(lookup, what, [(5,) if what == "guess" else (some(rng, 1),) for _ in range(calls)])
                seconds = time.process_time() - started
                fastest[what, count] = min(seconds, fastest.get((what, count), seconds))
        longer = fastest[what, 50_000] / fastest[what, 500]
        require(longer < 8, f"{what} after 50,000 tokens, next to {what} after 500", "less than 8 times the time",
                f"{longer:.0f} times", "the time grows with the sequence: jump to the place, and touch nothing else")  # fmt: skip


def some(rng, count):
    """Tokens of which no two in a row have occurred before, or hardly any."""
    return [rng.randrange(70_000, 10**9) for _ in range(count)]


def test_tokens_that_look_alike(work):
    """Written one after another, 1 and 23 are 12 and 3; packed into 32 bits each, or hashed, others are alike."""
    said = {"compare the tokens, not a text made of them: 1, 23 and 12, 3 have the same digits": [7, 8]}
    check(work, [1, 23, 7, 8, 12, 3], 2, [], said)
    said = {"tokens have no upper limit: a number for a pair must not be that of another pair": [7, 8]}
    check(work, [1, 2, 7, 8, 0, 2**32 + 2], 2, [], said)
    said = {"a hash is not enough: the tokens themselves must be equal": [7, 8]}
    check(work, [1, 2, 7, 8, 2**61, 2], 2, [], said)
    check(work, [2**64, 2**65, 7, 8, 2**64, 2**65], 2, [7, 8])

"""Guesses that are right, wrong, and right again after a wrong one; and what the sampler was asked."""

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect

REAL = "call it with all tokens so far: the sequence and the tokens it has just got, but no unverified guess"
TOO_OFTEN = "the sampler counts its tokens: ask it once for each token that the request gets, and for no other"


class Sampler:
    """The likeliest token that does not repeat the last one. Records what it was asked and what it answered."""

    def __init__(self):
        self.asked, self.said = [], []

    def __call__(self, row, token_ids):
        self.asked.append(list(token_ids))
        self.said.append(likeliest(row, token_ids))
        return self.said[-1]

    def unreal(self, before):
        """The sequences it was asked about that never existed: not the sequence plus some of its own answers so far."""
        real = [before + self.said[:i] for i in range(len(self.asked))]
        return [ids for ids, all_ in zip(self.asked, real, strict=True) if ids != all_[: max(len(before), len(ids))]]


def likeliest(row, token_ids):
    return max(range(len(row)), key=lambda token: (token != token_ids[-1], row[token]))


def says(*tokens):
    """Rows of logits with these likeliest tokens."""
    return [[float(i == token) for i in range(10)] for token in tokens]


def check(work, case, rows, drafts, expected, mistakes=None, *, token_ids=(1, 2, 3), num_left=9, end=0):
    """Expect these tokens, from a sampler that was asked about nothing else, and this many valid keys and values."""
    sampler, before = Sampler(), list(token_ids)
    tokens, num_computed = work.verify(list(before), list(drafts), says(*rows), sampler, num_left, end)
    case = f"{case}: after {before} the drafts {drafts}, the rows say {list(rows)}"
    expect(
        f"{case}: sequences that the sampler was asked about but that never existed",
        sampler.unreal(before),
        [],
        likely=REAL,
    )
    expect(f"{case}: tokens", tokens, expected, mistakes)
    asked = [before + expected[:i] for i in range(len(expected))]
    more = OneOf([sampler.asked] if len(sampler.asked) > len(asked) else [])
    expect(
        f"{case}: the sequences that the sampler was asked about", sampler.asked, asked, {TOO_OFTEN: more}, likely=REAL
    )
    valid, all_fed = len(before) + len(expected) - 1, len(before) + len(drafts)
    said = {"the last token has not been computed yet: only the next step feeds it": valid + 1,
            "keys of rejected guesses are in the cache, but they don't belong to the sequence": all_fed,
            "correct drafts count too: the step has computed them": len(before)}  # fmt: skip
    expect(f"{case}: tokens with valid keys and values", num_computed, valid, said)


def test_a_wrong_guess(work):
    check(work, "the second is wrong", (4, 8, 6, 7), [4, 5, 6], [4, 8], {
        "rows after a rejected guess saw a wrong token: they are worthless, even if they agree again":
            OneOf([[4, 8, 6, 7], [4, 8, 6]]),
        "where a guess is rejected, keep the sampled token: every step yields at least one": [4],
        "a rejected guess is not the token: the sampled one is": [4, 5]})  # fmt: skip
    check(work, "the first is wrong", (8, 5, 6, 7), [4, 5, 6], [8], {
        "the first guess was not verified: the row of the newest token says whether it is right":
            OneOf([[4, 5, 6, 7], [4, 5, 6], [4]]),
        "rows after a rejected guess saw a wrong token: they are worthless, even if they agree again":
            OneOf([[8, 5, 6, 7], [8, 5, 6]]),
        "where a guess is rejected, keep the sampled token: every step yields at least one": []})  # fmt: skip
    check(work, "the last is wrong", (4, 5, 8, 7), [4, 5, 6], [4, 5, 8], {
        "rows after a rejected guess saw a wrong token: they are worthless, even if they agree again": [4, 5, 8, 7]})  # fmt: skip


def test_all_are_right(work):
    check(work, "three right guesses", (4, 5, 6, 7), [4, 5, 6], [4, 5, 6, 7], {
        "if all guesses are right, the last row gives one more token": [4, 5, 6],
        "the first row is that of the newest token: it verifies the first draft": OneOf([[5, 6, 7], [5]])})  # fmt: skip


def test_right_in_another_place(work):
    check(work, "the drafts in another order", (5, 4, 6, 7), [4, 5, 6], [5], {
        "compare a token with the draft at its position, not with all drafts": OneOf([[5, 4, 6, 7], [5, 4], [5, 4, 6]])})  # fmt: skip


def test_no_guess(work):
    check(work, "no draft", (7,), [], [7], {"without guesses a step gives one token, as in stage 6": []})


def test_the_prompt(work):
    """The newest token is not alone: the step has computed a part of a prompt, and guesses after it."""
    said = {"the first row need not be the newest token's: several of the sequence's last tokens may have been fed":
            OneOf([[9], [9, 9], [8], [4, 8], [9, 9, 4, 8, 7]])}  # fmt: skip
    check(work, "three tokens were fed before the drafts", (9, 8, 4, 5, 7), [4, 5], [4, 5, 7], said)
    check(work, "three tokens were fed, and no draft", (9, 8, 4), [], [4], said)


def test_the_end(work):
    past = "the end token ends it, even among correct drafts: nothing follows"
    said = {past: OneOf([[4, 5, 6, 7], [4, 5, 6]]), "the end token is one of the tokens: the model chose it": [4]}
    check(work, "5 is the end token", (4, 5, 6, 7), [4, 5, 6], [4, 5], said, end=5)
    said = {past: OneOf([[4, 5, 6, 7], [4, 5]]), "the end token is one of the tokens: the model chose it": []}
    check(work, "4 is the end token", (4, 5, 6, 7), [4, 5, 6], [4], said, end=4)
    check(work, "8, which was not guessed, is the end token", (4, 8, 6, 7), [4, 5, 6], [4, 8], {
        "the end token is one of the tokens: the model chose it": [4]}, end=8)  # fmt: skip
    check(work, "6 is the end token, and was only guessed", (4, 8, 6, 7), [4, 6, 6], [4, 8], end=6)
    check(work, "3, which is in the sequence already, is the end token", (4, 5, 7), [4, 5], [4, 5, 7], {
        "only a new token ends the output: the prompt may contain the end token": OneOf([[4], []])}, end=3)  # fmt: skip


def test_so_many_are_left(work):
    said = {"no more than num_left tokens, even among correct drafts": OneOf([[4, 5, 6, 7], [4, 5, 6]]),
            "num_left counts the tokens of this step, not those of the sequence": OneOf([[4], []])}  # fmt: skip
    check(work, "num_left=2", (4, 5, 6, 7), [4, 5, 6], [4, 5], said, num_left=2)
    said = {"no more than num_left tokens, even among correct drafts": OneOf([[4, 5, 6, 7], [4, 5]])}
    check(work, "num_left=1", (4, 5, 6, 7), [4, 5, 6], [4], said, num_left=1)
    said = {"if num_left equals the number of drafts, the row after the last draft is not needed": [4, 5, 6, 7]}
    check(work, "num_left=3", (4, 5, 6, 7), [4, 5, 6], [4, 5, 6], said, num_left=3)
    said = {"num_left counts the tokens of this step, not those of the sequence": [4]}
    check(work, "num_left=4", (4, 5, 6, 7), [4, 5, 6], [4, 5, 6, 7], said, num_left=4)


def test_the_sampler_decides(work):
    """Its penalty changes which token is likeliest."""
    said = {"the sampler decides, not the logits alone: it applies penalties and structured output": [4, 4]}
    check(work, "the sampler never repeats a token", (4, 4, 7), [4, 4], [4, 0], said, num_left=2, end=9)


def slowly(token_ids, drafts, rows, num_left, end):
    """The tokens, one at a time, for as long as some row has seen exactly this sequence."""
    fed, tokens = token_ids + drafts, []
    seen = {tuple(fed[: len(fed) - i]): row for i, row in enumerate(reversed(rows))}
    while len(tokens) < num_left and end not in tokens and tuple(token_ids + tokens) in seen:
        tokens.append(likeliest(seen[tuple(token_ids + tokens)], token_ids + tokens))
    return tokens


def test_any_guesses(work):
    """Sequences of three repeating tokens, guesses that are mostly right, rows before the newest token's."""

    def check(choose):
        token_ids = choose.some(lambda: choose.upto(2), 4, least=1)
        row = lambda: [float(choose.upto(3)) for _ in range(3)]  # noqa: E731
        rows = [row() for _ in range(choose.between(1, len(token_ids)))]
        drafts = []
        for off in choose.each(lambda: choose.one_of([0, 0, 0, 0, 1, 2]), 5):
            drafts.append((likeliest(rows[-1], token_ids + drafts) + off) % 3)
            rows.append(row())
        num_left, end = choose.between(1, 7), 3 - choose.upto(3)
        tokens = slowly(token_ids, drafts, rows, num_left, end)
        example = Example(work, __file__, "from exercises.stage7.test_7_1_verify import Sampler")
        example.do("sampler = Sampler()")
        expected = (tokens, len(token_ids) + len(tokens) - 1)
        example.expect(f"work.verify({token_ids}, {drafts}, {rows}, sampler, {num_left}, {end})", expected)
        example.look("sampler.asked", [token_ids + tokens[:i] for i in range(len(tokens))])

    at_random(check, 300)


def test_many_tokens(work):
    """A thousand guesses after a thousand tokens, ids beyond 65,535."""
    for num_before, num_drafts, num_right in ((2, 1000, 1000), (2, 1000, 940), (1100, 3, 3), (70, 70, 66)):
        said = [70_000 + 3 * i for i in range(num_drafts + 1)]
        drafts = [token + (i >= num_right) for i, token in enumerate(said[:-1])]
        before, asked = [80_000 + i for i in range(num_before)], []

        def sample(row, token_ids, asked=asked):
            asked.append(len(token_ids))
            return int(row[0])

        got = work.verify(before, drafts, [[float(token)] for token in said], sample, 5000, 65_536)
        case = f"{num_before:,} tokens and {num_drafts:,} guesses after them, {num_right:,} of which are right"
        expect(case, got, (said[: num_right + 1], num_before + num_right))
        expect(
            f"{case}: lengths of the sequences that the sampler was asked about",
            asked,
            [num_before + i for i in range(num_right + 1)],
        )


def test_an_end_with_a_large_number(work):
    row = [float(token == 300) for token in range(301)]
    got = work.verify([1, 2, 3], [300], [row, row], Sampler(), 9, 300)
    said = {"compare numbers with ==: `is` compares objects, and two that are equal may be two": [300, 0]}
    expect("after [1, 2, 3] the draft [300], which ends the output: tokens", got[0], [300], said)

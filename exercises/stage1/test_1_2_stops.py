"""Ends of every kind, and how many tokens were taken to find them."""

import itertools

from exercises.grading import expect, require

EOS = 9


class Model:
    """Gives these texts as tokens 0, 1, 2 …; None is the end token; counts what was taken from it."""

    def __init__(self, *texts: str | None):
        self.texts, self.taken = texts, 0

    def __iter__(self):
        for i, text in enumerate(itertools.chain(self.texts, itertools.repeat("…"))):
            self.taken += 1
            require(self.taken < 100, "a completion of at most 9 tokens", "it ends", "100 tokens and no end")
            yield (EOS, "<end>") if text is None else (i % 9, text)


def check(work, case, texts, stop, max_tokens, expected, mistakes=None):
    model = Model(*texts)
    got = work.complete(iter(model), EOS, stop, max_tokens)
    expect(case, (got.text, got.finish_reason, got.num_tokens), expected, mistakes,
           likely="num_tokens counts the token that ended it" if got.num_tokens == expected[2] - 1 else "")  # fmt: skip
    expect(f"{case}: tokens taken from the model", model.taken, expected[2], {
        "a token was taken from the model after the end: that is a forward pass for nothing": expected[2] + 1})  # fmt: skip


def test_length(work):
    check(work, "max_tokens=2", ("a", "b", "c"), (), 2, ("ab", "length", 2))


def test_end_token(work):
    said = {"the end token's text is no part of the completion": ("a<end>", "stop", 2),
            "the end token counts: the model made it": ("a", "stop", 1)}  # fmt: skip
    check(work, "a, end token", ("a", None), (), 5, ("a", "stop", 2), said)


def test_the_last_token_may_end_it(work):
    said = {"the end token came with the last token allowed: that is a stop": ("ab", "length", 3)}
    check(work, "end token as the last of max_tokens=3", ("a", "b", None), (), 3, ("ab", "stop", 3), said)
    said = {"the stop text was complete with the last token allowed: that is a stop": ("ab", "length", 2),
            "the completion ends before the stop text": ("ab", "stop", 2)}  # fmt: skip
    check(work, "stop 'b' with the last of max_tokens=2", ("a", "b"), ("b",), 2, ("a", "stop", 2), said)


def test_a_stop_text_over_tokens(work):
    said = {"a stop text may begin in one token and end in another: look into the whole text": ("The end.\n\nQ: next", "length", 5),
            "the completion ends before the stop text": ("The end.\n\nQ", "stop", 4)}  # fmt: skip
    texts = ("The", " end", ".\n", "\nQ", ": next")
    check(work, r"stop '\n\n' over two tokens", texts, ("\n\n",), 5, ("The end.", "stop", 4), said)
    said = {"a stop text may stand in the middle of a token": ("xaSTOPb…", "length", 3)}
    check(work, "stop inside a token", ("x", "aSTOPb"), ("STOP",), 3, ("xa", "stop", 2), said)


def test_the_first_to_begin(work):
    said = {"of several stop texts the one that begins first counts, not the first in the list": ("a b ", "stop", 1)}
    check(work, "stops 'c', 'b' in 'a b c'", ("a b c",), ("c", "b"), 3, ("a ", "stop", 1), said)


def test_an_earlier_end(work):
    said = {"a stop text is looked for after every token, not at the end": ("a", "stop", 4)}
    check(work, "stop 'b', then the end token", ("a", "b", "c", None), ("b",), 9, ("a", "stop", 2), said)

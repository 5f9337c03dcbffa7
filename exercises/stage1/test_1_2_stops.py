"""Ends of every kind, and how many tokens were taken to find them."""

import itertools

from exercises.examples import Example, at_random
from exercises.grading import expect, require

EOS = 9


class Model:
    """Yields these texts as tokens 0, 1, 2 …, None being the end token, and counts how many were taken."""

    def __init__(self, *texts: str | None):
        self.texts, self.taken = texts, 0

    def __iter__(self):
        for i, text in enumerate(itertools.chain(self.texts, itertools.repeat("…"))):
            self.taken += 1
            require(self.taken < 100, "a completion of at most 9 tokens", "it ends", "100 tokens and no end")
            yield (EOS, "<end>") if text is None else (i % 9, text)

    def __repr__(self):
        return f"Model{self.texts!r}"


def check(work, case, texts, stop, max_tokens, expected, mistakes=None):
    model = Model(*texts)
    got = work.complete(iter(model), EOS, stop, max_tokens)
    text, reason, num_tokens = expected
    counted = {"num_tokens includes the token that ended the completion": (text, reason, num_tokens - 1)}
    expect(case, (got.text, got.finish_reason, got.num_tokens), expected, {**(mistakes or {}), **counted})
    expect(f"{case}: tokens taken from the model", model.taken, num_tokens, {
        "a token was taken from the model after the end: a wasted forward pass": num_tokens + 1})  # fmt: skip


def test_length(work):
    check(work, "max_tokens=2", ("a", "b", "c"), (), 2, ("ab", "length", 2))


def test_end_token(work):
    said = {"the end token's text is not part of the completion": ("a<end>", "stop", 2),
            "the end token counts: the model made it": ("a", "stop", 1)}  # fmt: skip
    check(work, "a, end token", ("a", None), (), 5, ("a", "stop", 2), said)
    said = {"the first token may be the end token": ("<end>…", "length", 2)}
    check(work, "the end token as the first of all, max_tokens=2", (None,), (), 2, ("", "stop", 1), said)
    said = {"the end token's text is not searched for stop strings: it is not part of the completion": ("", "stop", 2)}
    check(work, "a, end token <end>, stop 'a<end>'", ("a", None), ("a<end>",), 5, ("a", "stop", 2), said)
    check(work, "ab, end token <end>, stop 'b<'", ("ab", None), ("b<",), 5, ("ab", "stop", 2),
          {"the end token's text is not searched for stop strings: it is not part of the completion": ("a", "stop", 2)})  # fmt: skip


def test_tokens_without_text(work):
    """Half a character may have no text yet, but it still cost a forward pass."""
    said = {"a token whose text is empty counts too: it was computed": ("ab", "length", 2),
            "a token whose text is empty counts toward max_tokens too": ("ab", "length", 3),
            "recognize the end token by its id; an empty text does not mean the end": ("a", "stop", 2)}  # fmt: skip
    check(work, "a, a token without text, b, max_tokens=2", ("a", "", "b"), (), 2, ("a", "length", 2), said)


def test_the_last_token_may_end_it(work):
    said = {"the end token came with the last token allowed: that is a stop": ("ab", "length", 3)}
    check(work, "end token as the last of max_tokens=3", ("a", "b", None), (), 3, ("ab", "stop", 3), said)
    said = {"the stop string was complete with the last token allowed: that is a stop": ("ab", "length", 2),
            "the completion ends before the stop string": ("ab", "stop", 2)}  # fmt: skip
    check(work, "stop 'b' with the last of max_tokens=2", ("a", "b"), ("b",), 2, ("a", "stop", 2), said)


def test_a_stop_text_over_tokens(work):
    said = {"a stop string may begin in one token and end in another: search the whole text": ("The end.\n\nQ: next", "length", 5),
            "the completion ends before the stop string": ("The end.\n\nQ", "stop", 4)}  # fmt: skip
    texts = ("The", " end", ".\n", "\nQ", ": next")
    check(work, r"stop '\n\n' over two tokens", texts, ("\n\n",), 5, ("The end.", "stop", 4), said)
    said = {"a stop string may lie in the middle of a token": ("xaSTOPb…", "length", 3)}
    check(work, "stop inside a token", ("x", "aSTOPb"), ("STOP",), 3, ("xa", "stop", 2), said)


def test_the_first_to_begin(work):
    said = {"of several stop strings the one that begins first counts, not the first in the list": ("a b ", "stop", 1)}
    check(work, "stops 'c', 'b' in 'a b c'", ("a b c",), ("c", "b"), 3, ("a ", "stop", 1), said)
    said = {"the one that begins first counts, not the one that ends first": ("abc", "stop", 1)}
    check(work, "stops 'bcde', 'd' in 'abcdef'", ("abcdef",), ("bcde", "d"), 3, ("a", "stop", 1), said)
    said = {"the first occurrence of a stop string counts, not the last": ("ab.", "stop", 1)}
    check(work, "stop 'b' in 'ab.b'", ("ab.b",), ("b",), 3, ("a", "stop", 1), said)


def test_a_stop_text_over_many_tokens(work):
    said = {"a stop string may span any number of tokens: search the whole text": ("abcd", "length", 4)}
    check(work, "stop 'bcd' over three tokens", ("a", "b", "c", "d"), ("bcd",), 4, ("a", "stop", 4), said)


def test_a_stop_text_is_no_pattern(work):
    said = {
        "a stop string is plain text, not a regular expression, where . and * have special meanings": ("", "stop", 1)
    }
    check(work, "stop '.' in 'ab' and 'c.'", ("ab", "c."), (".",), 3, ("abc", "stop", 2), said)


def test_an_earlier_end(work):
    said = {"look for stop strings after every token, not only at the end": ("a", "stop", 4)}
    check(work, "stop 'b', then the end token", ("a", "b", "c", None), ("b",), 9, ("a", "stop", 2), said)


def slowly(tokens, stop, max_tokens):
    """(text, finish_reason, num_tokens), computed from each prefix of the tokens."""
    for n in range(1, len(tokens) + 1):
        text = "".join(piece for _, piece in tokens[:n])
        if tokens[n - 1][0] == EOS:
            return text.removesuffix(tokens[n - 1][1]), "stop", n
        for begin in range(len(text)):
            if any(text.startswith(s, begin) for s in stop):
                return text[:begin], "stop", n
        if n == max_tokens:
            return text, "length", n
    return None


def test_any_completion(work):
    """Stop strings that overlap and repeat, tokens without text, an end token whose text looks like any other."""

    def check_one(choose):
        piece = lambda: "".join(choose.some(lambda: choose.one_of("ab. A"), 3))  # noqa: E731
        max_tokens = choose.between(1, 6)
        tokens = [(EOS if choose.upto(9) == 9 else i, piece()) for i in range(max_tokens + 2)]
        stop = tuple(choose.some(lambda: choose.one_of("ab. A") + piece(), 3))
        text, reason, num_tokens = slowly(tokens, stop, max_tokens)
        example = Example(work, __file__)
        example.do(f"model = iter({tokens})")
        example.do(f"completion = work.complete(model, {EOS}, {stop}, {max_tokens})")
        fields = "(completion.text, completion.finish_reason, completion.num_tokens)"
        example.look(fields, (text, reason, num_tokens))
        example.look("len(list(model))  # tokens left in the model", len(tokens) - num_tokens)

    at_random(check_one, 400)


def test_long_completions(work):
    """Thousands of tokens, token ids beyond 65,535, and stop strings longer than any token."""
    for length in (100, 1000):
        stop, pieces = "x" * length, [*["ab"] * 1200, *["xx"] * (length // 2), "c"]
        model = iter([(100_000 + i, piece) for i, piece in enumerate(pieces)])
        got = work.complete(model, 99_999, (stop, "never " * 20), 70_000)
        expect(f"1,200 tokens, then a stop string of {length} x", (got.text, got.finish_reason, got.num_tokens),
               ("ab" * 1200, "stop", 1200 + length // 2))  # fmt: skip
    model = iter([(i, "a") for i in range(1500)])
    got = work.complete(model, 1400, ("b",), 2000)
    expect("an end token with a high id", (len(got.text), got.finish_reason, got.num_tokens), (1400, "stop", 1401))

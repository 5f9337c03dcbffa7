"""1.2 Where a completion ends: ends of every kind, and how many tokens were taken to find them."""

import itertools
import random

import pytest

EOS = 9


class Model:
    """Yields these texts as tokens, None being the end token, and counts how many were taken."""

    def __init__(self, texts):
        self.texts, self.taken = texts, 0

    def __iter__(self):
        for i, text in enumerate(itertools.chain(self.texts, itertools.repeat("…"))):
            self.taken += 1
            assert self.taken < 200, "200 tokens were taken, and the completion has not ended"
            yield (EOS, "<end>") if text is None else (i % 9, text)


def case(rule, texts, stop, max_tokens, *expected):
    return pytest.param(texts, stop, max_tokens, expected, id=rule)


@pytest.mark.parametrize(("texts", "stop", "max_tokens", "expected"), [
    case("max_tokens=2", ("a", "b", "c"), (), 2, "ab", "length", 2),
    case("the end token has no text, and it counts", ("a", None), (), 5, "a", "stop", 2),
    case("the first token may be the end token", (None,), (), 2, "", "stop", 1),
    case("the end token's text is not searched", ("a", None), ("a<end>",), 5, "a", "stop", 2),
    case("the end token's text is not searched with the text before it", ("ab", None), ("b<",), 5, "ab", "stop", 2),
    case("a token without text counts, and it is not the end", ("a", "", "b"), (), 2, "a", "length", 2),
    case("the end token as the last token allowed is a stop", ("a", "b", None), (), 3, "ab", "stop", 3),
    case("a stop string that the last token allowed completes is a stop", ("a", "b"), ("b",), 2, "a", "stop", 2),
    case("a stop string may begin in one token and end in another", ("The", " end", ".\n", "\nQ", ": next"), ("\n\n",), 5,
         "The end.", "stop", 4),
    case("a stop string may span any number of tokens", ("a", "b", "c", "d"), ("bcd",), 4, "a", "stop", 4),
    case("a stop string may lie inside a token", ("x", "aSTOPb"), ("STOP",), 3, "xa", "stop", 2),
    case("the stop string that begins first counts, not the first in the list", ("a b c",), ("c", "b"), 3, "a ", "stop", 1),
    case("the stop string that begins first counts, not the one that ends first", ("abcdef",), ("bcde", "d"), 3, "a", "stop", 1),
    case("the first occurrence of a stop string counts", ("ab.b",), ("b",), 3, "a", "stop", 1),
    case("a stop string is plain text, not a regular expression", ("ab", "c."), (".",), 3, "abc", "stop", 2),
    case("look for stop strings after every token", ("a", "b", "c", None), ("b",), 9, "a", "stop", 2),
    case("a stop string may be longer than any token", ("ab",) * 40 + ("xx",) * 30, ("x" * 60,), 90, "ab" * 40, "stop", 70),
])  # fmt: skip
def test_ends(work, texts, stop, max_tokens, expected):
    model = Model(texts)
    got = work.complete(iter(model), EOS, stop, max_tokens)
    assert (got.text, got.finish_reason, got.num_tokens) == expected
    assert model.taken == got.num_tokens, "a token was taken from the model after the end: a wasted forward pass"


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


def letters(choose, most):
    return "".join(choose.choices("ab. A", k=choose.randint(0, most)))


def test_any_completion(work):
    """Random tokens and stop strings: the same as looking at each prefix."""
    for seed in range(400):
        choose, most = random.Random(seed), 1 + seed // 200
        max_tokens = choose.randint(1, 2 + seed // 100)
        tokens = [(EOS if choose.random() < 0.1 else i, letters(choose, most)) for i in range(max_tokens + 2)]
        stop = tuple(choose.choice("ab. A") + letters(choose, most) for _ in range(choose.randint(0, 3)))
        model = iter(tokens)
        got, expected = work.complete(model, EOS, stop, max_tokens), slowly(tokens, stop, max_tokens)
        called = f"complete(iter({tokens}), {EOS}, {stop}, {max_tokens})"
        assert (got.text, got.finish_reason, got.num_tokens) == expected, called
        assert len(list(model)) == len(tokens) - expected[2], f"tokens left in the model after {called}"

"""3.2 Fix the cache: a model that records its arguments. Its next token is a sum over what it may see, so everything that
it sees matters."""

import random

import pytest


class Model:
    def __init__(self):
        self.calls = []

    def __call__(self, token_ids, positions, visible, cache):
        self.calls.append((list(token_ids), list(positions), [list(row) for row in visible]))
        cache += [(token + 1) * (position + 1) for token, position in zip(token_ids, positions, strict=True)]
        return sum(entry for entry, seen in zip(cache, visible[-1], strict=True) if seen) % 1009


def without_cache(prompt, max_tokens):
    sequence = list(prompt)
    for _ in range(max_tokens):
        sequence.append(sum((token + 1) * (i + 1) for i, token in enumerate(sequence)) % 1009)
    return sequence[len(prompt) :]


@pytest.fixture
def calls(work):
    """The model's calls for a prompt of four tokens in chunks of two, and two tokens more."""
    model = Model()
    work.Decoder(model).generate([3, 1, 4, 1], 3, chunk=2)
    return model.calls


def test_new_tokens_only(calls):
    """What is in the cache is not computed again"""
    assert [len(token_ids) for token_ids, _, _ in calls] == [2, 2, 1, 1]


def test_positions(calls):
    """The position goes up by one each step, and the first new token comes right after the prompt"""
    assert [positions for _, positions, _ in calls] == [[0, 1], [2, 3], [4], [5]]


@pytest.mark.parametrize(("call", "expected"), [
    pytest.param(0, [[True, False], [True, True]], id="within a chunk a token must not look ahead"),
    pytest.param(1, [[True, True, True, False], [True, True, True, True]],
                 id="row i of the mask belongs to column len(cache) + i: it sees the whole cache"),
    pytest.param(2, [[True] * 5], id="a decode step sees the whole cache and itself"),
])  # fmt: skip
def test_mask(calls, call, expected):
    assert calls[call][2] == expected


@pytest.mark.parametrize("prompt", [
    pytest.param([3, 1, 4], id="the same prompt again: each call begins with an empty cache"),
    pytest.param([2, 7, 1, 8, 2, 8, 1, 8], id="a longer prompt after it: each call begins with an empty cache"),
])  # fmt: skip
def test_called_again(work, prompt):
    decoder = work.Decoder(Model())
    first = decoder.generate([3, 1, 4], 4, chunk=8)
    assert decoder.generate(list(prompt), 4, chunk=8) == without_cache(prompt, 4)
    assert first == without_cache([3, 1, 4], 4), "the second call changed what the first one returned"


def test_any_calls(work):
    """One decoder, one prompt after another, in chunks of any size"""
    for seed in range(200):
        choose, decoder, calls = random.Random(seed), work.Decoder(Model()), []
        for _ in range(choose.randint(1, 3)):
            prompt = choose.choices(range(10), k=choose.randint(1, 2 + seed // 10))
            max_tokens, chunk, given = choose.randint(1, 4), choose.randint(1, 12), list(prompt)
            calls.append(f"generate({prompt}, {max_tokens}, {chunk})")
            assert decoder.generate(given, max_tokens, chunk) == without_cache(prompt, max_tokens), calls
            assert given == prompt, f"the caller's prompt was changed: {calls}"

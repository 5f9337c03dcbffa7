"""3.2 Fix the cache: what a model is given, and the same tokens as without a cache."""

import random

import pytest


class Model:
    """Records its arguments. Its next token is a sum over what it may see, so every mistake changes a token."""

    def __init__(self):
        self.tokens, self.positions, self.masks = [], [], []

    def __call__(self, token_ids, positions, visible, cache):
        self.tokens.append(list(token_ids))
        self.positions.append(list(positions))
        self.masks.append([list(row) for row in visible])
        cache += [(token + 1) * (position + 1) for token, position in zip(token_ids, positions, strict=True)]
        return sum(entry for entry, seen in zip(cache, visible[-1], strict=True) if seen) % 1009


def without_cache(prompt, max_tokens):
    sequence = list(prompt)
    for _ in range(max_tokens):
        sequence.append(sum((token + 1) * (i + 1) for i, token in enumerate(sequence)) % 1009)
    return sequence[len(prompt) :]


def test_positions(work):
    """The positions go on where the prompt ends, and go up by one at each step."""
    model = Model()
    work.Decoder(model).generate([3, 1, 4], 4, chunk=8)
    assert model.positions == [[0, 1, 2], [3], [4], [5]]


def test_positions_of_chunks(work):
    """The positions of a chunk go on where the chunk before it ended."""
    model = Model()
    work.Decoder(model).generate([3, 1, 4, 1, 5], 1, chunk=2)
    assert model.positions == [[0, 1], [2, 3], [4]]


def test_new_tokens_only(work):
    """A step gives the model only new tokens."""
    model = Model()
    first, second, _ = work.Decoder(model).generate([3, 1, 4], 3, chunk=2)
    assert model.tokens == [[3, 1], [4], [first], [second]]


@pytest.mark.parametrize(("call", "expected"), [
    pytest.param(0, [[True, False], [True, True]], id="a token may not look at later ones"),
    pytest.param(1, [[True, True, True, False], [True] * 4], id="row i of the mask belongs to column len(cache) + i"),
    pytest.param(2, [[True] * 5], id="a new token may look at all columns of the cache and at its own"),
])  # fmt: skip
def test_mask(work, call, expected):
    model = Model()
    work.Decoder(model).generate([3, 1, 4, 1], 2, chunk=2)
    assert model.masks[call] == expected


def test_called_again(work):
    """Each call of `generate` begins with an empty cache."""
    decoder = work.Decoder(Model())
    for prompt in ([3, 1, 4], [3, 1, 4], [2, 7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8]):
        assert decoder.generate(prompt, 4, chunk=8) == without_cache(prompt, 4), f"prompt {prompt}"


def test_any_calls(work):
    """Random prompts, one after another, in chunks of any size: the same tokens as without a cache."""
    for seed in range(200):
        choose = random.Random(seed)
        decoder, calls = work.Decoder(Model()), []
        for _ in range(1 + seed // 100):
            prompt = choose.choices(range(10), k=choose.randint(1, 2 + seed // 10))
            max_tokens, chunk = choose.randint(1, 4), choose.randint(1, 12)
            calls.append(f"generate({prompt}, {max_tokens}, {chunk})")
            expected = without_cache(prompt, max_tokens)
            assert decoder.generate(prompt, max_tokens, chunk) == expected, ", ".join(calls)

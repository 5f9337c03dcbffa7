"""3.4 When the cache pays: the picture, the extremes, and sequences that grow token by token."""

import random

import pytest


@pytest.mark.parametrize(("prompt", "output", "without", "with_cache"), [
    pytest.param(4, 1, 4, 4, id="the last token of the output is never computed"),
    pytest.param(4, 3, 15, 6, id="prompt 4, output 3: the picture"),
    pytest.param(1, 3, 6, 3, id="without a cache the sequence grows by a token at each step"),
])  # fmt: skip
def test_tokens(work, prompt, output, without, with_cache):
    assert work.tokens_without(prompt, output) == without, "tokens without a cache"
    assert work.tokens_with(prompt, output) == with_cache, "tokens with a cache"


@pytest.mark.parametrize(("prompt", "output", "expected"), [
    pytest.param(4, 3, 15 / 6, id="the number without a cache divided by the number with one"),
    pytest.param(500, 1, 1.0, id="a cache saves nothing for an output of one token"),
    pytest.param(7, 12, 150 / 18, id="the saving is a fraction"),
])  # fmt: skip
def test_saving(work, prompt, output, expected):
    assert work.saving(prompt, output) == pytest.approx(expected)


@pytest.mark.parametrize(("parameters", "n_layer", "n_embd", "batch", "expected"), [
    pytest.param(1000, 1, 1, 1, 500, id="a token brings a key and a value"),
    pytest.param(1000, 5, 1, 1, 100, id="each layer has a key and a value"),
    pytest.param(1000, 1, 5, 1, 100, id="a key has n_embd numbers"),
    pytest.param(1000, 1, 1, 5, 100, id="the weights are read once for the batch, the cache of each sequence once"),
    pytest.param(1, 1, 1, 1, 0.5, id="the context is a float"),
    pytest.param(123_532_032, 12, 768, 32, 123_532_032 / 589_824, id="GPT-2 small, 32 sequences"),
])  # fmt: skip
def test_even_context(work, parameters, n_layer, n_embd, batch, expected):
    assert work.even_context(parameters, n_layer, n_embd, batch) == pytest.approx(expected, rel=1e-9)


def test_any_lengths(work):
    """Random lengths: the same as counting token by token."""
    for seed in range(200):
        choose = random.Random(seed)
        prompt, output = choose.randint(1, 2 + seed // 2), choose.randint(1, 2 + seed // 2)
        length, without, with_cache = prompt, prompt, prompt
        for _ in range(output - 1):
            length += 1
            without += length
            with_cache += 1
        case = f"prompt {prompt}, output {output}"
        assert work.tokens_without(prompt, output) == without, case
        assert work.tokens_with(prompt, output) == with_cache, case
        assert work.saving(prompt, output) == pytest.approx(without / with_cache), case

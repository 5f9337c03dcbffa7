"""1.4 The ceiling: the four formulas against counts by hand; then the prediction, and a measurement next to it."""

import math
import time

import pytest

SMALL = dict(n_layer=12, n_embd=768, n_inner=3072, vocab_size=50257)  # GPT-2 small
TINY = dict(n_layer=3, n_embd=4, n_inner=10, vocab_size=7)
WEIGHTS = 3 * (4 * 12 + 4 * 4 + 4 * 10 + 10 * 4) + 4 * 7  # of TINY: four matrices a layer, and one at the end
CACHED = 5 * 3 * (4 + 4)  # numbers: for each of 5 tokens, a key and a value in each layer


def test_parameters(work):
    """Four matrices in each layer, and one more at the end."""

    def more(**larger):
        return work.parameters(**TINY | larger) - work.parameters(**TINY)

    assert more(n_inner=11) == 3 * (4 + 4), "n_embd x n_inner, and n_inner x n_embd back, in each layer"
    assert more(vocab_size=8) == 4, "one more at the end, n_embd x vocab_size"
    assert more(n_layer=4) == 4 * 12 + 4 * 4 + 2 * 4 * 10, "n_embd x 3 n_embd for queries, keys and values"
    assert work.parameters(**TINY) == WEIGHTS
    assert work.parameters(**SMALL) == 123_532_032, "GPT-2 small"


def test_flops(work):
    """Two operations for each weight, and attention's in each layer."""
    assert work.flops(**TINY, context=0) == 2 * WEIGHTS, "a multiplication and an addition for each weight"
    attention = work.flops(**TINY, context=5) - 2 * WEIGHTS
    assert attention == 2 * CACHED, "two for each number in the keys, and two for each number in the values"


def test_bytes(work):
    """The weights once, and the cached keys and values."""
    assert work.bytes_read(**TINY, context=0, itemsize=4) == 4 * WEIGHTS, "no context: itemsize bytes for each weight"
    cached = work.bytes_read(**TINY, context=5, itemsize=2) - 2 * WEIGHTS
    assert cached == 2 * CACHED, "the cache holds a key and a value of each token in each layer"


@pytest.mark.parametrize(("batch", "bandwidth", "rate", "expected"), [
    pytest.param(1, 2.0, 1.0, 1 / (2 * (WEIGHTS + CACHED)), id="reading and computing overlap: not their sum"),
    pytest.param(1, 1.0, 1e9, 1 / (4 * (WEIGHTS + CACHED)), id="where reading is slower it limits"),
    pytest.param(1, 1e9, 1.0, 1 / (2 * (WEIGHTS + CACHED)), id="where computing is slower it limits"),
    pytest.param(8, 1.0, 1e9, 8 / (4 * (WEIGHTS + 8 * CACHED)), id="a batch reads the weights once, and each sequence's cache"),
    pytest.param(8, 1e9, 1.0, 8 / (2 * 8 * (WEIGHTS + CACHED)), id="each sequence of a batch computes, and gets a token"),
])  # fmt: skip
def test_ceiling(work, batch, bandwidth, rate, expected):
    got = work.tokens_per_second(TINY, 5, 4, batch, bandwidth, rate)  # context, itemsize, batch, …
    assert got == pytest.approx(expected, abs=0)


def fastest(function):
    """Seconds of the fastest of three calls."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def measured():
    """(seconds of stage 3's model for a token, bytes per second that the memory gives)"""
    import torch

    from stage03_kvcache.kv_cache import KVCache
    from stage03_kvcache.model import GPT2, ModelConfig

    with torch.device("meta"):
        model = GPT2(ModelConfig(**SMALL, n_head=12, n_positions=1024))
    model.to_empty(device="cpu")
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.fill_(0.01)
        cache = KVCache(12, 1, 12, 16, 64, torch.float32, torch.device("cpu"))
        token, num_padding = torch.ones(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        seconds = fastest(lambda: model(token, num_padding, cache))
        return seconds, model.wte.weight.nbytes / fastest(model.wte.weight.sum)


def test_prediction(work):
    """PREDICTION is your guess, a number of tokens per second, written down before you look."""
    assert isinstance(work.PREDICTION, int | float), "write down a guess first"
    assert 0 < work.PREDICTION < math.inf, "a number of tokens per second"
    per_second = work.tokens_per_second(SMALL, 6, 4, 1, 1.0, 1e15)  # with a memory of one byte per second
    assert 1 / per_second == pytest.approx(4 * 123_642_624), "first the functions, then the measurement"
    seconds, bandwidth = measured()
    print(f"predicted {work.PREDICTION:.0f}, measured {1 / seconds:.0f} tokens per second; the memory "
          f"({bandwidth / 1e9:.0f} GB/s) allows {bandwidth * per_second:.0f}")  # fmt: skip

"""3.1 The cache, in place: the numbers of torch.cat, in memory that is allocated once."""

import random

import pytest
import torch
from torch.testing import assert_close

SIZES = dict(n_layer=3, batch=2, n_head=2, max_len=12, head_dim=4)


def new(n_new, first):
    """Keys and values of n_new columns: whole numbers, beginning with `first`."""
    return torch.arange(float(first), first + 2 * 2 * 2 * n_new * 4).view(2, 2, 2, n_new, 4)


def same(got, expected, case):
    assert list(got.shape) == list(expected.shape), case
    assert_close(got, expected, rtol=0, atol=0, msg=lambda text: f"{case}: {text}")


def test_one_layer_after_another(work):
    """Each layer writes to the same columns: only `advance` moves `length`."""
    cache = work.Cache(**SIZES)
    for layer in range(3):
        keys, values = cache.update(layer, *new(3, 100))
        assert (list(keys.shape), list(values.shape)) == ([2, 2, 3, 4], [2, 2, 3, 4]), f"of layer {layer}"
        assert cache.length == 0
    cache.advance(3)
    assert cache.length == 3


def test_all_columns(work):
    """`update` returns the keys and values of all length + n_new columns, in order."""
    cache = work.Cache(**SIZES)
    layers = [new(0, 0)] * 3
    for step, n_new in enumerate((5, 1, 1, 2)):
        for layer in range(3):
            k, v = new(n_new, 1000 * step + 200 * layer)
            layers[layer] = torch.cat([layers[layer], torch.stack([k, v])], dim=3)
            for name, got, expected in zip(("keys", "values"), cache.update(layer, k, v), layers[layer], strict=True):
                same(got, expected, f"{name} of layer {layer} in step {step}")
        cache.advance(n_new)
        assert cache.length == (5, 6, 7, 9)[step]


def test_views(work):
    """Keys and values are views of memory that is allocated once: nothing is copied at a later step."""
    cache = work.Cache(**SIZES)
    steps = []
    for n_new in (5, 1, 1, 5):
        steps.append([tensor for layer in range(3) for tensor in cache.update(layer, *new(n_new, 0))])
        cache.advance(n_new)
    for i in range(6):
        name = f"{('keys', 'values')[i % 2]} of layer {i // 2}"
        assert len({step[i].data_ptr() for step in steps}) == 1, f"the {name} are at a new address at some step"
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in steps[-1]}
    assert sum(storages.values()) <= 4 * 3 * 2 * 2 * 2 * 12 * 4, "bytes for more columns than max_len"


def test_twice_in_a_step(work):
    """A second update of a layer in the same step overwrites the first: only `advance` moves on."""
    cache = work.Cache(**SIZES)
    for first in (100, 200):
        keys, _ = cache.update(0, *new(3, first))
        same(keys, new(3, first)[0], f"keys of the update that begins with {first}")


def test_two_caches(work):
    """Two caches share no memory."""
    one, two = work.Cache(**SIZES), work.Cache(**SIZES)
    k, v = new(3, 0)
    keys, values = one.update(0, k, v)
    two.update(0, k + 1, v + 1)
    same(keys, k, "keys of the first, after the second was written")
    same(values, v, "values of the first, after the second was written")


@pytest.mark.parametrize(("filled", "n_new"), [(12, 1), (10, 3)])
@pytest.mark.parametrize("layer", [0, 2])
def test_full(work, filled, n_new, layer):
    """More columns than max_len raise ValueError before anything is written."""
    cache = work.Cache(**SIZES)
    before = cache.update(layer, *new(12, 0))
    cache.advance(filled)
    with pytest.raises(ValueError):
        cache.update(layer, *new(n_new, 500))
    for tensor, expected in zip(before, new(12, 0), strict=True):
        same(tensor, expected, "the columns that were there")
    assert cache.length == filled


def test_any_steps(work):
    """Random sizes and steps: the same as torch.cat, until the cache is full."""
    for seed in range(60):
        choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        n_layer, batch, n_head, max_len, head_dim = (choose.randint(1, 2 + seed // 15) for _ in range(5))
        cache = work.Cache(n_layer, batch, n_head, max_len, head_dim)
        layers, calls = [torch.empty(2, batch, n_head, 0, head_dim)] * n_layer, []
        while cache.length < max_len:
            n_new = choose.randint(1, max_len - cache.length)
            for layer in range(n_layer):
                k, v = torch.randn(2, batch, n_head, n_new, head_dim, generator=generator)
                calls.append(f"update({layer}, k, v) of {n_new} columns")
                layers[layer] = torch.cat([layers[layer], torch.stack([k, v])], dim=3)
                got = torch.stack(cache.update(layer, k, v))
                same(got, layers[layer], f"Cache{n_layer, batch, n_head, max_len, head_dim}, {', '.join(calls)}")
            cache.advance(n_new)
            calls.append(f"advance({n_new})")

"""3.1 The cache, in place: its contents against torch.cat, and where its tensors lie."""

import random

import pytest
import torch

SIZES = dict(n_layer=3, batch=2, n_head=2, max_len=12, head_dim=4)


def new(n_new, seed=0):
    return torch.randn(2, 2, 2, n_new, 4, generator=torch.Generator().manual_seed(seed))


def test_all_columns(work):
    """update returns the filled columns and the new ones, and no empty ones"""
    cache = work.Cache(**SIZES)
    for filled, n_new in ((0, 5), (5, 1), (6, 2)):
        for layer in range(3):
            for tensor in cache.update(layer, *new(n_new)):
                assert list(tensor.shape) == [2, 2, filled + n_new, 4], f"layer {layer}, {n_new} columns after {filled}"
        cache.advance(n_new)
        assert cache.length == filled + n_new


def test_keys_and_values(work):
    """Keys come first, then values, with the numbers of every row and head"""
    keys, values = work.Cache(**SIZES).update(0, *new(3))
    torch.testing.assert_close(keys, new(3)[0])
    torch.testing.assert_close(values, new(3)[1])


def test_only_advance_moves_on(work):
    """All layers of a step write to the same columns: only `advance` moves `length`"""
    cache = work.Cache(**SIZES)
    cache.update(0, *new(2))
    assert cache.length == 0
    keys, values = cache.update(0, *new(2, 1))
    torch.testing.assert_close(torch.stack([keys, values]), new(2, 1), msg="a second update writes over the first")


def test_nothing_is_copied(work):
    """Keys and values are views of memory that was allocated once"""
    cache = work.Cache(**SIZES)
    first = [cache.update(layer, *new(5)) for layer in range(3)]
    cache.advance(5)
    second = [cache.update(layer, *new(1)) for layer in range(3)]
    for layer, (before, after) in enumerate(zip(first, second, strict=True)):
        for name, one, two in zip(("keys", "values"), before, after, strict=True):
            is_same = one.data_ptr() == two.data_ptr()
            assert is_same, f"the {name} of layer {layer} are in a new tensor: the whole cache is copied at each step"
            one[0, 0, 0, 0] = 123.0
            assert two[0, 0, 0, 0] == 123.0, f"the {name} of layer {layer} are a copy, not a view"


def test_room(work):
    """Room for max_len columns of float32, and for no more"""
    cache = work.Cache(**SIZES)
    tensors = [tensor for layer in range(3) for tensor in cache.update(layer, *new(5))]
    assert tensors[0].dtype == torch.float32
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    assert sum(storages.values()) == 3 * 2 * 2 * 2 * 12 * 4 * 4


def test_two_caches_share_nothing(work):
    one, two = work.Cache(**SIZES), work.Cache(**SIZES)
    kept = one.update(0, *new(3))
    two.update(0, *new(3, 1))
    torch.testing.assert_close(torch.stack(kept), new(3), msg="the next batch writes into this one's memory")


@pytest.mark.parametrize(("filled", "n_new"), [(12, 1), (12, 2), (10, 3)])
@pytest.mark.parametrize("layer", [0, 2])
def test_full(work, filled, n_new, layer):
    """More columns than max_len raise ValueError, before anything is written"""
    cache = work.Cache(**SIZES)
    cache.update(layer, *new(filled))
    cache.advance(filled)
    waiting = cache.update(layer, *new(1, 1)) if filled < 12 else ()
    before = [tensor.clone() for tensor in waiting]
    with pytest.raises(ValueError):
        cache.update(layer, *new(n_new, 2))
    assert cache.length == filled
    unchanged = all(map(torch.equal, waiting, before))
    assert unchanged, "something was written: check first, then write"


def test_any_steps(work):
    """Caches of every small size, filled step by step: the same numbers as torch.cat"""
    for seed in range(100):
        choose = random.Random(seed)
        n_layer, batch, n_head, head_dim = (choose.randint(1, most) for most in (3, 2, 2, 2))
        sizes = n_layer, batch, n_head, 8, head_dim
        cache, columns, steps = work.Cache(*sizes), [[] for _ in range(n_layer)], choose.choices((1, 2), k=4)
        for step, n_new in enumerate(steps):
            for layer, own in enumerate(columns):
                k = torch.randn(batch, n_head, n_new, head_dim, generator=torch.Generator().manual_seed(seed + layer))
                own.append(k)
                keys, values = cache.update(layer, k, -k)
                case = f"Cache{sizes}, steps of {steps[: step + 1]} columns, layer {layer}"
                expected = torch.cat(own, dim=2)
                torch.testing.assert_close(keys, expected, msg=lambda said, case=case: f"the keys: {case}\n{said}")
                torch.testing.assert_close(values, -expected, msg=lambda said, case=case: f"the values: {case}\n{said}")
            cache.advance(n_new)

"""The cache against torch.cat, and where its tensors lie."""

import torch

from exercises.examples import Example, at_random
from exercises.grading import Wrong, expect, require

SIZES = dict(n_layer=3, batch=2, n_head=2, max_len=12, head_dim=4)


def new(n_new, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 2, n_new, 4, generator=generator) for _ in range(2)]


def test_values(work):
    cache = work.Cache(**SIZES)
    layers = [[torch.empty(2, 2, 0, 4)] * 2 for _ in range(3)]
    for step, n_new in enumerate((5, 1, 1, 2)):
        for layer in range(3):
            k, v = new(n_new, 10 * step + layer)
            layers[layer] = [torch.cat(pair, dim=2) for pair in zip(layers[layer], (k, v), strict=True)]
            got = cache.update(layer, k, v)
            shape = list(layers[layer][0].shape)
            behind = [2, 2, shape[2] + layer * n_new, 4]
            expect(f"step {step}, layer {layer}: shape of all keys", list(got[0].shape), shape, {
                "only the new columns were returned; attention needs all columns": [2, 2, n_new, 4],
                "the empty columns were returned too": [2, 2, 12, 4],
                "length moved within the step: layer 1 wrote after layer 0's columns": behind})  # fmt: skip
            case = f"step {step}, layer {layer}: first numbers of"
            said = {"keys and values are swapped": layers[layer][1][0, 0, :, 0]}
            kept = torch.equal(got[0][:, :, :-n_new], layers[layer][0][:, :, :-n_new])
            expect(f"{case} the keys", got[0][0, 0, :, 0], layers[layer][0][0, 0, :, 0], said,
                   likely="" if kept else "columns of earlier steps were overwritten: by this step, or by another layer")  # fmt: skip
            expect(f"{case} the values", got[1][0, 0, :, 0], layers[layer][1][0, 0, :, 0])
            require(torch.equal(got[0], layers[layer][0]) and torch.equal(got[1], layers[layer][1]), f"{case} all",
                    "what torch.cat would give", "other numbers in some rows or heads")  # fmt: skip
        cache.advance(n_new)
        expect(f"length after step {step}", cache.length, (5, 6, 7, 9)[step])


def test_only_advance_moves_on(work):
    cache = work.Cache(**SIZES)
    cache.advance(0)
    cache.update(0, *new(2, 0))
    k, v = new(2, 1)
    keys, values = cache.update(0, k, v)
    said = {"update writes from `length` on, however often; only `advance` moves `length`": [2, 2, 4, 4]}
    expect(
        "a layer updated twice with 2 columns, without `advance`: shape of the keys",
        list(keys.shape),
        [2, 2, 2, 4],
        said,
    )
    expect("its keys", keys[0, 0, :, 0], k[0, 0, :, 0])
    expect("its values", values[0, 0, :, 0], v[0, 0, :, 0])


def test_nothing_is_copied(work):
    cache = work.Cache(**SIZES)
    first, second, third = [], [], []
    for step, (n_new, tensors) in enumerate(((5, first), (1, second), (1, third))):
        for layer in range(3):
            pair = cache.update(layer, *new(n_new, step))
            if tensors is second:
                for i in range(2):
                    work.write(pair, i, (0, 0, 0, 0), 123.0)
            tensors += pair
        cache.advance(n_new)
    names = [f"the {name} of layer {layer}" for layer in range(3) for name in ("keys", "values")]
    for name, one, two, three in zip(names, first, second, third, strict=True):
        (place, room), (later, _) = one.place, two.place  # where its memory begins, and how many bytes it has
        require(room >= 2 * 2 * 12 * 4 * 4, f"bytes taken at the beginning for {name}", "room for all 12 columns", room,
                "they are in a separate tensor: a tensor that grows is copied when it grows, and a copy is not a view")  # fmt: skip
        require(place == later, f"where {name} are after another step", "at the same address", "in a new tensor",
                "a new tensor at each step copies the whole cache; write into the existing one")  # fmt: skip
        expect(f"a number written through an earlier view of {name}", float(three[0, 0, 0, 0]), 123.0,
               likely="return views, not copies")  # fmt: skip


def test_two_caches_share_nothing(work):
    one, two = work.Cache(**SIZES), work.Cache(**SIZES)
    k, v = new(3, 0)
    kept = one.update(0, k, v)
    two.update(0, k + 1, v + 1)
    kept = work.reread(kept)
    for name, tensor, written in zip(("keys", "values"), kept, (k, v), strict=True):
        expect(f"the {name} of one cache, after another one was written", tensor[0, 0, :, 0], written[0, 0, :, 0],
               likely="both write to the same memory, so the next batch reads this one's keys; is it a class attribute?")  # fmt: skip


def test_full(work):
    for filled, n_new, layer in ((12, 1, 0), (12, 2, 1), (10, 3, 0), (10, 3, 2)):
        cache = work.Cache(**SIZES)
        cache.update(layer, *new(filled, 0))
        cache.advance(filled)
        case = f"{n_new} more columns after {filled} of 12, layer {layer}"
        pending = cache.update(layer, *new(1, 3)) if filled < 12 else ()
        try:
            cache.update(layer, *new(n_new, 1))
        except ValueError:
            pass
        except RuntimeError as error:
            raise Wrong(
                case, "ValueError", f"RuntimeError: {error}", "raise your own error before torch does"
            ) from None
        else:
            raise Wrong(case, "ValueError", "nothing", "it must not be dropped silently")
        expect(f"{case}: length", cache.length, filled)
        if filled < 12:
            untouched = all(torch.equal(a, b) for a, b in zip(pending, work.reread(pending), strict=True))
            require(untouched, f"{case}: what was written before", "as it was", "changed", "check before you write")
            keys, _ = cache.update(layer, *new(1, 2))
            expect(f"{case}, then one that fits", keys[0, 0, -1], new(1, 2)[0][0, 0, -1])


def test_no_more_room(work):
    cache = work.Cache(**SIZES)
    tensors = [tensor for layer in range(3) for tensor in cache.update(layer, *new(5, 0))]
    storages = dict(tensor.place for tensor in tensors)
    needed = 3 * 2 * 2 * 2 * 12 * 4 * 4
    require(sum(storages.values()) <= needed, "bytes taken for keys and values of all layers", f"{needed}, for 12 columns",
            sum(storages.values()), "room for more columns than max_len, or for larger numbers")  # fmt: skip


def test_traffic(work):
    """A step of one column, in a cache of a thousand, writes one column of keys and one of values."""
    cache, sizes = work.Cache(2, 2, 2, 1000, 4), (2, 2, 1, 4)
    for layer in range(2):
        pair = torch.randn(2, 2, 2, 950, 4)
        got = cache.update(layer, *pair)
        require(
            all(map(torch.equal, got, pair)), f"950 columns of layer {layer}", "as they were given", "something else"
        )
    cache.advance(950)
    expect("length after 950 columns", cache.length, 950)
    column = 2 * torch.Size(sizes).numel() * 4
    for layer in range(2):
        with work.measured() as measured:
            cache.update(layer, *torch.randn(2, *sizes))
        require(measured.moved <= 4 * column, f"bytes that torch writes in layer {layer}, for one column after 950",
                f"{column}, the new keys and values", measured.moved, "the whole cache is copied at every step")  # fmt: skip
        require(
            measured.in_python == 0,
            "the numbers of the tensors",
            "they stay in torch",
            "they were turned into Python numbers",
        )


def test_any_steps(work):
    """Caches of every small size, filled step by step, sometimes with more than fits."""

    def check(choose):
        n_layer, batch, n_head, head_dim, max_len = (choose.between(1, most) for most in (3, 2, 2, 2, 6))
        example = Example(work, __file__, "import torch", "from exercises.examples import raised")
        example.do(f"cache = work.Cache({n_layer}, {batch}, {n_head}, {max_len}, {head_dim})")
        filled, number, columns = 0, 0, [[] for _ in range(n_layer)]
        for n_new in choose.each(lambda: choose.between(1, 3), 5, least=1):
            for layer in range(n_layer):
                size = batch * n_head * n_new * head_dim
                new = torch.arange(float(number), number + size).view(batch, n_head, n_new, head_dim)
                example.do(
                    f"k = torch.arange({number}.0, {number + size}.0).view({batch}, {n_head}, {n_new}, {head_dim})"
                )
                number += size
                if filled + n_new > max_len:
                    example.expect(f"raised(lambda: cache.update({layer}, k, -k), ValueError)", "ValueError")
                    break
                example.do(f"keys, values = cache.update({layer}, k, -k)")
                columns[layer].append(new)
                expected = torch.cat(columns[layer], dim=2)
                example.look("(keys.tolist(), values.tolist())", (expected.tolist(), (-expected).tolist()))
            else:
                filled += n_new
                example.do(f"cache.advance({n_new})")
            example.look("cache.length", filled)

    at_random(check, 60)


def test_a_long_cache(work):
    """More columns than fit into 16 bits, one layer of many, and many steps."""
    cache = work.Cache(1, 1, 1, 70_000, 1)
    cache.update(0, torch.zeros(1, 1, 69_999, 1), torch.zeros(1, 1, 69_999, 1))
    cache.advance(69_999)
    keys, values = cache.update(0, torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), 2.0))
    expect("the last two of 70,000 columns", (keys.flatten()[-2:].tolist(), values.flatten()[-2:].tolist(), keys.shape[2]),
           ([0.0, 1.0], [0.0, 2.0], 70_000))  # fmt: skip
    cache = work.Cache(70_000, 1, 1, 1, 1)
    got = cache.update(69_999, torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), 2.0))
    expect("the only column of layer 69,999", [tensor.tolist() for tensor in got], [[[[[1.0]]]], [[[[2.0]]]]])
    cache = work.Cache(300, 1, 1, 300, 1)
    for column in range(130):
        for layer in (0, 299):
            pair = cache.update(layer, *torch.full((2, 1, 1, 1, 1), float(column + layer)))
            for name, tensor in zip(("keys", "values"), pair, strict=True):
                expect(f"{name} of layer {layer} of 300 after {column + 1} steps", tensor.flatten().tolist(),
                       [float(i + layer) for i in range(column + 1)])  # fmt: skip
        cache.advance(1)

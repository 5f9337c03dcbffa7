"""Milestone 9: linear layers by the learner's kernel, alone and in an engine. `python -m exercises engine 9` runs this
with the learner's engine in stage 5's place."""

import gc
import weakref

import pytest
import torch
from torch import nn

from tests.adapter import STAGES

stage = STAGES[4]
SIZES = [(1, 1), (3, 31), (2, 32), (5, 33), (16, 65), (48, 144), (101, 67)]  # inputs, outputs


@pytest.fixture(autouse=True)
def inference():
    threads = torch.get_num_threads()
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def layer_of(in_, out):
    torch.manual_seed(out)
    return nn.Linear(in_, out).requires_grad_(False)


def rows(n, in_):
    return torch.randn(n, in_, generator=torch.Generator().manual_seed(n))


@pytest.fixture
def packs(monkeypatch):
    """The calls of `pack` in this test."""
    library, calls = stage.part("linear").load_kernel(), []
    pack = library.pack
    monkeypatch.setattr(library, "pack", lambda *arguments: calls.append(arguments) or pack(*arguments))
    return calls


@pytest.mark.parametrize(("in_", "out"), SIZES, ids=[f"any size, {in_} to {out}" for in_, out in SIZES])
def test_any_size(in_, out):
    layer = layer_of(in_, out)
    own = stage.part("linear").Linear(layer)
    for n in range(1, 41):
        x = rows(n, in_)
        torch.testing.assert_close(own(x), layer(x), rtol=0, atol=1e-4, msg=lambda said, n=n: f"{n} rows: {said}")


def test_views():
    """The input may be a view: columns of a larger tensor, or one that is transposed."""
    layer = layer_of(24, 40)
    own = stage.part("linear").Linear(layer)
    for x in (rows(5, 60)[:, 7:31], rows(24, 5).t()):
        torch.testing.assert_close(own(x), layer(x), rtol=0, atol=1e-4)


def test_the_same_bits():
    """A row has the same bits in every batch, and with any number of threads."""
    own = stage.part("linear").Linear(layer_of(101, 67))
    torch.set_num_threads(1)
    x = rows(19, 101)
    alone = torch.cat([own(row[None]) for row in x])
    for n in range(1, 20):
        assert torch.equal(own(x[:n]), alone[:n]), f"the rows of a batch of {n}, and the same rows alone"
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        assert torch.equal(own(x), alone), f"{threads} threads, and one"


def test_weights_are_packed_once(packs):
    """Weights are packed when the layer is made, and never again."""
    own, made = stage.part("linear").Linear(layer_of(48, 96)), len(packs)
    for n in (1, 7, 1):
        own(rows(n, 48))
    assert (made, len(packs)) == (1, 1), "calls of `pack` when the layer was made, and after three steps"


def test_weights_are_kept_once():
    """The matrix is not kept along with its panels."""
    layer = layer_of(48, 96)
    matrix = weakref.ref(layer.weight)
    own = stage.part("linear").Linear(layer)
    del layer
    gc.collect()
    assert matrix() is None, f"the weight of the nn.Linear is still in memory, through {own}"


def test_other_dtypes():
    """Layers in other dtypes stay torch's."""
    model = nn.Sequential(layer_of(4, 40), layer_of(40, 4).bfloat16())
    stage.part("linear").use_own_kernel(model)
    assert [type(layer) for layer in model] == [stage.part("linear").Linear, nn.Linear]


def test_all_layers_of_the_engine(packs):
    """runner.py: the engine's linear layers are yours, each packed once when the model is loaded."""
    engine = stage.stepper()
    model, Linear = engine.engine.runner.model, stage.part("linear").Linear
    left = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    own = [name for name, layer in model.named_modules() if isinstance(layer, Linear)]
    assert (left, len(own)) == ([], 4 * model.config.n_layer), "layers of torch that are left; yours"
    engine.add_request("0", [5, 6, 7], stage.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    assert len(packs) == len(own), "calls of `pack` after four tokens, and layers"

"""The linear layer of chapter 6, in five steps (bench/layer.c): each of them computes the layer."""

import shutil

import pytest
import torch

from bench import layer

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def steps():
    return layer.load_steps()


@pytest.mark.parametrize("name", layer.STEPS)
@pytest.mark.parametrize(("rows", "in_", "out"), [(1, 5, 32), (8, 64, 96), (19, 7, 64)])
def test_a_step_computes_the_layer(steps, name, rows, in_, out):
    torch.manual_seed(rows)
    x, weight, bias, before = (
        torch.randn(*shape, dtype=torch.float32) for shape in ((rows, in_), (out, in_), (out,), (rows, out))
    )
    y = before.clone()
    layer.run_step(steps, name, x, weight, layer.packed(steps, weight), bias, y)
    exact = before.double() + x.double() @ weight.double().T + bias.double()
    assert (y - exact).abs().max() < 1e-5 * exact.abs().max()


def test_a_panel_has_the_weights_of_32_outputs_side_by_side(steps):
    weight = torch.arange(64 * 3, dtype=torch.float32).reshape(64, 3)
    panels = layer.packed(steps, weight)
    assert torch.equal(panels, weight.reshape(2, 32, 3).transpose(1, 2))
    with pytest.raises(ValueError, match="multiple of 32, got 33"):
        layer.packed(steps, torch.zeros(33, 3))

"""The capstone against transformers, part by part, on small random models: later parts build on earlier ones."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="pip install -r tests/requirements.txt brings transformers")
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb  # noqa: E402

SIZES = dict(vocab_size=97, n_layer=3, n_embd=48, n_inner=80, n_head=6, n_kv_head=2, head_dim=8, epsilon=1e-5)
TOKENS = torch.tensor([5, 17, 5, 96, 0, 33, 33, 8, 61, 2, 44])
POSITIONS = torch.arange(len(TOKENS))
VISIBLE = POSITIONS[:, None] >= POSITIONS
X = torch.randn(len(TOKENS), SIZES["n_embd"], generator=torch.Generator().manual_seed(1))
HEADS = torch.randn(2, len(TOKENS), SIZES["head_dim"], generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def reference(kind="Llama", **changes):
    """A random Llama, Qwen 2 or Qwen 3 of transformers, in these sizes, with norms that are not all ones."""
    sizes = {**SIZES, **changes}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=sizes["vocab_size"],
        num_hidden_layers=sizes["n_layer"],
        hidden_size=sizes["n_embd"],
        intermediate_size=sizes["n_inner"],
        num_attention_heads=sizes["n_head"],
        num_key_value_heads=sizes["n_kv_head"],
        head_dim=sizes["head_dim"],
        rms_norm_eps=sizes["epsilon"],
        tie_word_embeddings=sizes.get("tied", False),
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().float()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
        elif parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def assert_close(got, expected):
    """No number is off by more than 1e-4 of the largest."""
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_rms_norm(work):
    """RMSNorm"""
    theirs, own = reference().model.norm, work.RMSNorm(SIZES["n_embd"], SIZES["epsilon"])
    own.load_state_dict(theirs.state_dict())
    assert_close(own(X), theirs(X))


def test_rotate(work):
    """rotate, from position 3 on"""
    cos, sin = reference().model.rotary_emb(HEADS[None], POSITIONS[None] + 3)
    expected = apply_rotary_pos_emb(HEADS[None], HEADS[None], cos, sin)[0][0]
    assert_close(work.rotate(HEADS, POSITIONS + 3, 10_000.0), expected)


def test_mlp(work):
    """MLP"""
    theirs, own = reference().model.layers[0].mlp, work.MLP(work.Config(**SIZES))
    own.load_state_dict(theirs.state_dict())
    assert_close(own(X), theirs(X))


@pytest.mark.parametrize("n_kv_head", [
    pytest.param(SIZES["n_head"], id="Attention, a key for each query head"),
    pytest.param(SIZES["n_kv_head"], id="Attention, three query heads to a key"),
])  # fmt: skip
def test_attention(work, n_kv_head):
    model = reference(n_kv_head=n_kv_head).model
    theirs, own = model.layers[0].self_attn, work.Attention(work.Config(**{**SIZES, "n_kv_head": n_kv_head}))
    own.load_state_dict(theirs.state_dict())
    hidden = torch.zeros(VISIBLE.shape).masked_fill(~VISIBLE, float("-inf"))
    embeddings = model.rotary_emb(X[None], POSITIONS[None])
    expected = theirs(X[None], position_embeddings=embeddings, attention_mask=hidden[None, None])[0][0]
    assert_close(own(X, POSITIONS, VISIBLE), expected)


@pytest.mark.parametrize(("kind", "changes"), [
    pytest.param("Llama", {}, id="a Llama, logits"),
    pytest.param("Llama", {"tied": True}, id="a Llama with tied embeddings, logits"),
    pytest.param("Qwen2", {"attention_bias": True}, id="a Qwen 2: biases"),
    pytest.param("Qwen3", {"query_key_norm": True, "head_dim": 16}, id="a Qwen 3: normed queries and keys"),
])  # fmt: skip
def test_logits(work, kind, changes):
    theirs, own = reference(kind, **changes), work.Llama(work.Config(**{**SIZES, **changes}))
    own.load_state_dict(theirs.state_dict())
    assert_close(own.eval()(TOKENS), theirs(TOKENS[None]).logits[0])

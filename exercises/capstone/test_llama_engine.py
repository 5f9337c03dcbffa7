"""The capstone's second part: a Llama with a KV cache against transformers, first alone and then in the engine."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="pip install -r tests/requirements.txt brings transformers")
from test_llama import SIZES, assert_close, reference  # noqa: E402
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb  # noqa: E402

PROMPTS = [[5, 17, 5, 96, 3, 33], [8], [61, 2, 44]]  # padded on the left: 0, 5 and 3 columns
OUTPUT = [[7, 1], [50, 9], [2, 2]]  # what is decoded after them, a column at a time
PADDING = torch.tensor([6 - len(prompt) for prompt in PROMPTS])
ROOM = 8
KINDS = [
    ("Llama", {}, "a Llama"),
    ("Qwen2", {"attention_bias": True}, "a Qwen 2: biases"),
    ("Qwen3", {"query_key_norm": True, "head_dim": 16}, "a Qwen 3: normed queries and keys"),
]


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def models(work, kind="Llama", **changes):
    """(that of transformers, the learner's with the same weights)"""
    theirs, own = reference(kind, **changes), work.CachedLlama(work.Config(**{**SIZES, **changes}))
    own.load_state_dict(theirs.state_dict())
    try:
        work.Llama.forward(own, torch.tensor(PROMPTS[0]))
    except NotImplementedError:
        pytest.fail("part one comes first: `python -m exercises check capstone`")
    return theirs, own.eval()


def prefilled(work, own):
    """A cache, the logits after the prompts."""
    config = own.config
    cache = work.KVCache(
        config.n_layer, len(PROMPTS), config.n_kv_head, ROOM, config.head_dim, torch.float32, torch.device("cpu")
    )
    rectangle = torch.tensor([[0] * (6 - len(prompt)) + prompt for prompt in PROMPTS])
    return cache, own(rectangle, PADDING, cache)


def alone(theirs, sequences):
    """Their logits after each sequence."""
    return torch.stack([theirs(torch.tensor([sequence])).logits[0, -1] for sequence in sequences])


def for_each_kind(rule):
    cases = [pytest.param(kind, changes, id=f"{rule}, {name}") for kind, changes, name in KINDS]
    return pytest.mark.parametrize(("kind", "changes"), cases)


@for_each_kind("prefill: the logits of each row are as alone")
def test_prefill(work, kind, changes):
    theirs, own = models(work, kind, **changes)
    assert_close(prefilled(work, own)[1], alone(theirs, PROMPTS))


def test_cached_keys(work):
    """Keys are cached after rotation, each by its own position in its row, which the padding does not change"""
    theirs, own = models(work)
    cache, _ = prefilled(work, own)
    layer = theirs.model.layers[0]
    for row, prompt in enumerate(PROMPTS):
        x = layer.input_layernorm(theirs.model.embed_tokens(torch.tensor([prompt])))
        k = layer.self_attn.k_proj(x).unflatten(-1, (SIZES["n_kv_head"], -1)).transpose(1, 2)
        cos, sin = theirs.model.rotary_emb(x, torch.arange(len(prompt))[None])
        assert_close(cache.data[0, 0, row, :, int(PADDING[row]) : 6], apply_rotary_pos_emb(k, k, cos, sin)[0][0])


def test_length(work):
    """The cache is one column longer after each decode"""
    _, own = models(work)
    cache, _ = prefilled(work, own)
    lengths = [cache.length]
    for column in zip(*OUTPUT, strict=True):
        own(torch.tensor(column)[:, None], PADDING, cache)
        lengths.append(cache.length)
    assert lengths == [6, 7, 8]


@for_each_kind("decode: the logits after one more token of each row, and another")
def test_decode(work, kind, changes):
    theirs, own = models(work, kind, **changes)
    cache, _ = prefilled(work, own)
    for n in (1, 2):
        got = own(torch.tensor([output[n - 1 : n] for output in OUTPUT]), PADDING, cache)
        sequences = [prompt + output[:n] for prompt, output in zip(PROMPTS, OUTPUT, strict=True)]
        assert_close(got, alone(theirs, sequences))


@pytest.mark.parametrize("changes", [
    pytest.param({}, id="new_cache: n_kv_head heads, not n_head"),
    pytest.param({"head_dim": 16}, id="new_cache: head_dim need not be n_embd / n_head"),
])  # fmt: skip
def test_the_cache_of_the_engine(work, changes):
    sizes = {**SIZES, **changes}
    cache = work.LlamaRunner(work.CachedLlama(work.Config(**sizes))).new_cache(4, 10)
    assert tuple(cache.data.shape) == (sizes["n_layer"], 2, 4, sizes["n_kv_head"], 10, sizes["head_dim"])


def test_bytes_per_token(work):
    """What the engine plans with is what its cache takes"""
    runner = work.LlamaRunner(work.CachedLlama(work.Config(**{**SIZES, "head_dim": 16})))
    assert runner.bytes_per_token == runner.new_cache(1, 1).data.nbytes


def test_the_engine(work):
    """In the engine: prompts in batches, greedily, and rows that end at different steps"""
    theirs, own = models(work)
    prompts = [*PROMPTS, [9, 8, 7, 6, 5, 4, 3, 2], [1, 1], [95, 94]]
    counts = [12, 3, 9, 12, 1, 7]
    got = work.complete(own, prompts, counts)
    for prompt, tokens, n in zip(prompts, got, counts, strict=True):
        expected = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert tokens == expected[0, len(prompt) :].tolist(), f"after {prompt}"

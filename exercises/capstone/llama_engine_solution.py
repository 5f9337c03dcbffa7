"""Your Llama in an engine with a KV cache: stage 3's, or yours. Try it yourself first."""

import math

import torch
from torch import Tensor

from exercises.capstone.solution import Attention, Config, Llama, rotate
from stage03_kvcache import LLM, SamplingParams
from stage03_kvcache.kv_cache import KVCache, bytes_per_token, default_cache_bytes
from stage03_kvcache.runner import Runner


def attend(attention: Attention, x: Tensor, positions: Tensor, visible: Tensor, cache: KVCache, index: int) -> Tensor:
    """`attention.forward` for a batch, with the keys and values of layer `index` in a cache.

    [batch, n_new, n_embd] -> same; positions: [batch, n_new], of these tokens in their sequences; visible: [batch, 1,
    n_new, n_seq], True where query i may read from key j
    """
    c = attention.config
    q, k, v = attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)  # [batch, n_new, heads * head_dim]
    q, k, v = (t.unflatten(-1, (-1, c.head_dim)).transpose(1, 2) for t in (q, k, v))  # [batch, heads, n_new, head_dim]
    if c.query_key_norm:
        q, k = attention.q_norm(q), attention.k_norm(k)
    q, k = (rotate(t, positions[:, None], c.rope_base) for t in (q, k))  # the same angles for all heads
    k, v = cache.update(index, k, v)  # each -> [batch, n_kv_head, n_seq, head_dim], earlier steps first
    q = q.unflatten(1, (c.n_kv_head, -1))  # [batch, n_kv_head, group, n_new, head_dim]: a group shares a key
    scores = q @ k[:, :, None].transpose(-2, -1) / math.sqrt(c.head_dim)  # [batch, n_kv_head, group, n_new, n_seq]
    weights = scores.masked_fill(~visible[:, :, None], -math.inf).softmax(dim=-1)
    out = (weights @ v[:, :, None]).flatten(1, 2)  # [batch, n_head, n_new, head_dim]
    return attention.o_proj(out.transpose(1, 2).flatten(-2))


class CachedLlama(Llama):
    def __init__(self, config: Config):
        super().__init__(config)
        self.config = config

    def forward(self, token_ids: Tensor, num_padding: Tensor, cache: KVCache) -> Tensor:
        """The logits of the token that follows each sequence: [batch, n_new] int64 -> [batch, vocab_size] float32.

        num_padding: [batch], how many columns of padding each row has on its left.
        cache: has the keys and values of the columns before token_ids; those of token_ids are added.
        """
        n_seq = cache.length + token_ids.shape[1]
        columns = torch.arange(n_seq, dtype=torch.int64)  # [n_seq]
        new = columns[cache.length :]  # [n_new]
        positions = (new - num_padding[:, None]).clamp(min=0)  # [batch, n_new]
        own = columns >= num_padding[:, None]  # [batch, n_seq]
        # No token reads padding, but padding reads itself: a softmax over nothing would be NaN.
        visible = (columns <= new[:, None]) & own[:, None, :] | (columns == new[:, None])  # [batch, n_new, n_seq]
        x = self.model.embed_tokens(token_ids)
        for index, layer in enumerate(self.model.layers):
            x = x + attend(layer.self_attn, layer.input_layernorm(x), positions, visible[:, None], cache, index)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        cache.length = n_seq
        return self.lm_head(self.model.norm(x[:, -1])).float()


class LlamaRunner(Runner):
    """The engine's runner for a Llama in float32 on the CPU. `forward` is as for GPT-2."""

    def __init__(self, model: CachedLlama):
        self.model, self.device, self.dtype = model.eval(), torch.device("cpu"), torch.float32
        self.kv_cache_bytes = default_cache_bytes(self.device)
        self.bytes_per_token = self.count_bytes_per_token()

    def count_bytes_per_token(self) -> int:
        """The bytes that one token takes in the cache, in all layers."""
        config = self.model.config
        return bytes_per_token(config.n_layer, config.n_kv_head * config.head_dim, self.dtype)

    def new_cache(self, n_rows: int, max_len: int) -> KVCache:
        """An empty cache for a batch of `n_rows` sequences of up to `max_len` tokens."""
        config = self.model.config
        return KVCache(config.n_layer, n_rows, config.n_kv_head, max_len, config.head_dim, self.dtype, self.device)


def complete(model: CachedLlama, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
    """The engine's greedy tokens: as many after each prompt as `counts` says. Its tokenizer is GPT-2's, so texts mean
    nothing."""
    llm = LLM("tinytales", device="cpu", max_num_seqs=4)
    llm.engine.runner = LlamaRunner(model)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in counts]
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]

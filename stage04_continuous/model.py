"""GPT-2, from token ids to the logits of the next token.

Names are those of the checkpoint (Hugging Face's GPT-2), so that it loads without a translation table.
Shapes: a step takes num_tokens tokens of all its requests together, without padding; n_embd = n_head * head_dim. Of a
request's n_seq tokens n_new are new in a step; the keys and values of the others are in the cache.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; the layers are those of Vaswani et
al. 2017, "Attention Is All You Need", with layer norm before each sub-layer.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batch import Batch
from .kv_cache import KVCache


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a GPT-2. The defaults are GPT-2 small, 124 million parameters."""

    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    n_inner: int = 3072  # width inside the feed-forward layer
    n_positions: int = 1024  # the longest sequence
    vocab_size: int = 50257
    layer_norm_epsilon: float = 1e-5
    eos_token_ids: tuple[int, ...] = (50256,)


class Attention(nn.Module):
    """Causal self-attention: each token reads from itself and the tokens before it."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, batch: Batch, cache: KVCache, index: int) -> Tensor:
        """[num_tokens, n_embd] -> same"""
        q, k, v = self.c_attn(x).chunk(3, dim=-1)  # [num_tokens, n_embd] -> 3 x [num_tokens, n_embd]
        q, k, v = (t.unflatten(-1, (self.n_head, -1)) for t in (q, k, v))  # each -> [num_tokens, n_head, head_dim]
        keys, values = cache.update(
            index, batch.slots, batch.positions, k, v
        )  # 2 x [num_slots, n_head, max_len, head_dim]

        # The linear layers take all tokens together, attention each sequence by itself (Orca's selective batching).
        out = torch.empty_like(q)  # [num_tokens, n_head, head_dim]
        for start, end, slot, n_seq in batch.spans:
            queries = q[start:end].transpose(0, 1)  # [n_new, n_head, head_dim] -> [n_head, n_new, head_dim]
            out[start:end] = attend(queries, keys[slot, :, :n_seq], values[slot, :, :n_seq]).transpose(0, 1)
        return self.c_proj(out.flatten(-2))  # [num_tokens, n_head, head_dim] -> [num_tokens, n_embd]


def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """softmax(q k / sqrt(head_dim)) v. The queries are the last tokens'; each reads the keys up to its own.

    [n_head, n_new, head_dim], 2 x [n_head, n_seq, head_dim] -> [n_head, n_new, head_dim]
    """
    scores = q @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1])  # [n_head, n_new, n_seq]: query i, key j
    n_new, n_seq = scores.shape[-2:]
    if n_new > 1:  # a single query reads all keys
        visible = torch.ones_like(scores[0], dtype=torch.bool).tril(n_seq - n_new)  # [n_new, n_seq]
        scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(dim=-1) @ values  # each query's weights sum to 1


class MLP(nn.Module):
    """The feed-forward layer: each token on its own."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.n_inner)
        self.c_proj = nn.Linear(config.n_inner, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """[..., n_embd] -> [..., n_embd]"""
        x = self.c_fc(x)  # [..., n_embd] -> [..., n_inner]
        x = F.gelu(x, approximate="tanh")  # GPT-2's GELU is the tanh form
        return self.c_proj(x)  # [..., n_inner] -> [..., n_embd]


class Layer(nn.Module):
    """A transformer layer: attention, then feed-forward, each added to the residual stream `x`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, batch: Batch, cache: KVCache, index: int) -> Tensor:
        """[..., n_embd] -> [..., n_embd]; index: of this layer in the cache"""
        x = x + self.attn(self.ln_1(x), batch, cache, index)
        x = x + self.mlp(self.ln_2(x))
        return x


def embedding(num: int, dim: int) -> nn.Embedding:
    """A table of vectors. On the meta device plain `nn.Embedding` imports torch's compiler, which takes seconds."""
    return nn.Embedding.from_pretrained(torch.empty(num, dim), freeze=False)


class GPT2(nn.Module):
    """The whole model. Its output layer is the token embedding again, transposed ("tied")."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.wte = embedding(config.vocab_size, config.n_embd)  # of tokens
        self.wpe = embedding(config.n_positions, config.n_embd)  # of positions
        self.h = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """The logits after the tokens `batch.logits_indices`: [n_logits, vocab_size] float32.

        cache: has the keys and values of earlier steps' tokens; those of this step's are added.
        """
        x = self.wte(batch.token_ids) + self.wpe(batch.positions)  # [num_tokens] -> [num_tokens, n_embd]
        for index, layer in enumerate(self.h):
            x = layer(x, batch, cache, index)
        x = self.ln_f(x[batch.logits_indices])  # [num_tokens, n_embd] -> [n_logits, n_embd]
        logits = F.linear(x, self.wte.weight)  # [n_logits, n_embd] -> [n_logits, vocab_size]
        return logits.float()

"""Llama, Qwen 2 and Qwen 3 in plain torch: one sequence, from token ids to logits. Try it yourself first.

Names are those of Hugging Face's checkpoints, so that they load without a translation table.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """The sizes of a model, and which of the smaller changes it has."""

    vocab_size: int
    n_layer: int
    n_embd: int
    n_inner: int
    n_head: int
    n_kv_head: int
    head_dim: int
    rope_base: float = 10_000.0
    epsilon: float = 1e-6
    attention_bias: bool = False  # Qwen 2: biases of queries, keys and values
    query_key_norm: bool = False  # Qwen 3: an RMSNorm of each head's queries and keys
    tied: bool = False  # the output layer is the token embedding again


class RMSNorm(nn.Module):
    def __init__(self, size: int, epsilon: float):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(size)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> same"""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) by its position's angle. [n_heads, n_seq, head_dim], [n_seq] -> same"""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float32) / half)  # [half]
    angles = positions[..., None].float() * frequencies  # [n_seq, half]
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config, dim, bias = config, config.head_dim, config.attention_bias
        self.q_proj = nn.Linear(config.n_embd, config.n_head * dim, bias=bias)
        self.k_proj = nn.Linear(config.n_embd, config.n_kv_head * dim, bias=bias)
        self.v_proj = nn.Linear(config.n_embd, config.n_kv_head * dim, bias=bias)
        self.o_proj = nn.Linear(config.n_head * dim, config.n_embd, bias=False)
        if config.query_key_norm:
            self.q_norm, self.k_norm = RMSNorm(dim, config.epsilon), RMSNorm(dim, config.epsilon)

    def forward(self, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """[n_seq, n_embd] -> same; visible: [n_seq, n_seq], True where query i may read from key j"""
        c = self.config
        q = self.q_proj(x).unflatten(-1, (c.n_head, c.head_dim)).transpose(0, 1)  # [n_head, n_seq, head_dim]
        k = self.k_proj(x).unflatten(-1, (c.n_kv_head, c.head_dim)).transpose(0, 1)  # [n_kv_head, n_seq, head_dim]
        v = self.v_proj(x).unflatten(-1, (c.n_kv_head, c.head_dim)).transpose(0, 1)
        if c.query_key_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, positions, c.rope_base), rotate(k, positions, c.rope_base)
        q = q.unflatten(0, (c.n_kv_head, -1))  # [n_kv_head, group, n_seq, head_dim]: a group shares a key
        scores = q @ k[:, None].transpose(-2, -1) / math.sqrt(c.head_dim)  # [n_kv_head, group, n_seq, n_seq]
        weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
        out = (weights @ v[:, None]).flatten(0, 1)  # [n_head, n_seq, head_dim]
        return self.o_proj(out.transpose(0, 1).flatten(-2))


class MLP(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.up_proj = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.down_proj = nn.Linear(config.n_inner, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., n_embd] -> same"""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.n_embd, config.epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.n_embd, config.epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """[n_seq, n_embd] -> same"""
        x = x + self.self_attn(self.input_layernorm(x), positions, visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """All but the output layer; checkpoints call it `model`."""

    def __init__(self, config: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.norm = RMSNorm(config.n_embd, config.epsilon)


class Llama(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.model = Body(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, token_ids: Tensor) -> Tensor:
        """The logits at every position: [n_seq] int64 -> [n_seq, vocab_size]"""
        positions = torch.arange(len(token_ids), dtype=torch.int64)
        visible = positions <= positions[:, None]
        x = self.model.embed_tokens(token_ids)
        for layer in self.model.layers:
            x = layer(x, positions, visible)
        return self.lm_head(self.model.norm(x))

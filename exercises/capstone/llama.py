"""Llama, Qwen 2 and Qwen 3 in plain torch: one sequence, from token ids to logits. Write what is missing.

Names are those of Hugging Face's checkpoints, so that they load without a translation table.
"""

from dataclasses import dataclass

import torch
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
        raise NotImplementedError


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) by its position's angle. [n_heads, n_seq, head_dim], [n_seq] -> same"""
    raise NotImplementedError


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
        raise NotImplementedError


class MLP(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.up_proj = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.down_proj = nn.Linear(config.n_inner, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., n_embd] -> same"""
        raise NotImplementedError


class Layer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.n_embd, config.epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.n_embd, config.epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """[n_seq, n_embd] -> same"""
        raise NotImplementedError


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
        raise NotImplementedError

"""GPT-2, from token ids to the logits of the next token.

Names are those of the checkpoint (Hugging Face's GPT-2), so that it loads without a translation table.
Shapes: n_seq tokens of one sequence; n_embd = n_head * head_dim.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; the layers are those of Vaswani et
al. 2017, "Attention Is All You Need", with layer norm before each sub-layer.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """[n_seq, n_embd] -> [n_seq, n_embd]; visible: [n_seq, n_seq], True where query i may read from key j"""
        q, k, v = self.c_attn(x).chunk(3, dim=-1)  # [n_seq, n_embd] -> 3 x [n_seq, n_embd]
        q, k, v = (self._split_heads(t) for t in (q, k, v))  # each [n_seq, n_embd] -> [n_head, n_seq, head_dim]

        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # [n_head, n_seq, n_seq]: query i, key j
        weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)  # each query's weights sum to 1
        out = weights @ v  # [n_head, n_seq, n_seq] @ [n_head, n_seq, head_dim] -> [n_head, n_seq, head_dim]

        out = out.transpose(-3, -2).flatten(-2)  # [n_head, n_seq, head_dim] -> [n_seq, n_embd]
        return self.c_proj(out)

    def _split_heads(self, x: Tensor) -> Tensor:
        """[n_seq, n_embd] -> [n_head, n_seq, head_dim]"""
        return x.unflatten(-1, (self.n_head, -1)).transpose(-3, -2)


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

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """[..., n_embd] -> [..., n_embd]; visible: as in Attention"""
        x = x + self.attn(self.ln_1(x), visible)
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

    def forward(self, token_ids: Tensor) -> Tensor:
        """The logits of the token that follows the sequence: [n_seq] int64 -> [vocab_size] float32."""
        positions = torch.arange(len(token_ids), dtype=torch.int64, device=token_ids.device)  # [n_seq]
        visible = positions <= positions[:, None]  # [n_seq, n_seq]: key j is not after query i
        x = self.wte(token_ids) + self.wpe(positions)  # [n_seq] -> [n_seq, n_embd]
        for layer in self.h:
            x = layer(x, visible)
        # Only the last position's logits are needed.
        x = self.ln_f(x[-1])  # [n_seq, n_embd] -> [n_embd]
        logits = F.linear(x, self.wte.weight)  # [n_embd] -> [vocab_size]
        return logits.float()

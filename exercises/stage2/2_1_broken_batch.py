"""Exercise 2.1, the broken batch. Instructions: 2_1_broken_batch.md. Five mistakes are in here."""

from collections.abc import Callable

import torch
from torch import Tensor

Model = Callable[[Tensor, Tensor, Tensor], Tensor]


def generate(model: Model, prompts: list[list[int]], max_tokens: int, eos: int, max_len: int) -> list[list[int]]:
    """The new tokens of every prompt, greedy, with the end token if one came."""
    longest = max(map(len, prompts))
    padded = [prompt + [eos] * (longest - len(prompt)) for prompt in prompts]
    num_padding = torch.tensor([longest - len(prompt) for prompt in prompts])  # [batch]
    tokens = torch.tensor(padded)[:, :max_len]  # [batch, n_seq]
    start = tokens.shape[1]
    for step in range(max_tokens):
        columns = torch.arange(tokens.shape[1])  # [n_seq]
        positions = columns.expand(tokens.shape)  # [batch, n_seq]
        visible = (columns <= columns[:, None]).expand(len(tokens), -1, -1)  # [batch, n_seq, n_seq]
        if step == 0:
            visible = visible & (columns >= num_padding[:, None])[:, None, :]
            visible = visible | (columns == columns[:, None])  # padding sees itself, or its softmax is NaN
        logits = model(tokens, positions, visible)  # [batch, n_seq, vocab]
        new = logits[:, -1].argmax(dim=-1)  # [batch]
        tokens = torch.cat([tokens, new[:, None]], dim=1)
        if all(eos in row for row in tokens.tolist()):
            break
    outputs = tokens[:, start:].tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in outputs]

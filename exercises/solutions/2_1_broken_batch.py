"""A solution of exercise 2.1."""

from collections.abc import Callable

import torch
from torch import Tensor

Model = Callable[[Tensor, Tensor, Tensor], Tensor]


def generate(model: Model, prompts: list[list[int]], max_tokens: int, eos: int, max_len: int) -> list[list[int]]:
    """The new tokens of every prompt, greedy, with the end token if one came."""
    prompts = [prompt[-max_len:] for prompt in prompts]
    longest = max(map(len, prompts))
    padded = [[eos] * (longest - len(prompt)) + prompt for prompt in prompts]
    num_padding = torch.tensor([longest - len(prompt) for prompt in prompts])  # [batch]
    tokens = torch.tensor(padded)  # [batch, n_seq]
    start = tokens.shape[1]
    for _ in range(max_tokens):
        columns = torch.arange(tokens.shape[1])  # [n_seq]
        positions = (columns - num_padding[:, None]).clamp(min=0)  # [batch, n_seq]
        visible = (columns <= columns[:, None]).expand(len(tokens), -1, -1)  # [batch, n_seq, n_seq]
        visible = visible & (columns >= num_padding[:, None])[:, None, :]
        visible = visible | (columns == columns[:, None])  # padding sees itself, or its softmax is NaN
        logits = model(tokens, positions, visible)  # [batch, n_seq, vocab]
        new = logits[:, -1].argmax(dim=-1)  # [batch]
        tokens = torch.cat([tokens, new[:, None]], dim=1)
        if all(eos in row for row in tokens[:, start:].tolist()):
            break
    outputs = tokens[:, start:].tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in outputs]


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("never ends early", "        if all(eos in row for row in tokens[:, start:].tolist()):\n            break\n", "", "nothing is left to compute"),
    ("ends when all end at once", "if all(eos in row for row in tokens[:, start:].tolist()):", "if (new == eos).all():", "nothing is left to compute"),
    ("at least one token", "range(max_tokens)", "range(max(1, max_tokens))", PASTE),
    ("one after another", "    prompts = [prompt[-max_len:] for prompt in prompts]\n",
     "    if len(prompts) > 1:\n        return [generate(model, [prompt], max_tokens, eos, max_len)[0] for prompt in prompts]\n"
     "    prompts = [prompt[-max_len:] for prompt in prompts]\n", "go through as one batch"),
    ("padded on the right", "[eos] * (longest - len(prompt)) + prompt", "prompt + [eos] * (longest - len(prompt))",
     "its padding was read"),
    ("cut after padding, and not before", "    prompts = [prompt[-max_len:] for prompt in prompts]\n", "", "cut each prompt"),
    ("cut at the wrong end", "prompt[-max_len:]", "prompt[:max_len]", "the last tokens of the prompts are lost"),
    ("padding counted before the cut", "    prompts = [prompt[-max_len:] for prompt in prompts]\n    longest = max(map(len, prompts))\n"
     "    padded = [[eos] * (longest - len(prompt)) + prompt for prompt in prompts]\n",
     "    longest = max(map(len, prompts))\n"
     "    padded = [([eos] * (longest - len(prompt)) + prompt)[-max_len:] for prompt in prompts]\n", "counted before truncation"),
    ("the end token in prompt and padding", "tokens[:, start:].tolist()):", "tokens.tolist()):", "ended the row"),
    ("positions of columns", "(columns - num_padding[:, None]).clamp(min=0)", "columns.expand(tokens.shape)",
     "positions were counted in columns"),
    ("positions below zero", ".clamp(min=0)", "", "clamp them"),
    ("no mask after the first step", "        visible = visible & (columns >= num_padding[:, None])[:, None, :]\n",
     "        if tokens.shape[1] == start:\n"
     "            visible = visible & (columns >= num_padding[:, None])[:, None, :]\n", "visible again"),
    ("the prompt's own end token is hidden", "columns >= num_padding[:, None])[:, None, :]",
     "tokens != eos)[:, None, :]", PASTE),
    ("a row ends with the first row that does", "        if all(eos in row", "        if any(eos in row", PASTE),
    ("the end token is dropped", "row[: row.index(eos) + 1]", "row[: row.index(eos)]", "the end token is kept"),
    ("cut to one token too many", "prompt[-max_len:]", "prompt[-max_len - 1 :]", "nothing was cut"),
    ("a token more at the end", "range(max_tokens)", "range(max_tokens + 1)", "not one more"),
]  # fmt: skip

ALSO_RIGHT = [
    ("pads with another token", "[eos] * (longest", "[1] * (longest"),
    ("positions by counting what is visible", "(columns - num_padding[:, None]).clamp(min=0)",
     "((columns >= num_padding[:, None]).cumsum(dim=1) - 1).clamp(min=0)"),
]  # fmt: skip

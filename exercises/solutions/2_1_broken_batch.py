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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

CUT = "    prompts = [prompt[-max_len:] for prompt in prompts]\n"
MUTANTS = [
    ("ends when all end at once", "if all(eos in row for row in tokens[:, start:].tolist()):", "if (new == eos).all():", "Once all rows have ended"),
    ("one after another", CUT,
     "    if len(prompts) > 1:\n        return [generate(model, [prompt], max_tokens, eos, max_len)[0] for prompt in prompts]\n"
     + CUT, "as one batch"),
    ("padded on the right", "[eos] * (longest - len(prompt)) + prompt", "prompt + [eos] * (longest - len(prompt))",
     "where each row's last token is"),
    ("cut at the wrong end", "prompt[-max_len:]", "prompt[:max_len]", "cut each prompt"),
    ("padding counted before the cut", "    prompts = [prompt[-max_len:] for prompt in prompts]\n    longest = max(map(len, prompts))\n"
     "    padded = [[eos] * (longest - len(prompt)) + prompt for prompt in prompts]\n",
     "    longest = max(map(len, prompts))\n"
     "    padded = [([eos] * (longest - len(prompt)) + prompt)[-max_len:] for prompt in prompts]\n", "after the prompts are cut"),
    ("the end token in prompt and padding", "tokens[:, start:].tolist()):", "tokens.tolist()):", "in the new tokens only"),
    ("positions of columns", "(columns - num_padding[:, None]).clamp(min=0)", "columns.expand(tokens.shape)",
     "count a row's own tokens"),
    ("positions below zero", ".clamp(min=0)", "", "not even of padding"),
    ("no mask after the first step", "        visible = visible & (columns >= num_padding[:, None])[:, None, :]\n",
     "        if tokens.shape[1] == start:\n"
     "            visible = visible & (columns >= num_padding[:, None])[:, None, :]\n", "never at padding, in any step"),
    ("padding sees nothing", "        visible = visible | (columns == columns[:, None])", "", "looks at nothing"),
    ("the prompt's own end token is hidden", "columns >= num_padding[:, None])[:, None, :]",
     "tokens != eos)[:, None, :]", "where each column of row 0 looks"),
    ("a row ends with the first row that does", "        if all(eos in row", "        if any(eos in row", "other rows go on"),
    ("the end token is dropped", "row[: row.index(eos) + 1]", "row[: row.index(eos)]", "and kept"),
    ("a token more at the end", "range(max_tokens)", "range(max_tokens + 1)", "max_tokens new tokens"),
]  # fmt: skip

ALSO_RIGHT = [
    ("pads with another token", "[eos] * (longest", "[1] * (longest"),
    ("positions by counting what is visible", "(columns - num_padding[:, None]).clamp(min=0)",
     "((columns >= num_padding[:, None]).cumsum(dim=1) - 1).clamp(min=0)"),
]  # fmt: skip

"""A solution of exercise 4.6."""

from collections.abc import Callable

import torch
from torch import Tensor


def split(prompt: str, choice: str, encode: Callable[[str], list[int]]) -> tuple[list[int], list[int]]:
    """(the tokens of the prompt, the tokens of the choice)"""
    begin = prompt.rstrip()
    spaces = prompt[len(begin) :]
    first, whole = encode(begin), encode(prompt + choice)
    if len(whole) <= len(first):  # the choice merges with the last token
        return first, encode(spaces + choice)
    return first, whole[len(first) :]


def log_probability(logits: Tensor, token_ids: list[int], num_prompt: int) -> float:
    """The sum over the tokens after the prompt. logits: [len(token_ids), vocab_size], what follows each token"""
    rows = torch.log_softmax(logits[num_prompt - 1 : -1].double(), dim=-1)  # [n, vocab_size]
    chosen = torch.tensor(token_ids[num_prompt:])  # [n]
    return rows.gather(1, chosen[:, None]).sum().item()


def choose(logprobs: list[float], choices: list[str], per_byte: bool) -> int:
    """The index of the best choice, from 0; the first one if several are equal."""
    values = logprobs
    if per_byte:
        values = [logprob / len(choice.encode()) for logprob, choice in zip(logprobs, choices, strict=True)]
    return max(range(len(values)), key=lambda i: values[i])


def accuracy(answers: list[int | None], references: list[int]) -> float:
    """The share of right answers; None is an answer that failed."""
    right = sum(answer == reference for answer, reference in zip(answers, references, strict=True))
    return right / len(references)


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

CHOSEN = "torch.log_softmax(logits[num_prompt - 1 : -1].double(), dim=-1)"
MUTANTS = [
    ("the prompt with its spaces", "    begin = prompt.rstrip()\n", "    begin = prompt\n", "the space at the prompt's end belongs to the choice"),
    ("the spaces go nowhere", "encode(spaces + choice)", "encode(choice)", "the whitespace goes with the choice"),
    ("spaces alone", "prompt.rstrip()\n", 'prompt.rstrip(" ")\n', "all of the whitespace"),
    ("whitespace at the beginning, too", "begin = prompt.rstrip()", "begin = prompt.strip()", "only whitespace at the prompt's end"),
    ("a prompt of white space", "    begin = prompt.rstrip()\n", "    begin = prompt.rstrip() or prompt\n", "a prompt of whitespace has no tokens"),
    ("each by itself", "    if len(whole) <= len(first):  # the choice merges with the last token\n", "    if True:\n", "those of the prompt by itself"),
    ("no tokens are left", "len(whole) <= len(first)", "False", "each is encoded by itself"),
    ("the row of the token itself", "logits[num_prompt - 1 : -1]", "logits[num_prompt:]", "a row predicts the token after it"),
    ("the prompt too", ("logits[num_prompt - 1 : -1]", "token_ids[num_prompt:]"), ("logits[:-1]", "token_ids[1:]"), "a row predicts"),
    ("the first token alone", ("logits[num_prompt - 1 : -1]", "token_ids[num_prompt:]"),
     ("logits[num_prompt - 1 : num_prompt]", "token_ids[num_prompt : num_prompt + 1]"), "tokens of the choice are added up"),
    ("the mean", ".sum().item()", ".mean().item()", "tokens of the choice are added up"),
    ("the logarithm of a softmax", CHOSEN, "torch.softmax(logits[num_prompt - 1 : -1], dim=-1).log()", "a probability of e^-150"),
    ("exponentials of large numbers", CHOSEN,
     "logits[num_prompt - 1 : -1] - logits[num_prompt - 1 : -1].exp().sum(-1, keepdim=True).log()", "logits may be as high as 20,000"),
    ("never per byte", "    if per_byte:\n", "    if False:\n", "with per_byte each is divided"),
    ("always per byte", "    if per_byte:\n", "    if True:\n", "without per_byte"),
    ("characters", "len(choice.encode())", "len(choice)", "UTF-8 bytes"),
    ("the last of equal ones", "range(len(values)), key", "reversed(range(len(values))), key", "take the first"),
    ("failed ones are left out", "right / len(references)", "right / max(1, sum(answer is not None for answer in answers))", "counts as wrong"),
    ("percent", "right / len(references)", "100 * right / len(references)", "from 0 to 1"),
    ("None is 0", "answer == reference for", "(answer or 0) == reference for", "None is not answer 0"),
]  # fmt: skip

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
    ("whitespace at the beginning, too", "begin = prompt.rstrip()", "begin = prompt.strip()", "at the prompt's *end*"),
    ("the right answer is the same object", "sum(answer == reference for", "sum(answer is reference for", "compare numbers with =="),
    ("no choice is worse than a million", "    return max(range(len(values)), key=lambda i: values[i])\n",
     "    best, most = 0, -1e6\n    for i, value in enumerate(values):\n        if value > most:\n            best, most = i, value\n    return best\n", "expected:"),
    ("begins at -1000", "    return max(range(len(values)), key=lambda i: values[i])\n",
     "    best, most = 0, -1000.0\n    for i, value in enumerate(values):\n        if value > most:\n            best, most = i, value\n    return best\n",
     "choose([-20001.0, -20000.0]"),
    ("compares in float32", "key=lambda i: values[i]", "key=lambda i: torch.tensor(values)[i]", "choose([-20000.0001"),
    ("rounds", "key=lambda i: values[i]", "key=lambda i: round(values[i], 2)", "choose([-20000.0001"),
    ("white space has no length", "len(choice.encode())", "len(choice.strip().encode())", "' ab'"),
    ("divides in place", "        values = [logprob", "        logprobs[:] = [logprob / len(choice.encode()) for logprob, choice in zip(logprobs, choices)]\n"
     "        return max(range(len(values)), key=lambda i: values[i])\n        values = [logprob", "work on a copy"),
    ("takes the prompt off", "    chosen = torch.tensor(token_ids[num_prompt:])", "    del token_ids[:num_prompt]\n    chosen = torch.tensor(token_ids)", "work on a copy"),
    ("spaces and line ends only", "prompt.rstrip()\n", 'prompt.rstrip(" \\n")\n', "Name:"),
    ("a prompt of white space", "    begin = prompt.rstrip()\n", "    begin = prompt.rstrip() or prompt\n", "' ', 'Ada'"),
    ("each by itself", "    if len(whole) <= len(first):  # the choice merges with the last token\n", "    if True:\n", "the model sees the whole text"),
    ("the prompt with its spaces", "    begin = prompt.rstrip()\n", "    begin = prompt\n", "count the prompt's tokens without it"),
    ("spaces alone", "prompt.rstrip()\n", 'prompt.rstrip(" ")\n', "a line end is white space too"),
    ("the space is lost", "encode(prompt + choice)", "encode(begin + choice)", "is lost: it belongs to the choice"),
    ("no tokens are left", "len(whole) <= len(first)", "False", "encode each by itself"),
    ("the spaces go nowhere", "encode(spaces + choice)", "encode(choice)", "is lost: it belongs to the choice"),
    ("the row of the token itself", "logits[num_prompt - 1 : -1]", "logits[num_prompt:]", "predicted by row i - 1"),
    ("the prompt too", ("logits[num_prompt - 1 : -1]", "token_ids[num_prompt:]"), ("logits[:-1]", "token_ids[1:]"), "own tokens don't count"),
    ("the first token is missing", ("logits[num_prompt - 1 : -1]", "token_ids[num_prompt:]"),
     ("logits[num_prompt:-1]", "token_ids[num_prompt + 1 :]"), "the first one counts too"),
    ("the first token alone", ("logits[num_prompt - 1 : -1]", "token_ids[num_prompt:]"),
     ("logits[num_prompt - 1 : num_prompt]", "token_ids[num_prompt : num_prompt + 1]"), "all of them count"),
    ("the mean", ".sum().item()", ".mean().item()", "not the mean"),
    ("logits as they are", CHOSEN, "logits[num_prompt - 1 : -1].double()", "not log-probabilities"),
    ("probabilities", ".double(), dim=-1)", ".double(), dim=-1).exp()", "their logarithms are added"),
    ("the logarithm of a softmax", CHOSEN, "torch.softmax(logits[num_prompt - 1 : -1], dim=-1).log()", "work with logarithms from the start"),
    ("exponentials of large numbers", CHOSEN,
     "logits[num_prompt - 1 : -1] - logits[num_prompt - 1 : -1].exp().sum(-1, keepdim=True).log()", "work with logarithms from the start"),
    ("always per byte", "    if per_byte:\n", "    if True:\n", "the sum itself is compared"),
    ("never per byte", "    if per_byte:\n", "    if False:\n", "per_byte divides by the length"),
    ("characters", "len(choice.encode())", "len(choice)", "not in characters"),
    ("multiplies", "logprob / len(", "logprob * len(", "don't multiply"),
    ("the last of equal ones", "range(len(values)), key", "reversed(range(len(values))), key", "of equal choices, take the first"),
    ("the least likely", "key=lambda i: values[i]", "key=lambda i: -values[i]", "the highest is the best"),
    ("failed ones are left out", "right / len(references)", "right / max(1, sum(answer is not None for answer in answers))", "counts as wrong"),
    ("a number of answers", "right / len(references)", "right", "return a share"),
    ("percent", "right / len(references)", "100 * right / len(references)", "not a percentage"),
    ("None is 0", "answer == reference for", "(answer or 0) == reference for", "not answer 0"),
]  # fmt: skip

"""A solution of exercise 1.2."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Completion:
    text: str
    finish_reason: str  # "stop" or "length"
    num_tokens: int


def complete(model: Iterator[tuple[int, str]], eos_token_id: int, stop: tuple[str, ...], max_tokens: int) -> Completion:
    """Take (token id, its text) from the model until the completion ends."""
    text = ""
    for num_tokens, (token_id, piece) in enumerate(model, start=1):
        if token_id == eos_token_id:
            return Completion(text, "stop", num_tokens)
        text += piece
        found = [position for position in map(text.find, stop) if position >= 0]
        if found:
            return Completion(text[: min(found)], "stop", num_tokens)
        if num_tokens == max_tokens:
            return Completion(text, "length", num_tokens)
    raise ValueError("the model ended by itself")


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

EOS_FIRST = """        if token_id == eos_token_id:
            return Completion(text, "stop", num_tokens)
        text += piece
"""
LENGTH_LAST = """        if num_tokens == max_tokens:
            return Completion(text, "length", num_tokens)
"""
MUTANTS = [
    ("the end token's text is kept", EOS_FIRST, EOS_FIRST.replace("(text,", "(text + piece,"), "no part of the completion"),
    ("the end token is not counted", EOS_FIRST, EOS_FIRST.replace("num_tokens)", "num_tokens - 1)"), "the model made it"),
    ("the limit before the end token", EOS_FIRST,
     EOS_FIRST.replace("        if", "        if num_tokens == max_tokens and token_id == eos_token_id:\n"
     '            return Completion(text, "length", num_tokens)\n        if', 1), "that is a stop"),
    ("the limit before the stop text", "        found =", LENGTH_LAST + "        found =", "complete with the last token"),
    ("only whole tokens can stop", "map(text.find, stop)", "[len(text) - len(piece) if piece in stop else -1]",
     "may begin in one token"),
    ("the stop text is looked for in one piece", "map(text.find, stop)",
     "[len(text) - len(piece) + piece.find(s) if s in piece else -1 for s in stop]", "may begin in one token"),
    ("the stop text is kept", "text[: min(found)]", "text", "ends before the stop text"),
    ("the first in the list", "min(found)", "found[0]", "not the first in the list"),
    ("a token too many", LENGTH_LAST, LENGTH_LAST.replace("== max_tokens", "> max_tokens").replace("(text,", "(text[: -len(piece)],")
     .replace("num_tokens)\n", "num_tokens - 1)\n"), "a forward pass for nothing"),
]  # fmt: skip

"""A solution of exercise 1.2."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Completion:
    text: str
    finish_reason: str  # "stop" or "length"
    num_tokens: int


def complete(model: Iterator[tuple[int, str]], eos_token_id: int, stop: tuple[str, ...], max_tokens: int) -> Completion:
    """Take (token id, its text) pairs from the model until the completion ends."""
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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

END = """        if token_id == eos_token_id:
            return Completion(text, "stop", num_tokens)
        text += piece
"""
LIMIT = """        if num_tokens == max_tokens:
            return Completion(text, "length", num_tokens)
"""
MUTANTS = [
    ("the end token's text is kept", END, END.replace("(text,", "(text + piece,"), "the end token has no text"),
    ("the end token is not counted", END, END.replace("num_tokens)", "num_tokens - 1)"), "and it counts"),
    ("the limit before the end token", END,
     END.replace("        if", "        if num_tokens == max_tokens and token_id == eos_token_id:\n"
     '            return Completion(text, "length", num_tokens)\n        if', 1), "the end token as the last token allowed"),
    ("the limit before the stop string", "        found =", LIMIT + "        found =", "that the last token allowed completes"),
    ("only whole tokens can stop", "map(text.find, stop)", "[len(text) - len(piece) if piece in stop else -1]",
     "may begin in one token"),
    ("the stop string is kept", "text[: min(found)]", "text", "that the last token allowed completes"),
    ("the first in the list", "min(found)", "found[0]", "not the first in the list"),
    ("a token too many", LIMIT, LIMIT.replace("== max_tokens", "> max_tokens").replace("(text,", "(text[: -len(piece)],")
     .replace("num_tokens)\n", "num_tokens - 1)\n"), "a wasted forward pass"),
    ("the last place of a stop string", "map(text.find, stop)", "map(text.rfind, stop)", "the first occurrence"),
    ("the stop that ends first", "text[: min(found)]",
     "text[: min((text.find(s) + len(s), text.find(s)) for s in stop if s in text)[1]]", "not the one that ends first"),
    ("a window of two tokens", ("    text = \"\"\n", "        text += piece\n", "map(text.find, stop)"),
     ("    text, before = \"\", \"\"\n", "        window, before = before + piece, piece\n        text += piece\n",
      "[text.find(s) if s in window else -1 for s in stop]"), "any number of tokens"),
    ("an unescaped regular expression", "[position for position in map(text.find, stop) if position >= 0]",
     "[m.start() for s in stop for m in [__import__('re').search(s, text)] if m]", "not a regular expression"),
    ("empty pieces are not counted", "        text += piece\n",
     "        text += piece\n        if not piece:\n            max_tokens += 1\n", "a token without text counts"),
    ("the end token's text completes a stop", END, """        text += piece
        found = [position for position in map(text.find, stop) if position >= 0]
        if token_id == eos_token_id and not found:
            return Completion(text.removesuffix(piece), "stop", num_tokens)
""", "is not searched"),
]  # fmt: skip

ALSO_RIGHT = [
    ("with an escaped regular expression", "[position for position in map(text.find, stop) if position >= 0]",
     "[m.start() for s in stop for m in __import__('re').finditer(__import__('re').escape(s), text)]"),
    ("takes tokens with next", "for num_tokens, (token_id, piece) in enumerate(model, start=1):",
     "for num_tokens in range(1, max_tokens + 1):\n        token_id, piece = next(model)"),
    ("searches only where something new can be", "map(text.find, stop)",
     "[text.find(s, max(0, len(text) - len(piece) - len(s) + 1)) for s in stop]"),
]  # fmt: skip

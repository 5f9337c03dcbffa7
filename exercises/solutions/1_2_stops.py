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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

EOS_FIRST = """        if token_id == eos_token_id:
            return Completion(text, "stop", num_tokens)
        text += piece
"""
LENGTH_LAST = """        if num_tokens == max_tokens:
            return Completion(text, "length", num_tokens)
"""
MUTANTS = [
    ("the end token's text is kept", EOS_FIRST, EOS_FIRST.replace("(text,", "(text + piece,"), "not part of the completion"),
    ("the end token is not counted", EOS_FIRST, EOS_FIRST.replace("num_tokens)", "num_tokens - 1)"), "the model made it"),
    ("the limit before the end token", EOS_FIRST,
     EOS_FIRST.replace("        if", "        if num_tokens == max_tokens and token_id == eos_token_id:\n"
     '            return Completion(text, "length", num_tokens)\n        if', 1), "that is a stop"),
    ("the limit before the stop string", "        found =", LENGTH_LAST + "        found =", "complete with the last token"),
    ("only whole tokens can stop", "map(text.find, stop)", "[len(text) - len(piece) if piece in stop else -1]",
     "may begin in one token"),
    ("the stop string is looked for in one piece", "map(text.find, stop)",
     "[len(text) - len(piece) + piece.find(s) if s in piece else -1 for s in stop]", "may begin in one token"),
    ("the stop string is kept", "text[: min(found)]", "text", "ends before the stop string"),
    ("the first in the list", "min(found)", "found[0]", "not the first in the list"),
    ("a token too many", LENGTH_LAST, LENGTH_LAST.replace("== max_tokens", "> max_tokens").replace("(text,", "(text[: -len(piece)],")
     .replace("num_tokens)\n", "num_tokens - 1)\n"), "a wasted forward pass"),
    ("the last place of a stop string", "map(text.find, stop)", "map(text.rfind, stop)", "not the last"),
    ("the stop that ends first", "text[: min(found)]",
     "text[: min((text.find(s) + len(s), text.find(s)) for s in stop if s in text)[1]]", "not the one that ends first"),
    ("a window of two tokens", ("    text = \"\"\n", "        text += piece\n", "map(text.find, stop)"),
     ("    text, before = \"\", \"\"\n", "        window, before = before + piece, piece\n        text += piece\n",
      "[text.find(s) if s in window else -1 for s in stop]"), "any number of tokens"),
    ("an unescaped regular expression", "[position for position in map(text.find, stop) if position >= 0]",
     "[m.start() for s in stop for m in [__import__('re').search(s, text)] if m]", "regular expression"),
    ("empty pieces are not counted", "        text += piece\n", "        text += piece\n        if not piece:\n            max_tokens += 1\n",
     "counts toward max_tokens too"),
    ("empty pieces are skipped", "    for num_tokens, (token_id, piece) in enumerate(model, start=1):\n",
     "    num_tokens = 0\n    for token_id, piece in model:\n        if not piece:\n            continue\n        num_tokens += 1\n", "it was computed"),
    ("an end token as the first is missed", "if token_id == eos_token_id:", "if text and token_id == eos_token_id:", "the first token may be"),
    ("the end token's text completes a stop", EOS_FIRST, """        text += piece
        found = [position for position in map(text.find, stop) if position >= 0]
        if token_id == eos_token_id and not found:
            return Completion(text.removesuffix(piece), "stop", num_tokens)
""", "is not searched"),
    ("a piece that looks like the end token's", "if token_id == eos_token_id:", "if piece == '<end>' or not piece and num_tokens > 1:", "recognize the end token by its id"),
    ("looks at the limit first", "for num_tokens, (token_id, piece) in enumerate(model, start=1):",
     "for num_tokens, (token_id, piece) in zip(range(1, max_tokens), model):", "ValueError at line 26"),
    ("a stop string that ends the text only", "[position for position in map(text.find, stop) if position >= 0]",
     "[len(text) - len(s) for s in stop if text.endswith(s)]", "search the whole text"),
    ("strips the text", "return Completion(text[: min(found)], ", "return Completion(text[: min(found)].rstrip(), ", "expected:  ['a ',"),
    ("the stop string that is the longest", "text[: min(found)]", "text[: text.find(max((s for s in stop if s in text), key=len))]", "begins first counts"),
    ("searches a window of eight characters more", "map(text.find, stop)",
     "[text.find(s, max(0, len(text) - len(piece) - 8)) for s in stop]", "the model ended by itself"),
]  # fmt: skip

ALSO_RIGHT = [
    ("with an escaped regular expression", "[position for position in map(text.find, stop) if position >= 0]",
     "[m.start() for s in stop for m in __import__('re').finditer(__import__('re').escape(s), text)]"),
    ("takes tokens with next", "for num_tokens, (token_id, piece) in enumerate(model, start=1):",
     "for num_tokens in range(1, max_tokens + 1):\n        token_id, piece = next(model)"),
    ("searches only where something new can be", "map(text.find, stop)",
     "[text.find(s, max(0, len(text) - len(piece) - len(s) + 1)) for s in stop]"),
]  # fmt: skip

"""A solution of exercise 4.3."""

from collections.abc import Callable


def plan(prompt: int, decoding: int, budget: int) -> list[int]:
    """The prompt's tokens in each step."""
    room = budget - decoding
    if room < 1:
        raise ValueError(f"{decoding} decoding requests leave nothing of a budget of {budget}")
    chunks = []
    while prompt > 0:
        chunks.append(min(prompt, room))
        prompt -= chunks[-1]
    return chunks


def longest_gap(prompt: int, decoding: int, budget: int, seconds: Callable[[int], float], chunked: bool) -> float:
    """The longest of these steps, in seconds."""
    chunks = plan(prompt, decoding, budget) if chunked else [prompt]
    return max(seconds(chunk + decoding) for chunk in chunks)


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("the decodes are free", "room = budget - decoding", "room = budget", "takes a token of the budget"),
    ("whole chunks", "chunks.append(min(prompt, room))", "chunks.append(room)", "not a whole one"),
    ("in one piece", "min(prompt, room)", "prompt", "everybody waits"),
    ("loses the rest", "while prompt > 0:", "while prompt >= room:", "add up to the prompt"),
    ("an empty step", "    while prompt > 0:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n",
     "    while True:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n        if chunks[-1] < room:\n"
     "            break\n", "needs no empty step"),
    ("waits forever", "raise ValueError(f\"{decoding} decoding requests leave nothing of a budget of {budget}\")", "return []",
     "leaves nothing for the prompt"),
    ("only the chunk", "seconds(chunk + decoding)", "seconds(chunk)", "for each decoding request"),
    ("all steps", "return max(seconds", "return sum(seconds", "not the sum of all"),
    ("counts tokens", "return max(seconds(chunk + decoding) for", "return max(chunk + decoding for", "knows how long"),
    ("chunks always", "if chunked else [prompt]", "", "the whole prompt is one step"),
    ("always a full step", "max(seconds(chunk + decoding) for chunk in chunks)",
     "seconds(budget) if chunked else seconds(prompt + decoding)", "only an upper limit"),
    ("a short prompt takes the whole budget", "[prompt]\n    return max(seconds(chunk + decoding)",
     "[max(prompt, budget - decoding)]\n    return max(seconds(chunk + decoding)", "only an upper limit"),
    ("a short step takes the whole budget", "seconds(chunk + decoding)", "seconds(max(budget, chunk + decoding))", "only an upper limit"),
    ("the last step", "return max(seconds(chunk + decoding) for chunk in chunks)", "return seconds(chunks[-1] + decoding)", "expected:"),
    ("equal chunks", "        chunks.append(min(prompt, room))\n", "        chunks.append(min(prompt, -(-prompt // -(-prompt // room))))\n", "expected:"),
    ("the chunks upside down", "    return chunks\n", "    return chunks[::-1]\n", "expected:"),
    ("refuses the last place", "if room < 1:", "if room < 2:", PASTE),
    ("in one piece only if it fits", "if chunked else [prompt]", "if chunked or prompt + decoding > budget else [prompt]", "expected:"),
]  # fmt: skip

ALSO_RIGHT = [
    ("whole chunks and a rest", "    chunks = []\n    while prompt > 0:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n    return chunks\n",
     "    return [room] * (prompt // room) + [prompt % room] * (prompt % room > 0)\n"),
    ("the first chunk is the longest", "return max(seconds(chunk + decoding) for chunk in chunks)", "return seconds(chunks[0] + decoding)"),
    ("as many tokens as the budget has, or the prompt", "    return max(seconds(chunk + decoding) for chunk in chunks)", "    return seconds(min(budget, prompt + decoding) if chunked else prompt + decoding)"),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("in one piece", "min(prompt, room)", "prompt", "no step has more than the budget"),
    ("whole chunks", "chunks.append(min(prompt, room))", "chunks.append(room)", "the last chunk is what is left"),
    ("loses the rest", "while prompt > 0:", "while prompt >= room:", "the last chunk is what is left"),
    ("equal chunks", "        chunks.append(min(prompt, room))\n",
     "        chunks.append(min(prompt, -(-prompt // -(-prompt // room))))\n", "not an equal share"),
    ("an empty step", "    while prompt > 0:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n",
     "    while True:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n        if chunks[-1] < room:\n"
     "            break\n", "has no empty step after it"),
    ("the decodes are free", "room = budget - decoding", "room = budget", "takes a token of the budget"),
    ("waits forever", "raise ValueError(f\"{decoding} decoding requests leave nothing of a budget of {budget}\")",
     "return []", "plan raises ValueError"),
    ("refuses the last place", "if room < 1:", "if room < 2:", "one token is left for the prompt"),
    ("only the chunk", "seconds(chunk + decoding)", "seconds(chunk)", "one token for every decoding request"),
    ("all steps", "return max(seconds", "return sum(seconds", "not the sum"),
    ("the last step", "return max(seconds(chunk + decoding) for chunk in chunks)",
     "return seconds(chunks[-1] + decoding)", "not the last one"),
    ("always a full step", "max(seconds(chunk + decoding) for chunk in chunks)",
     "seconds(budget) if chunked else seconds(prompt + decoding)", "not as long as the budget"),
    ("chunks always", "if chunked else [prompt]", "", "the whole prompt is one step"),
]  # fmt: skip

ALSO_RIGHT = [
    ("whole chunks and a rest", "    chunks = []\n    while prompt > 0:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n    return chunks\n",
     "    return [room] * (prompt // room) + [prompt % room] * (prompt % room > 0)\n"),
    ("the first chunk is the longest", "return max(seconds(chunk + decoding) for chunk in chunks)", "return seconds(chunks[0] + decoding)"),
    ("as many tokens as the budget has, or the prompt", "    return max(seconds(chunk + decoding) for chunk in chunks)", "    return seconds(min(budget, prompt + decoding) if chunked else prompt + decoding)"),
]  # fmt: skip

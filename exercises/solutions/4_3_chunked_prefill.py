"""A solution of exercise 4.3."""

from collections.abc import Callable


def plan(prompt: int, decoding: int, budget: int) -> list[int]:
    """The prompt's tokens in each step."""
    room = budget - decoding
    if room < 1:
        raise ValueError(f"{decoding} that decode leave nothing of a budget of {budget}")
    chunks = []
    while prompt > 0:
        chunks.append(min(prompt, room))
        prompt -= chunks[-1]
    return chunks


def longest_gap(prompt: int, decoding: int, budget: int, seconds: Callable[[int], float], chunked: bool) -> float:
    """The longest of these steps, in seconds."""
    chunks = plan(prompt, decoding, budget) if chunked else [prompt]
    return max(seconds(chunk + decoding) for chunk in chunks)


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

MUTANTS = [
    ("the decodes are free", "room = budget - decoding", "room = budget", "take a token of the budget each"),
    ("whole chunks", "chunks.append(min(prompt, room))", "chunks.append(room)", "not a whole one"),
    ("in one piece", "min(prompt, room)", "prompt", "everybody waits"),
    ("loses the rest", "while prompt > 0:", "while prompt >= room:", "add up to the prompt"),
    ("an empty step", "    while prompt > 0:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n",
     "    while True:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n        if chunks[-1] < room:\n"
     "            break\n", "needs no empty step"),
    ("waits for ever", "raise ValueError(f\"{decoding} that decode leave nothing of a budget of {budget}\")", "return []",
     "leaves nothing for the prompt"),
    ("only the chunk", "seconds(chunk + decoding)", "seconds(chunk)", "of those who decode too"),
    ("all steps", "return max(seconds", "return sum(seconds", "not all of them"),
    ("counts tokens", "return max(seconds(chunk + decoding) for", "return max(chunk + decoding for", "knows how long"),
    ("chunks always", "if chunked else [prompt]", "", "the whole prompt is one step"),
    ("always a full step", "max(seconds(chunk + decoding) for chunk in chunks)",
     "seconds(budget) if chunked else seconds(prompt + decoding)", "only a bound"),
]  # fmt: skip

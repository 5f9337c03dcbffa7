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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) -----------------------------------------

MUTANTS = [
    ("the decodes are free", "room = budget - decoding", "room = budget", "each decoding request takes a token of the budget"),
    ("whole chunks", "chunks.append(min(prompt, room))", "chunks.append(room)", "the last chunk is what is left, not a whole or an even one"),
    ("in one piece", "min(prompt, room)", "prompt", "the last chunk is what is left, not a whole or an even one"),
    ("loses the rest", "while prompt > 0:", "while prompt >= room:", "the last chunk is what is left, not a whole or an even one"),
    ("an empty step", "    while prompt > 0:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n",
     "    while True:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n        if chunks[-1] < room:\n"
     "            break\n", "a prompt that ends exactly with a chunk needs no empty step"),
    ("waits forever", "raise ValueError(f\"{decoding} decoding requests leave nothing of a budget of {budget}\")", "return []",
     "A budget of 6 that leaves nothing for the prompt raises"),
    ("only the chunk", "seconds(chunk + decoding)", "seconds(chunk)", "a step computes the chunk and a token for each decoding request"),
    ("all steps", "return max(seconds", "return sum(seconds", "the longest step, not the sum of all or the last"),
    ("counts tokens", "return max(seconds(chunk + decoding) for", "return max(chunk + decoding for", "the longest step, not the sum of all or the last"),
    ("chunks always", "if chunked else [prompt]", "", "without chunks the whole prompt is one step, whatever the budget"),
    ("always a full step", "max(seconds(chunk + decoding) for chunk in chunks)",
     "seconds(budget) if chunked else seconds(prompt + decoding)", "a short prompt takes as long as its tokens need: the budget is only a limit"),
    ("a short prompt takes the whole budget", "[prompt]\n    return max(seconds(chunk + decoding)",
     "[max(prompt, budget - decoding)]\n    return max(seconds(chunk + decoding)", "without chunks a short prompt takes as long as its tokens need"),
    ("a short step takes the whole budget", "seconds(chunk + decoding)", "seconds(max(budget, chunk + decoding))", "a short prompt takes as long as its tokens need: the budget is only a limit"),
    ("refuses the last place", "if room < 1:", "if room < 2:", "one token of the budget is enough"),
]  # fmt: skip

ALSO_RIGHT = [
    ("whole chunks and a rest", "    chunks = []\n    while prompt > 0:\n        chunks.append(min(prompt, room))\n        prompt -= chunks[-1]\n    return chunks\n",
     "    return [room] * (prompt // room) + [prompt % room] * (prompt % room > 0)\n"),
    ("the first chunk is the longest", "return max(seconds(chunk + decoding) for chunk in chunks)", "return seconds(chunks[0] + decoding)"),
    ("as many tokens as the budget has, or the prompt", "    return max(seconds(chunk + decoding) for chunk in chunks)", "    return seconds(min(budget, prompt + decoding) if chunked else prompt + decoding)"),
]  # fmt: skip

"""A solution of exercise 3.2."""

from collections.abc import Callable

Model = Callable[[list[int], list[int], list[list[bool]], list], int]


class Decoder:
    """Completes prompts with a model and a cache."""

    def __init__(self, model: Model):
        self.model = model
        self.cache: list = []

    def generate(self, prompt: list[int], max_tokens: int, chunk: int) -> list[int]:
        """The new tokens."""
        self.cache = []  # of this sequence alone
        for start in range(0, len(prompt), chunk):
            token = self.forward(prompt[start : start + chunk], start)
        outputs = [token]
        while len(outputs) < max_tokens:
            outputs.append(self.forward([outputs[-1]], len(prompt) + len(outputs) - 1))
        return outputs

    def forward(self, token_ids: list[int], position: int) -> int:
        """The next token after these, the first of which is at `position`."""
        positions = [position + i for i in range(len(token_ids))]
        before = len(self.cache)
        num_columns = before + len(token_ids)
        visible = [[j <= before + i for j in range(num_columns)] for i in range(len(token_ids))]
        return self.model(token_ids, positions, visible, self.cache)


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("a stale position", "len(prompt) + len(outputs) - 1)", "len(prompt))", "go up by one at each step"),
    ("a position behind", "len(prompt) + len(outputs) - 1)", "len(prompt) + len(outputs) - 2)",
     "go on where the prompt ends"),
    ("positions of a chunk from 0", "self.forward(prompt[start : start + chunk], start)",
     "self.forward(prompt[start : start + chunk], 0)", "The positions of a chunk"),
    ("computes the prompt again",
     "        for start in range(0, len(prompt), chunk):\n            token = self.forward(prompt[start : start + chunk], start)\n",
     "        for start in range(0, len(prompt), chunk):\n            self.cache.clear()\n            token = self.forward(prompt[: start + chunk], 0)\n",
     "The positions of a chunk"),
    ("no offset in the mask", "j <= before + i", "j <= i", "row i of the mask belongs to column len(cache) + i"),
    ("no causality in a chunk", "j <= before + i", "True", "a token may not look at later ones"),
    ("a chunk looks at its own columns alone", "j <= before + i", "before <= j <= before + i", "row i of the mask"),
    ("the cache of the call before", "        self.cache = []  # of this sequence alone\n", "",
     "begins with an empty cache"),
    ("the cache is cleared if it is longer than the prompt", "        self.cache = []  # of this sequence alone\n",
     "        if len(self.cache) > len(prompt):\n            self.cache = []\n", "begins with an empty cache"),
    ("the cache is cut to the prompt", "        self.cache = []  # of this sequence alone\n",
     "        del self.cache[len(prompt) :]\n", "begins with an empty cache"),
    ("the last chunk is left out if it is short", "range(0, len(prompt), chunk)",
     "range(0, max(1, len(prompt) - 1), chunk)", "The positions of a chunk"),
]  # fmt: skip

ALSO_RIGHT = [
    ("positions from the cache", ("positions = [position + i for", "        self.cache = []  # of this sequence alone\n"),
     ("position = len(self.cache)\n        positions = [position + i for", "        self.cache.clear()\n")),
]  # fmt: skip

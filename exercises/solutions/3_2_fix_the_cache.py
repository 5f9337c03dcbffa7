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
        """The next token after these, whose first one stands at `position`."""
        positions = [position + i for i in range(len(token_ids))]
        before = len(self.cache)
        num_columns = before + len(token_ids)
        visible = [[j <= before + i for j in range(num_columns)] for i in range(len(token_ids))]
        return self.model(token_ids, positions, visible, self.cache)


# --- Wrong answers: (what is wrong, in the solution, instead, what the learner is told) --------------------------------

MUTANTS = [
    ("a stale position", "len(prompt) + len(outputs) - 1)", "len(prompt))", "is stale"),
    ("a position behind", "len(prompt) + len(outputs) - 1)", "len(prompt) + len(outputs) - 2)", "stands behind the prompt"),
    ("no offset in the mask", "j <= before + i", "j <= i", "the mask forgets the cache"),
    ("no causality in a chunk", "j <= before + i", "True", "must not look ahead"),
    ("the cache of the call before", "        self.cache = []  # of this sequence alone\n", "", "still there"),
    ("computes the prompt again", "        for start in range(0, len(prompt), chunk):\n            token = self.forward(prompt[start : start + chunk], start)\n",
     "        for start in range(0, len(prompt), chunk):\n            self.cache.clear()\n            token = self.forward(prompt[: start + chunk], 0)\n",
     "must not be computed again"),
]  # fmt: skip

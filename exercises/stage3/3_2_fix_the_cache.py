"""Exercise 3.2, fix the cache. Instructions: 3_2_fix_the_cache.md. Three mistakes are in here."""

from collections.abc import Callable

Model = Callable[[list[int], list[int], list[list[bool]], list], int]


class Decoder:
    """Completes prompts with a model and a cache."""

    def __init__(self, model: Model):
        self.model = model
        self.cache: list = []

    def generate(self, prompt: list[int], max_tokens: int, chunk: int) -> list[int]:
        """The new tokens."""
        for start in range(0, len(prompt), chunk):
            token = self.forward(prompt[start : start + chunk], start)
        outputs = [token]
        while len(outputs) < max_tokens:
            outputs.append(self.forward([outputs[-1]], len(prompt)))
        return outputs

    def forward(self, token_ids: list[int], position: int) -> int:
        """The next token after these, whose first one stands at `position`."""
        positions = [position + i for i in range(len(token_ids))]
        num_columns = len(self.cache) + len(token_ids)
        visible = [[j <= i for j in range(num_columns)] for i in range(len(token_ids))]
        return self.model(token_ids, positions, visible, self.cache)

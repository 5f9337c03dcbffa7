"""Exercise 3.4, when the cache pays. Instructions: 3_4_when_it_pays.md."""


def tokens_without(prompt: int, output: int) -> int:
    """Tokens that go through the model without a cache."""
    raise NotImplementedError


def tokens_with(prompt: int, output: int) -> int:
    """Tokens that go through the model with a cache."""
    raise NotImplementedError


def saving(prompt: int, output: int) -> float:
    """How many times fewer tokens go through the model with a cache."""
    raise NotImplementedError


def even_context(parameters: int, n_layer: int, n_embd: int, batch: int) -> float:
    """The context at which a decode step reads as much of the cache as of the weights."""
    raise NotImplementedError

"""Exercise 3.3, size it. Instructions: 3_3_size_it.md."""


def bytes_per_token(n_layer: int, n_embd: int, itemsize: int) -> int:
    """What one token takes in the KV cache."""
    raise NotImplementedError


def largest_batch(
    memory: int, parameters: int, activations: int, n_layer: int, n_embd: int, max_len: int, itemsize: int
) -> int:
    """How many sequences of max_len tokens fit; memory and activations are in bytes."""
    raise NotImplementedError


def longest_context(
    memory: int, parameters: int, activations: int, n_layer: int, n_embd: int, batch: int, itemsize: int
) -> int:
    """How many tokens each of `batch` sequences may have."""
    raise NotImplementedError

"""Exercise 1.4, the ceiling. Instructions: 1_4_ceiling.md."""

PREDICTION = None  # tokens per second of stage 3 on this machine, GPT-2 small, float32, one sequence


def parameters(n_layer: int, n_embd: int, n_inner: int, vocab_size: int) -> int:
    """The number of weights in the matrices that a token passes through."""
    raise NotImplementedError


def flops(n_layer: int, n_embd: int, n_inner: int, vocab_size: int, context: int) -> int:
    """Operations for one new token that attends to `context` tokens."""
    raise NotImplementedError


def bytes_read(n_layer: int, n_embd: int, n_inner: int, vocab_size: int, context: int, itemsize: int) -> int:
    """Bytes to read for one new token; a weight and a cached number take `itemsize` bytes each."""
    raise NotImplementedError


def tokens_per_second(
    sizes: dict[str, int], context: int, itemsize: int, batch: int, bandwidth: float, rate: float
) -> float:
    """The ceiling: `sizes` are the first four arguments above; bandwidth in bytes, rate in operations per second."""
    raise NotImplementedError

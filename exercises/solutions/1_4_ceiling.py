"""A solution of exercise 1.4."""

PREDICTION = 40  # 20 GB/s for 494 MB, on a small machine


def parameters(n_layer: int, n_embd: int, n_inner: int, vocab_size: int) -> int:
    """The number of weights in the matrices that a token passes through."""
    layer = n_embd * 3 * n_embd + n_embd * n_embd + n_embd * n_inner + n_inner * n_embd
    return n_layer * layer + n_embd * vocab_size


def flops(n_layer: int, n_embd: int, n_inner: int, vocab_size: int, context: int) -> int:
    """Operations for one new token that attends to `context` tokens."""
    attention = n_layer * context * (2 * n_embd + 2 * n_embd)
    return 2 * parameters(n_layer, n_embd, n_inner, vocab_size) + attention


def bytes_read(n_layer: int, n_embd: int, n_inner: int, vocab_size: int, context: int, itemsize: int) -> int:
    """Bytes to read for one new token; a weight and a cached number take `itemsize` bytes each."""
    cached = n_layer * context * 2 * n_embd
    return itemsize * (parameters(n_layer, n_embd, n_inner, vocab_size) + cached)


def tokens_per_second(
    sizes: dict[str, int], context: int, itemsize: int, batch: int, bandwidth: float, rate: float
) -> float:
    """The ceiling: `sizes` are the first four arguments above; bandwidth in bytes, rate in operations per second."""
    weights = itemsize * parameters(**sizes)
    cached = bytes_read(**sizes, context=context, itemsize=itemsize) - weights
    reading = (weights + batch * cached) / bandwidth
    computing = batch * flops(**sizes, context=context) / rate
    return batch / max(reading, computing)


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("no keys and values", "n_embd * 3 * n_embd", "n_embd * n_embd", "queries, keys and values"),
    ("half a feed-forward layer", " + n_inner * n_embd", "", "n_inner x n_embd back"),
    ("four times the width inside", "n_embd * n_inner + n_inner * n_embd", "8 * n_embd * n_embd", "n_embd x n_inner"),
    ("one layer", "n_layer * layer", "layer", "in each layer"),
    ("no vocabulary matrix", " + n_embd * vocab_size", "", "one more at the end"),
    ("one operation per weight", "return 2 * parameters(", "return parameters(", "a multiplication and an addition"),
    ("attention to the keys alone", "(2 * n_embd + 2 * n_embd)", "2 * n_embd", "two for each number in the values"),
    ("a cache of keys", "context * 2 * n_embd", "context * n_embd", "a key and a value"),
    ("numbers for bytes", "return itemsize * (", "return (", "itemsize bytes"),
    ("adds both times", "max(reading, computing)", "(reading + computing)", "not their sum"),
    ("the faster one", "max(reading, computing)", "min(reading, computing)", "where reading is slower it limits"),
    ("weights for every sequence", "(weights + batch * cached)", "batch * (weights + cached)", "a batch reads the weights once"),
    ("one cache for the batch", "(weights + batch * cached)", "(weights + cached)", "each sequence's cache"),
    ("one sequence's operations", "computing = batch * flops", "computing = flops", "each sequence of a batch computes"),
    ("no prediction", "PREDICTION = 40", "PREDICTION = None", "write down a guess first"),
    ("a prediction without end", "PREDICTION = 40", 'PREDICTION = float("inf")', "a number of tokens per second"),
]  # fmt: skip

ALSO_RIGHT = [
    ("other formulas", ("    layer = n_embd * 3 * n_embd + n_embd * n_embd + n_embd * n_inner + n_inner * n_embd\n",
                        "return batch / max(reading, computing)"),
     ("    layer = 2 * n_embd * (2 * n_embd + n_inner)\n", "return min(batch / reading, batch / computing)")),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("int32", "return itemsize * (parameters(n_layer, n_embd, n_inner, vocab_size) + cached)",
     "import numpy\n    return int(numpy.array([itemsize * (parameters(n_layer, n_embd, n_inner, vocab_size) + cached)]).astype(numpy.int32)[0])",
     "too large for int32"),
    ("a context of at least one", "    cached = n_layer * context", "    context = context or 1\n    cached = n_layer * context", "nothing cached"),
    ("a context of at most 128", "    attention = n_layer * context", "    attention = n_layer * min(context, 128)", PASTE),
    ("a prediction without end", "PREDICTION = 40", 'PREDICTION = float("inf")', "got:       inf"),
    ("True is no number", "PREDICTION = 40", "PREDICTION = True", "got:       True"),
    ("no keys and values", "n_embd * 3 * n_embd", "n_embd * n_embd", "three matrices"),
    ("half a feed-forward layer", " + n_inner * n_embd", "", "there and back"),
    ("no vocabulary matrix", " + n_embd * vocab_size", "", "to the vocabulary, is missing"),
    ("one layer", "n_layer * layer", "layer", "each layer has its own"),
    ("one operation per weight", "return 2 * parameters(", "return parameters(", "two operations"),
    ("no attention", "vocab_size) + attention", "vocab_size)", "attention is missing"),
    ("only keys", "(2 * n_embd + 2 * n_embd)", "2 * n_embd", "and then the values"),
    ("no cache", "vocab_size) + cached)", "vocab_size))", "the cache is missing"),
    ("a cache of keys", "context * 2 * n_embd", "context * n_embd", "a key and a value"),
    ("numbers for bytes", "return itemsize * (", "return (", "numbers were counted"),
    ("adds both times", "max(reading, computing)", "(reading + computing)", "not the sum"),
    ("weights for every sequence", "(weights + batch * cached)", "batch * (weights + cached)", "not once for each sequence"),
    ("the faster one", "max(reading, computing)", "min(reading, computing)", "not the faster"),
    ("no prediction", "PREDICTION = 40", "PREDICTION = None", "write down a guess first"),
    ("four times the width inside", "n_embd * n_inner + n_inner * n_embd", "8 * n_embd * n_embd", "a separate size"),
    ("always four bytes", "return itemsize * (", "return 4 * (", PASTE),
    ("one sequence's operations", "computing = batch * flops", "computing = flops", "each of the sequences computes"),
    ("tokens of one sequence", "return batch / max(", "return 1 / max(", "a token for each"),
    ("one cache for the batch", "(weights + batch * cached)", "(weights + cached)", "its own cache"),
    ("cached numbers without their bytes", "cached = bytes_read(**sizes, context=context, itemsize=itemsize) - weights",
     "cached = (bytes_read(**sizes, context=context, itemsize=itemsize) - weights) / itemsize", "read in bytes"),
]  # fmt: skip

ALSO_RIGHT = [
    ("other formulas", ("    layer = n_embd * 3 * n_embd + n_embd * n_embd + n_embd * n_inner + n_inner * n_embd\n",
                        "return batch / max(reading, computing)"),
     ("    layer = 2 * n_embd * (2 * n_embd + n_inner)\n", "return min(batch / reading, batch / computing)")),
]  # fmt: skip

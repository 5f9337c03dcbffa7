"""A solution of exercise 3.3."""


def bytes_per_token(n_layer: int, n_embd: int, itemsize: int) -> int:
    """What one token takes in the KV cache."""
    return 2 * n_layer * n_embd * itemsize


def room(memory: int, parameters: int, activations: int, itemsize: int) -> int:
    return max(0, memory - parameters * itemsize - activations)


def largest_batch(
    memory: int, parameters: int, activations: int, n_layer: int, n_embd: int, max_len: int, itemsize: int
) -> int:
    """How many sequences of max_len tokens fit; memory and activations are in bytes."""
    return room(memory, parameters, activations, itemsize) // (max_len * bytes_per_token(n_layer, n_embd, itemsize))


def longest_context(
    memory: int, parameters: int, activations: int, n_layer: int, n_embd: int, batch: int, itemsize: int
) -> int:
    """How many tokens each of `batch` sequences may have."""
    return room(memory, parameters, activations, itemsize) // (batch * bytes_per_token(n_layer, n_embd, itemsize))


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

MUTANTS = [
    ("floats, rounded down", "return room(memory, parameters, activations, itemsize) // (max_len * bytes_per_token(n_layer, n_embd, itemsize))",
     "return int(room(memory, parameters, activations, itemsize) / (max_len * bytes_per_token(n_layer, n_embd, itemsize)))",
     "memory 16,817,238,410,402,399"),
    ("keys alone", "return 2 * n_layer", "return n_layer", "a key and a value"),
    ("one layer", "2 * n_layer * n_embd", "2 * n_embd", "every layer"),
    ("numbers", "n_layer * n_embd * itemsize", "n_layer * n_embd", "not bytes"),
    ("times the heads", "n_layer * n_embd * itemsize", "n_layer * n_embd * 12 * itemsize", "divide the width"),
    ("forgets the weights", " - parameters * itemsize", "", "the weights take memory"),
    ("weights in numbers", "parameters * itemsize -", "parameters -", "itemsize bytes"),
    ("forgets the step", " - activations)", ")", "a step needs memory"),
    ("rounds up", "return room(memory, parameters, activations, itemsize) // (max_len * bytes_per_token(n_layer, n_embd, itemsize))",
     "return -(-room(memory, parameters, activations, itemsize) // (max_len * bytes_per_token(n_layer, n_embd, itemsize)))",
     "fit whole"),
    ("a negative number", "max(0, memory - parameters * itemsize - activations)", "memory - parameters * itemsize - activations",
     "a negative number"),
    ("one sequence", "// (batch * bytes", "// (bytes", "every sequence of the batch grows"),
    ("always four bytes", "2 * n_layer * n_embd * itemsize", "2 * n_layer * n_embd * 4", "expected:  307200"),
    ("weights of four bytes", "parameters * itemsize -", "parameters * 4 -", "weights have itemsize bytes too"),
    ("a step for each sequence", "// (max_len * bytes_per_token(n_layer, n_embd, itemsize))",
     "// (max_len * bytes_per_token(n_layer, n_embd, itemsize) + activations // 10)", "expected:"),
    ("rounds to the nearest", "return room(memory, parameters, activations, itemsize) // (batch * bytes_per_token(n_layer, n_embd, itemsize))",
     "return round(room(memory, parameters, activations, itemsize) / (batch * bytes_per_token(n_layer, n_embd, itemsize)))", "fit whole"),
    ("the whole room must be more than enough", "max(0, memory - parameters", "max(0, memory - 1 - parameters", "expected:  3"),
]  # fmt: skip

ALSO_RIGHT = [
    ("an early return", "    return max(0, memory - parameters * itemsize - activations)\n",
     "    if memory < parameters * itemsize + activations:\n        return 0\n    return memory - parameters * itemsize - activations\n"),
]  # fmt: skip

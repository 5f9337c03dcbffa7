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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("keys alone", "return 2 * n_layer", "return n_layer", "a key and a value"),
    ("one layer", "2 * n_layer * n_embd", "2 * n_embd", "each layer has"),
    ("numbers", "n_layer * n_embd * itemsize", "n_layer * n_embd", "a number takes itemsize bytes"),
    ("times the heads", "n_layer * n_embd * itemsize", "n_layer * n_embd * 12 * itemsize",
     "a token brings a key and a value"),
    ("always four bytes", "2 * n_layer * n_embd * itemsize", "2 * n_layer * n_embd * 4",
     "a token brings a key and a value"),
    ("forgets the weights", " - parameters * itemsize", "", "the weights take memory"),
    ("weights in numbers", "parameters * itemsize -", "parameters -", "itemsize bytes each"),
    ("weights of four bytes", "parameters * itemsize -", "parameters * 4 -", "also if that is 2"),
    ("forgets the step", " - activations)", ")", "a step needs memory"),
    ("rounds up",
     "return room(memory, parameters, activations, itemsize) // (max_len * bytes_per_token(n_layer, n_embd, itemsize))",
     "return -(-room(memory, parameters, activations, itemsize) // (max_len * bytes_per_token(n_layer, n_embd, itemsize)))",
     "does not fit whole"),
    ("rounds to the nearest",
     "return room(memory, parameters, activations, itemsize) // (batch * bytes_per_token(n_layer, n_embd, itemsize))",
     "return round(room(memory, parameters, activations, itemsize) / (batch * bytes_per_token(n_layer, n_embd, itemsize)))",
     "a token that does not fit whole"),
    ("a negative number", "max(0, memory - parameters * itemsize - activations)",
     "memory - parameters * itemsize - activations", "nothing fits"),
    ("one sequence", "// (batch * bytes", "// (bytes", "every sequence of the batch grows"),
]  # fmt: skip

ALSO_RIGHT = [
    ("an early return", "    return max(0, memory - parameters * itemsize - activations)\n",
     "    if memory < parameters * itemsize + activations:\n        return 0\n    return memory - parameters * itemsize - activations\n"),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) -----------------------------------------

MUTANTS = [
    ("floats, rounded down", "return room(memory, parameters, activations, itemsize) // (max_len * bytes_per_token(n_layer, n_embd, itemsize))",
     "return int(room(memory, parameters, activations, itemsize) / (max_len * bytes_per_token(n_layer, n_embd, itemsize)))",
     "To the last byte: whole numbers, no floats"),
    ("keys alone", "return 2 * n_layer", "return n_layer", "a key and a value"),
    ("one layer", "2 * n_layer * n_embd", "2 * n_embd", "in each layer"),
    ("numbers", "n_layer * n_embd * itemsize", "n_layer * n_embd", "in bytes, not in numbers"),
    ("times the heads", "n_layer * n_embd * itemsize", "n_layer * n_embd * 12 * itemsize", "a key and a value"),
    ("forgets the weights", " - parameters * itemsize", "", "the weights take memory too: parameters times itemsize"),
    ("forgets the step", " - activations)", ")", "a step needs memory too: the activations"),
    ("rounds up", "return room(memory, parameters, activations, itemsize) // (max_len * bytes_per_token(n_layer, n_embd, itemsize))",
     "return -(-room(memory, parameters, activations, itemsize) // (max_len * bytes_per_token(n_layer, n_embd, itemsize)))",
     "a sequence that does not fit whole does not fit"),
    ("a negative number", "max(0, memory - parameters * itemsize - activations)", "memory - parameters * itemsize - activations",
     "not even the weights fit: 0, not a negative number"),
    ("one sequence", "// (batch * bytes", "// (bytes", "every sequence of the batch grows"),
    ("weights of four bytes", "parameters * itemsize -", "parameters * 4 -", "weights and cache have itemsize bytes a number"),
    ("rounds to the nearest", "return room(memory, parameters, activations, itemsize) // (batch * bytes_per_token(n_layer, n_embd, itemsize))",
     "return round(room(memory, parameters, activations, itemsize) / (batch * bytes_per_token(n_layer, n_embd, itemsize)))", "a token that does not fit whole does not fit"),
    ("the whole room must be more than enough", "max(0, memory - parameters", "max(0, memory - 1 - parameters", "three sequences fill the memory"),
]  # fmt: skip

ALSO_RIGHT = [
    ("an early return", "    return max(0, memory - parameters * itemsize - activations)\n",
     "    if memory < parameters * itemsize + activations:\n        return 0\n    return memory - parameters * itemsize - activations\n"),
]  # fmt: skip

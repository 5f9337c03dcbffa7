"""A solution of exercise 3.4."""


def tokens_without(prompt: int, output: int) -> int:
    """Tokens that go through the model without a cache."""
    return sum(prompt + step for step in range(output))


def tokens_with(prompt: int, output: int) -> int:
    """Tokens that go through the model with a cache."""
    return prompt + output - 1


def saving(prompt: int, output: int) -> float:
    """How many times fewer tokens go through the model with a cache."""
    return tokens_without(prompt, output) / tokens_with(prompt, output)


def even_context(parameters: int, n_layer: int, n_embd: int, batch: int) -> float:
    """The context at which a decode step reads as much of the cache as of the weights."""
    return parameters / (batch * 2 * n_layer * n_embd)


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) -----------------------------------------

MUTANTS = [
    ("at least one token of context", "return parameters / (batch * 2 * n_layer * n_embd)", "return max(1.0, parameters / (batch * 2 * n_layer * n_embd))", "a float, however small"),
    ("two digits", "return parameters / (batch * 2 * n_layer * n_embd)", "return round(parameters / (batch * 2 * n_layer * n_embd), 2)", "a float, however small"),
    ("the sequence does not grow", "prompt + step for", "prompt for", "Prompt 4, output 3: the sequence grows by a token each"),
    ("one step too many", "range(output))", "range(output + 1))", "Prompt 4, output 3: the sequence grows by a token each"),
    ("the last token too", "prompt + output - 1", "prompt + output", "Prompt 4, output 3: the prompt once, then one token each"),
    ("without the prompt", "return prompt + output - 1", "return output", "Prompt 4, output 3: the prompt once, then one token each"),
    ("upside down", "tokens_without(prompt, output) / tokens_with(prompt, output)",
     "tokens_with(prompt, output) / tokens_without(prompt, output)", "the number without, divided by the number with"),
    ("keys alone", "(batch * 2 * n_layer", "(batch * n_layer", "a token brings a key and a value"),
    ("one layer", "2 * n_layer * n_embd)", "2 * n_embd)", "in every layer; bytes cancel"),
    ("one sequence", "(batch * 2", "(2", "the batch reads the weights once, and a cache for each sequence"),
    ("the batch helps", "parameters / (batch * 2", "parameters * batch / (2", "the batch reads the weights once, and a cache for each sequence"),
    ("a sum that forgets half", "sum(prompt + step for step in range(output))", "output * prompt + output * output // 2", "Prompt 4, output 3: the sequence grows by a token each"),
    ("the average length for each step", "sum(prompt + step for step in range(output))", "output * (prompt + output // 2)", "Stage 1 has no cache, stage 3 has one"),
]  # fmt: skip

ALSO_RIGHT = [
    ("by the formula", "sum(prompt + step for step in range(output))", "prompt * output + output * (output - 1) // 2"),
    ("counts the first step apart", "return prompt + output - 1", "return prompt + len(range(1, output))"),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

MUTANTS = [
    ("the sequence does not grow", "prompt + step for", "prompt for", "tokens without a cache"),
    ("one step too many", "range(output))", "range(output + 1))", "never computed"),
    ("the last token too", "prompt + output - 1", "prompt + output", "never computed"),
    ("without the prompt", "return prompt + output - 1", "return output", "tokens with a cache"),
    ("a step more than tokens", "return prompt + output - 1", "return prompt + max(1, output - 1)", "never computed"),
    ("the average length for each step", "sum(prompt + step for step in range(output))",
     "output * (prompt + output // 2)", "the saving is a fraction"),
    ("upside down", "tokens_without(prompt, output) / tokens_with(prompt, output)",
     "tokens_with(prompt, output) / tokens_without(prompt, output)", "the number without a cache divided by"),
    ("whole numbers", "return tokens_without(prompt, output) / tokens_with",
     "return tokens_without(prompt, output) // tokens_with", "divided by the number with one"),
    ("keys alone", "(batch * 2 * n_layer", "(batch * n_layer", "a key and a value"),
    ("one layer", "2 * n_layer * n_embd)", "2 * n_embd)", "each layer has"),
    ("one sequence", "(batch * 2", "(2", "the cache of each sequence once"),
    ("the batch helps", "parameters / (batch * 2", "parameters * batch / (2", "the cache of each sequence once"),
    ("bytes on one side", "(batch * 2 * n_layer * n_embd)", "(batch * 2 * n_layer * n_embd * 4)",
     "a token brings a key and a value"),
    ("a whole context", "return parameters / (batch", "return parameters // (batch", "the context is a float"),
]  # fmt: skip

ALSO_RIGHT = [
    ("by the formula", "sum(prompt + step for step in range(output))", "prompt * output + output * (output - 1) // 2"),
    ("counts the first step apart", "return prompt + output - 1", "return prompt + len(range(1, output))"),
]  # fmt: skip

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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

MUTANTS = [
    ("at least one token of context", "return parameters / (batch * 2 * n_layer * n_embd)", "return max(1.0, parameters / (batch * 2 * n_layer * n_embd))", "expected:  1250"),
    ("two digits", "return parameters / (batch * 2 * n_layer * n_embd)", "return round(parameters / (batch * 2 * n_layer * n_embd), 2)", "a float is wanted"),
    ("a float", "return prompt + output - 1", "return float(prompt + output - 1)", "it should be int"),
    ("the formula with a true division", "sum(prompt + step for step in range(output))", "output * (2 * prompt + output - 1) / 2", "it should be int"),
    ("off by less than a tolerance", "return prompt + output - 1", "return prompt + output - (prompt + output < 200_000)", "expected:"),
    ("off by less than a tolerance, without", "return sum(prompt + step for step in range(output))",
     "total = sum(prompt + step for step in range(output))\n    return total + (total > 200_000)", "expected:"),
    ("the sequence does not grow", "prompt + step for", "prompt for", "grows by a token"),
    ("one step too many", "range(output))", "range(output + 1))", "never computed"),
    ("the last token too", "prompt + output - 1", "prompt + output", "never computed"),
    ("without the prompt", "return prompt + output - 1", "return output", "the prompt is computed too, once"),
    ("upside down", "tokens_without(prompt, output) / tokens_with(prompt, output)",
     "tokens_with(prompt, output) / tokens_without(prompt, output)", "not the other way around"),
    ("keys alone", "(batch * 2 * n_layer", "(batch * n_layer", "a key and a value"),
    ("one layer", "2 * n_layer * n_embd)", "2 * n_embd)", "every layer"),
    ("one sequence", "(batch * 2", "(2", "are not shared"),
    ("the batch helps", "parameters / (batch * 2", "parameters * batch / (2", "earlier, not later"),
    ("a sum that forgets half", "sum(prompt + step for step in range(output))", "output * prompt + output * output // 2", "expected:"),
    ("the average length for each step", "sum(prompt + step for step in range(output))", "output * (prompt + output // 2)", "expected:  150"),
    ("a step more than tokens", "return prompt + output - 1", "return prompt + max(1, output - 1)", "expected:"),
    ("whole numbers", "return tokens_without(prompt, output) / tokens_with", "return tokens_without(prompt, output) // tokens_with", "expected:  2.5"),
    ("a whole context", "return parameters / (batch", "return parameters // (batch", "expected:"),
    ("bytes on one side", "(batch * 2 * n_layer * n_embd)", "(batch * 2 * n_layer * n_embd * 4)", "expected:"),
]  # fmt: skip

ALSO_RIGHT = [
    ("by the formula", "sum(prompt + step for step in range(output))", "prompt * output + output * (output - 1) // 2"),
    ("counts the first step apart", "return prompt + output - 1", "return prompt + len(range(1, output))"),
]  # fmt: skip

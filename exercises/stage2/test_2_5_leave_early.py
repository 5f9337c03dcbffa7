"""2.5 Leave early: the results, and how many rows each step computed."""

import copy
import random

import pytest


class Model:
    """The next token is 10 times the first token plus the length of the sequence. Records how many rows it is given."""

    def __init__(self):
        self.rows = []

    def __call__(self, sequences):
        self.rows.append(len(sequences))
        assert len(self.rows) < 50, "50 steps, and no end"
        return [10 * sequence[0] + len(sequence) for sequence in sequences]


def case(rule, prompts, max_tokens, eos, expected, rows):
    return pytest.param(prompts, max_tokens, eos, rows, expected, id=rule)


@pytest.mark.parametrize(("prompts", "max_tokens", "eos", "rows", "expected"), [
    case("a result is the new tokens, without the prompt", [[1]], [2], 99, [[11, 12]], [1, 1]),
    case("results are in the order of the prompts, not of their ends", [[1], [2]], [2, 1], 99, [[11, 12], [21]], [2, 1]),
    case("after a row has left, row r is no longer request r", [[1], [2]], [1, 3], 99, [[11], [21, 22, 23]], [2, 1, 1]),
    case("the picture", [[1], [2], [3]], [2, 4, 1], 99, [[11, 12], [21, 22, 23, 24], [31]], [3, 2, 1, 1]),
    case("neighbors may leave at once", [[1], [2], [3], [4]], [1, 1, 1, 2], 99, [[11], [21], [31], [41, 42]], [4, 1]),
    case("the end token ends a row, and is kept", [[1], [2]], [3, 3], 22, [[11, 12, 13], [21, 22]], [2, 2, 1]),
    case("an end token in a prompt means nothing", [[1, 99, 5], [2]], [2, 2], 99, [[13, 14], [21, 22]], [2, 2]),
    case("two requests may have the same prompt", [[1]] * 2, [1, 3], 99, [[11], [11, 12, 13]], [2, 1, 1]),
])  # fmt: skip
def test_generate(work, prompts, max_tokens, eos, rows, expected):
    model, given = Model(), copy.deepcopy((prompts, max_tokens))
    assert work.generate(model, *given, eos) == expected
    assert model.rows == rows, "rows of each step: a row goes through the model until it is done, and no longer"
    assert given == (prompts, max_tokens), "the lists that are given were changed"


def step(sequences):
    """A model whose next token, 0 to 4, depends on all tokens of the sequence."""
    return [sum((token + 1) * (i + 1) for i, token in enumerate(sequence)) % 5 for sequence in sequences]


def alone(prompt, max_tokens, eos):
    """One request by itself."""
    outputs = []
    while len(outputs) < max_tokens and eos not in outputs:
        outputs += step([prompt + outputs])
    return outputs


def test_any_requests(work):
    """Random requests, each as if it were alone."""
    for seed in range(200):
        choose, most = random.Random(seed), 1 + seed // 50
        prompts = [choose.choices(range(5), k=choose.randint(1, most)) for _ in range(choose.randint(1, most))]
        max_tokens, eos = [choose.randint(1, most + 1) for _ in prompts], choose.randint(0, 4)
        expected = [alone(prompt, most, eos) for prompt, most in zip(prompts, max_tokens, strict=True)]
        called = f"generate(step, {prompts}, {max_tokens}, {eos})"
        assert work.generate(step, prompts, max_tokens, eos) == expected, called

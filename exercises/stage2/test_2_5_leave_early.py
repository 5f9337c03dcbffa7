"""A model that counts its rows, and whose next token is the length of the sequence: mixed-up rows show at once."""

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require

EOS = 99


MOVED = "after a row left, the rows after it moved up: row r is no longer request r"


class Model:
    def __init__(self, ends: dict[int, int] | None = None):
        self.rows, self.ends = [], ends or {}

    def __call__(self, sequences):
        count(self.rows, sequences)
        tokens = [10 * sequence[0] + len(sequence) for sequence in sequences]
        return [EOS if self.ends.get(s[0]) == len(s) else t for s, t in zip(sequences, tokens, strict=True)]


class SummingModel:
    """Its next token, 0 to 4, is a sum over all tokens of the sequence."""

    def __init__(self):
        self.rows = []

    def __call__(self, sequences):
        count(self.rows, sequences)
        return [sum((token + 1) * (i + 1) for i, token in enumerate(sequence)) % 5 for sequence in sequences]


def count(rows, sequences):
    rows.append(len(sequences))
    require(
        len(rows) < 50, "outputs of a few tokens", "a few steps", "50 and no end", MOVED if rows[-1] < rows[0] else ""
    )


def test_results(work):
    said = {MOVED: [[11, 12, 23, 24], [21, 22], [31]],
            "the prompt is not part of the result": [[1, 11, 12], [2, 21, 22, 23, 24], [3, 31]],
            "the results are in the order in which rows finished, not in the order of the prompts":
                [[31], [11, 12], [21, 22, 23, 24]]}  # fmt: skip
    prompts = [[1], [2], [3]]
    got = work.generate(Model(), prompts, [2, 4, 1], EOS)
    expect("prompts 1, 2, 3, outputs 2, 4, 1", got, [[11, 12], [21, 22, 23, 24], [31]], said)
    expect("the prompts afterwards", prompts, [[1], [2], [3]], likely="the caller's prompts were changed: copy them")
    said = {"results are keyed by prompt, but two requests may have the same prompt": OneOf(
        [[answer] * 2 for answer in ([11, 12, 13], [11], [11, 11, 12, 13])])}  # fmt: skip
    expect(
        "prompts 1 and 1, outputs 1 and 3", work.generate(Model(), [[1], [1]], [1, 3], EOS), [[11], [11, 12, 13]], said
    )
    prompt = [1]
    got = work.generate(Model(), [prompt, prompt], [1, 3], EOS)
    said = {"results are keyed by prompt, but two requests may have the same prompt": [[11, 11, 12], [11, 11, 12]]}
    expect("the same list twice as a prompt, outputs 1 and 3", got, [[11], [11, 12, 13]], said)


def test_rows(work):
    model = Model()
    work.generate(model, [[1], [2], [3]], [2, 4, 1], EOS)
    said = {"finished rows were computed until the batch ended": [3, 3, 3, 3], "one step too many": [3, 2, 1, 1, 0]}
    expect("rows of each step, outputs 2, 4, 1", model.rows, [3, 2, 1, 1], said)


def test_neighbors_that_end_together(work):
    model = Model()
    got = work.generate(model, [[1], [2], [3], [4]], [1, 1, 1, 3], EOS)
    expect("rows of each step, outputs 1, 1, 1, 3", model.rows, [4, 1, 1],
           {"removing from a list while looping over it skips every second element": [4, 2, 1]})  # fmt: skip
    expect("their results", got, [[11], [21], [31], [41, 42, 43]])


def test_end_token(work):
    model = Model(ends={2: 2})
    said = {"the end token is kept: the model made it": [[11, 12, 13], [21], [31, 32, 33]],
            "the end token ends a row": [[11, 12, 13], [21, EOS, 23], [31, 32, 33]]}  # fmt: skip
    got = work.generate(model, [[1], [2], [3]], [3, 3, 3], EOS)
    expect("the second row ends by itself", got, [[11, 12, 13], [21, EOS], [31, 32, 33]], said)
    expect("rows of each step", model.rows, [3, 3, 2])
    model = Model()
    got = work.generate(model, [[1, EOS, 5], [2]], [2, 2], EOS)
    expect("an end token inside a prompt", got, [[13, 14], [21, 22]],
           {"look for the end token in the new tokens only": OneOf([[[13], [21, 22]], [[], [21, 22]]])})  # fmt: skip


def test_any_requests(work):
    """Equal prompts, end tokens anywhere, no request at all."""

    def check(choose):
        token = lambda: choose.upto(4)  # noqa: E731
        prompts = choose.some(lambda: choose.some(token, 3, least=1), 5)
        max_tokens, eos, expected = [choose.between(1, 5) for _ in prompts], token(), []
        for prompt, most in zip(prompts, max_tokens, strict=True):
            outputs = []
            while len(outputs) < most and eos not in outputs:
                outputs += SummingModel()([prompt + outputs])
            expected.append(outputs)
        rows = [sum(len(outputs) > step for outputs in expected) for step in range(max(map(len, expected), default=0))]
        example = Example(work, __file__, "from exercises.stage2.test_2_5_leave_early import SummingModel")
        example.do(f"model, prompts, max_tokens = SummingModel(), {prompts}, {max_tokens}")
        example.expect(f"work.generate(model, prompts, max_tokens, {eos})", expected)
        example.look("model.rows", rows)
        example.look("prompts, max_tokens", (prompts, max_tokens), likely="the caller's lists were changed: copy them")

    at_random(check)


def test_many_requests(work):
    """Long prompts, long outputs, many rows, token ids beyond 65,535."""

    def step(sequences):
        return [100_000 + len(sequence) for sequence in sequences]

    for prompts, max_tokens in (
        ([[1], [2] * 1000, [70_000]], [300, 1, 40]),
        ([[5], [6]], [1100, 2]),
        ([[i] for i in range(1000)], [1 + i % 3 for i in range(1000)]),
    ):
        expected = [
            [100_000 + len(prompt) + i for i in range(n)] for prompt, n in zip(prompts, max_tokens, strict=True)
        ]
        expect(f"{len(prompts)} prompts of up to {max(map(len, prompts))} tokens, up to {max(max_tokens)} new ones",
               work.generate(step, prompts, max_tokens, 99_999), expected)  # fmt: skip
    expect(
        "an end token after 70,000",
        work.generate(step, [[1] * 900], [70_000], 100_950),
        [[100_900 + i for i in range(51)]],
    )

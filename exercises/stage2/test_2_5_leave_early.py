"""A model that counts its rows, and whose next token is the length of the sequence: mixed-up rows show at once."""

from exercises.grading import expect, require

EOS = 99


class Model:
    def __init__(self, ends: dict[int, int] | None = None):
        self.rows, self.ends = [], ends or {}

    def __call__(self, sequences):
        self.rows.append(len(sequences))
        require(len(self.rows) < 50, "outputs of at most 4 tokens", "a few steps", "50 and no end",
                "after a row has left, the rows behind it moved up: row r is not request r any more")  # fmt: skip
        tokens = [10 * sequence[0] + len(sequence) for sequence in sequences]
        return [EOS if self.ends.get(s[0]) == len(s) else t for s, t in zip(sequences, tokens, strict=True)]


def test_results(work):
    expected = [[11, 12], [21, 22, 23, 24], [31]]
    said = {
        "after a row has left, the rows behind it moved up: row r is not request r any more":
            [[11, 12], [21, 22, 23, 24], [31]][::-1],
        "the prompt is no part of the result": [[1, 11, 12], [2, 21, 22, 23, 24], [3, 31]],
    }  # fmt: skip
    prompts = [[1], [2], [3]]
    got = work.generate(Model(), prompts, [2, 4, 1], EOS)
    expect("prompts 1, 2, 3, outputs 2, 4, 1", got, expected, said,
           likely="after a row has left, the rows behind it moved up: row r is not request r any more")  # fmt: skip
    expect("the prompts afterwards", prompts, [[1], [2], [3]], likely="the caller's prompts were changed: copy them")


def test_rows(work):
    model = Model()
    work.generate(model, [[1], [2], [3]], [2, 4, 1], EOS)
    said = {"done rows were computed until the batch ended": [3, 3, 3, 3], "one step too many": [3, 2, 1, 1, 0]}
    expect("rows of each step, outputs 2, 4, 1", model.rows, [3, 2, 1, 1], said)


def test_neighbours_that_end_together(work):
    model = Model()
    got = work.generate(model, [[1], [2], [3], [4]], [1, 1, 1, 3], EOS)
    expect("rows of each step, outputs 1, 1, 1, 3", model.rows, [4, 1, 1],
           likely="a list that shrinks under a loop over it skips every second")  # fmt: skip
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
           likely="look for the end token in the new tokens only")  # fmt: skip

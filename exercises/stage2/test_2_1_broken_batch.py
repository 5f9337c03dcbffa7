"""2.1 The broken batch: a test for each mistake, with a model that records what it is given; then any batch."""

import random

import torch

EOS = 0


class CountingModel:
    """The next token is the token in that column plus one, whatever came before it."""

    def __init__(self, vocab_size=100):
        self.vocab_size, self.calls = vocab_size, []

    def __call__(self, *given):
        self.calls.append([tensor.tolist() for tensor in given])  # tokens, positions, visible
        return torch.nn.functional.one_hot((given[0] + 1) % self.vocab_size, self.vocab_size).float()


def test_last_token(work):
    """The next token is read where each row's last token is: prompts 10 20 30 and 40, a model that counts up."""
    got = work.generate(CountingModel(), [[10, 20, 30], [40]], 1, EOS, 50)
    assert [len(outputs) for outputs in got] == [1, 1], "max_tokens new tokens"
    assert got == [[31], [41]]


def test_each_prompt_is_cut(work):
    """Each prompt keeps its last max_len tokens: prompts 10 20 30 40 and 50 60, max_len 3."""
    model = CountingModel()
    got, tokens = work.generate(model, [[10, 20, 30, 40], [50, 60]], 1, EOS, 3), model.calls[0][0]
    assert len(tokens) == 2, "the prompts go through the model as one batch"
    assert (tokens[0], tokens[1][1:]) == ([20, 30, 40], [50, 60]), "cut each prompt, then pad"
    assert got == [[41], [61]]


def test_end_token(work):
    """The end token is looked for in the new tokens only, and kept; other rows go on: prompts 3 0 5 and 6, the end is 0."""
    got = work.generate(CountingModel(vocab_size=8), [[3, EOS, 5], [6]], 4, EOS, 50)
    assert got == [[6, 7, EOS], [7, EOS]]


def test_positions(work):
    """Positions count a row's own tokens: its first one is 0, also behind padding: prompts 10 20 30 and 40."""
    model = CountingModel()
    work.generate(model, [[10, 20, 30], [40]], 2, EOS, 50)
    for step, (_, positions, _) in enumerate(model.calls):
        own = positions[0], positions[1][2:]
        assert own == (list(range(3 + step)), list(range(1 + step))), f"step {step}"
        assert min(positions[1]) >= 0, "no position is negative, not even of padding"


def test_visible(work):
    """A row's own tokens look at its tokens up to themselves, and never at padding, in any step: prompts 10 0 30 and 40."""
    model = CountingModel()
    work.generate(model, [[10, EOS, 30], [40]], 3, EOS, 50)
    for step, (_, _, visible) in enumerate(model.calls):
        for row, padding in enumerate([0, 2]):
            columns = range(padding, 3 + step)
            looked_at = {i: [j for j in range(3 + step) if visible[row][i][j]] for i in columns}
            expected = {i: list(range(padding, i + 1)) for i in columns}
            assert looked_at == expected, f"where each column of row {row} looks, step {step}"
            assert all(map(any, visible[row])), (
                f"a column of row {row} looks at nothing: its softmax is NaN, step {step}"
            )


def test_padding_after_the_cut(work):
    """Padding is counted after the prompts are cut: prompts 10 20 30 40 and 50 60, max_len 3."""
    model = CountingModel()
    work.generate(model, [[10, 20, 30, 40], [50, 60]], 1, EOS, 3)
    _, positions, visible = model.calls[0]
    assert positions[1][1:] == [0, 1], "positions of 50 and 60, behind one column of padding"
    assert visible[1][1:] == [[False, True, False], [False, True, True]], "what 50 and 60 may look at"


def test_no_step_too_many(work):
    """Once all rows have ended nothing is computed, even if they ended in different steps."""
    model = CountingModel(vocab_size=8)
    work.generate(model, [[6], [5]], 9, EOS, 50)
    assert len(model.calls) == 3, "forward passes until 7, 0 and 6, 7, 0 have come"


def summing_model(tokens, positions, visible):
    """The next token is a sum over all tokens that a column may look at, times their positions."""
    sums = (visible * ((tokens + 1) * (positions + 1))[:, None, :]).sum(dim=-1)  # [batch, n_seq]
    return torch.nn.functional.one_hot(sums % 7, 7).float()


def alone(prompt, max_tokens, eos, max_len):
    """The same for one prompt: no batch, no padding, no mask."""
    sequence, outputs = prompt[-max_len:], []
    while len(outputs) < max_tokens and eos not in outputs:
        outputs.append(sum((token + 1) * (i + 1) for i, token in enumerate(sequence + outputs)) % 7)
    return outputs


def test_any_batch(work):
    """Random batches: each row as if it were alone."""
    for seed in range(200):
        choose, most = random.Random(seed), 1 + seed // 40
        prompts = [choose.choices(range(7), k=choose.randint(1, most)) for _ in range(choose.randint(1, most))]
        rest = choose.randint(1, 5), choose.randint(0, 6), choose.randint(1, 7)  # max_tokens, eos, max_len
        expected = [alone(prompt, *rest) for prompt in prompts]
        assert work.generate(summing_model, prompts, *rest) == expected, f"generate(model, {prompts}, *{rest})"

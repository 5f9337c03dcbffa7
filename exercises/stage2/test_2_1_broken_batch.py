"""A test for each mistake: a model that records its arguments shows them one by one."""

import torch
from exercises.examples import Example, at_random
from exercises.grading import OneOf, Wrong, expect

from exercises.tiny import one_thread
from tools.engines import STAGES

EOS = 0


class CountingModel:
    """Its next token is the token in that column plus one, whatever came before: only the column read matters. Records
    its arguments."""

    def __init__(self, vocab_size: int = 100):
        self.vocab_size, self.calls = vocab_size, []

    def __call__(self, tokens, positions, visible):
        self.calls.append((tokens.clone(), positions.clone(), visible.clone()))
        return torch.nn.functional.one_hot((tokens + 1) % self.vocab_size, self.vocab_size).float()


def summing_model(tokens, positions, visible):
    """Its next token is a sum over everything that a column may look at, so that every token, position and mask matters."""
    sums = (visible * ((tokens + 1) * (positions + 1))[:, None, :]).sum(dim=-1)  # [batch, n_seq]
    return torch.nn.functional.one_hot(sums % 7, 7).float()


def test_the_last_token_is_read(work):
    got = work.generate(CountingModel(), [[10, 20, 30], [40]], 1, EOS, 50)
    said = {"the short row was padded on the right, and its padding was read": [[31], [EOS + 1]],
            "max_tokens new tokens, not one more": [[31, 32], [41, 42]]}  # fmt: skip
    expect("prompts 10 20 30 and 40, a model that counts up", got, [[31], [41]], said)


def test_each_prompt_is_cut_by_itself(work):
    lost = "the last tokens of the prompts are lost: cut each prompt to its last max_len tokens, then pad"
    got = work.generate(CountingModel(), [[10, 20, 30, 40], [50, 60]], 1, EOS, 3)
    expect("prompts 10 20 30 40 and 50 60, max_len 3", got, [[41], [61]],
           {lost: OneOf([[[31], [61]], [[31], [51]]])})  # fmt: skip
    model = CountingModel()
    work.generate(model, [[10, 20, 30, 40], [50, 60]], 1, EOS, 3)
    seen = model.calls[0][0]
    expect("rows of the first call, for two prompts", len(seen), 2, {"the prompts have to go through as one batch": 1})
    expect("the tokens that the model saw", [seen[0].tolist(), seen[1, -2:].tolist()], [[20, 30, 40], [50, 60]],
           {"nothing was cut: cut each prompt to its last max_len tokens, then pad": [[10, 20, 30, 40], [50, 60]]})  # fmt: skip


def test_the_end_is_looked_for_in_the_output(work):
    model = CountingModel(vocab_size=8)
    got = work.generate(model, [[3, EOS, 5], [5]], 4, EOS, 50)
    said = {"an end token in the prompt or the padding ended the row": [[6], [6]],
            "the end token is kept: the model made it": [[6, 7], [6, 7]]}  # fmt: skip
    expect("an end token inside a prompt, another as padding; both count 6, 7, 0", got, [[6, 7, 0], [6, 7, 0]], said)


def test_positions_are_a_rows_own(work):
    model = CountingModel()
    work.generate(model, [[10, 20, 30], [40]], 2, EOS, 50)
    for step, (_, positions, _) in enumerate(model.calls):
        own = [positions[0].tolist(), positions[1, 2:].tolist()]
        said = {"positions were counted in columns, not in a row's own tokens: the short row begins at 2": [
            list(range(3 + step)), list(range(2, 3 + step))]}  # fmt: skip
        expect(
            f"positions of both rows' own tokens, step {step}",
            own,
            [list(range(3 + step)), list(range(1 + step))],
            said,
        )
        if positions.min() < 0:
            raise Wrong("positions of padding", "any that the model has", int(positions.min()), "clamp them to 0")


def test_padding_is_never_looked_at(work):
    model = CountingModel()
    work.generate(model, [[10, 20, 30], [40]], 3, EOS, 50)
    for step, (_, _, visible) in enumerate(model.calls):
        short_row = visible[1, 2:].tolist()
        expected = [[False, False] + [j <= i for j in range(step + 1)] for i in range(step + 1)]
        said = {"after the first step the padding is visible again": [[True, True, *row[2:]] for row in expected]}
        case = f"what the own tokens of the row with two columns of padding may look at, step {step}"
        expect(case, short_row, expected, said)


def test_padding_of_a_batch_that_was_cut(work):
    model = CountingModel()
    work.generate(model, [[10, 20, 30, 40], [50, 60]], 1, EOS, 3)
    _, positions, visible = model.calls[0]
    said = {"the padding was counted before truncation: three columns are left, and one of them is padding": (
        [0, 0], [[False, True, False], [False, False, True]])}  # fmt: skip
    expect("what the model got for the second row's own tokens: positions, and what they may look at",
           (positions[1, 1:].tolist(), visible[1, 1:].tolist()), ([0, 1], [[False, True, False], [False, True, True]]), said)  # fmt: skip


@one_thread()
def test_with_a_real_model(work):
    """A random GPT-2, rows of unequal lengths: each as if it were alone."""
    config = (
        STAGES[1].part("model").ModelConfig(n_layer=2, n_head=2, n_embd=16, n_inner=32, n_positions=32, vocab_size=50)
    )
    torch.manual_seed(0)
    gpt2 = STAGES[1].part("model").GPT2(config).eval()
    for parameter in gpt2.parameters():
        torch.nn.init.normal_(parameter, std=0.5)

    @torch.inference_mode()
    def model(tokens, positions, visible):
        x = gpt2.wte(tokens) + gpt2.wpe(positions)
        for block in gpt2.h:
            x = block(x, visible[:, None])
        return torch.nn.functional.linear(gpt2.ln_f(x), gpt2.wte.weight)

    prompts = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
    alone = [work.generate(model, [prompt], 6, EOS, 32)[0] for prompt in prompts]
    expect("three prompts in a batch, against each alone", work.generate(model, prompts, 6, EOS, 32), alone)


def slowly(prompt, max_tokens, eos, max_len):
    """One prompt alone: no batch, no padding, no mask."""
    sequence, outputs = prompt[max(0, len(prompt) - max_len) :], []
    while len(outputs) < max_tokens and eos not in outputs:
        outputs.append(sum((token + 1) * (i + 1) for i, token in enumerate(sequence)) % 7)
        sequence = [*sequence, outputs[-1]]
    return outputs


@one_thread()
def test_any_batch(work):
    """Equal prompts, prompts of one token, end tokens anywhere."""

    def check(choose):
        prompts = choose.some(lambda: choose.some(lambda: choose.upto(6), 6, least=1), 4, least=1)
        values = choose.upto(5), choose.upto(6), choose.between(1, 7)
        example = Example(work, __file__, "from exercises.stage2.test_2_1_broken_batch import summing_model")
        example.do(f"prompts = {prompts}")
        expected = [slowly(prompt, *values) for prompt in prompts]
        example.expect(f"work.generate(summing_model, prompts, {', '.join(map(str, values))})", expected)
        example.look("prompts", prompts, likely="the caller's prompts were changed")

    at_random(check, 100)


def test_nothing_is_computed_for_nobody(work):
    model = CountingModel(vocab_size=8)
    work.generate(model, [[6], [5]], 9, EOS, 50)
    expect("passes until rows that count 7, 0 and 6, 7, 0 have ended, max_tokens 9", len(model.calls), 3,
           {"once all rows have ended, nothing is left to compute, even if they ended in different steps": 9})  # fmt: skip


@one_thread()
def test_large_batches(work):
    """Long prompts, many rows, token ids beyond 65,535."""
    for prompts, values in (
        ([[(i * i) % 70_001 for i in range(950)], [100_000, 3]], (2, 70_002, 1000)),
        ([[row % 9 + 1] * (1 + row % 3) for row in range(300)], (3, 300, 70_000)),
        ([[7, 5], [6]], (300, 99, 400)),
    ):
        expected = [slowly(prompt, *values) for prompt in prompts]
        expect(f"{len(prompts)} prompts of up to {max(map(len, prompts))} tokens, {values[0]} new ones",
               work.generate(summing_model, prompts, *values), expected)  # fmt: skip

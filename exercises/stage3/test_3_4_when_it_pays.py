"""Counts against stages 1 and 3, and the edges of the trade."""

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect, require
from exercises.tiny import counted
from tools.engines import STAGES


def test_the_picture(work):
    said = {"the sequence grows by a token each step": 12, "the last token of the output is never computed": 22}
    expect("prompt 4, output 3, without a cache", work.tokens_without(4, 3), 15, said)
    said = {"the last token of the output is never computed": 7, "the prompt is computed once too": 3,
            "each step computes one token, not one more each time": 9}  # fmt: skip
    expect("prompt 4, output 3, with a cache", work.tokens_with(4, 3), 6, said)


def test_against_the_engines(work):
    for prompt, output in ((1, 1), (7, 12), (30, 5)):
        for stage, count in ((STAGES[0], work.tokens_without), (STAGES[2], work.tokens_with)):
            computed = counted(stage, (prompt,), (output,)).computed
            expect(f"prompt {prompt}, output {output}, against {stage}", count(prompt, output), computed)


def test_saving(work):
    expect("prompt 4, output 3", work.saving(4, 3), 2.5, {"without over with, not the other way round": 0.4})
    expect("prompt 7, output 12: 150 over 18", work.saving(7, 12), 150 / 18)
    expect("an output of one token: classification, scoring", work.saving(500, 1), 1.0)
    require(work.saving(10, 1000) > work.saving(10, 100) > work.saving(10, 10), "longer outputs save more", "growing",
            [work.saving(10, n) for n in (10, 100, 1000)])  # fmt: skip


def test_even_context(work):
    weights = 123_532_032
    expected = weights / (2 * 12 * 768)
    said = {"a token brings a key and a value": weights / (12 * 768), "every layer has its cache": weights / (2 * 768)}
    expect("GPT-2 small, one sequence", work.even_context(weights, 12, 768, 1), expected, said)
    said = {"the weights are read once for the whole batch, the caches are not shared": expected,
            "more sequences reach it earlier, not later": expected * 32}  # fmt: skip
    expect("GPT-2 small, 32 sequences", work.even_context(weights, 12, 768, 32), expected / 32, said)
    got = 1e6 * work.even_context(1, 1, 1, 400)
    expect("one weight, 400 sequences: a million times the context", got, 1e6 / 800,
           {"a float is wanted, however small": OneOf([0, 1e6])})  # fmt: skip


def test_any_lengths(work):
    """The sequences as lists, token by token; and sizes of models, up to the token that evens out."""

    def check(choose):
        prompt, output, sequence, without, cached = choose.between(1, 20), choose.between(1, 20), [], [], []
        for step in range(output):
            sequence += ["prompt"] * prompt if step == 0 else ["output"]
            without += sequence
            cached += sequence[len(cached) :]
        example = Example(work, __file__)
        example.look(f"work.tokens_without({prompt}, {output})", len(without))
        example.look(f"work.tokens_with({prompt}, {output})", len(cached))
        example.look(f"work.saving({prompt}, {output})", len(without) / len(cached))
        n_layer, n_embd, batch, context = (choose.between(1, most) for most in (5, 9, 9, 99))
        parameters = sum(
            n_embd for _ in range(context) for _ in range(batch) for _ in range(n_layer) for _ in ("key", "value")
        )
        example.look(
            f"work.even_context({parameters + n_layer * n_embd * batch}, {n_layer}, {n_embd}, {batch})", context + 0.5
        )

    at_random(check)


def test_long_outputs(work):
    """Counts in the billions, to the last token."""
    for prompt, output in ((300, 70_001), (70_001, 300), (100_003, 100_001)):
        without = output * prompt + output * (output - 1) // 2
        case = f"prompt {prompt}, output {output}"
        expect(f"{case}, without a cache", work.tokens_without(prompt, output), without)
        expect(f"{case}, with a cache", work.tokens_with(prompt, output), prompt + output - 1)
        expect(f"{case}: the saving", work.saving(prompt, output), without / (prompt + output - 1), tolerance=1e-9)
    expect("10 billion weights, 300 layers of width 70,001, 1,000 sequences", work.even_context(10**10, 300, 70_001, 1000),
           10**10 / (2 * 300 * 70_001 * 1000), tolerance=1e-9)  # fmt: skip

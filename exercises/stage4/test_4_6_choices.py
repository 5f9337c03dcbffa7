"""4.6 Which choice is the likeliest? Boundaries and sums by hand, and stage 4's own score."""

import math

import pytest
import torch

from tools.engines import STAGES

WORDS = ["walking", "walk", "ing", "in fact", "in", " fact", "fact", " the", "the", " sky", "sky", " is", " blue", "blue",
         " ", "\n", "\t", "."]  # fmt: skip


def encode(text):
    """The first word that fits: "walking" is one token, and so are " blue" and "in fact"."""
    if not text:
        return []
    word = next(word for word in WORDS if text.startswith(word))
    return [WORDS.index(word), *encode(text[len(word) :])]


def case(rule, *values):
    return pytest.param(*values, id=rule)


@pytest.mark.parametrize(("prompt", "choice", "expected"), [
    case("the tokens after the prompt's belong to the choice", "the sky", " is blue", (["the", " sky"], [" is", " blue"])),
    case("the space at the prompt's end belongs to the choice", "the sky ", "blue", (["the", " sky"], [" blue"])),
    case("all of the whitespace at the prompt's end belongs to the choice", "the \n\t", "sky", (["the"], [" ", "\n", "\t", "sky"])),
    case("only whitespace at the prompt's end belongs to the choice", " the ", "sky", ([" the"], [" sky"])),
    case("the model sees the whole text, not the choice by itself", "walk the", "walking", (["walk", " the"], ["walking"])),
    case("a prompt of whitespace has no tokens", " ", "sky", ([], [" sky"])),
    case("if prompt and choice merge, each is encoded by itself", "walk", "ing", (["walk"], ["ing"])),
    case("if they merge, the whitespace goes with the choice", "in ", "fact", (["in"], [" fact"])),
    case("the prompt's tokens are those of the prompt by itself", "walk", "ing.", (["walk"], ["."])),
])  # fmt: skip
def test_split(work, prompt, choice, expected):
    got = work.split(prompt, choice, encode)
    assert tuple([WORDS[token] for token in part] for part in got) == expected


@pytest.mark.parametrize(("weights", "token_ids", "num_prompt", "expected"), [
    case("a row predicts the token after it", [[1, 3], [9, 1], [1, 1]], [0, 1, 1], 2, 1 / 10),
    case("the tokens of the choice are added up, not those of the prompt", [[1, 3], [1, 1], [4, 1], [1, 9]], [0, 1, 1, 0], 2, 1 / 2 * 4 / 5),
    case("all tokens of the choice count", [[1, 3], [1, 1], [4, 1], [1, 9]], [0, 1, 1, 0], 1, 3 / 4 * 1 / 2 * 4 / 5),
])  # fmt: skip
def test_log_probability(work, weights, token_ids, num_prompt, expected):
    """After a row with weights 1 and 3, the tokens' probabilities are 1/4 and 3/4: the logits are the weights' logarithms."""
    got = work.log_probability(torch.tensor(weights).log(), list(token_ids), num_prompt)
    assert got == pytest.approx(math.log(expected), rel=1e-5), f"the logarithm of {expected:.3g}"


@pytest.mark.parametrize(("logits", "token_ids", "expected"), [
    case("a probability of e^-150 has a logarithm, -150", [[0.0, -150.0], [0.0, 0.0]], [0, 1], -150),
    case("logits may be as low as -20,000", [[0.0, -20000.0], [0.0, 0.0]], [0, 1], -20000),
    case("logits may be as high as 20,000", [[20000.0, 20000.0], [0.0, 0.0]], [0, 1], math.log(1 / 2)),
    case("all logits may be -20,000", [[-20000.0, -20000.0], [0.0, 0.0]], [0, 1], math.log(1 / 2)),
])  # fmt: skip
def test_large_logits(work, logits, token_ids, expected):
    assert work.log_probability(torch.tensor(logits), list(token_ids), 1) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("logprobs", "choices", "per_byte", "expected"), [
    case("the highest log-probability is the best", [-3.0, -1.0, -2.0], ["a", "b", "c"], False, 1),
    case("if several are equal, take the first", [-2.0, -1.0, -1.0], ["a", "b", "c"], False, 1),
    case("without per_byte the length does not count", [-2.0, -3.0], ["no", "certainly"], False, 0),
    case("with per_byte each is divided by its length", [-2.0, -3.0], ["no", "certainly"], True, 1),
    case("the length is counted in UTF-8 bytes", [-8.0, -6.5], ["éééé", "abcde"], True, 0),
    case("if several are equal, take the first: per byte, too", [-4.0, -2.0], ["abcd", "ab"], True, 0),
    case("a space is a byte, too", [-4.0, -3.0], [" ab", "ab"], True, 0),
    case("log-probabilities may be very low", [-20001.0, -20000.0], ["a", "b"], False, 1),
])  # fmt: skip
def test_choose(work, logprobs, choices, per_byte, expected):
    assert work.choose(list(logprobs), list(choices), per_byte) == expected


@pytest.mark.parametrize(("answers", "references", "expected"), [
    case("the share of right answers, from 0 to 1", [1, 0, 2, 0], [1, 0, 1, 0], 0.75),
    case("a question that failed counts as wrong", [0, 1, None, None], [0, 1, 1, 1], 0.5),
    case("None is not answer 0", [None], [0], 0.0),
])  # fmt: skip
def test_accuracy(work, answers, references, expected):
    assert work.accuracy(answers, references) == pytest.approx(expected)


@pytest.mark.parametrize(("prompt", "choice"), [
    case("as stage 4 scores it: a space at the end", "Once upon a ", "time"),
    case("as stage 4 scores it: two words", "Long ago, a little", " fox lived"),
])  # fmt: skip
def test_stage_4(work, prompt, choice):
    """Stage 4's llm.score says the same, from the logits of stage 1's model."""
    llm = STAGES[3].engine()
    model = STAGES[0].part("model").GPT2(llm.engine.model_config)
    model.load_state_dict(llm.engine.runner.model.state_dict())
    first, second = work.split(prompt, choice, llm.engine.tokenizer.encode)
    token_ids = [*first, *second]
    with torch.inference_mode():
        logits = torch.stack([model(torch.tensor(token_ids[: i + 1])) for i in range(len(token_ids))])
    expected = llm.score([prompt], [choice])[0].logprob
    assert work.log_probability(logits, token_ids, len(first)) == pytest.approx(expected, abs=1e-3)

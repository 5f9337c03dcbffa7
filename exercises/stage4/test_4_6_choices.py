"""Boundaries by hand and with GPT-2's tokenizer, sums by hand, everything against a slow reference and stage 4 itself."""

import math
import random

import torch
from exercises.grading import expect, require

from tools.engines import STAGES

WORDS = [
    "walking",
    "walk",
    "ing",
    "in fact",
    "in",
    " fact",
    "fact",
    " the",
    "the",
    " sky",
    "sky",
    " is",
    " blue",
    "blue",
    " ",
    ".",
]


def toy(text):
    """The first word that fits: "walking" is one token, and so are " blue" and "in fact"."""
    tokens = []
    while text:
        word = next(word for word in WORDS if text.startswith(word))
        tokens.append(WORDS.index(word))
        text = text[len(word) :]
    return tokens


def likeliest(got, mistakes):
    """The message for the mistake that gives this answer; none if several mistakes would give it."""
    found = {said for said, answer in mistakes if answer == got}
    return found.pop() if len(found) == 1 else ""


# --- Slow references --------------------------------------------------------------------------------------------------


def split_slowly(prompt, choice, encode):
    begin, spaces = prompt.rstrip(), prompt[len(prompt.rstrip()) :]
    first, whole = encode(begin), encode(prompt + choice)
    return (first, whole[len(first) :]) if len(whole) > len(first) else (first, encode(spaces + choice))


def logprob_slowly(rows, token_ids, num_prompt):
    """Number by number, in Python's floats."""
    total = 0.0
    for i in range(num_prompt, len(token_ids)):
        row = rows[i - 1]
        most = max(row)
        total += row[token_ids[i]] - most - math.log(sum(math.exp(logit - most) for logit in row))
    return total


# --- split ------------------------------------------------------------------------------------------------------------


def check_split(work, prompt, choice, encode):
    right = split_slowly(prompt, choice, encode)
    begin, spaces = prompt.rstrip(), prompt[len(prompt.rstrip()) :]
    first, long, whole = encode(begin), encode(prompt), encode(prompt + choice)
    boundary = "the space at the prompt's end belongs to the choice: count the prompt's tokens without it"
    lost = "the space at the prompt's end is lost: it belongs to the choice"
    mistakes = [
        ("the model sees the whole text, whose tokens are not always those of the two parts", [first, encode(spaces + choice)]),
        ("no token is left for the choice: where the two merge, encode each by itself", [first, whole[len(first) :]]),
        ("the prompt's tokens are those of the prompt encoded by itself", [whole[: len(first)], right[1]]),
    ]  # fmt: skip
    if prompt != prompt.lstrip():
        inner = encode(prompt.strip())
        mistakes.append(
            ("only the whitespace at the prompt's *end* belongs to the choice", [inner, whole[len(inner) :]])
        )
    only_spaces = encode(prompt.rstrip(" "))
    if only_spaces != first:
        mistakes.append(("a line end is white space too, like a space", [only_spaces, whole[len(only_spaces) :]]))
    if spaces:
        mistakes += [(boundary, [long, whole[len(long) :]]), (boundary, [long, encode(choice)])]
        mistakes += [(lost, [first, encode(begin + choice)[len(first) :]]), (lost, [first, encode(choice)])]
    got = [list(part) for part in work.split(prompt, choice, encode)]
    expect(f"split({prompt!r}, {choice!r})", got, [list(part) for part in right], likely=likeliest(got, mistakes))


def test_split(work):
    check_split(work, "the sky is", " blue", toy)
    check_split(work, "the sky is ", "blue", toy)
    check_split(work, "the walk", "ing", toy)
    check_split(work, "the walk", "ing.", toy)
    check_split(work, "the sky ", "walk", toy)
    check_split(work, "walk", "ing.", toy)
    check_split(work, "walk ", " ", toy)
    check_split(work, "in ", "fact", toy)
    check_split(work, " the sky is ", "blue", toy)


# --- log_probability --------------------------------------------------------------------------------------------------


def logprob_mistakes(rows, tokens, start):
    def row_logprob(row, token):
        return logprob_slowly([row], [0, token], 1)

    mine = range(start, len(tokens))
    right = logprob_slowly(rows, tokens, start)
    said = {
        "a row predicts the token after it: token i is predicted by row i - 1":
            sum(row_logprob(rows[i], tokens[i]) for i in mine),
        "the prompt's own tokens don't count": logprob_slowly(rows, tokens, 1),
        "the choice has several tokens, and the first one counts too": logprob_slowly(rows, tokens, start + 1),
        "the choice has several tokens: all of them count": logprob_slowly(rows, tokens[: start + 1], start),
        "the sum is wanted, not the mean": right / max(1, len(mine)),
        "logits are not log-probabilities: subtract the logarithm of the sum of their exponentials":
            sum(rows[i - 1][tokens[i]] for i in mine),
        "probabilities are multiplied, so their logarithms are added": sum(math.exp(row_logprob(rows[i - 1], tokens[i])) for i in mine),
    }  # fmt: skip
    return right, {text: value for text, value in said.items() if abs(value - right) > 1e-3 * max(1, abs(right))}


def check_logprob(work, rows, tokens, start):
    right, said = logprob_mistakes(rows, tokens, start)
    case = f"logits {rows}, tokens {tokens}, of which the prompt has {start}"
    logits = torch.tensor(rows)
    given = list(tokens)
    got = work.log_probability(logits, given, start)
    got = got.item() if isinstance(got, torch.Tensor) else got
    unchanged = torch.equal(logits, torch.tensor(rows)) and given == tokens
    require(unchanged, f"{case}: afterwards", "as they were", "changed", "the engine goes on with them: work on a copy")
    lost = isinstance(got, float) and not math.isfinite(got)
    likely = "a probability too small for a float became 0: work with logarithms from the start" if lost else ""
    expect(case, got, right, said, likely=likely, tolerance=1e-5)


def test_log_probability(work):
    rows = [[1.0, 0.0, 2.0], [3.0, 1.0, 0.0], [0.0, 1.0, 4.0], [2.0, 2.0, 1.0], [0.0, 3.0, 1.0]]
    check_logprob(work, rows, [0, 2, 1, 0, 2], 3)
    check_logprob(work, rows[:4], [1, 1, 2, 0], 3)
    check_logprob(work, rows[:4], [2, 0, 2, 1], 1)


def test_large_logits(work):
    check_logprob(work, [[0.0, -20000.0], [20000.0, 0.0], [0.0, 0.0]], [0, 1, 1], 1)
    check_logprob(work, [[20000.0, 20000.0], [-20000.0, -20000.0], [0.0, 0.0]], [0, 1, 0], 1)
    check_logprob(work, [[150.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [1, 2], 1)


# --- choose, accuracy -------------------------------------------------------------------------------------------------


def check_choice(work, logprobs, choices, per_byte):
    sizes = [len(choice.encode()) for choice in choices]

    def first_best(values):
        return max(range(len(values)), key=lambda i: values[i])

    each = [a / n for a, n in zip(logprobs, sizes, strict=True)]
    values = each if per_byte else logprobs
    mistakes = [
        ("of equal choices, take the first", max(i for i, value in enumerate(values) if value == max(values))),
        ("the highest is the best: log-probabilities are negative", first_best([-value for value in values])),
    ]
    if per_byte:
        characters = [a / len(choice) for a, choice in zip(logprobs, choices, strict=True)]
        mistakes += [
            ("per_byte divides by the length", first_best(logprobs)),
            ("length is counted in UTF-8 bytes, not in characters", first_best(characters)),
            (
                "divide by the length, don't multiply",
                first_best([a * n for a, n in zip(logprobs, sizes, strict=True)]),
            ),
        ]
    else:
        mistakes.append(("without per_byte the sum itself is compared", first_best(each)))
    scores, texts = list(logprobs), list(choices)
    got, case = work.choose(scores, texts, per_byte), f"choose({logprobs}, {choices}, per_byte={per_byte})"
    expect(case, got, first_best(values), likely=likeliest(got, mistakes), tolerance=0)
    unchanged = (scores, texts) == (logprobs, choices)
    require(unchanged, f"{case}: its lists afterwards", (logprobs, choices), (scores, texts), "work on a copy")


def test_choose(work):
    check_choice(work, [-3.0, -1.0, -2.0], ["a", "b", "c"], False)
    check_choice(work, [-2.0, -1.0, -1.0, -3.0], ["a", "b", "c", "d"], False)
    check_choice(work, [-2.0, -3.0, -9.0], ["no", "certainly", "so"], False)
    check_choice(work, [-4.0, -3.0, -5.0, -40.0], ["a", "bc", "certainly!", "no"], True)
    check_choice(work, [-2.0, -2.0], ["ab", "ab"], True)
    check_choice(work, [-8.0, -6.5, -5.0], ["éééé", "abcde", "ab"], True)
    check_choice(work, [-4.0, -3.0], [" ab", "ab"], True)
    check_choice(work, [-20001.0, -20000.0], ["a", "b"], False)
    check_choice(work, [-20000.0001, -20000.0], ["a", "b"], False)
    check_choice(work, [-1.0005, -1.0], ["a", "b"], False)
    check_choice(work, [-3e6, -2e6], ["a", "b"], False)


def test_accuracy(work):
    said = {"a question that failed counts as wrong": 2 / 3,
            "return a share, from 0 to 1": 2, "return a share from 0 to 1, not a percentage": 50.0}  # fmt: skip
    expect("answers 0, 1, None, 2, where 0, 1, 1, 0 are right", work.accuracy([0, 1, None, 2], [0, 1, 1, 0]), 0.5, said)
    said = {"None means no answer, not answer 0": 1.0}
    expect("one question that failed, where 0 is right", work.accuracy([None], [0]), 0.0, said)
    expect("two right answers", work.accuracy([1, 0], [1, 0]), 1.0)
    said = {"compare numbers with ==: `is` compares objects, and two that are equal may be two": 0.0}
    expect("answer 70,000, which is right", work.accuracy([int("70000")], [int("70000")]), 1.0, said)


# --- Against slow references, and the engine --------------------------------------------------------------------------


def test_against_slow_references(work):
    """Sizes grow, so the first that fails is small."""
    rng = random.Random(0)
    parts = ["walk", "ing", "in", " ", "fact", " blue", "the", "."]
    for i in range(150):
        most = 2 + i // 30
        prompt = rng.choice(["the", "walk", "in"]) + "".join(rng.choice(parts) for _ in range(rng.randrange(most)))
        check_split(work, prompt, "".join(rng.choice(parts) for _ in range(rng.randint(1, most))), toy)
        length, vocab, scale = rng.randint(2, 2 + most), rng.randint(2, 1 + most), rng.choice([1, 30, 20000])
        rows = [[float(rng.randint(-scale, scale)) for _ in range(vocab)] for _ in range(length)]
        tokens = [rng.randrange(vocab) for _ in range(length)]
        check_logprob(work, rows, tokens, rng.randint(1, length - 1))
        count = rng.randint(1, 1 + most)
        height = rng.choice([0, 0, 20_000])
        choices = ["".join(rng.choice("aé日 ") for _ in range(rng.randint(1, most))) for _ in range(count)]
        of_text = {choice: -height - rng.randint(0, 12) / 2 for choice in choices}  # equal choices are equally likely
        logprobs = [of_text[choice] for choice in choices]
        check_choice(work, logprobs, choices, rng.random() < 0.5)
        answers = [rng.choice([None, 0, 1, 2]) for _ in range(count)]
        references = [rng.randrange(3) for _ in range(count)]
        right = sum(a == r for a, r in zip(answers, references, strict=True)) / count
        expect(f"accuracy({answers}, {references})", work.accuracy(answers, references), right)


def test_split_by_gpt2(work):
    encode = STAGES[3].engine().engine.tokenizer.encode
    pairs = (("Once upon a", " time"), ("Once upon a ", "time"), ("Who walk", "ing"), ("A fox said: \"", "Hello\""),
             ("Price: 1", "000 crowns"), ("the café", "s of Paris"), ("One\n", "\nTwo"), ("and  ", "so"))  # fmt: skip
    check_split(work, "Who said:\n ", "I did", encode)
    for prompt, choice in pairs:
        check_split(work, prompt, choice, encode)
    check_split(work, "Name:\t", "Ada", encode)
    check_split(work, " ", "Ada", lambda text: list(text.encode()))


def test_against_stage_4(work):
    """The logits of stage 1's model, position by position, and what stage 4 says of the same texts."""
    engine = STAGES[3].engine()
    model = STAGES[0].part("model").GPT2(engine.engine.model_config)
    model.load_state_dict(engine.engine.runner.model.state_dict())
    for prompt, choice in (("Once upon a ", "time"), ("Long ago, a little", " fox lived"), ("A", " shy bear.")):
        first, second = work.split(prompt, choice, engine.engine.tokenizer.encode)
        tokens = [*first, *second]
        with torch.inference_mode():
            logits = torch.stack([model(torch.tensor(tokens[: i + 1])) for i in range(len(tokens))])
        score = engine.score([prompt], [choice])[0].logprob
        got = float(work.log_probability(logits, tokens, len(first)))
        require(abs(got - score) < 1e-3, f"prompt {prompt!r}, choice {choice!r}, by tinytales", score, got)


def test_long_texts(work):
    """Thousands of characters and tokens, hundreds of choices and questions."""
    for prompt, choice in (("the sky is " * 300, "blue"), ("the", " sky is" * 400), ("walk" * 1000, "ing")):
        text = prompt + choice
        expect(f"split of {len(text)} characters", work.split(prompt, choice, lambda text: [ord(c) + 70_000 for c in text]),
               ([ord(c) + 70_000 for c in prompt.rstrip()], [ord(c) + 70_000 for c in text[len(prompt.rstrip()):]]))  # fmt: skip
    torch.manual_seed(0)
    logits, tokens = torch.randn(1100, 300), [i * 7 % 300 for i in range(1100)]
    rows = logits.double().log_softmax(-1)
    for start in (1, 300, 1090):
        right = sum(float(rows[i - 1, tokens[i]]) for i in range(start, 1100))
        expect(f"1,100 tokens, of which the prompt has {start}", work.log_probability(logits, tokens, start), right)
    logprobs, choices = [-1000.0 + i % 997 for i in range(1000)], ["x" * (1 + i % 5) for i in range(1000)]
    expect("a thousand choices", work.choose(logprobs, choices, False), 996)
    values = [a / len(c) for a, c in zip(logprobs, choices, strict=True)]
    expect("a thousand choices, per byte", work.choose(logprobs, choices, True), values.index(max(values)))
    expect("a choice of a thousand characters", work.choose([-5.0, -5.0], ["a", "b" * 1000], True), 1)
    right = float(torch.zeros(1, 70_001).log_softmax(-1)[0, 70_000])
    expect(
        "the last of 70,001 tokens, all of them equal",
        work.log_probability(torch.zeros(2, 70_001), [0, 70_000], 1),
        right,
    )
    expect("choices with high numbers", work.accuracy([70_000, 300, 7], [70_000, 301, 7]), 2 / 3, tolerance=1e-12)
    answers = [i % 3 if i % 5 else None for i in range(1200)]
    expect("1,200 questions", work.accuracy(answers, [i % 2 for i in range(1200)]), sum(a == i % 2 for i, a in enumerate(answers)) / 1200,
           tolerance=1e-12)  # fmt: skip

"""Milestone 2, a batch: many rows in one forward pass, none of which affects another."""

import random

from exercises.grading import expect, require

from .lab import Lab, Missing, Positions, Settings, greedy, prompts_of, seeded

LENGTHS, OUTPUTS = (5, 12, 3, 9, 1, 20, 7, 2), (4, 2, 6, 9, 1, 3, 12, 8)
AT_ONCE = 4


def expect_in_order(case: str, got: list[list[int]], expected: list[list[int]], known: dict | None = None) -> None:
    """Expect these tokens for each prompt; right results in the wrong order are recognized."""
    moved = sorted(got) == sorted(expected)
    likely = "these are the right results in the wrong order: return them in the order of the prompts"
    expect(case, got, expected, known, likely=likely if moved else "")


def check_first_token(lab: Lab) -> None:
    """the first token of rows of unequal lengths, in one batch"""
    lengths = (3, 20, 1, 9)
    prompts, network = prompts_of(*lengths), lab.network(lab.model())
    case = "prompts of 3, 20, 1 and 9 tokens in one batch: the most likely next token of each"
    got = [result.token_ids for result in lab.run(case, prompts, greedy(1), lab.shared(max_num_seqs=AT_ONCE))]
    mistakes = [network.mistakes_in_company(prompt, max(lengths)) for prompt in prompts]
    known = {said: [[int(logits[said].argmax())] for logits in mistakes] for said in mistakes[0]}
    expect_in_order(case, got, [result.token_ids for result in lab.expected(prompts, greedy(1))], known)


def check_logprobs(lab: Lab) -> None:
    """how likely these tokens are, to four digits"""
    if not lab.has("logprobs", 1):
        raise Missing("SamplingParams has no 'logprobs', so a mask that leaks a little goes unnoticed")
    prompts, settings = prompts_of(3, 20, 1, 9), greedy(4, logprobs=1)
    case = "prompts of 3, 20, 1 and 9 tokens in one batch: log-probabilities of four tokens of each"
    got = [result.logprobs or [] for result in lab.run(case, prompts, settings, lab.shared(max_num_seqs=AT_ONCE))]
    expect(case, got, [result.logprobs for result in lab.expected(prompts, settings)], tolerance=1e-4)


def check_greedy(lab: Lab) -> None:
    """greedy completions of unequal lengths, in batches, in the order of the prompts"""
    prompts, settings = prompts_of(*LENGTHS), [greedy(n) for n in OUTPUTS]
    case = f"prompts of {LENGTHS} tokens, outputs of {OUTPUTS}, max_num_seqs={AT_ONCE}"
    got = [r.token_ids for r in lab.run(case, prompts, settings, lab.shared(max_num_seqs=AT_ONCE))]
    expected = [result.token_ids for result in lab.expected(prompts, settings)]
    if sorted(got) == sorted(expected):
        expect_in_order(case, got, expected)
    for i, (prompt, one) in enumerate(zip(prompts, got, strict=True)):
        lab.same_tokens(f"{case}: row {i}", prompt, one, expected[i])


def mixed_settings() -> list[Settings]:
    """One request of every kind, several of them in each batch."""
    return [
        greedy(7),
        seeded(9, 1),
        greedy(5),
        seeded(11, 2, temperature=2.0),
        seeded(4, 3),
        seeded(8, 1),
        greedy(12),
        seeded(6, 4, temperature=0.3),
    ]


def check_company(lab: Lab) -> None:
    """the same tokens alone, together and shuffled, greedy and drawn"""
    prompts, settings, llm = prompts_of(*LENGTHS), mixed_settings(), lab.shared(max_num_seqs=AT_ONCE)
    alone = [
        lab.run(f"request {i} alone", [p], s, llm)[0].token_ids
        for i, (p, s) in enumerate(zip(prompts, settings, strict=True))
    ]
    orders = [list(range(8)), *(random.Random(seed).sample(range(8), 8) for seed in range(2))]
    for order in orders:
        case = f"eight requests in the order {order}, greedy and drawn, {AT_ONCE} at once"
        results = lab.run(case, [prompts[i] for i in order], [settings[i] for i in order], llm)
        wrong = [i for i, result in zip(order, results, strict=True) if result.token_ids != alone[i]]
        if not wrong:
            continue
        drawn_only = all(settings[i]["temperature"] > 0 for i in wrong)
        got = next(result.token_ids for i, result in zip(order, results, strict=True) if i == wrong[0])
        expect(
            f"{case}: request {wrong[0]}, which gives other tokens when it runs alone",
            got,
            alone[wrong[0]],
            likely="only sampled requests differ: rows share one random generator, or take turns with it; a draw must "
            "depend only on the request's seed and the position in its output"
            if drawn_only and len(wrong) > 1
            else "",
        )


def check_penalties(lab: Lab) -> None:
    """every row has its own parameters"""
    wanted = {"repetition_penalty": 2.0, "frequency_penalty": 1.5, "top_k": 3, "top_p": 0.5, "min_p": 0.2}
    found = {field: value for field, value in wanted.items() if lab.has(field, value)}
    if not found:
        raise Missing("SamplingParams has neither filters nor penalties")
    settings = [seeded(8, i, **{field: value}) for i, (field, value) in enumerate(found.items())]
    settings = [greedy(8), *settings, seeded(8, 9)]
    prompts, llm = prompts_of(*LENGTHS)[: len(settings)], lab.shared(max_num_seqs=8)
    case = f"rows in one batch with {', '.join(found)}, one each, plus a greedy row and one without any of them"
    got = [result.token_ids for result in lab.run(case, prompts, settings, llm)]
    alone = [lab.run(f"{one} alone", [p], one, llm)[0].token_ids for p, one in zip(prompts, settings, strict=True)]
    expect(case, got, alone, likely="expected is what each row gives alone; a row uses another row's parameter")


def check_ends(lab: Lab) -> None:
    """a row that ends early ends alone"""
    prompts = prompts_of(6, 4, 9, seed=1)
    ids = [result.token_ids for result in lab.expected(prompts, greedy(14))]
    settings = [greedy(14, stop_token_ids=[ids[0][3]]), greedy(2), greedy(14)]
    case = "three rows in a batch: one ends at a stop token, one after 2 tokens, one after 14"
    got = [result.token_ids for result in lab.run(case, prompts, settings, lab.shared(max_num_seqs=AT_ONCE))]
    expected = [result.token_ids for result in lab.expected(prompts, settings)]
    for i, (one, right) in enumerate(zip(got, expected, strict=True)):
        likely = (
            "a row that has ended still gets tokens"
            if len(one) > len(right)
            else "the whole batch ended with one of its rows"
            if len(one) < len(right)
            else ""
        )
        expect(f"{case}: row {i}", one, right, likely=likely)


def static_batches() -> list[list[int]]:
    """The requests in batches of prompts of similar length."""
    order = sorted(range(len(LENGTHS)), key=lambda i: -LENGTHS[i])
    return [order[i : i + AT_ONCE] for i in range(0, len(order), AT_ONCE)]


def in_order() -> list[list[int]]:
    """The requests in batches as they come."""
    return [list(range(i, i + AT_ONCE)) for i in range(0, len(LENGTHS), AT_ONCE)]


def after_batches(lab: Lab, case: str, *names: str) -> list[int]:
    """The counters of a new engine that has completed LENGTHS and OUTPUTS."""
    llm = lab.llm(max_num_seqs=AT_ONCE)
    lab.run(case, prompts_of(*LENGTHS), [greedy(n) for n in OUTPUTS], llm)
    return lab.counted(llm, *names)


def check_passes(lab: Lab) -> None:
    """forward passes: rows go through the model together"""
    case = f"outputs of {OUTPUTS}, {AT_ONCE} rows at once"
    (num_forwards,) = after_batches(lab, case, "num_forwards")
    enough = max(sum(max(OUTPUTS[i] for i in batch) for batch in batches) for batches in (static_batches(), in_order()))
    likely = {sum(OUTPUTS): "the requests go through the model one by one"}.get(num_forwards, "")
    require(
        num_forwards <= enough,
        case,
        f"at most {enough} forward passes",
        f"you made {num_forwards} forward passes where {enough} suffice",
        likely,
    )


def check_counters(lab: Lab) -> None:
    """the counters include every position that goes through the model"""
    case = f"prompts of {LENGTHS} tokens, outputs of {OUTPUTS}, {AT_ONCE} rows at once"
    with Positions() as seen:
        computed, padding = after_batches(lab, case, "num_tokens_computed", "num_padding_tokens")
    if seen.count:
        expect(
            f"{case}: num_tokens_computed + num_padding_tokens, and the positions counted in the model",
            f"{computed} + {padding} = {computed + padding}",
            f"{computed} + {seen.count - computed} = {seen.count}",
            likely="padding is everything that goes through the model in vain: filler, and rows that have ended"
            if computed + padding < seen.count
            else "",
        )


def check_padding(lab: Lab) -> None:
    """padding: prompts of similar length share a batch"""
    case = f"prompts of {LENGTHS} tokens, outputs of {OUTPUTS}, {AT_ONCE} rows at once"
    num_padding, num_output = after_batches(lab, case, "num_padding_tokens", "num_output_tokens")
    expect(f"{case}: num_output_tokens", num_output, sum(OUTPUTS))
    enough = padding_of(static_batches())
    known = {padding_of(in_order()): "the batches follow the order of the prompts: sort them by length first"}
    require(
        num_padding <= enough,
        case,
        f"at most {enough} positions of padding",
        f"you computed {num_padding} positions of padding where {enough} suffice",
        known.get(num_padding, ""),
    )


def padding_of(batches: list[list[int]]) -> int:
    """Positions of padding if every step recomputes its batch's whole rectangle, including ended rows."""
    total = 0
    for batch in batches:
        for step in range(max(OUTPUTS[i] for i in batch)):
            width = max(LENGTHS[i] + min(step, OUTPUTS[i]) for i in batch)
            total += len(batch) * width - sum(LENGTHS[i] + step for i in batch if step < OUTPUTS[i])
    return total

"""Plans worked out by hand and against the engine; the gap."""

import functools

from exercises.examples import Example, at_random
from exercises.grading import Wrong, expect
from exercises.tiny import tiny_engine
from tools.engines import STAGES, traced


def test_plan(work):
    said = {
        "each decoding request takes a token of the budget": [6, 3],
        "the last chunk is what is left, not a whole one": [4, 4, 4],
        "a whole prompt in one step: everybody waits": [9],
        "the chunks have to add up to the prompt": [4, 4],
    }
    expect("prompt 9, two decode, six tokens a step", work.plan(9, 2, 6), [4, 4, 1], said)
    expect("prompt 8, two decode, six tokens a step", work.plan(8, 2, 6), [4, 4],
           {"a prompt that ends exactly with a chunk needs no empty step": [4, 4, 0]})  # fmt: skip
    expect("prompt 3, nobody decodes", work.plan(3, 0, 6), [3])


def test_no_room(work):
    try:
        got = work.plan(5, 7, 6)
    except ValueError:
        pass
    else:
        raise Wrong("seven decode, six tokens a step", "ValueError", got, "the budget leaves nothing for the prompt")
    try:
        got = work.plan(5, 6, 6)
    except ValueError:
        return
    raise Wrong(
        "six decode, six tokens a step",
        "ValueError",
        got,
        "the budget leaves nothing for the prompt: it would wait forever",
    )


def test_gap(work):
    seconds = lambda tokens: 0.010 + 0.001 * tokens  # noqa: E731
    said = {"the step also computes a token for each decoding request": 0.014, "the longest step, not the sum of all": 0.045,
            "seconds(n) knows how long n tokens take": 6}  # fmt: skip
    expect("prompt 9, two decode, chunked", work.longest_gap(9, 2, 6, seconds, True), 0.016, said)
    said = {
        "without chunks the whole prompt is one step": 0.016,
        "the step also computes a token for each decoding request": 0.019,
    }
    expect("the same in one piece", work.longest_gap(9, 2, 6, seconds, False), 0.021, said)
    expect("in one piece while seven decode, with a budget of 6", work.longest_gap(9, 7, 6, seconds, False), 0.026)
    expect("a prompt of 2, chunked", work.longest_gap(2, 2, 6, seconds, True), 0.014,
           {"a step takes as long as its tokens need; the budget is only an upper limit": 0.016})  # fmt: skip
    expect("a prompt of 2, in one piece", work.longest_gap(2, 2, 6, seconds, False), 0.014,
           {"a step takes as long as its tokens need; the budget is only an upper limit": 0.016})  # fmt: skip


@functools.cache
def chunks_of_the_engine():
    """The steps of a prompt of 50 that arrives while three decode, 16 tokens a step."""
    stage = STAGES[3]
    llm = traced(tiny_engine(stage, n_positions=128, make="stepper", max_num_seqs=4, max_num_batched_tokens=16))
    params = stage.SamplingParams(max_tokens=40, ignore_eos=True)
    for name in ("a", "b", "c"):
        llm.add_request(name, [1, 2], params)
    llm.step()
    llm.add_request("long", [3] * 50, params)
    while llm.has_unfinished_requests():
        llm.step()
    rows = [row for step in llm.trace for row in step.rows]
    return [row.num_tokens for row in rows if row.request_id == "long" and row.phase == "prefill"]


def test_against_the_engine(work):
    expect("prompt 50, three decode, 16 tokens a step, against stage 4", work.plan(50, 3, 16), chunks_of_the_engine())


def test_any_prompt(work):
    """Tokens put into steps one at a time, the decodes first."""

    def check(choose):
        prompt, decoding, budget = choose.between(1, 20), choose.upto(5), choose.between(1, 9)
        example = Example(work, __file__, "from exercises.examples import raised")
        example.do("seconds = lambda tokens: 10 + tokens")
        if decoding >= budget:
            example.look(f"raised(lambda: work.plan({prompt}, {decoding}, {budget}), ValueError)", "ValueError")
        else:
            steps = [["other"] * decoding]
            for _ in range(prompt):
                if len(steps[-1]) == budget:
                    steps.append(["other"] * decoding)
                steps[-1].append("prompt")
            example.look(f"work.plan({prompt}, {decoding}, {budget})", [step.count("prompt") for step in steps])
            longest = 10 + max(map(len, steps))
            example.look(f"work.longest_gap({prompt}, {decoding}, {budget}, seconds, True)", longest)
        example.look(f"work.longest_gap({prompt}, {decoding}, {budget}, seconds, False)", 10 + decoding + prompt)

    at_random(check)


def test_long_prompts(work):
    """Prompts beyond 65,535, budgets and numbers of requests beyond 255, thousands of steps."""
    for prompt, decoding, budget in ((100_001, 300, 812), (2_001, 299, 300), (70_000, 5, 100_000), (3, 70_000, 70_002)):
        room = budget - decoding
        steps = [room] * (prompt // room) + [prompt % room] * (prompt % room > 0)
        case = f"prompt {prompt}, {decoding} decode, {budget} tokens a step"
        expect(case, work.plan(prompt, decoding, budget), steps)
        seconds = lambda tokens: tokens / 1024  # noqa: E731
        longest = (decoding + max(steps)) / 1024
        expect(f"{case}, chunked", work.longest_gap(prompt, decoding, budget, seconds, True), longest, tolerance=1e-9)
        whole = (decoding + prompt) / 1024
        expect(f"{case}, whole", work.longest_gap(prompt, decoding, budget, seconds, False), whole, tolerance=1e-9)
    expect(
        "700 decode, 3 tokens a step, whole", work.longest_gap(9, 700, 3, lambda tokens: tokens * 2.0, False), 1418.0
    )

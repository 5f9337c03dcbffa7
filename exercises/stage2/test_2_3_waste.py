"""The count against the picture, against simple cases, and against the trace of the real engine."""

from exercises.grading import expect
from exercises.tiny import tiny_engine
from tests.adapter import STAGES, random_prompts


def test_one_request(work):
    said = {"each step computes the whole sequence, which grows": (6, 0), "the last token is never computed": (12, 0)}
    expect("prompt 2, output 3: 2 + 3 + 4", work.positions([2], [3], 8), (9, 0), said)


def test_padding_of_the_prompts(work):
    said = {"count the rectangle, not only what is in it": (6, 0), "padding was counted as live": (10, 0)}
    expect("prompts 5 and 1, one token each", work.positions([5, 1], [1, 1], 8), (6, 4), said)


def test_the_picture(work):
    said = {
        "a row that is done goes through the model until its batch ends": (16, 6),
        "what a done row computes is for nobody": (29, 13),
        "a done row keeps its length: prompt and whole output": (16, 17),
    }
    expect("prompts 4, 2, 1 and outputs 1, 3, 2", work.positions([4, 2, 1], [1, 3, 2], 8), (16, 26), said)


def test_batches(work):
    said = {"max_num_seqs requests form a batch; the next ones wait": (24, 80)}
    got = work.positions([4, 2, 1, 8], [1, 3, 2, 1], 3)
    expect("the same and a prompt of 8, three at once", got, (24, 26), said)


def test_sorting(work):
    prompts, outputs = [1, 9, 1, 9], [1, 1, 1, 1]
    expect("prompts 1, 9, 1, 9, two at once", work.positions(prompts, outputs, 2), (20, 16))
    said = {"sort the requests before they are put into batches": (20, 16),
            "the outputs belong to their prompts: sort them together": (0, 0)}  # fmt: skip
    expect("the same, sorted", work.positions(prompts, outputs, 2, sort_by_length=True), (20, 0), said)
    got = work.positions([1, 9], [3, 1], 1, sort_by_length=True)
    expect("prompts 1 and 9, outputs 3 and 1, sorted, one at once", got, (1 + 2 + 3 + 9, 0),
           likely="the outputs belong to their prompts: sort them together")  # fmt: skip


def test_ties(work):
    got = work.positions([5, 5, 5], [1, 4, 2], 2, sort_by_length=True)
    expect("three prompts of 5, outputs 1, 4, 2, sorted, two at once", got, (42, 21),
           {"equal prompts stay in the order given": (42, 12)}, likely="equal prompts stay in the order given")  # fmt: skip


def test_against_the_engine(work):
    stage = STAGES[1]
    prompts, outputs = [5, 12, 3, 9, 7, 3], [4, 2, 6, 6, 1, 9]
    for size, sort in ((2, False), (4, True)):
        llm = tiny_engine(stage, max_num_seqs=size, sort_by_length=sort)
        params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]
        llm.generate(random_prompts(97, prompts), params)
        counted = llm.stats.num_tokens_computed, llm.stats.num_padding_tokens
        case = f"prompts {prompts}, outputs {outputs}, {size} at once, sort_by_length={sort}, against the engine"
        expect(case, work.positions(prompts, outputs, size, sort), counted)

"""The count against the picture, against simple cases, and against the trace of the real engine."""

from exercises.examples import Example, at_random
from exercises.grading import OneOf, expect

from exercises.tiny import counted
from tools.engines import STAGES


def test_one_request(work):
    said = {"each step computes the whole sequence, which grows": (6, 0), "the last token is never computed": (12, 0),
            "the second number is the waste alone, not everything that was computed": (9, 9),
            "the batch ends with its last row: there is no further step": (9, 5)}  # fmt: skip
    expect("prompt 2, output 3: 2 + 3 + 4", work.positions([2], [3], 8), (9, 0), said)


def test_padding_of_the_prompts(work):
    said = {"count the whole rectangle, not only its tokens": (6, 0), "padding was counted as live": (10, 0)}
    expect("prompts 5 and 1, one token each", work.positions([5, 1], [1, 1], 8), (6, 4), said)


def test_the_picture(work):
    said = {
        "a finished row goes through the model until its batch ends": (16, 6),
        "what a finished row computes is wasted": (29, 13),
        "a finished row keeps its length: prompt and whole output": (16, 17),
    }
    expect("prompts 4, 2, 1 and outputs 1, 3, 2", work.positions([4, 2, 1], [1, 3, 2], 8), (16, 26), said)


def test_batches(work):
    said = {"max_num_seqs requests form a batch; the next ones wait": (24, 80)}
    got = work.positions([4, 2, 1, 8], [1, 3, 2, 1], 3)
    expect("the same and a prompt of 8, three at once", got, (24, 26), said)


def test_sorting(work):
    prompts, outputs = [1, 9, 1, 9], [1, 1, 1, 1]
    expect("prompts 1, 9, 1, 9, two at once", work.positions(prompts, outputs, 2), (20, 16))
    said = {"sort the requests before they are put into batches": (20, 16)}
    expect("the same, sorted", work.positions(prompts, outputs, 2, sort_by_length=True), (20, 0), said)
    got = work.positions([1, 9], [3, 1], 1, sort_by_length=True)
    said = {"sort by prompt length: output lengths are not known yet": (54, 68)}
    got_by_total = work.positions([5, 4, 1], [1, 1, 9], 2, sort_by_length=True)
    expect("prompts 5, 4, 1, outputs 1, 1, 9, sorted, two at once", got_by_total, (54, 1), said)
    said = {"the outputs belong to their prompts: sort them together": (9 + 10 + 11 + 1, 0)}
    expect("prompts 1 and 9, outputs 3 and 1, sorted, one at once", got, (1 + 2 + 3 + 9, 0), said)


def test_ties(work):
    got = work.positions([5, 5, 5], [1, 4, 2], 2, sort_by_length=True)
    expect("three prompts of 5, outputs 1, 4, 2, sorted, two at once", got, (42, 21),
           {"equal prompts stay in the order given": OneOf([(42, 12), (42, 15)])})  # fmt: skip


def test_against_the_engine(work):
    prompts, outputs = (5, 12, 3, 9, 7, 3), (4, 2, 6, 6, 1, 9)
    for size, sort in ((2, False), (4, True)):
        stage2 = counted(STAGES[1], prompts, outputs, max_num_seqs=size, sort_by_length=sort)
        case = f"prompts {prompts}, outputs {outputs}, {size} at once, sort_by_length={sort}, against the engine"
        got = work.positions(list(prompts), list(outputs), size, sort)
        expect(case, got, (stage2.computed, stage2.padding))


def slowly(prompts, outputs, max_num_seqs, sort_by_length):
    """The rectangles drawn as in the picture, and their symbols counted."""
    rows = list(zip(prompts, outputs, strict=True))
    if sort_by_length:
        rows = [row for length in range(max(prompts), 0, -1) for row in rows if row[0] == length]
    picture = ""
    for batch in (rows[i : i + max_num_seqs] for i in range(0, len(rows), max_num_seqs)):
        for step in range(max(n for _, n in batch)):
            own = [("#" if step < n else "·") * (p + min(step, n)) for p, n in batch]
            picture += "".join(row.rjust(max(map(len, own)), "·") for row in own)
    return picture.count("#"), picture.count("·")


def test_any_requests(work):
    """Many of them of equal lengths."""

    def check(choose):
        requests = choose.some(lambda: (choose.between(1, 5), choose.between(1, 4)), 6, least=1)
        prompts, outputs = ([request[i] for request in requests] for i in (0, 1))
        size, sort = choose.between(1, 4), choose.one_of([False, True])
        example = Example(work, __file__)
        example.do(f"prompts, outputs = {prompts}, {outputs}")
        example.expect(f"work.positions(prompts, outputs, {size}, {sort})", slowly(prompts, outputs, size, sort))
        example.look("prompts, outputs", (prompts, outputs), likely="the caller's lists were changed: sort a copy")

    at_random(check)


def rectangles(prompts, outputs, size):
    """The same by step and batch, in integers."""
    own = area = 0
    for first in range(0, len(prompts), size):
        batch = list(zip(prompts[first : first + size], outputs[first : first + size], strict=True))
        for step in range(max(n for _, n in batch)):
            own += sum(p + step for p, n in batch if step < n)
            area += len(batch) * max(p + min(step, n) for p, n in batch)
    return own, area - own


def test_many_requests(work):
    """A thousand requests, long prompts, long outputs: counts in the millions, exact to the last place."""
    for prompts, outputs, size in (
        ([1 + i * 7 % 90 for i in range(1000)], [1 + i * 5 % 30 for i in range(1000)], 300),
        ([70_000, 3, 300], [2, 1000, 1], 70_000),
    ):
        case = f"{len(prompts)} requests, prompts of up to {max(prompts)}, {size} at once"
        expect(case, work.positions(list(prompts), list(outputs), size), rectangles(prompts, outputs, size))

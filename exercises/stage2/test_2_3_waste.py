"""2.3 Count the waste: the picture, and rectangles that are drawn and counted."""

import random

import pytest


def case(rule, prompts, outputs, max_num_seqs, sort_by_length, *expected):
    return pytest.param(prompts, outputs, max_num_seqs, sort_by_length, expected, id=rule)


@pytest.mark.parametrize(("prompts", "outputs", "max_num_seqs", "sort_by_length", "expected"), [
    case("each step computes the whole sequence; the last token is not computed", [2], [3], 8, False, 2 + 3 + 4, 0),
    case("the padding of a live row is wasted", [5, 1], [1, 1], 8, False, 6, 4),
    case("the width of a row that is done is wasted, until its batch ends", [1, 1], [2, 1], 8, False, 1 + 2 + 1, 2),
    case("a row that is done keeps its length: prompt and output", [3, 1], [1, 2], 8, False, 3 + 1 + 2, 2 + 2 + 4),
    case("the picture", [4, 2, 1], [1, 3, 2], 8, False, 7 + 5 + 4, 5 + 10 + 11),
    case("max_num_seqs requests form a batch, in the order given", [1, 1, 9], [1, 1, 1], 2, False, 11, 0),
    case("sort_by_length sorts all requests, before they form batches", [1, 9, 1, 9], [1, 1, 1, 1], 2, True, 20, 0),
    case("sort by the prompts alone: outputs are not known yet", [5, 4, 1], [1, 1, 9], 2, True, 54, 1),
    case("outputs are sorted together with their prompts", [1, 9], [3, 1], 1, True, 1 + 2 + 3 + 9, 0),
    case("equal prompts stay in the order given", [5, 5, 5], [1, 4, 2], 2, True, 42, 21),
])  # fmt: skip
def test_positions(work, prompts, outputs, max_num_seqs, sort_by_length, expected):
    given = [*prompts], [*outputs]
    assert work.positions(*given, max_num_seqs, sort_by_length) == expected
    assert given == (prompts, outputs), "the lists that are given were changed"


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
    """Requests of equal and of unequal lengths."""
    for seed in range(300):
        choose, most = random.Random(seed), 1 + seed // 50
        requests = [(choose.randint(1, 5), choose.randint(1, 4)) for _ in range(choose.randint(1, most))]
        prompts, outputs = ([request[i] for request in requests] for i in (0, 1))
        size, sort = choose.randint(1, 4), choose.choice([False, True])
        expected, called = slowly(prompts, outputs, size, sort), f"positions({prompts}, {outputs}, {size}, {sort})"
        assert work.positions(prompts, outputs, size, sort) == expected, called

"""5.4 Preempt and recompute: which sequence goes, which stays, and a model that gives out one block at a time."""

import random

import pytest

SIZE = 4  # of a block


def sequences(work, sizes):
    """A, B, C … with these (num_tokens, num_blocks)."""
    return [work.Sequence("ABCDE"[i], tokens, blocks, tokens - 1) for i, (tokens, blocks) in enumerate(sizes)]


def names(sequences):
    return "".join(sequence.name for sequence in sequences)


@pytest.mark.parametrize(("sizes", "num_free", "expected"), [
    pytest.param(((9, 2), (5, 1)), 3, ("AB", "", 1), id="a sequence whose tokens do not fit into its blocks gets another"),
    pytest.param(((5, 2), (4, 1)), 3, ("AB", "", 3), id="a sequence with room in its last block, or that just fills it, needs none"),
    pytest.param(((9, 1), (9, 0)), 5, ("AB", "", 0), id="a sequence may need several blocks"),
    pytest.param(((3, 1), (9, 2), (4, 1)), 0, ("AB", "C", 0), id="the youngest goes, not the oldest, and not the one that needs a block"),
    pytest.param(((8, 2), (5, 1)), 0, ("A", "B", 1), id="the youngest goes, even if it is the one that needs a block"),
    pytest.param(((5, 1), (5, 1)), 1, ("A", "B", 1), id="the oldest gets its block first"),
    pytest.param(((5, 1), (12, 3)), 0, ("A", "B", 2), id="all blocks of a preempted sequence are free again, not only as many as are needed"),
    pytest.param(((17, 2), (4, 1), (4, 1), (4, 1)), 0, ("A", "BCD", 0), id="several may have to go; they are returned in order of admission"),
    pytest.param(((13, 2), (4, 1), (4, 2)), 0, ("AB", "C", 0), id="no more sequences go than necessary"),
])  # fmt: skip
def test_who_goes(work, sizes, num_free, expected):
    running, preempted, num_free = work.make_room(sequences(work, sizes), num_free, SIZE)
    assert (names(running), names(preempted), num_free) == expected, "(run on, preempted, free blocks)"


def test_a_preempted_sequence(work):
    """A preempted sequence has no blocks and no computed tokens; it keeps its tokens."""
    _, (c,), _ = work.make_room(sequences(work, ((3, 1), (9, 2), (4, 1))), 0, SIZE)
    assert c.num_tokens == 4, "it keeps its output: the user has already read it"
    assert c.num_computed_tokens == 0, "what it computed was in the blocks that it lost"
    assert c.num_blocks == 0


def test_a_sequence_that_runs_on(work):
    """A sequence that runs on has the blocks that it needed."""
    running, _, _ = work.make_room(sequences(work, ((3, 1), (9, 2), (4, 1))), 0, SIZE)
    assert [(s.num_blocks, s.num_tokens, s.num_computed_tokens) for s in running] == [(1, 3, 2), (3, 9, 8)]


def test_the_list(work):
    """The list that was given is not changed; the sequences in it are, and they are returned."""
    given = sequences(work, ((3, 1), (9, 2), (4, 1)))
    running, preempted, _ = work.make_room(given, 0, SIZE)
    assert names(given) == "ABC", "work on a copy of the list"
    assert [*running, *preempted] == given, "copies of the sequences: the engine goes on with the ones that it has"


def test_alone(work):
    """MemoryError if only one sequence is left and it does not fit: it would be preempted and admitted forever."""
    for sizes in (((9, 2),), ((13, 1), (4, 1))):
        with pytest.raises(MemoryError):
            work.make_room(sequences(work, sizes), 0, SIZE)


def slowly(sizes, num_free, block_size):
    """(blocks of each sequence that still runs, free blocks), giving out one block at a time; None if the last one does not fit."""
    blocks, oldest = [blocks for _, blocks in sizes], 0
    while oldest < len(blocks):
        if blocks[oldest] * block_size >= sizes[oldest][0]:
            oldest += 1
        elif num_free:
            num_free -= 1
            blocks[oldest] += 1
        elif len(blocks) == 1:
            return None
        else:
            num_free += blocks.pop()
    return blocks, num_free


def test_any_room(work):
    """Random sequences with too few blocks, or none yet, in nearly empty pools."""
    for seed in range(400):
        choose = random.Random(seed)
        block_size, num_free = choose.randint(1, 4), choose.randint(0, 4)
        tokens = [choose.randint(1, 12) for _ in range(choose.randint(0, 1 + seed // 80))]
        sizes = [(n, choose.randint(0, -(-n // block_size))) for n in tokens]
        given, expected = sequences(work, sizes), slowly(sizes, num_free, block_size)
        case = f"(num_tokens, num_blocks) {sizes}, {num_free} free blocks of {block_size}"
        try:
            running, preempted, left = work.make_room(given, num_free, block_size)
        except MemoryError:
            assert expected is None, f"no MemoryError: {case}"
            continue
        assert expected is not None, f"MemoryError: {case}"
        assert ([s.num_blocks for s in running], left) == expected, f"blocks of each that runs on, free blocks: {case}"
        assert names(running) + names(preempted) == names(given), case

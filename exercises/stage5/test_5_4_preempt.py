"""Which sequence goes, which stays, and an engine that runs many of them in a pool that is much too small."""

import random

from exercises.examples import Example, at_random
from exercises.grading import OneOf, Wrong, expect, require


def sequences(work, *sizes):
    """(name, tokens, blocks) each."""
    return [work.Sequence(name, tokens, blocks, tokens - 1) for name, tokens, blocks in sizes]


def names(result):
    running, preempted, num_free = result
    return [s.name for s in running], [s.name for s in preempted], num_free


def test_there_is_room(work):
    running = sequences(work, ("A", 5, 1), ("B", 4, 1), ("C", 9, 2))
    got = names(work.make_room(running, 3, 4))
    said = {"a sequence with room in its last block needs no block": (["A", "B", "C"], [], 0),
            "a sequence whose blocks are full needs another one": (["A", "B", "C"], [], 3)}  # fmt: skip
    expect("5, 4 and 9 tokens in 1, 1 and 2 blocks of 4, three free", got, (["A", "B", "C"], [], 1), said)
    expect("their blocks then", [s.num_blocks for s in running], [2, 1, 3])


def test_the_youngest_goes(work):
    running = sequences(work, ("A", 3, 1), ("B", 9, 2), ("C", 4, 1))
    got = names(work.make_room(running, 0, 4))
    said = {"the sequence that needs a block goes only if it is the youngest": OneOf([(["A", "C"], ["B"], 2), (["A", "C"], ["B"], 1)]),
            "last in, first out: preempt the youngest, not the oldest": (["B", "C"], ["A"], 1),
            "the blocks of a preempted sequence are free at once": OneOf([(["A"], ["B", "C"], 2), (["A"], ["B", "C"], 3)])}  # fmt: skip
    expect("B needs a block, none is free, C is the youngest", got, (["A", "B"], ["C"], 0), said)
    require(len(running) == 3, "the list that was given", "as it was", [s.name for s in running], "work on a copy")
    c = running[2]
    said = {"what it computed was in the blocks that it lost: it must compute everything again": (4, 3, 0),
            "it keeps its output: the user has already read it": (0, 0, 0)}  # fmt: skip
    expect(
        "C's tokens, computed tokens and blocks", (c.num_tokens, c.num_computed_tokens, c.num_blocks), (4, 0, 0), said
    )


def test_the_one_that_asks_goes(work):
    running = sequences(work, ("A", 8, 2), ("B", 5, 1))
    got = names(work.make_room(running, 0, 4))
    expect("A has room, B needs a block and is the youngest", got, (["A"], ["B"], 1),
           {"the youngest goes, even if it is the one that needs a block": (["B"], ["A"], 1),
            "what B held is free again": (["A"], ["B"], 0)})  # fmt: skip


def test_several_go(work):
    running = sequences(work, ("A", 17, 2), ("B", 4, 1), ("C", 4, 1), ("D", 4, 1))
    got = names(work.make_room(running, 0, 4))
    said = {"the one that was admitted first goes back to the front of the queue": (["A"], ["D", "C", "B"], 0),
            "preempt no more sequences than necessary": (["A"], ["B", "C", "D"], 3)}  # fmt: skip
    expect("A needs three blocks, B, C and D hold one each", got, (["A"], ["B", "C", "D"], 0), said)
    running = sequences(work, ("A", 13, 2), ("B", 4, 1), ("C", 4, 2))
    expect("A needs two, C holds two", names(work.make_room(running, 0, 4)), (["A", "B"], ["C"], 0))


def test_alone(work):
    try:
        got = names(work.make_room(sequences(work, ("A", 9, 2)), 0, 4))
    except MemoryError:
        return
    likely = "it would be preempted and admitted forever" if got[1] == ["A"] else ""
    raise Wrong("A is alone, needs a block, and none is free", "MemoryError", got, likely)


def test_a_crowd_in_a_small_pool(work):
    """Forty sequences in 12 blocks: all end, each once, and no block is lost."""
    rng = random.Random(0)
    goals = {f"s{i}": rng.randrange(6, 40) for i in range(40)}
    waiting = [work.Sequence(name, rng.randrange(1, 5)) for name in goals]
    running, num_free, finished, steps = [], 12, [], 0
    while waiting or running:
        steps += 1
        require(steps < 5000, "forty sequences in 12 blocks", "all finished within 5,000 steps", f"{len(finished)} are done",
                "does the oldest always make progress?")  # fmt: skip
        order = [s.name for s in running]
        running, preempted, num_free = work.make_room(running, num_free, 4)
        expect(f"step {steps}: running and preempted together", [s.name for s in running + preempted], order,
               likely="the youngest go, so the ones that stay are a prefix of the list")  # fmt: skip
        waiting = preempted + waiting
        while not preempted and waiting and len(running) < 6 and -(-waiting[0].num_tokens // 4) <= num_free:
            sequence = waiting.pop(0)
            sequence.num_blocks = -(-sequence.num_tokens // 4)
            num_free -= sequence.num_blocks
            running.append(sequence)
        expect(f"step {steps}: blocks held and free", sum(s.num_blocks for s in running) + num_free, 12,
               likely="blocks were lost, or given twice")  # fmt: skip
        for sequence in list(running):
            sequence.num_computed_tokens = sequence.num_tokens
            sequence.num_tokens += 1
            if sequence.num_tokens >= goals[sequence.name]:
                running.remove(sequence)
                num_free += sequence.num_blocks
                finished.append(sequence.name)
    expect("who finished", sorted(finished), sorted(goals))


def slowly(tokens, blocks, num_free, block_size):
    """Blocks are given out one at a time, to the oldest first. Returns who keeps running and with how many blocks, then the
    free ones; None if the only one left does not fit."""
    held, oldest = dict(enumerate(blocks)), 0
    while oldest in held:
        if held[oldest] * block_size >= tokens[oldest]:
            oldest += 1
        elif num_free:
            num_free -= 1
            held[oldest] += 1
        elif len(held) == 1:
            return None
        else:
            num_free += held.pop(max(held))
    return held, num_free


def test_any_room(work):
    """Sequences of any length with too few blocks, or none yet, in nearly empty pools."""

    def check(choose):
        size, num_free = choose.between(1, 4), choose.upto(4)
        tokens = choose.some(lambda: choose.between(1, 12), 5)
        blocks = [choose.upto(-(-n // size)) for n in tokens]
        names = "ABCDE"[: len(tokens)]
        example = Example(work, __file__, "from exercises.examples import raised")
        made = [f"work.Sequence({row[0]!r}, {row[1]}, {row[2]}, 1)" for row in zip(names, tokens, blocks, strict=True)]
        example.do(f"running = [{', '.join(made)}]")
        outcome = slowly(tokens, blocks, num_free, size)
        call = f"work.make_room(running, {num_free}, {size})"
        if outcome is None:
            example.expect(f"raised(lambda: {call}, MemoryError)", "MemoryError")
            return
        held, left = outcome
        example.do(f"on, preempted, num_free = {call}")
        example.look("([s.name for s in on], [s.name for s in preempted], num_free)",
                     ([names[i] for i in held], [name for i, name in enumerate(names) if i not in held], left))  # fmt: skip
        states = [(n, held.get(i, 0), int(i in held)) for i, n in enumerate(tokens)]
        example.look("[(s.num_tokens, s.num_blocks, s.num_computed_tokens) for s in running]", states)

    at_random(check, 300)


def test_the_same_sequences_come_back(work):
    new = work.Sequence("new", 5)
    expect("a new sequence's blocks and computed tokens", (new.num_blocks, new.num_computed_tokens), (0, 0))
    running = sequences(work, ("A", 3, 1), ("B", 9, 2), ("C", 4, 1))
    on, gone, _ = work.make_room(running, 0, 4)
    require([*on, *gone] == running, "the sequences that were returned", "the same objects", "copies of them",
            "return the same sequences, not copies: the engine goes on with its own")  # fmt: skip


def test_many_sequences(work):
    """A thousand sequences, blocks of 300 tokens, counts beyond 65,535."""
    for size, num_free, tokens in ((300, 70_000, 30_001), (4, 300, 5), (1, 100_000, 70_000)):
        names_ = [f"s{i}" for i in range(1000)]
        running = sequences(work, *((name, tokens, -(-tokens // size) - (i % 3 == 0)) for i, name in enumerate(names_)))
        outcome = slowly([tokens] * 1000, [s.num_blocks for s in running], num_free, size)
        got = names(work.make_room(running, num_free, size))
        expected = (
            [names_[i] for i in outcome[0]],
            [name for i, name in enumerate(names_) if i not in outcome[0]],
            outcome[1],
        )
        expect(f"1,000 sequences of {tokens} tokens, blocks of {size}, {num_free} free", got, expected)
    running = sequences(work, *((f"s{i}", 5, 1) for i in range(1000)))
    got = names(work.make_room(running, 0, 4))
    expect(
        "a thousand of five tokens in one block of 4 each, none free",
        (len(got[0]), got[1][0], got[2]),
        (500, "s500", 0),
    )

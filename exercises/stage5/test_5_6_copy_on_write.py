"""The picture, and a memory of real numbers in which every sequence has to keep reading what it wrote."""

import random

from exercises.grading import Wrong, expect, require


def test_a_fork_takes_nothing(work):
    blocks = work.Blocks(6, 4)
    blocks.create("a", 6)
    blocks.fork("a", "b")
    expect("free of six, after a fork of two blocks", blocks.num_free, 4, {"the fork took blocks of its own": 2})
    expect("the tables of both", blocks.block_table("a"), blocks.block_table("b"))
    require(blocks.block_table("a") is not blocks.block_table("b"), "the two tables", "two lists", "one list",
            "copy the list, or what one appends the other has too")  # fmt: skip


def test_the_picture(work):
    blocks = work.Blocks(6, 4)
    blocks.create("a", 6)
    blocks.fork("a", "b")
    first, second = list(blocks.block_table("a"))
    copy = blocks.append("a")
    require(copy is not None, "a's 7th token goes into a block that b holds", "a copy", copy,
            "a would write into b's block")  # fmt: skip
    expect("what is copied", copy[0], second, {"only the block that is written is copied": first})
    expect("a's table then", blocks.block_table("a"), [first, copy[1]], {"a goes on in the copy": [first, second]})
    expect("b's table then", blocks.block_table("b"), [first, second], {"b keeps the original": [first, copy[1]]})
    expect("b's 7th token", blocks.append("b"), None,
           likely="b holds the block alone now: no copy; the count has to go down when a leaves it")  # fmt: skip
    expect("free of six", blocks.num_free, 3)


def test_a_full_block(work):
    blocks = work.Blocks(6, 4)
    blocks.create("a", 4)
    blocks.fork("a", "b")
    expect(
        "the 5th token, after a full block", blocks.append("a"), None, likely="a new block is empty: nothing to copy"
    )
    expect("tables' lengths", (len(blocks.block_table("a")), len(blocks.block_table("b"))), (2, 1))
    expect("the 6th token", (blocks.append("a"), len(blocks.block_table("a"))), (None, 2))


def test_free(work):
    blocks = work.Blocks(6, 4)
    blocks.create("a", 6)
    blocks.fork("a", "b")
    blocks.free("a")
    expect("free of six, after one of two that share two was freed", blocks.num_free, 4, {"b still holds them": 6})
    blocks.free("b")
    expect("after both were", blocks.num_free, 6, {"blocks that nobody holds are lost": 4})


def test_no_memory(work):
    blocks = work.Blocks(2, 4)
    blocks.create("a", 6)
    blocks.fork("a", "b")
    for attempt in ("a copy is needed, no block is free", "the same again"):
        try:
            got = blocks.append("a")
        except MemoryError:
            expect(f"{attempt}: the tables after that", blocks.block_table("a"), blocks.block_table("b"),
                   likely="nothing may have changed")  # fmt: skip
            expect(f"{attempt}: free blocks", blocks.num_free, 0, likely="nothing may have changed")
        else:
            raise Wrong(
                attempt,
                "MemoryError",
                got,
                "the token has no place of its own: the counts changed before it was refused?",
            )
    blocks.free("b")
    got = blocks.append("a"), blocks.append("a"), blocks.num_free
    expect("a's 7th and 8th token, when b is gone", got, (None, None, 0), likely="the refused tokens were counted")


def test_no_memory_for_a_new_one(work):
    blocks = work.Blocks(3, 4)
    blocks.create("a", 2)
    try:
        blocks.create("b", 12)
    except MemoryError:
        expect("free of three, after three were refused and one is held", blocks.num_free, 2,
               likely="what was taken before it was clear that it is too little, is lost")  # fmt: skip
        blocks.create("b", 8)
        return
    raise Wrong("three blocks of two that are free", "MemoryError", "nothing", "look before you take")


def test_everybody_reads_what_it_wrote(work):
    """A memory of numbers. Each sequence writes a number per token, and reads all of its own after every step."""
    rng, blocks, memory, written = random.Random(0), work.Blocks(40, 4), [[None] * 4 for _ in range(40)], {}

    def write(name, number):
        table, position = blocks.block_table(name), len(written[name])
        memory[table[position // 4]][position % 4] = number
        written[name].append(number)

    for i in range(6000):
        name, action = f"s{rng.randrange(8)}", rng.random()
        if name not in written:
            if rng.random() < 0.5 and written:
                parent = rng.choice(list(written))
                blocks.fork(parent, name)
                written[name] = list(written[parent])
            elif blocks.num_free >= 3:
                blocks.create(name, 5)
                written[name] = []
                for j in range(5):
                    write(name, (i, j))
        elif action < 0.85 and len(written[name]) < 20:
            try:
                copy = blocks.append(name)
            except MemoryError:
                continue
            if copy is not None:
                memory[copy[1]] = list(memory[copy[0]])
            write(name, (i, 0))
        else:
            blocks.free(name)
            del written[name]
        for other, numbers in written.items():
            table = blocks.block_table(other)
            read = [memory[table[k // 4]][k % 4] for k in range(len(numbers))]
            require(read == numbers, f"action {i}: what {other} reads", "what it wrote", "something else",
                    "a shared block was written, or a block was free while somebody held it")  # fmt: skip
        held = {block for other in written for block in blocks.block_table(other)}
        expect(f"action {i}: free blocks", blocks.num_free, 40 - len(held))

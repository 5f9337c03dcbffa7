"""Blocks by hand, and ten thousand random calls with every block counted after each."""

import random

from exercises.grading import Wrong, expect, require


def test_how_many(work):
    allocator = work.Allocator(10, 4)
    for name, tokens, blocks in (("a", 1, 1), ("b", 4, 1), ("c", 5, 2), ("d", 8, 2)):
        expect(f"{tokens} tokens in blocks of 4", allocator.allocate(name, tokens), True)
        said = {
            "a sequence that ends with a block needs no further one": blocks + 1,
            "the last, unfilled block counts": blocks - 1,
        }
        expect(f"blocks for {tokens} tokens", len(allocator.block_table(name)), blocks, said)
    expect("free of 10, after 6 were taken", allocator.num_free, 4)


def test_tables_share_nothing(work):
    allocator = work.Allocator(6, 4)
    allocator.allocate("a", 6)
    allocator.allocate("b", 9)
    blocks = allocator.block_table("a") + allocator.block_table("b")
    require(len(set(blocks)) == 5 and set(blocks) <= set(range(6)), "the blocks of two sequences", "five different ones of 0 to 5",
            blocks, "a block was given to two sequences")  # fmt: skip


def test_all_or_nothing(work):
    allocator = work.Allocator(4, 4)
    allocator.allocate("a", 8)
    expect("three blocks of two that are free", allocator.allocate("b", 12), False, {"there are not enough": True})
    expect(
        "free after it was refused",
        allocator.num_free,
        2,
        {"what was taken before it was clear that it is too little, is lost": 0},
    )
    expect("two blocks of two", allocator.allocate("b", 8), True, likely="the last block may be used too")


def test_append(work):
    allocator = work.Allocator(3, 4)
    allocator.allocate("a", 3)
    expect("the 4th token", (allocator.append("a"), len(allocator.block_table("a"))), (True, 1),
           {"a token took a block although there was room in the last": (True, 2)})  # fmt: skip
    expect("the 5th token", (allocator.append("a"), len(allocator.block_table("a"))), (True, 2),
           {"the block was full: the 5th token needs another": (True, 1)})  # fmt: skip
    for _ in range(3):
        allocator.append("a")
    expect("the 9th token", (allocator.append("a"), len(allocator.block_table("a"))), (True, 3),
           likely="appended tokens have to be counted, or the next full block is missed")  # fmt: skip
    for _ in range(3):
        allocator.append("a")
    expect(
        "the 13th token, no block is free",
        allocator.append("a"),
        False,
        likely="False if a block is needed and none is free",
    )
    expect(
        "again",
        allocator.append("a"),
        False,
        {"a refused token was counted: the table and the count do not agree any more": True},
    )


def test_slots(work):
    allocator = work.Allocator(8, 4)
    allocator.allocate("x", 4)
    allocator.allocate("a", 5)
    allocator.allocate("y", 4)
    for _ in range(5):
        allocator.append("a")
    table = allocator.block_table("a")
    expected = [table[i // 4] * 4 + i % 4 for i in range(10)]
    said = {"the position has to go through the table": list(range(10)), "a block is block_size slots long": [
        table[i // 4] + i % 4 for i in range(10)]}  # fmt: skip
    expect(f"slots of ten tokens in blocks {table}", [allocator.slot("a", i) for i in range(10)], expected, said)


def test_free(work):
    allocator = work.Allocator(4, 4)
    allocator.allocate("a", 16)
    allocator.free("a")
    expect("free after all were given back", allocator.num_free, 4, {"blocks were lost": 0})
    expect("and taken again", (allocator.allocate("b", 16), sorted(allocator.block_table("b"))), (True, [0, 1, 2, 3]))
    calls = {
        "free of a sequence that is gone": lambda: allocator.free("a"),
        "append to a sequence that is gone": lambda: allocator.append("a"),
        "the table of a sequence that is gone": lambda: allocator.block_table("a"),
        "a slot of a sequence that is gone": lambda: allocator.slot("a", 0),
        "allocate for a name that has blocks already": lambda: allocator.allocate("b", 1),
    }
    for case, call in calls.items():
        try:
            got = call()
        except KeyError:
            continue
        raise Wrong(case, "KeyError", got, "its blocks would be free twice, or lost, or somebody else's")


def test_ten_thousand_calls(work):
    rng, allocator, tokens = random.Random(0), work.Allocator(40, 4), {}
    for i in range(10_000):
        name, action = f"s{rng.randrange(12)}", rng.random()
        held = sum(-(-n // 4) for n in tokens.values())
        if name not in tokens:
            count = rng.randrange(1, 40)
            fits = -(-count // 4) <= 40 - held
            expect(f"call {i}: allocate {count} tokens, {40 - held} blocks free", allocator.allocate(name, count), fits)
            if fits:
                tokens[name] = count
        elif action < 0.7:
            fits = tokens[name] % 4 != 0 or held < 40
            expect(f"call {i}: append to {tokens[name]} tokens, {40 - held} blocks free", allocator.append(name), fits)
            tokens[name] += fits
        else:
            allocator.free(name)
            del tokens[name]
        blocks = [block for n in tokens for block in allocator.block_table(n)]
        require(len(blocks) == len(set(blocks)), f"call {i}: blocks that are held", "each once", sorted(blocks))
        expect(f"call {i}: free blocks", allocator.num_free, 40 - sum(-(-n // 4) for n in tokens.values()))

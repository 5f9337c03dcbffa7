"""5.6 Copy on write: the picture, and sequences that must keep reading what they wrote."""

import random

import pytest

from exercises.calls import Calls


def family(work, num_blocks=6, num_tokens=6):
    """a, and its fork b; blocks of 4."""
    blocks = work.Blocks(num_blocks, 4)
    blocks.create("a", num_tokens)
    blocks.fork("a", "b")
    return blocks


def test_a_fork(work):
    """A fork has its parent's blocks, and takes none."""
    blocks = family(work)
    assert blocks.num_free == 4, "free blocks of six, after a sequence of two blocks was forked"
    assert blocks.block_table("a") == blocks.block_table("b")


def test_the_picture(work):
    """A token goes into a block that no other sequence holds: a shared one is copied, and only then."""
    blocks = family(work)
    first, second = blocks.block_table("a")
    copy = blocks.append("a")
    assert copy is not None, "a would write into b's block"
    assert copy[0] == second, "only the block that is written is copied"
    assert blocks.block_table("a") == [first, copy[1]], "a continues in the copy"
    assert blocks.block_table("b") == [first, second], "b keeps the original: do both have one list?"
    assert blocks.append("b") is None, "only b holds the block now: its count has to go down when a leaves it"
    assert blocks.num_free == 3, "free blocks of six"


def test_a_full_block(work):
    """After a full block the token goes into a new, empty one: nothing to copy."""
    blocks = family(work, num_tokens=4)
    assert [blocks.append("a"), blocks.append("a")] == [None, None]
    assert [len(blocks.block_table(name)) for name in "ab"] == [2, 1], "blocks of a and b"


def test_free(work):
    """A block is free when no sequence holds it anymore."""
    blocks = family(work)
    blocks.free("a")
    assert blocks.num_free == 4, "b still holds them"
    blocks.free("b")
    assert blocks.num_free == 6, "nobody holds them"


def test_the_last_holder(work):
    """When the other sequence is gone, the last holder writes into the block: no copy."""
    blocks = family(work)
    blocks.free("b")
    assert blocks.append("a") is None


def test_three_sequences(work):
    """A block is shared as long as two sequences hold it: of three, two copy it."""
    blocks = family(work)
    blocks.fork("b", "c")
    assert [blocks.append(name) is None for name in "abc"] == [False, False, True], "is there no copy for a, b, c?"


def test_no_memory_for_a_copy(work):
    """If no block is free for a copy: MemoryError, and nothing has changed: when b is gone, a has room for two tokens."""
    blocks = family(work, num_blocks=2)
    for _ in range(2):
        with pytest.raises(MemoryError):
            blocks.append("a")
        assert (blocks.block_table("a"), blocks.num_free) == (blocks.block_table("b"), 0), "a's table, free blocks"
    blocks.free("b")
    assert [blocks.append("a"), blocks.append("a")] == [None, None], "a's 7th and 8th token, after b is gone"
    assert len(blocks.block_table("a")) == 2, "refused tokens were counted"


def test_no_memory_for_a_sequence(work):
    """If too few blocks are free for a new sequence: MemoryError, and none is taken; the last free one may be used."""
    blocks = work.Blocks(3, 4)
    blocks.create("a", 2)
    with pytest.raises(MemoryError):
        blocks.create("b", 12)
    assert blocks.num_free == 2, "blocks that were taken before the pool ran out are lost: check first, then take"
    blocks.create("b", 8)


def test_any_family(work):
    """Random calls: after each, all tables and the number of free blocks are as the rules say."""
    for seed in range(500):
        choose, call = random.Random(seed), Calls()
        num_blocks, size = choose.randint(1, 7), choose.randint(1, 4)
        blocks, tables, num_tokens = call(work.Blocks, num_blocks, size), {}, {}
        for _ in range(3 + seed // 16):
            name, free = choose.choice("abcd"), {*range(num_blocks)}.difference(*tables.values())
            if name not in tables and tables and choose.random() < 0.6:
                parent = choose.choice(sorted(tables))
                call(blocks.fork, parent, name)
                tables[name], num_tokens[name] = tables[parent], num_tokens[parent]
            elif name in tables and choose.random() < 0.2:
                call(blocks.free, name)
                del tables[name], num_tokens[name]
            else:
                table, count = tables.pop(name, []), num_tokens.get(name, 0)
                new = 1 if table else choose.randint(1, 2 * size)
                shared = count % size > 0 and any(table[-1] in other for other in tables.values())
                kept, needed = table[: len(table) - shared], -(-(count + new) // size) - len(table) + shared
                try:
                    copy = call(blocks.append, name) if table else call(blocks.create, name, new)
                except MemoryError:
                    assert needed > len(free), f"MemoryError: {call}"
                    tables |= {name: table} if table else {}
                    continue
                assert needed <= len(free), f"no MemoryError: {call}"
                tables[name], num_tokens[name] = list(blocks.block_table(name)), count + new
                taken = tables[name][len(kept) :]
                assert copy == ((table[-1], taken[0]) if shared else None), f"{call}"
                assert (tables[name][: len(kept)], len(taken)) == (kept, needed), f"kept, new blocks: {call}"
                assert len(free.intersection(taken)) == needed, f"new blocks that were free: {call}"
            assert {other: blocks.block_table(other) for other in tables} == tables, f"{call}"
            assert blocks.num_free == num_blocks - len(set().union(*tables.values())), f"free blocks: {call}"

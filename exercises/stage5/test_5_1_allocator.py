"""5.1 The allocator: blocks worked out by hand, and random calls against the obvious model."""

import random

import pytest

from exercises.calls import Calls


@pytest.mark.parametrize(("num_tokens", "expected"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_how_many(work, num_tokens, expected):
    """A sequence has as many blocks (of 4) as its tokens fill, the last one perhaps in part."""
    allocator = work.Allocator(10, 4)
    assert (allocator.allocate("a", num_tokens), len(allocator.block_table("a"))) == (True, expected)
    assert allocator.num_free == 10 - expected


def test_free(work):
    """Freed blocks can be taken again, all of them."""
    allocator = work.Allocator(5, 4)
    allocator.allocate("a", 16)
    allocator.free("a")
    assert allocator.num_free == 5, "blocks were lost"
    assert allocator.allocate("b", 16) is True


def test_two_sequences(work):
    """No block is given to two sequences."""
    allocator = work.Allocator(7, 4)
    allocator.allocate("a", 6)
    allocator.allocate("b", 13)
    assert len({*allocator.block_table("a"), *allocator.block_table("b")}) == 6


def test_all_or_nothing(work):
    """If there are not enough blocks, nothing is taken; the last free block may be used too."""
    allocator = work.Allocator(4, 4)
    allocator.allocate("a", 8)
    assert allocator.allocate("b", 12) is False, "three blocks, and two are free"
    assert allocator.num_free == 2, "blocks that were taken before the pool ran out are lost: check first, then take"
    assert allocator.allocate("b", 8) is True, "two blocks, and two are free"


def test_append(work):
    """A token takes a block if the last one is full, and only then; False if none is free."""
    allocator = work.Allocator(3, 4)
    allocator.allocate("a", 3)
    for token in range(4, 13):
        got = allocator.append("a"), len(allocator.block_table("a"))
        assert got == (True, -(-token // 4)), f"token {token}, in blocks of 4"
    assert allocator.append("a") is False, "the 13th token needs a block, and none is free"


def test_a_refused_token(work):
    """A token that was refused changes nothing: it is not counted."""
    allocator = work.Allocator(3, 4)
    allocator.allocate("a", 8)
    allocator.allocate("b", 1)
    assert [allocator.append("a"), allocator.append("a")] == [False, False]
    assert len(allocator.block_table("a")) == 2
    allocator.free("b")
    assert [allocator.append("a") for _ in range(5)] == [True] * 4 + [False], "tokens 9 to 12 fit into b's block"


def test_the_order_of_a_table(work):
    """A table is in the order of the tokens, not of the blocks' numbers."""
    for names in ("xa", "ax"):
        allocator = work.Allocator(2, 4)
        for name in names:
            allocator.allocate(name, 4)
        (own,), (other,) = allocator.block_table("a"), allocator.block_table("x")
        allocator.free("x")
        allocator.append("a")
        assert allocator.block_table("a") == [own, other], f"a's tokens 0 to 3 are in block {own}"


@pytest.mark.parametrize("block_size", [4, 3])
def test_slots(work, block_size):
    """A slot is the token's block from the table × block_size + its place in the block."""
    allocator = work.Allocator(8, block_size)
    for name in "xay":
        allocator.allocate(name, 5)
    for _ in range(5):
        allocator.append("a")
    table = allocator.block_table("a")
    expected = [table[i // block_size] * block_size + i % block_size for i in range(10)]
    assert [allocator.slot("a", i) for i in range(10)] == expected, f"the slots of ten tokens in blocks {table}"


@pytest.mark.parametrize(("method", "arguments"), [
    pytest.param("allocate", ("b", 1), id="allocate raises KeyError for a name that has blocks"),
    pytest.param("allocate", ("b", 99), id="allocate raises KeyError for a name that has blocks, whatever is free"),
    pytest.param("append", ("a",), id="append raises KeyError for a name that has no blocks"),
    pytest.param("free", ("a",), id="free raises KeyError for a name that has no blocks"),
    pytest.param("block_table", ("a",), id="block_table raises KeyError for a name that has no blocks"),
    pytest.param("slot", ("a", 0), id="slot raises KeyError for a name that has no blocks"),
])  # fmt: skip
def test_names(work, method, arguments):
    allocator = work.Allocator(4, 4)
    allocator.allocate("a", 16)
    allocator.free("a")
    allocator.allocate("a", 17)  # is refused
    allocator.allocate("b", 4)
    with pytest.raises(KeyError):
        getattr(allocator, method)(*arguments)
    assert (allocator.block_table("b")[1:], allocator.num_free) == ([], 3), "the refused call changed something"


def test_any_calls(work):
    """Random calls: after each, tables, slots and the number of free blocks agree with a model."""
    for seed in range(400):
        choose, call = random.Random(seed), Calls()
        num_blocks, size = choose.randint(1, 2 + seed // 80), choose.randint(1, 4)
        allocator, tokens, tables = call(work.Allocator, num_blocks, size), {}, {}
        for _ in range(3 + seed // 20):
            name = choose.choice("abc")
            if name in tokens and choose.random() < 0.2:
                call(allocator.free, name)
                del tokens[name], tables[name]
            else:
                if name in tokens:
                    count, got = tokens[name] + 1, call(allocator.append, name)
                else:
                    count = choose.randint(1, 3 * size)
                    got = call(allocator.allocate, name, count)
                known = tables.get(name, [])
                free = num_blocks - sum(map(len, tables.values()))
                assert got == (-(-count // size) - len(known) <= free), f"{call}"
                if got:
                    tokens[name], tables[name] = count, list(allocator.block_table(name))
                    assert (tables[name][: len(known)], len(tables[name])) == (known, -(-count // size)), f"{call}"
            held = [block for table in tables.values() for block in table]
            assert len({*held} & {*range(num_blocks)}) == len(held), (
                f"a block is in two tables, or not in the pool: {call}"
            )
            assert {name: allocator.block_table(name) for name in tables} == tables, f"{call}"
            slots = {
                name: [table[i // size] * size + i % size for i in range(tokens[name])]
                for name, table in tables.items()
            }
            assert {name: [allocator.slot(name, i) for i in range(tokens[name])] for name in tables} == slots, f"{call}"
            assert allocator.num_free == num_blocks - len(held), f"{call}"

"""Blocks worked out by hand, and random calls with every block checked after each."""

from exercises.examples import Example, at_random
from exercises.grading import Wrong, expect, require


def test_how_many(work):
    allocator = work.Allocator(10, 4)
    for name, tokens, blocks in (("a", 1, 1), ("b", 4, 1), ("c", 5, 2), ("d", 8, 2)):
        expect(f"{tokens} tokens in blocks of 4", allocator.allocate(name, tokens), True)
        said = {
            "a sequence that exactly fills its blocks needs no further one": blocks + 1,
            "the last, partly filled block counts too": blocks - 1,
        }
        expect(f"blocks for {tokens} tokens", len(allocator.block_table(name)), blocks, said)
    expect("free blocks of 10, after 6 were taken", allocator.num_free, 4)


def test_tables_share_nothing(work):
    allocator = work.Allocator(6, 4)
    allocator.allocate("a", 6)
    allocator.allocate("b", 9)
    blocks = allocator.block_table("a") + allocator.block_table("b")
    require(len(set(blocks)) == 5 and set(blocks) <= set(range(6)), "the blocks of two sequences", "five different ones of 0 to 5",
            blocks, "a block was given to two sequences" if len(set(blocks)) < len(blocks) else "")  # fmt: skip


def test_all_or_nothing(work):
    allocator = work.Allocator(4, 4)
    allocator.allocate("a", 8)
    expect("three blocks of two that are free", allocator.allocate("b", 12), False, {"there are not enough": True})
    expect(
        "free blocks after it was refused",
        allocator.num_free,
        2,
        {"blocks taken before the pool ran out are lost: check first, then take": 0},
    )
    expect("two blocks of two", allocator.allocate("b", 8), True, {"the last block may be used too": False})


def test_append(work):
    allocator = work.Allocator(3, 4)
    allocator.allocate("a", 3)
    expect("the 4th token", (allocator.append("a"), len(allocator.block_table("a"))), (True, 1),
           {"a token took a block although the last one had room": (True, 2)})  # fmt: skip
    expect("the 5th token", (allocator.append("a"), len(allocator.block_table("a"))), (True, 2),
           {"the block was full: the 5th token needs another": (True, 1)})  # fmt: skip
    for _ in range(3):
        allocator.append("a")
    expect("the 9th token", (allocator.append("a"), len(allocator.block_table("a"))), (True, 3),
           {"count appended tokens, or the next full block is missed": (True, 2)})  # fmt: skip
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
        {"a refused token was counted: table and count no longer agree": True},
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
    said = {"look the position up in the block table": list(range(10)), "a block is block_size slots long": [
        table[i // 4] + i % 4 for i in range(10)]}  # fmt: skip
    expect(f"slots of ten tokens in blocks {table}", [allocator.slot("a", i) for i in range(10)], expected, said)


def test_free(work):
    allocator = work.Allocator(4, 4)
    allocator.allocate("a", 16)
    allocator.free("a")
    expect("free blocks after all were given back", allocator.num_free, 4, {"blocks were lost": 0})
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
        raise Wrong(case, "KeyError", got, "its blocks would be freed twice, lost, or given to another sequence")


def test_a_table_keeps_its_order(work):
    """In a pool of two blocks, a sequence takes the block that another one freed, whatever its number."""
    for names in ("xa", "ax"):
        allocator = work.Allocator(2, 4)
        for name in names:
            allocator.allocate(name, 4)
        (own,), (other,) = allocator.block_table("a"), allocator.block_table("x")
        allocator.free("x")
        allocator.append("a")
        expect(f"a held block {own} and takes block {other}", allocator.block_table("a"), [own, other],
               {"a table is in the order of the tokens, not of the blocks' numbers": [other, own]})  # fmt: skip


def test_blocks_of_one_token(work):
    allocator = work.Allocator(4, 1)
    expect("blocks for 2 tokens", (allocator.allocate("a", 2), len(allocator.block_table("a"))), (True, 2))
    expect("the 3rd token", (allocator.append("a"), len(allocator.block_table("a"))), (True, 3),
           {"with blocks of one token every token needs a block: any number modulo 1 is 0": (True, 2)})  # fmt: skip


def test_any_calls(work):
    """Pools and blocks of every small size; after each call every block, slot and count is checked."""

    def check(choose):
        num_blocks, size = choose.between(1, 6), choose.between(1, 4)
        example = Example(work, __file__, "from exercises.examples import raised")
        example.do(f"allocator = work.Allocator({num_blocks}, {size})")
        tokens, tables = {}, {}
        for action in choose.each(lambda: choose.upto(4), 25, least=1):
            name = choose.one_of("abc")
            free = num_blocks - sum(map(len, tables.values()))
            if action < 2 and name not in tokens:
                count = choose.between(1, 3 * size)
                fits = -(-count // size) <= free
                example.expect(f"allocator.allocate({name!r}, {count})", fits)
                if fits:
                    tokens[name], tables[name] = count, [None] * -(-count // size)
            elif name not in tokens or (action == 4 and choose.upto(3) == 3):
                call = ("append", "free", "block_table", "allocate")[3 if name in tokens else choose.upto(2)]
                arguments = f"{name!r}, 1" if call == "allocate" else f"{name!r}"
                example.expect(f"raised(lambda: allocator.{call}({arguments}), KeyError)", "KeyError")
            elif action < 4:
                fits = tokens[name] % size > 0 or free > 0
                example.expect(f"allocator.append({name!r})", fits)
                if fits:
                    tables[name] += [None] * (tokens[name] % size == 0)
                    tokens[name] += 1
            else:
                example.do(f"allocator.free({name!r})")
                del tokens[name], tables[name]
            look_at(example, num_blocks, size, tokens, tables)

    at_random(check)


def look_at(example, num_blocks, size, tokens, tables):
    """Tables keep the blocks that were seen in them; None is a new block with any number."""
    for name, table in tables.items():
        known = [block for block in table if block is not None]
        if known:
            example.look(f"allocator.block_table({name!r})[:{len(known)}]", known)
        example.look(f"len(allocator.block_table({name!r}))", len(table))
        table[:] = example.names["allocator"].block_table(name)
        slots = [table[i // size] * size + i % size for i in range(tokens[name])]
        example.look(f"[allocator.slot({name!r}, i) for i in range({tokens[name]})]", slots)
    if tables:
        held = ", ".join(f"*allocator.block_table({name!r})" for name in tables)
        example.look(f"len({{{held}}} & set(range({num_blocks})))  # different blocks", sum(map(len, tables.values())),
                     likely="a block is in two tables, or not in the pool")  # fmt: skip
    example.look("allocator.num_free", num_blocks - sum(map(len, tables.values())))


def test_a_large_pool(work):
    """More blocks than fit into 16 bits, long sequences, blocks of 300 tokens, names of a thousand letters."""
    for num_blocks, size in ((70_000, 2), (400, 300)):
        allocator, name = work.Allocator(num_blocks, size), "n" * 1000
        expect(f"100,001 tokens in blocks of {size}", allocator.allocate(name, 100_001), True)
        table = allocator.block_table(name)
        blocks = -(-100_001 // size)
        expect("blocks, and different ones", (len(table), len(set(table))), (blocks, blocks))
        expect("free blocks", allocator.num_free, num_blocks - blocks)
        for position in (299, 70_001, 100_000):
            expect(
                f"the slot of token {position}",
                allocator.slot(name, position),
                table[position // size] * size + position % size,
            )
        for i in range(size):
            expect(f"token {100_002 + i}", allocator.append(name), True)
        expect("the blocks of all tokens", len(allocator.block_table(name)), -(-(100_001 + size) // size))
        blocks += 1
        expect("too many", allocator.allocate("b", num_blocks * size), False)
        expect("the rest", (allocator.allocate("b", (num_blocks - blocks) * size), allocator.num_free), (True, 0))
        allocator.free(name)
        expect("free blocks after the long sequence was freed", allocator.num_free, blocks)
    allocator = work.Allocator(1200, 1)
    allocator.allocate("a", 1)
    for i in range(1150):
        expect(f"token {i + 2} of a", allocator.append("a"), True)
    expect("its blocks", len(set(allocator.block_table("a"))), 1151)
    for i in range(300):
        allocator.allocate(f"s{i}", 1)
    expect("free blocks of 1,200, after 300 more sequences came and 49 of them fit", allocator.num_free, 0)

"""The picture, and a memory of numbers in which every sequence must keep reading what it wrote."""

import itertools

from exercises.examples import Example, at_random
from exercises.grading import OneOf, Wrong, expect, require


def test_a_fork_takes_nothing(work):
    blocks = work.Blocks(6, 4)
    blocks.create("a", 6)
    blocks.fork("a", "b")
    expect(
        "free blocks of six, after a fork of two blocks",
        blocks.num_free,
        4,
        {"the fork allocated blocks instead of sharing": OneOf([2, 3])},
    )
    tables = [blocks.block_table(name) for name in "ab"]
    expect("the tables of both", *tables)
    require(not work.is_same(*tables), "the two tables", "two lists", "one list",
            "copy the list, or both tables change when one sequence appends")  # fmt: skip


def test_the_picture(work):
    blocks = work.Blocks(6, 4)
    blocks.create("a", 6)
    blocks.fork("a", "b")
    first, second = list(blocks.block_table("a"))
    copy = blocks.append("a")
    require(copy is not None, "a's 7th token goes into a block that b holds", "a copy", copy,
            "a would write into b's block")  # fmt: skip
    expect("what is copied", copy[0], second, {"only the block that is written is copied": first})
    expect("a's table then", blocks.block_table("a"), [first, copy[1]], {"a continues in the copy": [first, second]})
    expect("b's table then", blocks.block_table("b"), [first, second], {"b keeps the original": [first, copy[1]]})
    got = blocks.append("b")
    require(got is None, "b's 7th token", None, got,
            "only b holds the block now: no copy; its count has to go down when a leaves it")  # fmt: skip
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
    expect(
        "free blocks of six, after one of two sequences that share two blocks was freed",
        blocks.num_free,
        4,
        {"b still holds them": 6},
    )
    blocks.free("b")
    expect("after both were", blocks.num_free, 6, {"blocks that no sequence holds must be free again": 4})


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
                "the token has no block to itself: did the counts change before it was refused?",
            )
    blocks.free("b")
    got = blocks.append("a"), blocks.append("a"), blocks.num_free
    expect("a's 7th and 8th token, after b is gone", got, (None, None, 0))


def test_no_memory_for_a_new_one(work):
    blocks = work.Blocks(3, 4)
    blocks.create("a", 2)
    try:
        blocks.create("b", 12)
    except MemoryError:
        expect("free blocks of three, after three were refused and one is held", blocks.num_free, 2,
               likely="blocks taken before the pool ran out are lost: check first, then take")  # fmt: skip
        blocks.create("b", 8)
        return
    raise Wrong("three blocks of two that are free", "MemoryError", "nothing", "check before you take")


class Readers:
    """Sequences that write a number for every token into their blocks, and read all of their own numbers."""

    def __init__(self, work, num_blocks, block_size):
        self.blocks, self.block_size = work.Blocks(num_blocks, block_size), block_size
        self.memory, self.lengths, self.numbers = (
            {},
            {},
            itertools.count(),
        )  # (block, row) -> number; name -> its tokens

    def place(self, name, position):
        return self.blocks.block_table(name)[position // self.block_size], position % self.block_size

    def write(self, name):
        self.memory[self.place(name, self.lengths[name])] = next(self.numbers)
        self.lengths[name] += 1

    def create(self, name, num_tokens):
        self.blocks.create(name, num_tokens)
        self.lengths[name] = 0
        for _ in range(num_tokens):
            self.write(name)

    def fork(self, parent, child):
        self.blocks.fork(parent, child)
        self.lengths[child] = self.lengths[parent]

    def append(self, name):
        """Whether a block had to be copied."""
        copy = self.blocks.append(name)
        if copy is not None:
            self.memory.update({(copy[1], row): self.memory.get((copy[0], row)) for row in range(self.block_size)})
        self.write(name)
        return copy is not None

    def free(self, name):
        self.blocks.free(name)
        del self.lengths[name]

    def read(self, name):
        return [self.memory.get(self.place(name, position)) for position in range(self.lengths[name])]


def test_any_family(work):
    """Against tables of anonymous blocks, and lists of what each sequence wrote."""

    def check(choose):
        num_blocks, size = choose.between(1, 7), choose.between(1, 4)
        example = Example(work, __file__, "from exercises.examples import raised",
                          "from exercises.stage5.test_5_6_copy_on_write import Readers")  # fmt: skip
        example.do(f"readers = Readers(work, {num_blocks}, {size})")
        tables, written, numbers = {}, {}, itertools.count()
        for action in choose.each(lambda: choose.upto(6), 30, least=1):
            name = choose.one_of("abcd")
            free = num_blocks - len({id(block) for table in tables.values() for block in table})
            if name not in tables and tables and action < 4:
                parent = choose.one_of(sorted(tables))
                example.do(f"readers.fork({parent!r}, {name!r})")
                tables[name], written[name] = list(tables[parent]), list(written[parent])
            elif name not in tables:
                count = choose.between(1, 2 * size)
                needed = -(-count // size)
                if needed > free:
                    example.expect(f"raised(lambda: readers.create({name!r}, {count}), MemoryError)", "MemoryError")
                    continue
                example.do(f"readers.create({name!r}, {count})")
                tables[name], written[name] = [object() for _ in range(needed)], [next(numbers) for _ in range(count)]
            elif action < 6:
                full = len(written[name]) % size == 0
                shared = not full and sum(tables[name][-1] in table for table in tables.values()) > 1
                if (full or shared) and not free:
                    example.expect(f"raised(lambda: readers.append({name!r}), MemoryError)", "MemoryError")
                    continue
                example.expect(f"readers.append({name!r})", shared)
                if full or shared:
                    tables[name][len(tables[name]) - shared :] = [object()]
                written[name].append(next(numbers))
            else:
                example.do(f"readers.free({name!r})")
                del tables[name], written[name]
            for other, table in tables.items():
                example.look(f"len(readers.blocks.block_table({other!r}))", len(table))
                example.look(f"readers.read({other!r})", written[other])
            held = {id(block) for table in tables.values() for block in table}
            example.look("readers.blocks.num_free", num_blocks - len(held))

    at_random(check)


def test_large_families(work):
    """Hundreds of forks, long sequences, blocks of 300 tokens: one copy per writer, and no more."""
    blocks = work.Blocks(1000, 4)
    blocks.create("parent", 6)
    for i in range(600):
        blocks.fork("parent", f"child {i}")
    copies = [blocks.append(f"child {i}") for i in range(600)]
    last = blocks.block_table("parent")[-1]
    require(all(copy is not None and copy[0] == last for copy in copies), "600 forks that write", "600 copies of one block",
            sum(copy is not None for copy in copies), "the block is shared as long as another sequence holds it")  # fmt: skip
    expect(
        "the parent, after all others have their copy", (blocks.append("parent"), blocks.num_free), (None, 1000 - 602)
    )
    for i in range(600):
        blocks.free(f"child {i}")
    expect("free blocks of 1,000, after the children are gone", blocks.num_free, 998)
    for num_blocks, size, num_tokens in ((1_500, 2, 2_001), (400, 300, 100_001)):
        blocks, name = work.Blocks(num_blocks, size), "n" * 1000
        blocks.create(name, num_tokens)
        blocks.fork(name, "b" * 1000)
        needed = -(-num_tokens // size)
        expect(
            f"{num_tokens:,} tokens in blocks of {size}, and a fork",
            (len(set(blocks.block_table(name))), blocks.num_free),
            (needed, num_blocks - needed),
        )
        copy = blocks.append("b" * 1000)
        both = blocks.block_table(name)[-1], blocks.block_table("b" * 1000)[-1]
        expect("the fork writes", (copy, blocks.num_free), (both, num_blocks - needed - 1))
        blocks.free("b" * 1000)
        expect("free blocks, after the fork is gone", blocks.num_free, num_blocks - needed)


def test_traffic(work):
    """A fork copies a list of numbers, and a token takes at most one block: nothing else is copied."""
    blocks = work.Blocks(4000, 1)
    blocks.create("a", 2000)
    with work.measured() as measured:
        for _ in range(50):
            blocks.append("a")
    require(measured.allocated < 50 * 8000, "bytes allocated for 50 tokens after 2,000", "a few hundred for each", measured.allocated,
            "the whole table is copied for each token")  # fmt: skip

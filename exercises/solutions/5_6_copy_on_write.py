"""A solution of exercise 5.6."""


class Blocks:
    """Blocks that forked sequences share until one of them writes."""

    def __init__(self, num_blocks: int, block_size: int):
        self.block_size = block_size
        self.counts = [0] * num_blocks  # how many tables contain each block
        self.tables: dict[str, list[int]] = {}
        self.num_tokens: dict[str, int] = {}

    @property
    def num_free(self) -> int:
        return self.counts.count(0)

    def take(self) -> int:
        if self.num_free == 0:
            raise MemoryError("no block is free")
        block = self.counts.index(0)
        self.counts[block] = 1
        return block

    def create(self, name: str, num_tokens: int) -> None:
        needed = -(-num_tokens // self.block_size)
        if needed > self.num_free:
            raise MemoryError(f"{needed} blocks are needed, {self.num_free} are free")
        self.tables[name] = [self.take() for _ in range(needed)]
        self.num_tokens[name] = num_tokens

    def fork(self, parent: str, child: str) -> None:
        self.tables[child] = list(self.tables[parent])
        self.num_tokens[child] = self.num_tokens[parent]
        for block in self.tables[child]:
            self.counts[block] += 1

    def append(self, name: str) -> tuple[int, int] | None:
        table, copy = self.tables[name], None
        if self.num_tokens[name] == len(table) * self.block_size:
            table.append(self.take())
        elif self.counts[table[-1]] > 1:
            copy = table[-1], self.take()
            self.counts[copy[0]] -= 1
            table[-1] = copy[1]
        self.num_tokens[name] += 1
        return copy

    def free(self, name: str) -> None:
        for block in self.tables.pop(name):
            self.counts[block] -= 1
        del self.num_tokens[name]

    def block_table(self, name: str) -> list[int]:
        return self.tables[name]


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

FORK = "        self.tables[child] = list(self.tables[parent])\n"
FULL = """        if self.num_tokens[name] == len(table) * self.block_size:
            table.append(self.take())
"""
SHARED = "elif self.counts[table[-1]] > 1:"
COPY = "            copy = table[-1], self.take()\n            self.counts[copy[0]] -= 1\n"
FREE = "        for block in self.tables.pop(name):\n            self.counts[block] -= 1"
MUTANTS = [
    ("a fork copies", FORK, "        self.tables[child] = [self.take() for _ in self.tables[parent]]\n", "and takes none"),
    ("one table for both", "list(self.tables[parent])", "self.tables[parent]", "do both have one list?"),
    ("the child forgets its tokens", "self.num_tokens[child] = self.num_tokens[parent]",
     "self.num_tokens[child] = len(self.tables[parent]) * self.block_size", "free blocks of six"),
    ("never copies", SHARED, "elif False:", "would write into b's block"),
    ("copies the first block", "copy = table[-1], self.take()", "copy = table[0], self.take()", "only the block that is written"),
    ("stays in the original", "            table[-1] = copy[1]\n", "", "continues in the copy"),
    ("the count stays", "            self.counts[copy[0]] -= 1\n", "", "only b holds the block"),
    ("copies a full block", FULL, FULL + "            copy = table[-2], table[-1]\n", "nothing to copy"),
    ("frees what others hold", FREE, FREE.replace("-= 1", "= 0"), "still holds them"),
    ("loses blocks", FREE, FREE.replace("-= 1", "-= self.counts[block] > 1"), "nobody holds them"),
    ("copies as soon as it was shared once", ("        self.counts = [0]", "            self.counts[block] += 1\n", SHARED),
     ("        self.once = set()\n        self.counts = [0]", "            self.counts[block] += 1\n            self.once.add(block)\n",
      "elif table[-1] in self.once:"), "only b holds the block"),
    ("a fork of a fork is not counted", "            self.counts[block] += 1\n", "            self.counts[block] = 2\n", "of three, two copy it"),
    ("changes before it knows", COPY,
     "            old = table.pop()\n            copy = old, self.take()\n            table.append(old)\n            self.counts[old] -= 1\n",
     "nothing has changed"),
    ("leaves before it knows", COPY, "            self.counts[table[-1]] -= 1\n            copy = table[-1], self.take()\n", "nothing has changed"),
    ("counts a refused token", "        table, copy = self.tables[name], None\n",
     "        table, copy = self.tables[name], None\n        self.num_tokens[name] += 1\n        self.num_tokens[name] -= bool(self.num_free)\n",
     "append("),
    ("takes before it knows", "        if needed > self.num_free:\n            raise MemoryError(f\"{needed} blocks are needed, {self.num_free} are free\")\n",
     "", "are lost"),
]  # fmt: skip

ALSO_RIGHT = [
    ("a list of free blocks", ("self.counts = [0] * num_blocks", "return self.counts.count(0)", "block = self.counts.index(0)"),
     ("self.counts = [0] * num_blocks", "return sum(count == 0 for count in self.counts)", "block = max(i for i, count in enumerate(self.counts) if count == 0)")),
    ("counts from the tables each time", SHARED, "elif sum(table[-1] in other for other in self.tables.values()) > 1:"),
]  # fmt: skip

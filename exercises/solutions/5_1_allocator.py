"""A solution of exercise 5.1."""


class Allocator:
    """Blocks for sequences that grow."""

    def __init__(self, num_blocks: int, block_size: int):
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.num_tokens: dict[str, int] = {}

    @property
    def num_free(self) -> int:
        return len(self.free_blocks)

    def num_needed(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate(self, name: str, num_tokens: int) -> bool:
        if name in self.tables:
            raise KeyError(f"{name!r} has blocks already")
        if self.num_needed(num_tokens) > self.num_free:
            return False
        self.tables[name] = [self.free_blocks.pop() for _ in range(self.num_needed(num_tokens))]
        self.num_tokens[name] = num_tokens
        return True

    def append(self, name: str) -> bool:
        if self.num_needed(self.num_tokens[name] + 1) > len(self.tables[name]):
            if not self.free_blocks:
                return False
            self.tables[name].append(self.free_blocks.pop())
        self.num_tokens[name] += 1
        return True

    def free(self, name: str) -> None:
        self.free_blocks += self.tables.pop(name)
        del self.num_tokens[name]

    def block_table(self, name: str) -> list[int]:
        return self.tables[name]

    def slot(self, name: str, position: int) -> int:
        return self.tables[name][position // self.block_size] * self.block_size + position % self.block_size


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

NEEDED = "return -(-num_tokens // self.block_size)"
FULL = "if self.num_needed(self.num_tokens[name] + 1) > len(self.tables[name]):"
FREE = "        self.free_blocks += self.tables.pop(name)\n        del self.num_tokens[name]"
SLOT = "self.tables[name][position // self.block_size] * self.block_size + position % self.block_size"
MUTANTS = [
    ("one block too many", NEEDED, "return num_tokens // self.block_size + 1", "as its tokens fill"),
    ("the last block is forgotten", NEEDED, "return max(1, num_tokens // self.block_size)", "the last one perhaps in part"),
    ("the same block twice", "self.tables[name].append(self.free_blocks.pop())", "self.tables[name].append(self.free_blocks[-1])",
     "the 13th token needs a block"),
    ("takes before it looks", "        if self.num_needed(num_tokens) > self.num_free:\n            return False\n",
     "        if self.num_needed(num_tokens) > self.num_free:\n            self.free_blocks.clear()\n            return False\n",
     "are lost"),
    ("keeps one back", "> self.num_free:", ">= self.num_free:", "the last free block may be used too"),
    ("a block for every token", FULL, "if True:", "and only then"),
    ("does not count", "self.num_tokens[name] += 1", "self.num_tokens[name] = min(5, self.num_tokens[name] + 1)",
     "if the last one is full"),
    ("a refused token is counted", "            if not self.free_blocks:\n                return False\n",
     "            if not self.free_blocks:\n                self.num_tokens[name] += 1\n                return False\n", "it is not counted"),
    ("slots without a table", SLOT, "position", "block from the table"),
    ("blocks as slots", "self.block_size] * self.block_size +", "self.block_size] +", "× block_size"),
    ("loses blocks", "self.free_blocks += self.tables.pop(name)", "self.free_blocks += self.tables.pop(name)[:1]", "blocks were lost"),
    ("freed twice", FREE, "        self.free_blocks += self.tables.pop(name, [])\n        self.num_tokens.pop(name, None)",
     "free raises KeyError"),
    ("looks at the name last", "        if name in self.tables:\n            raise KeyError(f\"{name!r} has blocks already\")\n"
     "        if self.num_needed(num_tokens) > self.num_free:\n            return False\n",
     "        if self.num_needed(num_tokens) > self.num_free:\n            return False\n"
     "        if name in self.tables:\n            raise KeyError(f\"{name!r} has blocks already\")\n", "whatever is free"),
    ("sorts the table", "self.tables[name].append(self.free_blocks.pop())\n",
     "self.tables[name] = sorted([*self.tables[name], self.free_blocks.pop()])\n", "not of the blocks' numbers"),
    ("blocks of one never grow", FULL, "if (self.num_tokens[name] + 1) % self.block_size == 1:", "append("),
]  # fmt: skip

ALSO_RIGHT = [
    ("a set of free blocks", ("self.free_blocks = list(range(num_blocks))", "self.free_blocks += self.tables.pop(name)"),
     ("self.free_blocks = set(range(num_blocks))", "self.free_blocks |= set(self.tables.pop(name))")),
    ("the first that is free, and copies of tables", ("self.free_blocks.pop()", "        return self.tables[name]\n"),
     ("self.free_blocks.pop(0)", "        return list(self.tables[name])\n")),
]  # fmt: skip

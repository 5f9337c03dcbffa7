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


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("one block too many", "return -(-num_tokens // self.block_size)", "return num_tokens // self.block_size + 1",
     "needs no further one"),
    ("the last block is forgotten", "return -(-num_tokens // self.block_size)", "return max(1, num_tokens // self.block_size)",
     "partly filled block counts"),
    ("the same block twice", "[self.free_blocks.pop() for _ in range(self.num_needed(num_tokens))]",
     "self.free_blocks[: self.num_needed(num_tokens)]\n        self.free_blocks = self.free_blocks[1:]\n"
     "        del self.free_blocks[len(self.free_blocks) - self.num_needed(num_tokens) + 1 :]", "given to two sequences"),
    ("takes before it looks", "        if self.num_needed(num_tokens) > self.num_free:\n            return False\n",
     "        if self.num_needed(num_tokens) > self.num_free:\n            self.free_blocks.clear()\n            return False\n",
     "are lost"),
    ("keeps one back", "> self.num_free:", ">= self.num_free:", "may be used too"),
    ("a block for every token", "if self.num_needed(self.num_tokens[name] + 1) > len(self.tables[name]):", "if True:",
     "the last one had room"),
    ("never grows", "if self.num_needed(self.num_tokens[name] + 1) > len(self.tables[name]):", "if False:",
     "the 5th token needs another"),
    ("does not count", "self.num_tokens[name] += 1", "self.num_tokens[name] = min(5, self.num_tokens[name] + 1)",
     "count appended tokens"),
    ("counts what was refused", "            if not self.free_blocks:\n                return False\n",
     "            if not self.free_blocks:\n                self.tables[name].append(self.tables[name][-1])\n                return False\n",
     "no longer agree"),
    ("slots without a table", "return self.tables[name][position // self.block_size] * self.block_size + position % self.block_size",
     "return position", "in the block table"),
    ("blocks as slots", "self.block_size] * self.block_size +", "self.block_size] +", "block_size slots long"),
    ("loses blocks", "self.free_blocks += self.tables.pop(name)", "self.tables.pop(name)", "blocks were lost"),
    ("freed twice", "        self.free_blocks += self.tables.pop(name)\n        del self.num_tokens[name]",
     "        self.free_blocks += self.tables.pop(name, [])\n        self.num_tokens.pop(name, None)", "freed twice"),
    ("sorts the table", "            self.tables[name].append(self.free_blocks.pop())\n",
     "            self.tables[name].append(self.free_blocks.pop())\n            self.tables[name].sort()\n", "the order of the tokens"),
    ("blocks of one never grow", "if self.num_needed(self.num_tokens[name] + 1) > len(self.tables[name]):",
     "if (self.num_tokens[name] + 1) % self.block_size == 1:", "any number modulo 1"),
    ("a refused token is counted", "            if not self.free_blocks:\n                return False\n",
     "            if not self.free_blocks:\n                self.num_tokens[name] += 1\n                return False\n", PASTE),
    ("a refused name has an empty table", "            return False\n        self.tables[name] = [",
     "            self.tables[name] = []\n            return False\n        self.tables[name] = [", "KeyError at line"),
    ("forgets to return True", "        self.num_tokens[name] += 1\n        return True\n", "        self.num_tokens[name] += 1\n", "it contains a None"),
    ("a block of 4 always", "position // self.block_size] * self.block_size + position % self.block_size",
     "position // 4] * 4 + position % 4", PASTE),
    ("gives back the first block alone", "self.free_blocks += self.tables.pop(name)", "self.free_blocks += self.tables.pop(name)[:1]", "free blocks after all were given back"),
    ("takes the block at the end twice", "self.tables[name].append(self.free_blocks.pop())", "self.tables[name].append(self.free_blocks[-1])", "expected:"),
]  # fmt: skip

ALSO_RIGHT = [
    ("a set of free blocks", ("self.free_blocks = list(range(num_blocks))", "self.free_blocks += self.tables.pop(name)"),
     ("self.free_blocks = set(range(num_blocks))", "self.free_blocks |= set(self.tables.pop(name))")),
    ("the first that is free, and copies of tables", ("self.free_blocks.pop()", "        return self.tables[name]\n"),
     ("self.free_blocks.pop(0)", "        return list(self.tables[name])\n")),
]  # fmt: skip

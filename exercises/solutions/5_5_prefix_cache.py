"""A solution of exercise 5.5."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class Entry:
    """A full block that can be found. It is compared by identity: there is one for every prefix."""

    before: "Entry | None"
    tokens: tuple[int, ...]
    block: int
    after: list["Entry"] = field(default_factory=list)


class PrefixCache:
    """Finds blocks by the tokens in them and before them."""

    def __init__(self, block_size: int, hash_function: Callable[[tuple], int] = hash):
        self.block_size, self.hash_function = block_size, hash_function
        self.entries: dict[int, list[Entry]] = {}  # hash -> all entries that have it
        self.of_block: dict[int, Entry] = {}

    def enter(self, token_ids: list[int], blocks: list[int]) -> None:
        """The full blocks of these tokens can be found from now on."""
        full, before = list(self.cut(token_ids)), None
        for tokens, block in zip(full, blocks[: len(full)], strict=True):
            entry = self.look_up(before, tokens)
            if entry is None:
                entry = Entry(before, tokens, block)
                self.entries.setdefault(self.hash_of(before, tokens), []).append(entry)
                self.of_block[block] = entry
                if before is not None:
                    before.after.append(entry)
            before = entry

    def find(self, token_ids: list[int]) -> list[int]:
        """The blocks of the longest cached prefix, with at least one token left to compute."""
        found, before = [], None
        for tokens in self.cut(token_ids[:-1]):
            before = self.look_up(before, tokens)
            if before is None:
                break
            found.append(before.block)
        return found

    def evict(self, block: int) -> None:
        """This block, and those after it, can no longer be found. A block that is not there is ignored."""
        entry = self.of_block.pop(block, None)
        waiting = [] if entry is None else [entry]
        for entry in waiting:  # the list grows in the loop; a chain of blocks may be too long for recursion
            self.of_block.pop(entry.block, None)
            self.entries[self.hash_of(entry.before, entry.tokens)].remove(entry)
            waiting += [other for other in entry.after if self.of_block.get(other.block) is other]

    def cut(self, token_ids: list[int]) -> Iterator[tuple[int, ...]]:
        """The tokens of each full block."""
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            yield tuple(token_ids[start : start + self.block_size])

    def hash_of(self, before: Entry | None, tokens: tuple[int, ...]) -> int:
        return self.hash_function((before.block if before else None, tokens))

    def look_up(self, before: Entry | None, tokens: tuple[int, ...]) -> Entry | None:
        for entry in self.entries.get(self.hash_of(before, tokens), ()):
            if entry.before is before and entry.tokens == tokens:
                return entry
        return None


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

COMPARED = "if entry.before is before and entry.tokens == tokens:"
AFTER = "            waiting += [other for other in entry.after if self.of_block.get(other.block) is other]\n"
CUT = "yield tuple(token_ids[start : start + self.block_size])"
BY_BLOCK = "if (entry.before and entry.before.block) == (before and before.block) and entry.tokens == tokens:"
POP = "        entry = self.of_block.pop(block, None)\n"
MUTANTS = [
    ("tokens as a text", CUT, "yield ''.join(map(str, token_ids[start : start + self.block_size]))", "not their digits"),
    ("tokens by Python's hash", CUT, "yield hash(tuple(token_ids[start : start + self.block_size]))", "not their digits, bytes or hash"),
    ("half blocks", "len(token_ids) - self.block_size + 1, self.block_size):", "len(token_ids), self.block_size):",
     "a block that is not full cannot be found"),
    ("the whole prompt", "self.cut(token_ids[:-1])", "self.cut(token_ids)", "at least one token is left"),
    ("leaves a whole block", "self.cut(token_ids[:-1])", "self.cut(token_ids[: -self.block_size])", "no whole block is left"),
    ("the tokens alone", ("self.hash_function((before.block if before else None, tokens))", COMPARED), ("self.hash_function(tokens)", "if entry.tokens == tokens:"),
     "the same tokens after"),
    ("goes on after a gap", "            if before is None:\n                break\n", "            if before is None:\n                continue\n",
     "not further down"),
    ("the tokens as a set", COMPARED, "if entry.before is before and sorted(entry.tokens) == sorted(tokens):", "find("),
    ("the newer one wins", "            if entry is None:\n                entry = Entry", "            if True:\n                if entry is not None:\n"
     "                    self.entries[self.hash_of(before, tokens)].remove(entry)\n                entry = Entry", "a block that is there stays"),
    ("stops at what is there", "            before = entry\n", "            if entry.block != block:\n                return\n            before = entry\n",
     "new blocks follow"),
    ("evicts a duplicate", POP, POP[:-1] + " or next(iter(self.of_block.values()), None)\n", "changes nothing"),
    ("never evicts", POP, "        entry = None\n", "an evicted block cannot be found"),
    ("names a prefix by its block, and leaves what comes after", (AFTER, COMPARED), ("", BY_BLOCK), "somebody else's prompt"),
    ("trusts the hash", COMPARED, "if True:", "the tokens must be the same"),
    ("one entry a hash", "self.entries.setdefault(self.hash_of(before, tokens), []).append(entry)",
     "self.entries[self.hash_of(before, tokens)] = [entry]", "are kept"),
    ("compares hashes of what came before", COMPARED,
     "if (entry.before is None) == (before is None) and entry.tokens == tokens:", "what came before must be the same"),
]  # fmt: skip

NUMBERS = """    def __init__(self, block_size, hash_function=hash):
        self.block_size, self.names, self.count = block_size, {}, 0

    def chain(self, token_ids):
        name = 0
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            key = name, tuple(token_ids[start : start + self.block_size])
            yield key
            name = self.names.get(key, (0, -1))[1]

    def enter(self, token_ids, blocks):
        for key, block in zip(self.chain(token_ids), blocks):
            if key not in self.names:
                self.count += 1
                self.names[key] = block, self.count

    def find(self, token_ids):
        found = []
        for key in self.chain(token_ids[:-1]):
            if key not in self.names:
                break
            found.append(self.names[key][0])
        return found

    def evict(self, block):
        for key in [key for key, (other, _) in self.names.items() if other == block]:
            del self.names[key]


class Unused:
"""
ALSO_RIGHT = [
    ("prefixes named by numbers that are given out once", "class PrefixCache:\n", "class PrefixCache:\n" + NUMBERS),
    ("the block that is not full is left where it is", "blocks[: len(full)], strict=True", "blocks, strict=False"),
]

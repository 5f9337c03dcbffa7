"""Which blocks of the KV cache belong to which sequence: paging (Kwon et al. 2023, "PagedAttention", section 4).

Plain Python: the manager knows the blocks by number, and never touches their contents. It owns every block. The
sequences that list a block in their tables hold it (`ref_counts`). A block that no sequence holds is free; if it is in
the prefix cache, it can be found there until it is needed for something else.

Prefix caching. A full block is cached in a dictionary. Its key is its tokens and the *prefix id* of the block before
it. A prefix id is never reused, so, like a node of a trie, it stands for a whole prefix: two prefixes that end in the
same tokens are not confused. The dictionary compares whole keys, tokens and all, after their hashes, so a hash
collision costs time and nothing else.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from .request import Request

ROOT = 0  # the prefix id before the first block


class Key(NamedTuple):
    """What a full block holds: these tokens, after the prefix that `parent` identifies."""

    parent: int
    tokens: tuple[int, ...]


class Cached(NamedTuple):
    """A cached block, and the prefix id for the blocks after it."""

    block: int
    prefix_id: int


class BlockTable(NamedTuple):
    """A sequence's blocks in order, and the prefix ids of the full ones (none without prefix caching)."""

    blocks: list[int]
    prefix_ids: list[int]


class BlockManager:
    """Blocks for sequences of tokens: requests, and the beams of a search.

    A sequence gets its blocks with `allocate`, room for one more token at a time with `append`, and loses them with
    `free`. `fork` shares its blocks with another sequence, which beam search does. Before one of them writes to a
    shared block, `copy_on_write` gives it another one.

    Args:
        num_blocks: how many there are.
        block_size: tokens in a block.
        enable_prefix_caching: look for blocks that were computed before.
        watermark: the fraction of the blocks that an admission leaves free, so that running sequences can grow.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool, watermark: float):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.emit: Callable[..., None] = lambda *_, **__: None  # a trace puts its own function here
        self.enable_prefix_caching, self.watermark_blocks = enable_prefix_caching, int(watermark * num_blocks)
        self._next_prefix_id = ROOT + 1
        self.clear()

    def clear(self) -> None:
        """Free all blocks, and empty the prefix cache."""
        self.ref_counts = [0] * self.num_blocks
        self._free = OrderedDict.fromkeys(range(self.num_blocks))  # in the order in which they are taken
        self._table_of: dict[Request, BlockTable] = {}
        self._cached: dict[Key, Cached] = {}  # the prefix cache
        self._key_of: dict[int, Key] = {}  # block -> its key in _cached

    # --- Counts and tables ------------------------------------------------------------------------------------------

    def num_needed(self, num_tokens: int) -> int:
        """Blocks needed for `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def holders(self) -> set[Request]:
        return set(self._table_of)

    @property
    def num_held(self) -> int:
        """How many blocks all sequences hold; a shared one counts once for each."""
        return sum([len(table.blocks) for table in self._table_of.values()])

    def block_table(self, sequence: Request) -> list[int]:
        """The blocks of a sequence, in order. Not a copy."""
        return self._table_of[sequence].blocks

    def slot_mapping(self, sequence: Request, start: int, end: int) -> list[int]:
        """The slots of the positions start to end - 1 of a sequence: block * block_size + offset in the block."""
        blocks, size = self._table_of[sequence].blocks, self.block_size
        return [blocks[i // size] * size + i % size for i in range(start, end)]

    # --- Allocating and freeing -------------------------------------------------------------------------------------

    def num_blocks_to_allocate(self, sequence: Request) -> int:
        """How many free blocks `allocate` would take, counting reused ones that nobody holds."""
        found = self._find_cached(sequence)
        num_new = self.num_needed(sequence.num_tokens) - len(found)
        return num_new + sum(self.ref_counts[cached.block] == 0 for cached in found)

    def allocate(self, sequence: Request) -> int:
        """Give a sequence blocks for all of its tokens.

        Returns:
            how many of its first tokens are in the cache already: never all, since the last one must be computed.
        """
        found = self._find_cached(sequence)
        for cached in found:
            self._incref(cached.block)
        blocks = [cached.block for cached in found]
        blocks += [self._pop_free() for _ in range(self.num_needed(sequence.num_tokens) - len(found))]
        self._table_of[sequence] = BlockTable(blocks, [cached.prefix_id for cached in found])
        return len(found) * self.block_size

    def can_append(self, sequence: Request) -> bool:
        """Whether a sequence's last token has a slot, or there is a free block for it."""
        return self.num_free > 0 or self.num_needed(sequence.num_tokens) <= len(self._table_of[sequence].blocks)

    def append(self, sequence: Request) -> None:
        """Make sure that a sequence's last token has a slot."""
        blocks = self._table_of[sequence].blocks
        if len(blocks) < self.num_needed(sequence.num_tokens):
            blocks.append(self._pop_free())

    def extend(self, sequence: Request, num_tokens: int) -> int:
        """Give a sequence room for up to `num_tokens` more tokens, in free blocks, without touching the reserve.
        Returns how many fit."""
        blocks, end = self._table_of[sequence].blocks, sequence.num_tokens + num_tokens
        while len(blocks) < self.num_needed(end) and self.num_free > self.watermark_blocks:
            blocks.append(self._pop_free())
        return min(end, len(blocks) * self.block_size) - sequence.num_tokens

    def trim(self, sequence: Request, num_tokens: int) -> None:
        """Take back the blocks that a sequence's first `num_tokens` tokens don't need."""
        blocks = self._table_of[sequence].blocks
        while len(blocks) > self.num_needed(num_tokens):
            self._decref(blocks.pop())

    def fork(self, parent: Request, child: Request) -> None:
        """Share a parent's blocks with a child that has the same tokens. Nothing is copied before a sequence writes."""
        table = self._table_of[parent]
        for block in table.blocks:
            self._incref(block)
        self._table_of[child] = BlockTable(list(table.blocks), list(table.prefix_ids))

    def copy_on_write(self, sequence: Request) -> list[tuple[int, int]]:
        """Before a sequence writes to its last block: if others hold it too, give the sequence another one. Returns
        (from, to) of the blocks to copy before the step."""
        blocks = self._table_of[sequence].blocks
        if self.ref_counts[source := blocks[-1]] == 1:
            return []
        blocks[-1] = target = self._pop_free()
        self.emit("copied", sequence, source=source, target=target)
        self._decref(source)
        return [(source, target)]

    def free(self, sequence: Request) -> None:
        """Take back a sequence's blocks, the last one first, so that shared prefixes stay cached longest."""
        for block in reversed(self._table_of.pop(sequence).blocks):
            self._decref(block)

    def _pop_free(self) -> int:
        """Take a free block: one that is not cached or, if none is left, the least recently used, which is evicted."""
        block = next(iter(self._free))
        if block in self._key_of:
            self.emit("evicted", block=block)
            self._evict(block)
        self._incref(block)
        return block

    def _incref(self, block: int) -> None:
        if self.ref_counts[block] == 0:
            del self._free[block]
            self.emit("taken", block=block)
        self.ref_counts[block] += 1

    def _decref(self, block: int) -> None:
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self._free[block] = None
            if block not in self._key_of:  # not cached: the first to be taken
                self._free.move_to_end(block, last=False)
            self.emit("released", block=block, cached=block in self._key_of)

    # --- Prefix caching ---------------------------------------------------------------------------------------------

    def cache_full_blocks(self, sequence: Request, num_computed_tokens: int) -> None:
        """Put a sequence's full blocks into the prefix cache, even those that the coming step will fill: in each layer,
        a step writes its keys and values before it reads any."""
        table = self._table_of[sequence]
        num_full = num_computed_tokens // self.block_size
        if not self.enable_prefix_caching or num_full <= len(table.prefix_ids):
            return
        token_ids = sequence.token_ids
        while len(table.prefix_ids) < num_full:
            i = len(table.prefix_ids)
            key, block = self._key(table.prefix_ids, token_ids), table.blocks[i]
            if key not in self._cached:  # else this block is a duplicate, and not cached
                self._cached[key] = Cached(block, self._next_prefix_id)
                self._key_of[block] = key
                self._next_prefix_id += 1
            table.prefix_ids.append(self._cached[key].prefix_id)

    def _find_cached(self, sequence: Request) -> list[Cached]:
        """The leading full blocks of a sequence that are cached and need not be computed."""
        token_ids, found, prefix_ids = sequence.token_ids, [], []
        while self.enable_prefix_caching and (len(prefix_ids) + 1) * self.block_size <= sequence.num_cacheable:
            cached = self._cached.get(self._key(prefix_ids, token_ids))
            if cached is None:
                break
            found.append(cached)
            prefix_ids.append(cached.prefix_id)
        return found

    def _key(self, prefix_ids: list[int], token_ids: list[int]) -> Key:
        """The key of the block after those with these prefix ids."""
        start = len(prefix_ids) * self.block_size
        return Key(prefix_ids[-1] if prefix_ids else ROOT, tuple(token_ids[start : start + self.block_size]))

    def _evict(self, block: int) -> None:
        del self._cached[self._key_of.pop(block)]

    # --- The invariant ----------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise RuntimeError unless each block is either free or held as often as it is counted, and the prefix cache
        and its blocks agree."""
        held = [0] * self.num_blocks
        for table in self._table_of.values():
            for block in table.blocks:
                held[block] += 1
        if held != self.ref_counts:
            raise RuntimeError(f"blocks are held {held}, but counted {self.ref_counts}")
        if sorted(self._free) != [block for block, count in enumerate(held) if count == 0]:
            raise RuntimeError(f"blocks {sorted(self._free)} are called free, but the counts are {held}")
        if {cached.block: key for key, cached in self._cached.items()} != self._key_of:
            raise RuntimeError("the prefix cache and the keys of its blocks do not agree")

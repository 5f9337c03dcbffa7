"""Which blocks of the KV cache belong to which request: paging (Kwon et al. 2023, "PagedAttention", section 4).

A request's table lists its blocks, in order. (A beam of a search is a request, too.)

Plain Python: the manager knows the blocks by number, and never touches their contents. It owns every block. A block is
held by every request whose table lists it; `ref_counts` says how many. A block that nobody holds is free. If it is in
the prefix cache, it can still be found until it is reused.

Prefix caching. A full block has a *prefix id*, which stands for all tokens up to its end, like a node of a trie. The
block is cached in a dictionary, under its tokens and the prefix id of the block before it: so two prefixes that end in
the same tokens are not confused. A prefix id is never reused: once a block is evicted, no lookup reaches the entries
after it. The dictionary compares whole keys, tokens and all, after their hashes, so a hash collision costs time and
nothing else.
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


class BlockManager:
    """Gives requests their blocks.

    A request gets its blocks with `allocate`, room for one more token at a time with `append`, and loses them with
    `free`. `fork` shares its blocks with another request, which beam search does. Before one of them writes to a shared
    block, `copy_on_write` gives it another one.

    Args:
        num_blocks: how many there are.
        block_size: tokens in a block.
        enable_prefix_caching: look for blocks that were computed before.

    Attributes:
        tables: the blocks of each request, in order.
        ref_counts: how many tables list each block.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.enable_prefix_caching, self._last_prefix_id = enable_prefix_caching, ROOT
        self.emit: Callable[..., None] = lambda *_, **__: None  # a trace puts its own function here
        self.clear()

    def clear(self) -> None:
        """Free all blocks, and empty the prefix cache."""
        self.tables: dict[Request, list[int]] = {}
        self.ref_counts = [0] * self.num_blocks
        self._free = OrderedDict.fromkeys(range(self.num_blocks))  # in the order in which they are taken
        self._cached: dict[Key, int] = {}  # the prefix cache: the block of each key
        self._key_of: dict[int, Key] = {}  # the key of each cached block
        self._prefix_ids = [ROOT] * self.num_blocks  # of each full block, with prefix caching

    # --- Counts and slots -------------------------------------------------------------------------------------------

    def num_needed(self, num_tokens: int) -> int:
        """Blocks needed for `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        """How many blocks all requests hold; a shared one counts once for each."""
        return sum(map(len, self.tables.values()))

    def slot_mapping(self, request: Request, start: int, end: int) -> list[int]:
        """The slots of the positions start to end - 1 of a request: block * block_size + offset in the block."""
        blocks, size = self.tables[request], self.block_size
        return [blocks[i // size] * size + i % size for i in range(start, end)]

    # --- Allocating and freeing -------------------------------------------------------------------------------------

    def num_blocks_to_allocate(self, request: Request) -> int:
        """How many free blocks `allocate` would take. Cached blocks that others hold cost nothing; cached blocks that
        are free are taken like any other."""
        num_held = sum(self.ref_counts[block] > 0 for block in self._find_cached(request))
        return self.num_needed(request.num_tokens) - num_held

    def allocate(self, request: Request) -> int:
        """Give a request blocks for all of its tokens.

        Returns:
            how many of its first tokens are in the cache already: never all, since the last one must be computed.
        """
        blocks = self._find_cached(request)
        for block in blocks:
            self._incref(block)
        num_cached = len(blocks) * self.block_size
        while len(blocks) < self.num_needed(request.num_tokens):
            blocks.append(self._pop_free())
        self.tables[request] = blocks
        return num_cached

    def can_append(self, request: Request) -> bool:
        """Whether a request's last token has a slot, or there is a free block for it."""
        needs_block = self.num_needed(request.num_tokens) > len(self.tables[request])
        return not needs_block or self.num_free > 0

    def append(self, request: Request) -> None:
        """Make sure that a request's last token has a slot."""
        if len(self.tables[request]) < self.num_needed(request.num_tokens):
            self.tables[request].append(self._pop_free())

    def fork(self, parent: Request, child: Request) -> None:
        """Share a parent's blocks with a child that has the same tokens. Nothing is copied before one of them
        writes."""
        for block in self.tables[parent]:
            self._incref(block)
        self.tables[child] = list(self.tables[parent])

    def copy_on_write(self, request: Request) -> list[tuple[int, int]]:
        """Before a request writes to its last block: if others hold it too, give the request another one. Returns
        (from, to) of the blocks to copy before the step."""
        blocks = self.tables[request]
        if self.ref_counts[source := blocks[-1]] == 1:
            return []
        blocks[-1] = target = self._pop_free()
        self.emit("copied", request, source=source, target=target)
        self._decref(source)
        return [(source, target)]

    def free(self, request: Request) -> None:
        """Take back a request's blocks, the last one first, so that shared prefixes stay cached longest."""
        for block in reversed(self.tables.pop(request)):
            self._decref(block)

    def _pop_free(self) -> int:
        """Take a free block: one that is not cached or, if none is left, the least recently used, which is evicted."""
        block = next(iter(self._free))
        if block in self._key_of:
            self.emit("evicted", block=block)
            del self._cached[self._key_of.pop(block)]
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
            is_cached = block in self._key_of
            self._free[block] = None
            self._free.move_to_end(block, last=is_cached)  # if it is not cached, it is the first to be taken
            self.emit("released", block=block, cached=is_cached)

    # --- Prefix caching ---------------------------------------------------------------------------------------------

    def cache_full_blocks(self, request: Request, start: int, end: int) -> None:
        """Cache the blocks that the tokens start to end - 1 of a request fill, even before the step that computes
        them: in each layer, a step writes its keys and values before it reads any."""
        blocks, size = self.tables[request], self.block_size
        full = range(start // size, end // size)
        if not self.enable_prefix_caching or not full:  # most decodes fill none: don't build the list of tokens
            return
        token_ids = request.token_ids
        for i in full:
            parent = self._prefix_ids[blocks[i - 1]] if i else ROOT
            key = Key(parent, tuple(token_ids[i * size : (i + 1) * size]))
            if key not in self._cached:
                self._last_prefix_id += 1
                self._prefix_ids[blocks[i]] = self._last_prefix_id
                self._cached[key], self._key_of[blocks[i]] = blocks[i], key
            else:  # a duplicate: it is not cached, but stands for the same prefix
                self._prefix_ids[blocks[i]] = self._prefix_ids[self._cached[key]]

    def _find_cached(self, request: Request) -> list[int]:
        """The leading full blocks of a request that are cached and need not be computed."""
        token_ids, size, found, parent = request.token_ids, self.block_size, [], ROOT
        while self.enable_prefix_caching and (len(found) + 1) * size <= request.num_cacheable:
            start = len(found) * size
            block = self._cached.get(Key(parent, tuple(token_ids[start : start + size])))
            if block is None:
                break
            found.append(block)
            parent = self._prefix_ids[block]
        return found

    # --- The invariant ----------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """For tests: raise RuntimeError unless each block is either free or held as often as it is counted, and the
        prefix cache and its blocks agree."""
        held = [0] * self.num_blocks
        for table in self.tables.values():
            for block in table:
                held[block] += 1
        if held != self.ref_counts:
            raise RuntimeError(f"blocks are held {held}, but counted {self.ref_counts}")
        if sorted(self._free) != [block for block, count in enumerate(held) if count == 0]:
            raise RuntimeError(f"blocks {sorted(self._free)} are called free, but the counts are {held}")
        if {block: key for key, block in self._cached.items()} != self._key_of:
            raise RuntimeError("the prefix cache and the keys of its blocks do not agree")

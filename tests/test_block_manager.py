"""From stage 5 on: the allocator, against a simple model of it, and by example."""

import random

import pytest

pytestmark = pytest.mark.covers("block_manager.py")
NUMBERS = range(5, 9)  # of the stages that this runs on, see conftest.py


class Sequence:
    """What the manager reads of a request."""

    def __init__(self, token_ids):
        self.token_ids, self.num_computed = list(token_ids), 0

    @property
    def num_tokens(self):
        return len(self.token_ids)

    @property
    def num_cacheable(self):
        return len(self.token_ids) - 1


class Memory:
    """Sequences come, grow, fork and go, and the model plays the KV cache: each row of a block holds the whole prefix
    that its key and value would be computed from. So a block that is shared, found or copied wrongly shows at once."""

    def __init__(self, manager):
        self.manager, self.size, self.num_blocks = manager, manager.block_size, manager.num_blocks
        self.rows = [[None] * self.size for _ in range(self.num_blocks)]
        self.sequences = []

    def compute(self, sequence, upto):
        """A step: first the copies, then the new rows are written, then all may read."""
        copies = self.manager.copy_on_write(sequence)
        self.manager.cache_full_blocks(sequence, sequence.num_computed, upto)
        for target, rows in [(to, list(self.rows[source])) for source, to in copies]:
            self.rows[target] = rows
        for i, slot in zip(
            range(sequence.num_computed, upto),
            self.manager.slot_mapping(sequence, sequence.num_computed, upto),
            strict=True,
        ):
            block = slot // self.size
            holders = sum(block in self.manager.tables[other] for other in self.sequences)
            assert holders == 1, "a shared block is written"
            self.rows[block][slot % self.size] = tuple(sequence.token_ids[: i + 1])
        sequence.num_computed = upto

    def arrive(self, token_ids, part):
        """A sequence, of which this part is computed at once."""
        sequence = Sequence(token_ids)
        needed, free = -(-len(token_ids) // self.size), self.manager.num_free
        if self.manager.num_blocks_to_allocate(sequence) > free:
            assert needed > free, "there are blocks, hit or not"
            return
        num_cached = self.manager.allocate(sequence)
        self.sequences.append(sequence)
        assert 0 <= num_cached < len(token_ids)
        assert num_cached % self.size == 0
        assert num_cached == 0 or self.manager.enable_prefix_caching
        sequence.num_computed = num_cached
        assert len(self.manager.tables[sequence]) == needed
        self.compute(sequence, max(num_cached + 1, round(part * len(token_ids))))

    def grow(self, sequence, token):
        if sequence.num_computed < len(sequence.token_ids):
            self.compute(sequence, len(sequence.token_ids))
            return
        sequence.token_ids.append(token)
        shares = self.manager.ref_counts[self.manager.tables[sequence][-1]] > 1
        if self.manager.can_append(sequence) and (self.manager.num_free or not shares):
            self.manager.append(sequence)
            self.compute(sequence, len(sequence.token_ids))
        else:
            assert self.manager.num_free == 0
            self.go(sequence)

    def fork(self, parent):
        if parent.num_computed == len(parent.token_ids):
            child = Sequence(parent.token_ids)
            child.num_computed = parent.num_computed
            free = self.manager.num_free
            self.manager.fork(parent, child)
            assert self.manager.num_free == free
            self.sequences.append(child)

    def go(self, sequence):
        self.sequences.remove(sequence)
        self.manager.free(sequence)

    def clear(self):
        self.sequences.clear()
        self.manager.clear()
        assert self.manager.num_free == self.num_blocks

    def check(self):
        """Every sequence reads its own past, and no block is lost."""
        for sequence in self.sequences:
            for i, slot in enumerate(self.manager.slot_mapping(sequence, 0, sequence.num_computed)):
                assert self.rows[slot // self.size][slot % self.size] == tuple(sequence.token_ids[: i + 1])
        self.manager.check_integrity()
        held = {block for sequence in self.sequences for block in self.manager.tables[sequence]}
        assert len(held) + self.manager.num_free == self.num_blocks


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("collide", [False, True])
def test_against_the_model(stage, monkeypatch, collide, seed):
    """In pools of all sizes, with two tokens, so that prefixes meet."""
    part, rng = stage.part("block_manager"), random.Random(seed)
    if collide:  # every key looks like every other: only the tokens and the prefix tell them apart
        monkeypatch.setattr(part.Key, "__hash__", lambda self: 7, raising=False)
    memory = Memory(part.BlockManager(rng.randrange(1, 13), rng.randrange(1, 5), rng.random() < 0.9))
    for _ in range(120):
        name = rng.choice(["arrive", "grow", "grow", "grow", "fork", "go"])
        if rng.random() < 0.01:
            memory.clear()
        elif name == "arrive":
            memory.arrive([rng.randrange(2) for _ in range(rng.randrange(1, 13))], rng.random())
        elif memory.sequences:
            sequence = rng.choice(memory.sequences)
            getattr(memory, name)(sequence, *([rng.randrange(2)] if name == "grow" else []))
        memory.check()


def test_blocks_are_taken_when_tokens_need_them(stage):
    """Not before, without a prefix cache, and freed blocks can be taken again."""
    manager = stage.part("block_manager").BlockManager(3, 4, False)
    a, b = Sequence(range(6)), Sequence(range(4))
    assert (manager.num_blocks_to_allocate(a), manager.allocate(a)) == (2, 0)
    assert (len(manager.tables[a]), manager.num_free) == (2, 1)
    before = list(manager.tables[a])
    a.token_ids.append(6)
    manager.append(a)
    assert manager.tables[a] == before  # its last block has room
    manager.allocate(b)
    assert sorted(before + manager.tables[b]) == [0, 1, 2]
    b.token_ids.append(4)
    assert (manager.can_append(a), manager.can_append(b)) == (True, False)  # A needs no block, and none is free
    manager.free(a)
    manager.append(b)
    assert (len(manager.tables[b]), manager.num_free) == (2, 1)
    first, second = manager.tables[b]
    assert second in before
    assert manager.slot_mapping(b, 2, 5) == [first * 4 + 2, first * 4 + 3, second * 4]
    manager.check_integrity()


def test_found_blocks_are_counted(stage):
    """As long as another holds them they cost nothing. When none does they are free, and count as the new one does."""
    manager = make(stage, num_blocks=10)
    a, _ = allocate(manager, [1, 2, 3, 4])
    assert manager.num_blocks_to_allocate(Sequence([1, 2, 3, 4, 0])) == 1
    manager.free(a)
    assert manager.num_blocks_to_allocate(Sequence([1, 2, 3, 4, 0])) == 3


def test_a_prefix_id_is_never_used_again(stage):
    """A and B have the same first block. A's, which is entered, is taken for other tokens: B's second block comes after
    the old ones, not after these. (A duplicate takes no entry.)"""
    manager = stage.part("block_manager").BlockManager(5, 4, True)
    a, b, others = Sequence([1, 2, 3, 4]), Sequence(range(1, 9)), Sequence(range(60, 68))
    for sequence in (a, b, others):
        manager.allocate(sequence)
    for sequence in (a, b):
        manager.cache_full_blocks(sequence, 0, sequence.num_tokens)
    manager.check_integrity()
    manager.free(a)
    c = Sequence([9, 9, 9, 9])
    manager.allocate(c)
    manager.cache_full_blocks(c, 0, 4)
    manager.free(others)
    assert manager.allocate(Sequence([9, 9, 9, 9, 5, 6, 7, 8, 1])) == 4
    manager.check_integrity()


def test_a_block_that_is_not_full_can_not_be_found(stage):
    manager = make(stage, block_size=4)
    manager.allocate(first := Sequence(range(9)))
    manager.cache_full_blocks(first, 0, 7)
    assert manager.allocate(Sequence(range(9))) == 4


def test_what_can_not_be_found_goes_first(stage):
    manager = make(stage, num_blocks=4)
    named, _ = allocate(manager, [1, 2])
    unnamed, _ = allocate(manager, [1])
    named_block, unnamed_block = manager.tables[named][0], manager.tables[unnamed][0]
    manager.free(named)
    manager.free(unnamed)
    taken = [manager._pop_free() for _ in range(4)]
    assert taken[0] == unnamed_block
    assert taken[-1] == named_block


def make(stage, num_blocks=8, block_size=2, enable_prefix_caching=True):
    return stage.part("block_manager").BlockManager(num_blocks, block_size, enable_prefix_caching)


def allocate(manager, token_ids):
    sequence = Sequence(token_ids)
    num_cached = manager.allocate(sequence)
    manager.cache_full_blocks(sequence, num_cached, len(token_ids))
    return sequence, num_cached


def test_a_prefix_is_found_whoever_holds_it(stage):
    manager = make(stage)
    first, _ = allocate(manager, [1, 2, 3, 4, 5])
    second, num_cached = allocate(manager, [1, 2, 3, 4, 6, 7])
    assert num_cached == 4
    assert manager.tables[first][:2] == manager.tables[second][:2]
    assert manager.num_free == 8 - 4
    manager.free(first)
    manager.free(second)
    assert manager.num_free == 8
    assert allocate(manager, [1, 2, 3, 4, 6, 7, 8])[1] == 6  # what is free can still be found
    assert allocate(make(stage, enable_prefix_caching=False), [1, 2, 3])[1] == 0


def test_one_token_is_left_to_compute(stage):
    manager = make(stage)
    allocate(manager, [1, 2, 3, 4])
    assert allocate(manager, [1, 2, 3, 4])[1] == 2
    assert allocate(manager, [1, 2])[1] == 0
    assert allocate(manager, [1])[1] == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (range(12), [2**61 - 1, *range(1, 12)]),
        (range(12), [2**16, *range(1, 12)]),
        (range(12), [*range(11), 12]),
        ([26553, 48707], [20772, 29272]),  # as text, in parentheses, they have the same CRC-32
    ],
)
def test_a_block_of_almost_the_same_tokens_is_another_block(stage, one, other):
    """Even if the difference would be lost in a hash (that of 2**61 - 1 is 0), in 16 bits, past the first tokens, or in
    a checksum."""
    manager = make(stage, block_size=len(one))
    allocate(manager, [*one, 0])
    assert allocate(manager, [*other, 0])[1] == 0


def test_the_same_tokens_after_another_prefix_are_another_block(stage):
    manager = make(stage)
    allocate(manager, [1, 2, 5, 5, 0])
    assert allocate(manager, [3, 4, 5, 5, 0])[1] == 0
    assert allocate(manager, [5, 5, 0])[1] == 0


def test_least_recently_used_goes_first_and_tails_before_heads(stage):
    manager = make(stage, num_blocks=6)
    old, _ = allocate(manager, [1, 2, 3, 4])
    new, _ = allocate(manager, [5, 6, 7, 8])
    old_blocks, new_blocks = list(manager.tables[old]), list(manager.tables[new])
    manager.free(old)
    manager.free(new)
    taken = [manager._pop_free() for _ in range(6)]
    assert set(taken[:2]) == set(range(6)) - {*old_blocks, *new_blocks}  # what holds nothing
    assert taken[2:] == [*old_blocks[::-1], *new_blocks[::-1]]


def test_an_evicted_head_is_not_found_and_its_tail_is_never_mistaken(stage):
    manager = make(stage, num_blocks=3)
    first, _ = allocate(manager, [1, 2, 3, 4, 0])
    manager.free(first)
    other, _ = allocate(manager, [9, 9, 9, 9, 9])  # takes all there is
    manager.free(other)
    assert allocate(manager, [1, 2, 3, 4, 0])[1] == 0


def test_copy_on_write(stage):
    """Only the last block of those that share it is copied, when it is written, and the last one writes in place."""
    manager = make(stage)
    parent, _ = allocate(manager, [1, 2, 3])
    children = [Sequence(parent.token_ids) for _ in range(2)]
    for child in children:
        manager.fork(parent, child)
    assert manager.num_free == 6
    shared, told = manager.tables[parent][1], []
    manager.emit = lambda kind, *_, **details: told.append((kind, details))
    made = []
    for i, sequence in enumerate([*children, parent]):
        sequence.token_ids.append(10 + i)
        manager.append(sequence)
        made += manager.copy_on_write(sequence)
    copies = [(shared, manager.tables[child][1]) for child in children]
    assert made == copies
    assert [details for kind, details in told if kind == "copied"] == [dict(source=s, target=t) for s, t in copies]
    assert manager.tables[parent][1] == shared
    assert len({manager.tables[s][1] for s in [*children, parent]}) == 3
    assert {manager.tables[s][0] for s in children} == {manager.tables[parent][0]}
    manager.check_integrity()


def test_a_full_last_block_needs_no_copy(stage):
    manager = make(stage)
    parent, _ = allocate(manager, [1, 2])
    child = Sequence(parent.token_ids)
    manager.fork(parent, child)
    for sequence in (parent, child):
        sequence.token_ids.append(3)
        manager.append(sequence)
        assert manager.copy_on_write(sequence) == []

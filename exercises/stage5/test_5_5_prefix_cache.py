"""5.5 The prefix cache: hits, near misses, hashes that all collide, and a slow cache that can't be wrong."""

import itertools
import random

import pytest

from exercises.calls import Calls


def tokens(letters):
    return [*map(ord, letters)]


def after(cache, steps):
    """A cache in which prompts were entered, (letters, blocks), and blocks evicted."""
    for step in steps:
        if isinstance(step, int):
            cache.evict(step)
        else:
            cache.enter(tokens(step[0]), list(step[1]))
    return cache


def case(rule, *steps):
    *steps, prompt, expected = steps
    return pytest.param(steps, prompt, expected, id=rule)


@pytest.mark.parametrize(("enter_or_evict", "prompt", "expected"), [
    case("an empty cache finds nothing", "abcdefghi", []),
    case("the full blocks of a prompt can be found", ("abcdefgh", [3, 7]), "abcdefghXYZW", [3, 7]),
    case("one token left to compute is enough: no whole block is left", ("abcdefgh", [3, 7]), "abcdefghi", [3, 7]),
    case("a block that is not full cannot be found", ("abcdefghij", [3, 7, 8]), "abcdefghijk", [3, 7]),
    case("a block that is not full may have an id or none", ("abcdefghij", [3, 7]), "abcdefghijk", [3, 7]),
    case("at least one token is left to compute", ("abcdefgh", [3, 7]), "abcdefgh", [3]),
    case("of four tokens one is left to compute: no block", ("abcdefgh", [3, 7]), "abcd", []),
    case("blocks are found from the first on, up to the one that differs", ("abcdefghijklm", [3, 7, 8]), "abcdXfghijklm", [3]),
    case("blocks are found from the first on, not further down in the prompt", ("abcde", [3]), "XXXXabcde", []),
    case("all tokens of a block must be the same", ("abcde", [3]), "abcXe", []),
    case("the tokens of a block must be in the same order", ("abcde", [3]), "bacde", []),
    case("the same tokens after others are not the same block", ("abcdefghi", [3, 7]), "Xbcdefghi", []),
    case("two blocks with the same tokens after different ones", ("abcdefghi", [3, 7]), ("Xbcdefghi", [5, 9]), "Xbcdefghi", [5, 9]),
    case("two blocks with the same tokens after different ones, the first", ("abcdefghi", [3, 7]), ("Xbcdefghi", [5, 9]), "abcdefghi", [3, 7]),
    case("a block that is there stays, and the new one is not entered", ("abcde", [0]), ("abcde", [5]), "abcde", [0]),
    case("new blocks follow the ones that were there", ("abcdefghi", [0, 1]), ("abcdefghijklm", [5, 6, 7]), "abcdefghijklm", [0, 1, 7]),
    case("evicting a block that is not there changes nothing", ("abcde", [0]), ("abcde", [5]), 5, 77, "abcde", [0]),
    case("an evicted block cannot be found", ("abcdefghi", [0, 1]), 1, "abcdefghi", [0]),
    case("no block after an evicted one can be found", ("abcdefghijklm", [0, 1, 2]), 1, "abcdefghijklm", [0]),
    case("a block after an evicted one is not found when the gap is filled: it may hold something else",
         ("abcdefghijklm", [0, 1, 2]), 1, ("abcdefghi", [0, 9]), "abcdefghijklm", [0, 9]),
    case("a block after an evicted one is not found after the new tokens of that one: an answer to somebody else's prompt",
         ("abcdefghi", [3, 7]), 3, ("ABCDe", [3]), "ABCDefghi", [3]),
    case("a block two after an evicted one is not found when both have new tokens", ("abcdefghijklm", [0, 1, 2]), 0, ("ijklefghX", [0, 1]), "ijklefghijklm", [0, 1]),
    case("an evicted block is not found under its old tokens when it has new ones", ("abcde", [0]), 0, ("ABCDe", [0]), "abcde", []),
    case("evicted blocks can be entered again", ("abcdefghi", [0, 1]), 0, ("abcdefghi", [0, 1]), "abcdefghi", [0, 1]),
    case("evicting a block leaves alone the one that took its place", ("abcde", [0]), 0, ("abcde", [5]), 0, "abcde", [5]),
])  # fmt: skip
def test_blocks_of_four(work, enter_or_evict, prompt, expected):
    assert after(work.PrefixCache(4), enter_or_evict).find(tokens(prompt)) == expected


@pytest.mark.parametrize(("enter_or_evict", "prompt", "expected"), [
    case("a hash is not enough: the tokens must be the same", ("abcde", [0]), "ABCDe", []),
    case("a hash is not enough: what came before must be the same", ("abcdefghi", [0, 1]), ("ABCDe", [2]), "ABCDefghi", [2]),
    case("all entries with the same hash are kept", ("abcdefghi", [0, 1]), ("ABCDefghi", [2, 3]), "abcdefghi", [0, 1]),
])  # fmt: skip
def test_all_hashes_are_equal(work, enter_or_evict, prompt, expected):
    assert after(work.PrefixCache(4, hash_function=lambda key: 0), enter_or_evict).find(tokens(prompt)) == expected


def test_tokens_of_any_size(work):
    """Tokens are integers of any size: compare them, not their digits, bytes or hash."""
    for entered, prompt in (([1, 23], [12, 3]), ([1, 2], [257, 2]), ([1, 2], [1 + 2**32, 2]), ([1, 2], [2**61, 2])):
        cache = work.PrefixCache(2)
        cache.enter([*entered, 0], [5])
        assert cache.find([*prompt, 0]) == [], f"{entered} was entered, find {prompt}"


def test_what_came_before_by_its_hash(work):
    """What came before a block is compared by its tokens; Python gives 1 and 2^61 the same hash."""
    cache = work.PrefixCache(2)
    cache.enter([1, 2, 7, 8, 0], [0, 1])
    cache.enter([2**61, 2, 0], [5])
    assert cache.find([2**61, 2, 7, 8, 0]) == [5]


class SlowCache:
    """Each cached prefix written out in full. It also knows which blocks are free."""

    def __init__(self, size):
        self.size, self.free, self.blocks = size, list(range(8)), {}  # prefix -> block

    def prefixes(self, token_ids):
        return [tuple(token_ids[:end]) for end in range(self.size, len(token_ids) + 1, self.size)]

    def enter(self, token_ids):
        """The blocks that hold these tokens, new ones among them; None if there are not enough."""
        prefixes = self.prefixes(token_ids)
        new = [prefix for prefix in prefixes if prefix not in self.blocks]
        if len(new) > len(self.free):
            return None
        self.blocks |= {prefix: self.free.pop(0) for prefix in new}
        return [self.blocks[prefix] for prefix in prefixes]

    def find(self, token_ids):
        return [self.blocks[p] for p in itertools.takewhile(self.blocks.__contains__, self.prefixes(token_ids[:-1]))]

    def evict(self, block):
        gone = [prefix for prefix, other in self.blocks.items() if other == block]
        for prefix in [p for p in self.blocks for old in gone if p[: len(old)] == old]:
            self.free.insert(0, self.blocks.pop(prefix))  # it is used again soon


def test_any_prompts(work):
    """Random prompts of two different tokens; blocks are used again as soon as they are evicted."""
    for seed in range(600):
        choose, call = random.Random(seed), Calls()
        hashing = {"hash_function": lambda key: 0} if seed % 2 else {}
        size = choose.randint(1, 3)
        cache, slow = work.PrefixCache(size, **hashing), SlowCache(size)
        for _ in range(3 + seed // 20):
            prompt, action = choose.choices([0, 1], k=choose.randint(1, 9)), choose.choice("fffeeev")
            if action == "v":
                block = choose.randrange(8)
                call(cache.evict, block)
                slow.evict(block)
            elif action == "f":
                got = call(cache.find, prompt)
                assert got == slow.find(prompt), f"blocks of {size}{', all hashes are equal' * (seed % 2)}: {call}"
            elif blocks := slow.enter(prompt):
                call(cache.enter, prompt, blocks)

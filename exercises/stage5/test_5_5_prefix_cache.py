"""Hits, near misses, hashes that all collide, and a slow cache that can't be wrong."""

import itertools
import random

from exercises.examples import Example, at_random
from exercises.grading import OneOf, Wrong, expect, require

A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]


def test_hits(work):
    cache = work.PrefixCache(4)
    expect("an empty cache", cache.find(A + B), [])
    cache.enter(A + B + [9, 10], [3, 7, 8])
    said = {"only full blocks can be shared: the third is still being written": [3, 7, 8]}
    expect("the same ten tokens", cache.find(A + B + [9, 10]), [3, 7], said)
    expect("the same ten and one more", cache.find([*A, *B, 9, 10, 11]), [3, 7], said)
    expect("the same beginning, another end", cache.find([*A, *B, 50, 51, 52, 53]), [3, 7])
    half = work.PrefixCache(4)
    half.enter([*A, *B, 9, 10, 11], [3, 7, 8])
    expect("eleven tokens were entered; find the same and one more", half.find([*A, *B, 9, 10, 11, 12]), [3, 7], said)
    said = {"blocks are found from the start, up to the first one that differs": [3, 7]}
    expect("another second block", cache.find([*A, 5, 6, 7, 99, 1]), [3], said)
    expect("another first block", cache.find([99, 2, 3, 4, *B, 1]), [],
           {"the second block has the same tokens, but its keys depend on other tokens before it": [7]})  # fmt: skip


def test_one_token_is_left(work):
    cache = work.PrefixCache(4)
    cache.enter(A + B, [3, 7])
    said = {"the whole prompt was found: one token must be left to compute, for its logits": [3, 7]}
    expect("exactly the eight tokens that are there", cache.find(A + B), [3], said)
    expect(
        "one token more",
        cache.find([*A, *B, 9]),
        [3, 7],
        {"a full block may be used as soon as one token is left": [3]},
    )
    expect("four tokens", cache.find(A), [])


def test_chains(work):
    cache = work.PrefixCache(4)
    cache.enter([*A, *C, 1], [0, 1])
    cache.enter([*B, *C, 1], [2, 3])
    said = {"the same tokens after a different prefix are a different block": [2, 1]}
    expect(
        "C after A",
        cache.find([*A, *C, 1]),
        [0, 1],
        {"the same tokens after a different prefix are a different block": [0, 3]},
    )
    expect("C after B", cache.find([*B, *C, 1]), [2, 3], said)


def test_duplicates(work):
    """Two requests with the same prompt in one step: both compute it, one is entered."""
    cache = work.PrefixCache(4)
    cache.enter([*A, *B, 1], [0, 1])
    cache.enter([*A, *B, *C, 1], [5, 6, 7])
    said = {
        "the block that is there stays: others hold it": [5, 6, 7],
        "the rest of the second follows the first's blocks": [0, 1],
    }
    expect("the same beginning entered twice, the second one longer", cache.find([*A, *B, *C, 1]), [0, 1, 7], said)
    try:
        cache.evict(6)
    except KeyError as error:
        raise Wrong(
            "evict of a block that was never entered", "nothing happens", repr(error), "it is ignored"
        ) from None
    expect("after the duplicate, which was never entered, is evicted", cache.find([*A, *B, *C, 1]), [0, 1, 7],
           likely="evicting a block that is not entered must change nothing: all three were found before")  # fmt: skip


def test_eviction(work):
    cache = work.PrefixCache(4)
    cache.enter([*A, *B, *C, 1], [0, 1, 2])
    cache.evict(1)
    said = {
        "an evicted block will soon hold something else": [0, 1, 2],
        "blocks after a gap must not be found": [0, 2],
    }
    expect("the middle one of three is evicted", cache.find([*A, *B, *C, 1]), [0], said)
    cache.enter([*A, *B, 1], [0, 9])
    said = {"block 2 came after the evicted one: it went with it, and may hold something else": [0, 9, 2]}
    expect("block 9 fills the gap", cache.find([*A, *B, *C, 1]), [0, 9], said)
    cache.evict(0)
    cache.enter([*C, 1], [0])
    expect("block 0 is evicted and used for C", (cache.find([*A, 1]), cache.find([*C, 1])), ([], [0]),
           {"an evicted block was found under its old tokens": ([0], [0])})  # fmt: skip
    cache.evict(77)
    cache = work.PrefixCache(4)
    cache.enter([*A, 1], [0])
    cache.evict(0)
    cache.enter([*A, 1], [5])
    cache.evict(0)
    expect("A in 0, which is evicted; A in 5; 0 is evicted again", cache.find([*A, 1]), [5],
           {"evicting a block that is no longer there must not take another one with it": []})  # fmt: skip


def test_an_evicted_block_is_used_again(work):
    """The worst mistake: a block's old children are found after its new tokens."""
    wrong = "a block after the evicted one was found after its new tokens: an answer to somebody else's prompt"
    cache = work.PrefixCache(4)
    cache.enter([*A, *B, 1], [3, 7])
    cache.evict(3)
    cache.enter([*C, 1], [3])
    expect("block 3 held A, followed by B; now it holds C: find C B", cache.find([*C, *B, 1]), [3], {wrong: [3, 7]})
    cache = work.PrefixCache(4)
    cache.enter([*A, *B, *C, 1], [0, 1, 2])
    cache.evict(0)
    cache.enter([*C, *B, 1], [0, 1])
    expect(
        "A B C in 0, 1, 2; 0 is evicted, 0 and 1 hold C B now: find C B C",
        cache.find([*C, *B, *C, 1]),
        [0, 1],
        {wrong: [0, 1, 2]},
    )


def test_collisions(work):
    cache = work.PrefixCache(4, hash_function=lambda key: 0)
    cache.enter([*A, *B, 1], [0, 1])
    got = cache.find([*C, *B, 1])
    expect("other tokens, when all hashes are equal", got, [],
           likely="the hash alone was trusted: somebody gets the answer to another prompt" if got else "")  # fmt: skip
    cache.enter([*C, *B, 1], [2, 3])
    got = cache.find([*A, *B, 1]), cache.find([*C, *B, 1])
    said = {"compare what came before too, not its hash": OneOf([([0, 1], [2, 1]), ([0, 3], [2, 3]), ([0, 1], [2])])}
    expect("two chains, when all hashes are equal", got, ([0, 1], [2, 3]), said,
           likely="entries with the same hash overwrite each other: keep all of them" if [] in got else "")  # fmt: skip


class SlowCache:
    """Every prefix written out in full: slow, and never wrong. It also says which blocks are free."""

    def __init__(self, block_size, num_blocks):
        self.block_size, self.free, self.blocks = block_size, list(range(num_blocks)), {}  # prefix -> block

    def prefixes(self, tokens):
        return [tuple(tokens[:end]) for end in range(self.block_size, len(tokens) + 1, self.block_size)]

    def enter(self, tokens):
        """The blocks that hold the tokens; missing ones are taken from the free blocks."""
        for prefix in self.prefixes(tokens):
            if prefix not in self.blocks:
                self.blocks[prefix] = self.free.pop(0)
        return [self.blocks[prefix] for prefix in self.prefixes(tokens)]

    def find(self, tokens):
        prefixes = self.prefixes(tokens[:-1])
        there = itertools.takewhile(lambda prefix: prefix in self.blocks, prefixes)
        return [self.blocks[prefix] for prefix in there]

    def evict(self, block):
        evicted = [prefix for prefix in self.blocks if self.blocks[prefix] == block]
        for prefix in [p for p in self.blocks for gone in evicted if p[: len(gone)] == gone]:
            self.free.insert(0, self.blocks.pop(prefix))  # it is reused soon, which exposes wrong hits


def test_any_prompts(work):
    """Prompts of two different tokens, blocks that are reused as soon as they are evicted, hashes that are all equal."""

    def check(choose):
        size, hashing = choose.between(1, 3), choose.one_of(["", ", hash_function=lambda key: 0"])
        example, slow = Example(work, __file__), SlowCache(size, 8)
        example.do(f"cache = work.PrefixCache({size}{hashing})")
        for action in choose.each(lambda: choose.upto(9), 30, least=1):
            if action < 2:
                block = choose.upto(8)
                slow.evict(block)
                example.do(f"cache.evict({block})")
                continue
            tokens = choose.some(lambda: choose.upto(1), 9, least=1)
            new = [prefix for prefix in slow.prefixes(tokens) if prefix not in slow.blocks]
            if action < 6 and len(new) <= len(slow.free):
                again = action == 2 and not new  # computed once more, in blocks that are free
                blocks = slow.free[: len(slow.prefixes(tokens))] if again else slow.enter(tokens)
                if len(blocks) == len(slow.prefixes(tokens)):
                    example.do(f"cache.enter({tokens}, {blocks})")
            else:
                example.look(f"cache.find({tokens})", slow.find(tokens))

    at_random(check, 600)


def test_many_calls(work):
    """One cache for 3,000 calls: leftovers of evictions show late."""
    rng, cache, slow = random.Random(0), work.PrefixCache(2), SlowCache(2, 24)
    for i in range(3000):
        tokens, action = [rng.randrange(3) for _ in range(rng.randrange(1, 11))], rng.random()
        if action < 0.4 and len([p for p in slow.prefixes(tokens) if p not in slow.blocks]) <= len(slow.free):
            cache.enter(tokens, slow.enter(tokens))
        elif action < 0.6:
            block = rng.randrange(24)
            slow.evict(block)
            cache.evict(block)
        else:
            expect(f"call {i}: {tokens}", cache.find(tokens), slow.find(tokens))


def test_long_prompts(work):
    """Thousands of tokens, ids beyond 65,535, and larger ones whose Python hash equals a small one's."""
    cache, prompt = work.PrefixCache(2), [i * i % 100_003 for i in range(4001)]
    blocks = [70_000 + i for i in range(2000)]
    cache.enter(prompt, blocks)
    expect("4,001 tokens that are all there", cache.find(prompt), blocks)
    for other in (256, 65_536, 2**32, 2**61 - 1):
        expect(f"the same, but one token is {other} more", cache.find([*prompt[:2001], prompt[2001] + other, *prompt[2002:]]), blocks[:1000],
               likely="two token lists are equal only if all their tokens are: compare the tokens, not their hashes")  # fmt: skip
    cache.evict(70_000)
    expect("after its first block is evicted", cache.find(prompt), [])
    cache = work.PrefixCache(300)
    cache.enter(prompt[:650], [5, 6, 7])
    expect("blocks of 300", cache.find(prompt[:650]), [5, 6])
    expect("the same, with a different token 299", cache.find([*prompt[:299], 7, *prompt[300:650]]), [],
           likely="all tokens of a block must be compared")  # fmt: skip


def test_two_long_chains_of_one_hash(work):
    """All entries in one list, each hundreds of blocks from its beginning."""
    cache, count = work.PrefixCache(1, hash_function=lambda key: 0), 700
    chains = [[first, *[5] * count] for first in (1, 2)]
    for i, chain in enumerate(chains):
        cache.enter(chain, [i * (count + 1) + j for j in range(count + 1)])
    cache.evict(count + 1)
    expect("the second of two chains is evicted", cache.find(chains[1]), [])
    expect("the first one is still there", cache.find(chains[0]), [*range(count)])


def test_a_large_cache(work):
    """Enough entries that two share a 32-bit hash, and more than 16 bits can number."""
    cache, count = work.PrefixCache(2), 70_000
    prompts = [[i * 7919 % 1_000_003, i, 1] for i in range(count)]
    work.each(cache, "enter", [(prompt, [i]) for i, prompt in enumerate(prompts)])
    found = work.each(cache, "find", [(prompt,) for prompt in prompts])
    wrong = next((i for i, blocks in enumerate(found) if blocks != [i]), None)
    require(wrong is None, f"{count} prompts, each with its own block", "each finds its own block",
            wrong is not None and f"{prompts[wrong]} finds {found[wrong]}", "the tokens are represented by something shorter, such as a hash: compare all of them")  # fmt: skip
    found = work.each(cache, "find", [([prompt[0], prompt[1] + count, 1],) for prompt in prompts])
    require(not any(found), f"{count} prompts that were never entered", "nothing", "blocks of others",
            "the tokens are represented by something shorter, such as a hash: compare all of them")  # fmt: skip


def test_tokens_that_look_alike(work):
    """Written one after another, 1 and 23 are 12 and 3. And Python gives 1 and 2^61 the same hash."""
    cache = work.PrefixCache(2)
    cache.enter([1, 23, 9], [0])
    said = {"compare the tokens, not a text made of them: 1, 23 and 12, 3 have the same digits": [0]}
    expect("1, 23 was entered; find 12, 3", cache.find([12, 3, 9]), [], said)
    like_one = 2**61
    cache = work.PrefixCache(2)
    cache.enter([1, 2, 7, 8, 0], [0, 1])
    cache.enter([like_one, 2, 0], [5])
    said = {"a hash is never enough: the tokens before a block must be equal, too": [[5, 1], [0, 1]]}
    said = {what: OneOf(answers) for what, answers in said.items()}
    expect(f"1, 2, 7, 8 in 0, 1 and {like_one}, 2 in 5; find {like_one}, 2, 7, 8",
           cache.find([like_one, 2, 7, 8, 9]), [5], said)  # fmt: skip

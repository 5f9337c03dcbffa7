"""Hits, near misses, collisions of every hash, and a slow cache that can't be wrong."""

import random

from exercises.grading import Wrong, expect

A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]


def test_hits(work):
    cache = work.PrefixCache(4)
    expect("an empty cache", cache.find(A + B), [])
    cache.enter(A + B + [9, 10], [3, 7, 8])
    said = {"only full blocks can be shared: the third is still being written": [3, 7, 8]}
    expect("the same ten tokens", cache.find(A + B + [9, 10]), [3, 7], said)
    expect("the same ten and another", cache.find([*A, *B, 9, 10, 11]), [3, 7], said)
    expect("the beginning, and another end", cache.find([*A, *B, 50, 51, 52, 53]), [3, 7])
    said = {"blocks are found from the beginning on, up to the first that differs": [3, 7]}
    expect("another second block", cache.find([*A, 5, 6, 7, 99, 1]), [3], said)
    expect("another first block", cache.find([99, 2, 3, 4, *B, 1]), [],
           {"the second block has the same tokens, but its keys saw other ones before": [7]})  # fmt: skip


def test_one_token_is_left(work):
    cache = work.PrefixCache(4)
    cache.enter(A + B, [3, 7])
    said = {"the whole prompt was found: no token is left whose logits say how it goes on": [3, 7]}
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
    said = {"the same tokens after another beginning are another block": [2, 1]}
    expect(
        "C after A",
        cache.find([*A, *C, 1]),
        [0, 1],
        {"the same tokens after another beginning are another block": [0, 3]},
    )
    expect("C after B", cache.find([*B, *C, 1]), [2, 3], said)


def test_duplicates(work):
    """Two requests with one prompt, in one step: both compute it, one is entered."""
    cache = work.PrefixCache(4)
    cache.enter([*A, *B, 1], [0, 1])
    cache.enter([*A, *B, *C, 1], [5, 6, 7])
    said = {
        "what is there stays: others hold it": [5, 6, 7],
        "the rest of the second goes behind the first's blocks": [0, 1],
    }
    expect("the same beginning entered twice, the second one longer", cache.find([*A, *B, *C, 1]), [0, 1, 7], said)
    try:
        cache.evict(6)
    except KeyError as error:
        raise Wrong(
            "evict of a block that was never entered", "nothing happens", repr(error), "it is ignored"
        ) from None
    expect("after the duplicate, which was never entered, is evicted", cache.find([*A, *B, *C, 1]), [0, 1, 7],
           likely="evicting a block that is not entered must change nothing")  # fmt: skip


def test_eviction(work):
    cache = work.PrefixCache(4)
    cache.enter([*A, *B, *C, 1], [0, 1, 2])
    cache.evict(1)
    said = {
        "an evicted block holds something else soon": [0, 1, 2],
        "what is behind a hole would begin in the middle": [0, 2],
    }
    expect("the middle one of three is evicted", cache.find([*A, *B, *C, 1]), [0], said)
    cache.enter([*A, *B, 1], [0, 9])
    said = {"block 2 stood behind the evicted one: it was gone with it, and may hold something else": [0, 9, 2]}
    expect("the hole is filled by block 9", cache.find([*A, *B, *C, 1]), [0, 9], said)
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
           likely="a block that is not there any more must not take another one with it")  # fmt: skip


def test_an_evicted_block_is_used_again(work):
    """The worst mistake: the old children of a block are found behind its new tokens."""
    wrong = "what stood behind the evicted block was found behind its new tokens: an answer to somebody else's prompt"
    cache = work.PrefixCache(4)
    cache.enter([*A, *B, 1], [3, 7])
    cache.evict(3)
    cache.enter([*C, 1], [3])
    expect("block 3 held A, B behind it; now it holds C: find C B", cache.find([*C, *B, 1]), [3], {wrong: [3, 7]})
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
    expect("other tokens, when all hashes are equal", cache.find([*C, *B, 1]), [],
           {"the hash was trusted: somebody gets another prompt's answer": [0, 1]},
           likely="the hash was trusted: somebody gets another prompt's answer")  # fmt: skip
    cache.enter([*C, *B, 1], [2, 3])
    got = cache.find([*A, *B, 1]), cache.find([*C, *B, 1])
    lost = "entries of one hash overwrite each other: keep all of them"
    expect("two chains, when all hashes are equal", got, ([0, 1], [2, 3]),
           likely=lost if [] in got else "compare what came before too, not its hash")  # fmt: skip


def test_against_a_slow_cache(work):
    """Every prefix written out in full: slow, and never wrong. Blocks are used again as soon as they are evicted."""
    for hash_function in (hash, lambda key: hash(key) % 3):
        rng, cache, slow, free = random.Random(0), work.PrefixCache(2, hash_function), {}, list(range(24))

        def evict(prefix, cache=cache, slow=slow, free=free):
            cache.evict(slow[prefix])
            for other in [p for p in slow if p[: len(prefix)] == prefix]:
                free.append(slow.pop(other))

        for i in range(3000):
            tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 11))]
            if rng.random() < 0.5:
                blocks = []
                for end in range(2, len(tokens) + 1, 2):
                    prefix = tuple(tokens[:end])
                    while prefix not in slow and not free:
                        evict(rng.choice([p for p in slow if p != prefix[: len(p)]]))
                    blocks.append(slow[prefix] if prefix in slow else slow.setdefault(prefix, free.pop(0)))
                cache.enter(tokens, blocks)
            elif rng.random() < 0.2 and slow:
                evict(rng.choice(list(slow)))
            else:
                expected = []
                for end in range(2, len(tokens), 2):
                    if tuple(tokens[:end]) not in slow:
                        break
                    expected.append(slow[tuple(tokens[:end])])
                expect(f"call {i}: {tokens}", cache.find(tokens), expected)

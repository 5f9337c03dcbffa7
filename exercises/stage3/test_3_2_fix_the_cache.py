"""A model that records its arguments; its next token is a sum over what it may see, so everything it sees matters."""

from exercises.examples import Example, at_random
from exercises.grading import expect


class Model:
    def __init__(self):
        self.calls = []

    def __call__(self, token_ids, positions, visible, cache):
        self.calls.append((list(token_ids), list(positions), [list(row) for row in visible], len(cache)))
        cache += [(token + 1) * (position + 1) for token, position in zip(token_ids, positions, strict=True)]
        return sum(entry for entry, seen in zip(cache, visible[-1], strict=True) if seen) % 1009


def without_cache(prompt, max_tokens):
    sequence = list(prompt)
    for _ in range(max_tokens):
        sequence.append(sum((token + 1) * (i + 1) for i, token in enumerate(sequence)) % 1009)
    return sequence[len(prompt) :]


def test_positions(work):
    model = Model()
    work.Decoder(model).generate([3, 1, 4], 4, chunk=8)
    said = {"the position of the new token is stale: it goes up by one each step": [[0, 1, 2], [3], [3], [3]],
            "one position too far: the first new token is at len(prompt)": [[0, 1, 2], [4], [5], [6]],
            "the first new token comes after the prompt": [[0, 1, 2], [2], [3], [4]]}  # fmt: skip
    expect(
        "positions of a prefill of 3 and three steps",
        [call[1] for call in model.calls],
        [[0, 1, 2], [3], [4], [5]],
        said,
    )


def test_new_tokens_only(work):
    model = Model()
    work.Decoder(model).generate([3, 1, 4], 3, chunk=2)
    said = {"what is in the cache must not be computed again": [2, 3, 1, 1]}
    expect("tokens of each call, chunks of 2", [len(call[0]) for call in model.calls], [2, 1, 1, 1], said)


def test_mask(work):
    model = Model()
    work.Decoder(model).generate([3, 1, 4, 1], 2, chunk=2)
    expected = [
        [[True, False], [True, True]],
        [[True, True, True, False], [True, True, True, True]],
        [[True] * 5],
    ]
    said = {
        "the mask forgets the cache: row i belongs to column len(cache) + i": [
            expected[0], [[True, False, False, False], [True, True, False, False]], [[True, False, False, False, False]]],
        "within a chunk a token must not look ahead": [
            [[True, True], [True, True]], [[True] * 4, [True] * 4], [[True] * 5]],
    }  # fmt: skip
    expect("masks of a prompt of 4 in chunks of 2, and of a step", [call[2] for call in model.calls], expected, said)


def test_called_again(work):
    decoder = work.Decoder(Model())
    still = "something is left over from the first call: each call begins with an empty cache"
    first, second = (decoder.generate([3, 1, 4], 4, chunk=8) for _ in range(2))
    expect("the same prompt twice", second, first, likely=still)
    one, two = work.Decoder(Model()), work.Decoder(Model())
    one.generate([3, 1, 4], 4, chunk=8)
    expect("another decoder, after the first was used", two.generate([3, 1, 4], 4, chunk=8), first,
           likely="two decoders share something: create what belongs to a batch for each batch")  # fmt: skip
    long = [2, 7, 1, 8, 2, 8, 1, 8]
    alone = work.Decoder(Model()).generate(list(long), 4, chunk=8)
    expect("a longer prompt after that", two.generate(long, 4, chunk=8), alone, likely=still)


def test_results_are_kept(work):
    decoder = work.Decoder(Model())
    first = decoder.generate([3, 1, 4], 4, chunk=8)
    decoder.generate([2, 7], 3, chunk=8)
    expect("the list of the first call, after the second", work.reread(first), without_cache([3, 1, 4], 4),
           likely="the second call changed what the first one returned")  # fmt: skip


def test_any_calls(work):
    """One decoder, one prompt after another, longer and shorter ones, in chunks of any size."""

    def check(choose):
        example = Example(work, __file__, "from exercises.stage3.test_3_2_fix_the_cache import Model")
        example.do("model = Model()")
        example.do("decoder = work.Decoder(model)")
        sizes = []
        for _ in range(choose.between(1, 3)):
            prompt = choose.some(lambda: choose.upto(9), 20, least=1)
            max_tokens, chunk = choose.between(1, 4), choose.between(1, 12)
            sizes += [len(prompt[i : i + chunk]) for i in range(0, len(prompt), chunk)] + [1] * (max_tokens - 1)
            example.do(f"prompt = {prompt}")
            example.expect(f"decoder.generate(prompt, {max_tokens}, {chunk})", without_cache(prompt, max_tokens))
            example.look("prompt", prompt, likely="the caller's prompt was changed")
        example.look("[len(tokens) for tokens, *_ in model.calls]", sizes)

    at_random(check)


def test_long_prompts(work):
    """A thousand tokens, ids beyond 65,535, more than 255 steps, and chunks of any size."""
    decoder = work.Decoder(Model())
    prompt = [i * i % 100_003 for i in range(1000)]
    for start, max_tokens, chunk in ((0, 2, 950), (0, 2, 7), (930, 270, 70_000), (700, 1, 1)):
        expect(f"{1000 - start} tokens in chunks of {chunk}, and {max_tokens} new ones",
               decoder.generate(prompt[start:], max_tokens, chunk), without_cache(prompt[start:], max_tokens))  # fmt: skip

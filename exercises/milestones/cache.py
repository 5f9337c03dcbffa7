"""Milestone 3, a cache: every token goes through the model once."""

from exercises.grading import expect, require

from .batch import AT_ONCE, LENGTHS, OUTPUTS, after_batches
from .lab import BYTES_PER_TOKEN, SIZES, Lab, Missing, greedy, prompts_of

CONTEXT = SIZES["n_positions"]


def why(at: int) -> str:
    """The message for a first difference at this token."""
    if at == 0:
        return "the prefill is wrong: the first token needs nothing from the cache"
    if at == 1:
        return (
            "the prefill is right and the first decode is wrong: which position does its token have, which columns of "
            "the cache may it read, and are the prompt's keys where it looks?"
        )
    return "the first decode is right and a later one is wrong: does a decode overwrite a key that is still needed?"


def check_greedy(lab: Lab) -> None:
    """greedy completions from the cache, alone, to the end of the context"""
    for length in (1, 17, 50):
        prompt, num = prompts_of(length, seed=3)[0], CONTEXT - length
        case = f"a prompt of {length} tokens alone, greedy, {num} tokens"
        got, expected = lab.run(case, [prompt], greedy(num))[0], lab.expected([prompt], greedy(num))[0]
        lab.same_tokens(case, prompt, got.token_ids, expected.token_ids, likely=why)


def check_company(lab: Lab) -> None:
    """the same in a batch, where some rows end long before others"""
    lengths, outputs = (4, 30, 60, 11), (60, 34, 2, 5)
    prompts, settings = prompts_of(*lengths, seed=4), [greedy(n) for n in outputs]
    case = f"prompts of {lengths} tokens, outputs of {outputs}, {AT_ONCE} at once"
    got = lab.run(case, prompts, settings, lab.shared(max_num_seqs=AT_ONCE))
    for i, right in enumerate(lab.expected(prompts, settings)):
        lab.same_tokens(f"{case}: row {i}", prompts[i], got[i].token_ids, right.token_ids, likely=why)


def check_recomputation(lab: Lab) -> None:
    """recomputation: each token goes through the model once"""
    case = f"prompts of {LENGTHS} tokens, outputs of {OUTPUTS}"
    (computed,) = after_batches(lab, case, "num_tokens_computed")
    pairs = list(zip(LENGTHS, OUTPUTS, strict=True))
    enough = sum(p + n - 1 for p, n in pairs)
    known = {
        sum(p + i for p, n in pairs for i in range(n)): "every step computes the whole sequence again",
        sum(p + n for p, n in pairs): "the last token of each output is computed too, although nothing follows it",
        sum(n for _, n in pairs): "the prompts are not counted",
    }
    verb = "computed" if computed > enough else "counted"
    require(
        computed == enough,
        case,
        f"{enough:,} tokens computed",
        f"you {verb} {computed:,} tokens where {enough:,} suffice",
        known.get(computed, ""),
    )


def check_turns(lab: Lab) -> None:
    """two streams read in turn: neither sees the other's keys and values"""
    prompts, llm = prompts_of(9, 4), lab.shared()
    if not hasattr(llm, "stream"):
        raise Missing("LLM has no `stream`")
    case = "two streams, prompts of 9 and 4 tokens, one token from each in turn"
    with lab.case(case):
        streams = [iter(llm.stream([prompt], lab.params(greedy(8)))) for prompt in prompts]
        got = [[], []]
        for _ in range(8):
            for ids, stream in zip(got, streams, strict=True):
                event = next(stream, None)
                ids += event.token_ids if event else []
        for ids, stream in zip(got, streams, strict=True):
            for event in stream:
                ids += event.token_ids
    expected = [result.token_ids for result in lab.expected(prompts, greedy(8))]
    expect(
        case,
        got,
        expected,
        likely="a cache belongs to the batch whose keys it holds, not to whichever batch steps next",
    )


def check_room(lab: Lab) -> None:
    """memory: kv_cache_bytes is respected, and requests wait until there is room"""
    lengths, room = (30, 20, 25, 8), CONTEXT * 3 // 2
    prompts, llm = prompts_of(*lengths), lab.llm(kv_cache_bytes=room * BYTES_PER_TOKEN, max_num_seqs=8)
    case = f"prompts of {lengths} tokens, outputs of 20, a cache of {room} tokens: too little for all at once"
    got = lab.run(case, prompts, greedy(20), llm)
    for i, right in enumerate(lab.expected(prompts, greedy(20))):
        lab.same_tokens(f"{case}: row {i}", prompts[i], got[i].token_ids, right.token_ids)


def check_too_large(lab: Lab) -> None:
    """a request larger than the whole cache or the context is refused"""
    prompts, room = prompts_of(3, 30), 40

    def call() -> str:
        llm = lab.llm(kv_cache_bytes=room * BYTES_PER_TOKEN)
        return f"{len(llm.generate(prompts, lab.params(greedy(30)))[1].outputs[0].token_ids)} tokens"

    lab.refused(
        f"a prompt of 30 tokens and max_tokens=30, a cache of {room} tokens",
        call,
        "cache",
        "a request that can never fit must not wait forever or be cut: compare what it may need with the whole cache",
    )
    lab.refused(
        f"a prompt of {CONTEXT} tokens, the context {CONTEXT}",
        lambda: lab.shared().generate(prompts_of(CONTEXT), lab.params(greedy(1))) and None,
        str(CONTEXT),
        "its output would have no position left: `check_fits` compares the prompt with `max_model_len`, too",
    )

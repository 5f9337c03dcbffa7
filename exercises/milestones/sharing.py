"""Milestone 6, sharing: what was computed once is found again, and never for the wrong prompt."""

from exercises.grading import expect, require

from .blocks import BLOCK, paged
from .lab import Lab, Missing, greedy, prompts_of, seeded

WHOLE_PREFIX = (
    "a block was found by its own tokens alone, but keys and values depend on all tokens before them: a block's key "
    "must stand for its whole prefix, and be compared in full"
)
EVICTED = "a block that was given to another request can still be found: evict a block's entry when the block is taken"


def cached(lab: Lab, case: str, llm, prompt: list[int], num: int = 4, likely: str = "") -> int:
    """How much of a prompt was found in the cache; its tokens are compared too.

    likely: the message if something was found and the tokens differ.
    """
    with lab.case(case):
        output = llm.generate([prompt], lab.params(greedy(num)))[0]
        found = getattr(output, "num_cached_tokens", None)
        got = list(output.outputs[0].token_ids)
    if found is None:
        raise Missing("a result has no `num_cached_tokens`")
    right = lab.expected([prompt], greedy(num))[0].token_ids
    case = f"{case} ({found} tokens found)"
    lab.same_tokens(case, prompt, got, right, likely=lambda at: likely if found else "")
    return found


def check_hits(lab: Lab) -> None:
    """prefix hits: a prompt that came before is not computed again"""
    for length in (22, 20):
        prompt, llm = prompts_of(length)[0], paged(lab, block_size=BLOCK)
        case = f"a prompt of {length} tokens, block_size={BLOCK}"
        expect(f"{case}, for the first time: num_cached_tokens", cached(lab, case, llm, prompt), 0)
        (before,) = lab.counted(llm, "num_tokens_computed")
        known = {
            "the whole prompt was taken from the cache, but its last token must be computed, for its logits": length,
            "nothing was found, or it was not reported: a full block can be found by its tokens and prefix, even "
            "when no request holds it, and `num_cached_tokens` says how much was found": 0,
        }
        right = (length - 1) // BLOCK * BLOCK
        expect(f"{case}, for the second time: num_cached_tokens", cached(lab, case, llm, prompt), right, known)
        computed, enough = lab.counted(llm, "num_tokens_computed")[0] - before, length - right + 3
        require(
            computed == enough,
            f"{case}, for the second time: tokens computed",
            enough,
            f"you computed {computed} tokens where {enough} suffice",
            "it was found, but computed again",
        )


def check_chain(lab: Lab) -> None:
    """wrong hits: the same tokens after another prefix are another block"""
    a, b, c = (prompts_of(BLOCK, seed=seed)[0] for seed in (1, 2, 3))
    llm, end = paged(lab, block_size=BLOCK), [5, 6]
    cached(lab, "the blocks A, B", llm, a + b + end)
    others = {
        "C, B after A, B": (c + b + end, 0),
        "B alone after A, B": (b + end, 0),
        "B, A after A, B and B": (b + a + end, BLOCK),
        "A backwards, B after A, B": (a[::-1] + b + end, 0),
        "A, and B with another last token, after A, B": (a + b[:-1] + [b[-1] % 200 + 1] + end, BLOCK),
        "A, B again": (a + b + end, 2 * BLOCK),
    }
    for what, (prompt, right) in others.items():
        found = cached(lab, f"the blocks {what}", llm, prompt, likely=WHOLE_PREFIX)
        likely = WHOLE_PREFIX if found > right else ""
        expect(f"the blocks {what}: num_cached_tokens", found, right, likely=likely)


def check_answers(lab: Lab) -> None:
    """outputs are found too: the next turn of a chat"""
    prompt, llm = prompts_of(10, seed=6)[0], paged(lab, block_size=BLOCK)
    case = "a prompt of 10 tokens with an output of 11, and then both plus one more token as a prompt"
    answer = lab.expected([prompt], greedy(11))[0].token_ids
    cached(lab, case, llm, prompt, 11)
    known = {"only blocks of the prompt were found: those that the output filled count too": 8}
    expect(f"{case}: num_cached_tokens", cached(lab, case, llm, [*prompt, *answer, 7]), 20, known)


def check_together(lab: Lab) -> None:
    """prompts with the same beginning, all at once"""
    head, llm = prompts_of(13, seed=7)[0], paged(lab, block_size=BLOCK, max_num_seqs=4)
    prompts = [head + tail for tail in ([1, 2, 3, 4, 5], [1, 2], [9], [1, 2, 3, 4, 5, 6, 7])]
    settings = [greedy(12), seeded(9, 1), greedy(3), greedy(12)]
    case = "four prompts that begin with the same 13 tokens, at once"
    got = lab.run(case, prompts, settings, llm)
    for i, (prompt, one) in enumerate(zip(prompts, settings, strict=True)):
        alone = lab.run(f"request {i} alone", [prompt], one, paged(lab, block_size=64))[0].token_ids
        expect(
            f"{case}: request {i}",
            got[i].token_ids,
            alone,
            likely="does a request write to a block that others hold? share only full blocks",
        )


def check_eviction(lab: Lab) -> None:
    """a small pool: what is found is used, and what was overwritten is not found"""
    prompts, llm = prompts_of(17, 14, 18, 12, seed=8), paged(lab, block_size=BLOCK, num_blocks=8)
    for turn, i in enumerate([0, 1, 0, 2, 3, 0, 1, 1, 3, 2, 0]):
        case = f"num_blocks=8, prompt {i} in turn {turn}, after others took its blocks"
        found = cached(lab, case, llm, prompts[i], 6, EVICTED)
        most = (len(prompts[i]) - 1) // BLOCK * BLOCK
        require(found <= most, f"{case}: num_cached_tokens", f"at most {most}", found)
    case = "num_blocks=8: a request that needs all of them, after all that"
    prompt = prompts_of(20, seed=9)[0]
    cached(lab, case, llm, prompt, 8 * BLOCK - 20 + 1)

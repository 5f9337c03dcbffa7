"""Milestone 5, blocks: memory is allocated one block at a time, and taken back when it runs out."""

from exercises.grading import expect, require

from .batch import AT_ONCE, LENGTHS, OUTPUTS
from .cache import CONTEXT
from .lab import Lab, Missing, greedy, prompts_of, seeded

BLOCK = 4  # tokens in a block, in most checks


def paged(lab: Lab, **options):
    """An engine with blocks. If there is a choice, attention is the torch version: the one the learner writes."""
    try:
        return lab.llm(attention_backend="torch", **options)
    except Missing:
        return lab.llm(**options)


def num_blocks(num_tokens: int, size: int = BLOCK) -> int:
    return -(-num_tokens // size)


def check_greedy(lab: Lab) -> None:
    """greedy completions through block tables, blocks of 1, 5 and 16 tokens"""
    prompts, settings = prompts_of(*LENGTHS), [greedy(n) for n in OUTPUTS]
    expected = lab.expected(prompts, settings)
    for size in (16, 5, 1):
        case = f"prompts of {LENGTHS} tokens, outputs of {OUTPUTS}, block_size={size}"
        got = lab.run(case, prompts, settings, paged(lab, block_size=size, max_num_seqs=AT_ONCE))
        for i, (prompt, one, right) in enumerate(zip(prompts, got, expected, strict=True)):
            lab.same_tokens(
                f"{case}: row {i}",
                prompt,
                one.token_ids,
                right.token_ids,
                likely=lambda at, p=prompt, s=size: at_block(len(p) + at - 1, s),
            )


def at_block(position: int, size: int) -> str:
    """The message for a first difference at this position."""
    if size > 1 and position % size == 0:
        return f"position {position} is the first of a block: was a new block appended to the sequence's table?"
    return ""


def check_memory(lab: Lab) -> None:
    """memory: a request wastes at most the rest of its last block"""
    size, case = BLOCK, f"prompts of {LENGTHS} tokens, outputs of {OUTPUTS}, block_size={BLOCK}"
    llm = paged(lab, block_size=size, max_num_seqs=AT_ONCE)
    lab.run(case, prompts_of(*LENGTHS), [greedy(n) for n in OUTPUTS], llm)
    (reserved,) = lab.counted(llm, "kv_tokens_reserved")
    pairs = list(zip(LENGTHS, OUTPUTS, strict=True))
    enough = sum(num_blocks(p + i) * size for p, n in pairs for i in range(n))
    known = {
        CONTEXT * sum(OUTPUTS): "each request reserves room for the longest possible sequence",
        sum(
            num_blocks(p + n - 1) * size * n for p, n in pairs
        ): "each request reserves everything it may need from the start",
        sum(
            num_blocks(p + i + 1) * size for p, n in pairs for i in range(n)
        ): "a block is taken a step before it is needed",
    }
    require(
        reserved <= enough,
        f"{case}: kv_tokens_reserved, summed over the steps",
        f"at most {enough:,}",
        f"you reserved {reserved:,} tokens where {enough:,} suffice",
        known.get(reserved, ""),
    )


def check_preemption(lab: Lab) -> None:
    """preemption: more run than fit, and each gets the same tokens as alone"""
    lengths, outputs, blocks = (10, 12, 9, 11), (25, 20, 30, 22), 12
    prompts = prompts_of(*lengths, seed=5)
    settings = [greedy(n) if i % 2 else seeded(n, i) for i, n in enumerate(outputs)]
    case = f"prompts of {lengths} tokens, outputs of {outputs}, num_blocks={blocks}, block_size={BLOCK}"
    llm = paged(lab, block_size=BLOCK, num_blocks=blocks, max_num_seqs=4)
    got = lab.run(case, prompts, settings, llm)
    roomy = paged(lab, block_size=BLOCK, max_num_seqs=4)
    for i, (prompt, one) in enumerate(zip(prompts, settings, strict=True)):
        alone = lab.run(f"request {i} alone", [prompt], one, roomy)[0].token_ids
        expect(
            f"{case}: request {i}",
            got[i].token_ids,
            alone,
            likely="a preempted request loses its blocks and keeps its tokens: prompt and output are computed again",
        )
    (preempted,) = lab.counted(llm, "num_preemptions")
    require(
        preempted > 0,
        f"{case}: num_preemptions",
        "some",
        preempted,
        "admit a request if there are blocks for the tokens it has, not for those it may get",
    )


def check_too_large(lab: Lab) -> None:
    """a request larger than the whole pool is refused; one that just fits runs"""
    prompt, llm = prompts_of(10)[0], paged(lab, block_size=BLOCK, num_blocks=4)
    case = f"num_blocks=4, block_size={BLOCK}, a prompt of 10 tokens and max_tokens=7: 16 of these 17 are computed"
    got, right = lab.run(case, [prompt], greedy(7), llm)[0], lab.expected([prompt], greedy(7))[0]
    expect(f"{case}: token_ids", got.token_ids, right.token_ids)
    lab.refused(
        f"num_blocks=4, block_size={BLOCK}, a prompt of 10 tokens and max_tokens=8: 17 have to be computed",
        lambda: llm.generate([prompt], lab.params(greedy(8))) and None,
        "block",
        "it waits for blocks that it holds itself, or is preempted forever: refuse what can never fit",
    )


def check_all_come_back(lab: Lab) -> None:
    """blocks are freed when requests end, and when their streams are closed"""
    prompt, llm = prompts_of(15)[0], paged(lab, block_size=BLOCK, num_blocks=6)
    right = lab.expected([prompt], greedy(10))[0].token_ids
    for i in range(3):
        case = f"num_blocks=6, request {i} of three, one after another, each of which needs all blocks"
        lab.same_tokens(case, prompt, lab.run(case, [prompt], greedy(10), llm)[0].token_ids, right)
    if not hasattr(llm, "stream"):
        raise Missing("LLM has no `stream`, so no caller can leave in the middle")
    case = "a stream that is closed after its first token, and then a request that needs all blocks"
    with lab.case(case):
        stream = llm.stream([prompt], lab.params(greedy(10)))
        next(stream)
        stream.close()
    lab.same_tokens(case, prompt, lab.run(case, [prompt], greedy(10), llm)[0].token_ids, right)

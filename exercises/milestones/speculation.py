"""Milestone 7, speculation: several tokens in a pass, guessed and verified, and exactly the same tokens."""

from collections.abc import Callable

from exercises.grading import expect, require
from stagewise import logit_bias

from .blocks import BLOCK, num_blocks
from .lab import END, SIZES, Lab, Missing, Result, Settings, greedy, prompts_of, seeded
from .sharing import cached

GUESSES = 4  # in a step, in all checks
NUM = 30  # tokens out, in most checks
Wrongs = Callable[[int], bool]  # of a place in the output: whether the guess for it is wrong
WRONGS: dict[str, Wrongs] = {
    "all guesses are wrong": lambda at: True,
    "every third token is guessed wrong": lambda at: at % 3 == 0,
    "the guesses are right up to token 12 and then wrong": lambda at: at > 12,
}
REFUSED = (
    "a guess counts only if it is the token that the model chooses there; the first one that differs is replaced by "
    "that token, and the rows after it saw a wrong token, so none of them may be used"
)


class Guesser:
    """A drafter that knows what comes, and is wrong where it should be.

    Attributes:
        asked: pairs (maximum number of tokens still to come, number of guesses requested).
    """

    draft_cost = 0.0

    def __init__(self, known: dict[tuple, list[int]], wrong: Wrongs):
        self.known, self.wrong, self.asked = known, wrong, []

    def draft(self, counts: dict) -> dict:
        return {request: self.guess(request, count) for request, count in counts.items() if count > 0}

    def guess(self, request, count: int) -> list[int]:
        start, computed = len(request.output_token_ids), request.num_computed_tokens
        most = len(request.prompt_token_ids) + start - 1  # its last token is about to be computed
        case = f"{most + 1} tokens of prompt and output: num_computed_tokens when guesses are requested"
        require(computed <= most, case, f"at most {most}", computed, "a rejected guess does not count as computed")
        most = min(request.params.max_tokens, SIZES["n_positions"] - len(request.prompt_token_ids))
        self.asked.append((most - start, count))
        tokens = self.known[tuple(request.prompt_token_ids)][start : start + count]
        return [(token + 1) % END if self.wrong(start + i) else token for i, token in enumerate(tokens)]


def guessing(lab: Lab, known: dict[tuple, list[int]], wrong: Wrongs = lambda at: False, **options):
    """(an engine with such a drafter, the drafter)"""
    llm = lab.llm(speculate="ngram", num_drafts=GUESSES, block_size=BLOCK, **options)
    speculator = getattr(getattr(llm, "engine", None), "speculator", None)
    if not hasattr(speculator, "drafter"):
        raise Missing("LLM has no `engine.speculator.drafter` to replace")
    speculator.drafter = Guesser(known, wrong)
    return llm, speculator.drafter


def without(lab: Lab, case: str, prompts: list[list[int]], settings: Settings | list[Settings]) -> list[Result]:
    """The same engine's results for prompts without guesses."""
    return lab.run(f"{case}, without guesses", prompts, settings, lab.shared(speculate="off", block_size=BLOCK))


def future(prompts: list[list[int]], results: list[Result]) -> dict[tuple, list[int]]:
    """What a drafter has to know about these outputs."""
    return {tuple(prompt): result.token_ids for prompt, result in zip(prompts, results, strict=True)}


def passes(num: int, wrong: Wrongs) -> int:
    """The number of passes one request needs: the prompt's, then one for each run of right guesses."""
    count, made = 1, 1
    while made < num:
        room = min(GUESSES, num - made - 1)
        right = next((i for i in range(room) if wrong(made + i)), room)
        count, made = count + 1, made + right + 1
    return count


def require_within(case: str, drafter: Guesser) -> None:
    """Raise Wrong if more guesses were requested than can count."""
    likely = "don't guess past the end; and don't guess the last token: the row before it gives it"
    for left, count in drafter.asked:
        said = f"{count} guesses were requested"
        require(count < left, f"{case}: with {left} tokens to come", f"at most {left - 1} guesses", said, likely)


def check_right(lab: Lab) -> None:
    """right guesses: several tokens a pass, and each token goes through the model once"""
    prompt = prompts_of(10)[0]
    right = lab.expected([prompt], greedy(NUM))
    llm, drafter = guessing(lab, future([prompt], right))
    case = f"a prompt of 10 tokens, greedy, {NUM} tokens, {GUESSES} guesses a step, all right"
    got = lab.run(case, [prompt], greedy(NUM), llm)[0]
    lab.same_tokens(case, prompt, got.token_ids, right[0].token_ids)
    require_within(case, drafter)
    count, computed = lab.counted(llm, "num_forwards", "num_tokens_computed")
    enough = passes(NUM, lambda at: False)
    known = {
        NUM: "a pass gives one token: a right guess gives the next row's token, too, in the same step",
        1 - (1 - NUM) // GUESSES: "after the last right guess there is one more token: its row has logits",
    }
    said = f"you made {count} passes where {enough} suffice"
    require(count <= enough, f"{case}: passes", enough, said, known.get(count, ""))
    enough, likely = 10 + NUM - 1, "a right guess has been computed: `num_computed_tokens` counts it"
    said = f"you computed {computed} tokens where {enough} suffice"
    require(computed <= enough, f"{case}: tokens computed", enough, said, likely)


def check_wrong(lab: Lab) -> None:
    """wrong guesses: no token changes, and none costs a pass"""
    prompt = prompts_of(10, seed=1)[0]
    right = lab.expected([prompt], greedy(NUM))
    for what, wrong in WRONGS.items():
        llm, _ = guessing(lab, future([prompt], right), wrong)
        case = f"a prompt of 10 tokens, greedy, {NUM} tokens, {GUESSES} guesses a step; {what}"
        got = lab.run(case, [prompt], greedy(NUM), llm)[0]
        lab.same_tokens(case, prompt, got.token_ids, right[0].token_ids, likely=lambda at: REFUSED)
        (count,), enough = lab.counted(llm, "num_forwards"), passes(NUM, wrong)
        said = f"you made {count} passes where {enough} suffice"
        likely = "the guesses before a wrong one count, and every step gives a token"
        require(count <= enough, f"{case}: passes", enough, said, likely)


def check_sampled(lab: Lab) -> None:
    """the same with drawn tokens and penalties, in a batch"""
    prompts = prompts_of(9, 14, 3, 11, seed=2)
    more = [{}, {"repetition_penalty": 1.3}, {"frequency_penalty": 0.5}, {"temperature": 0.7, "top_k": 5}]
    settings = [seeded(NUM - 3 * i, i, logprobs=1, **one) for i, one in enumerate(more)]
    case = f"four requests at once, drawn with seeds, {GUESSES} guesses a step"
    right = without(lab, case, prompts, settings)
    for what, wrong in {"all are right": lambda at: False, **WRONGS}.items():
        llm, _ = guessing(lab, future(prompts, right), wrong, max_num_seqs=4)
        got = lab.run(f"{case}; {what}", prompts, settings, llm)
        for i, (one, other) in enumerate(zip(got, right, strict=True)):
            likely = (
                "sampling after a right guess must see the output including it: penalties and the draw depend on that"
            )
            expect(f"{case}; {what}: request {i}", one.token_ids, other.token_ids, likely=likely)
            expect(f"{case}; {what}: log-probabilities of request {i}", one.logprobs, other.logprobs, tolerance=1e-3)


def check_ends(lab: Lab) -> None:
    """ends: a stop within the guesses, max_tokens, the end of the context"""
    prompt = prompts_of(10, seed=3)[0]
    whole = without(lab, "a prompt of 10 tokens", [prompt], greedy(54))  # 64 are the context
    ids, text = whole[0].token_ids, whole[0].text
    cases = {f"max_tokens={num}": greedy(num) for num in (1, 2, 4, 6, 7, 54)}
    cases |= {"no max_tokens, only the context's end": greedy(60)}
    cases |= {f"token {at} is a stop token": greedy(20, stop_token_ids=[ids[at]]) for at in (3, 4, 9)}
    cases |= {f"characters {at} and the next are a stop string": greedy(20, stop=[text[at : at + 2]]) for at in (3, 8)}
    for what, settings in cases.items():
        case = f"a prompt of 10 tokens, {GUESSES} guesses a step, all right; {what}"
        llm, drafter = guessing(lab, future([prompt], whole))
        got, right = lab.run(case, [prompt], settings, llm)[0], without(lab, case, [prompt], settings)[0]
        likely = "nothing follows a token that ends the output: a guess after it does not count"
        expect(f"{case}: token_ids", got.token_ids, right.token_ids, likely=likely)
        ends = [(one.text, one.finish_reason, one.stop_reason) for one in (got, right)]
        expect(f"{case}: text, finish_reason and stop_reason", *ends)
        require_within(case, drafter)


def check_blocks(lab: Lab) -> None:
    """blocks: guesses take only free ones, and cached blocks hold no rejected guess"""
    lengths, blocks = (10, 12, 9), 13
    prompts, settings = prompts_of(*lengths, seed=5), [greedy(25), seeded(20, 1), greedy(28)]
    case = f"prompts of {lengths} tokens, num_blocks={blocks}, block_size={BLOCK}, {GUESSES} guesses a step"
    right = without(lab, case, prompts, settings)
    for what, wrong in WRONGS.items():
        llm, _ = guessing(lab, future(prompts, right), wrong, num_blocks=blocks, max_num_seqs=3)
        got = lab.run(f"{case}; {what}", prompts, settings, llm)
        for i, (one, other) in enumerate(zip(got, right, strict=True)):
            expect(f"{case}; {what}: request {i}", one.token_ids, other.token_ids, likely=REFUSED)
    prompt = prompts_of(10, seed=6)[0]
    first = lab.expected([prompt], greedy(11))
    turn = [*prompt, *first[0].token_ids, 7]
    for what, wrong in WRONGS.items():
        known = {**future([prompt], first), tuple(turn): lab.expected([turn], greedy(4))[0].token_ids}
        llm, _ = guessing(lab, known, wrong)
        case = f"a prompt of 10 tokens with an output of 11, and then both plus one more token as a prompt; {what}"
        cached(lab, case, llm, prompt, 11)
        found = cached(lab, case, llm, turn, likely="a block in the prefix cache holds keys of a rejected guess")
        likely = "cache a block only when all its tokens are verified"
        expect(f"{case}: num_cached_tokens", found, num_blocks(10 + 11 - 1) * BLOCK, likely=likely)


def check_lookup(lab: Lab) -> None:
    """prompt lookup: a text that repeats itself takes fewer passes"""
    prompt = prompts_of(3, seed=7)[0]
    again = logit_bias({prompt[0]: 100.0})  # it repeats one token
    settings = {**greedy(NUM), "logits_processors": [again]}
    llm = lab.llm(speculate="ngram", num_drafts=GUESSES, block_size=BLOCK)
    case = f"a text that repeats one token, {NUM} tokens, speculate='ngram', {GUESSES} guesses a step"
    got, right = lab.run(case, [prompt], settings, llm)[0], without(lab, case, [prompt], settings)[0]
    expect(case, got.token_ids, right.token_ids)
    (count,) = lab.counted(llm, "num_forwards")
    most, likely = 2 * NUM // 3, "the last tokens occurred before: guess what followed them then"
    require(count <= most, f"{case}: passes", f"at most {most}", f"you made {count} passes", likely)

"""The experiments of `python -m exercises predict`: questions about each stage, what is run, and the explanation.

A result is a count, which is the same on every machine, or a ratio of two times from one run. No result is hard-coded:
each is computed from what the engines have just done, and so is its explanation. The tests use the arguments of a `run`
to make the models small.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stagewise import trace

from .catalogue import FOLDER

OPENINGS = FOLDER.parent / "docs" / "examples" / "prompts.txt"


class Question(NamedTuple):
    """The question, its short name for tables, and the unit of the answer."""

    text: str
    name: str
    unit: str


class Outcome(NamedTuple):
    """A result for each question (infinite if it never happens), and a few sentences of explanation."""

    results: list[float]
    why: list[str]


@dataclass(frozen=True)
class Experiment:
    """One stage's experiment. `name` is what `predict` takes; `seconds` is roughly how long it takes on two cores."""

    name: str
    stage: int
    title: str
    setting: str
    questions: tuple[Question, ...]
    seconds: int
    run: Callable[..., Outcome]


def openings() -> list[str]:
    return OPENINGS.read_text(encoding="utf-8").splitlines()


def tales(params: Any, tokens: int, each: int = 1) -> tuple[list[str], list]:
    """The openings, `each` times, and sampling parameters for each: drawn, because greedy tales have nearly equal
    lengths, with a separate seed, so that every stage draws the same tales."""
    prompts = openings() * each
    return prompts, [params(temperature=0.8, seed=300 + i, max_tokens=tokens) for i in range(len(prompts))]


def prompts_of(count: int, length: int) -> list[list[int]]:
    """Prompts of token ids, no two of which begin alike."""
    return [[1 + row] * length for row in range(count)]


def join(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def model_bytes(llm: Any) -> int:
    """The part of a model's weights that every pass reads."""
    model = llm.engine.runner.model
    return sum(p.nbytes for p in model.parameters()) - model.wpe.weight.nbytes  # few positions are read


# --- Stage 1: short passes wait for the weights -----------------------------------------------------------------------


def last_token(model: str = "gpt2", prompt: int = 4, tokens: int = 200, repeat: int = 5) -> Outcome:
    """The first token's pass against the last one's. In stage 1 the last token of an output costs as much as the first
    one after a longer prompt, so the tokens in between are left out."""
    from stage01_single import LLM, SamplingParams

    llm = LLM(model, load_format="dummy", device="cpu")
    records = trace(llm).records
    params, lengths = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), (prompt, prompt + tokens - 1)
    seconds: dict[int, list[float]] = {length: [] for length in lengths}
    for turn in range(1 + repeat):  # alternating, so that a busy moment on the machine affects both
        for length in lengths:
            llm.generate(prompts_of(1, length), params)
            if turn:  # the first turn warms up
                seconds[length].append(records[-1].seconds)
    short, long = (statistics.median(seconds[length]) for length in lengths)
    positions, megabytes = lengths[1] / lengths[0], model_bytes(llm) / 1e6
    return Outcome(
        [positions, long / short],
        [
            f"The first pass computes {lengths[0]} tokens, number {tokens} computes {lengths[1]:,}. "
            f"That is {positions:.1f} times the arithmetic.",
            f"They took {1e3 * short:.1f} and {1e3 * long:.1f} ms. Each pass also reads all weights, "
            f"{megabytes:,.0f} MB, once, for however many tokens. A short pass waits for these bytes and its "
            "arithmetic is nearly free; a long pass waits for its arithmetic. So time grows more slowly than work, "
            "until arithmetic takes all of it.",
        ],
    )


# --- Stage 2: a batch is a rectangle ----------------------------------------------------------------------------------


def padding(slots: int = 8, tokens: int = 256) -> Outcome:
    """The padding of the eight tales, and how much of it is rows that have ended."""
    from stage02_static_batch import LLM, SamplingParams

    llm = LLM("tinytales", device="cpu", max_num_seqs=slots)
    records = trace(llm).records
    outputs = llm.generate(*tales(SamplingParams, tokens))
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    rows = [row for step in records for row in step.rows]
    useless, useful = llm.stats.num_padding_tokens, llm.stats.num_tokens_computed
    ended = sum(row.num_padding for row in rows if not row.num_tokens)
    return Outcome(
        [100 * useless / (useless + useful), 100 * ended / max(1, useless)],
        [
            f"{useless + useful:,} places went through the model, {useful:,} of them for a tale that was not finished.",
            f"The tales have {join(lengths)} tokens. Every batch goes on until its longest one ends, and a row that "
            f"has ended stays in it: {ended:,} places. The other {useless - ended:,} are to the left of sequences "
            "that are shorter than the longest of their batch.",
        ],
    )


# --- Stage 3: what the cache saves ------------------------------------------------------------------------------------


def cached(model: str = "gpt2", batch: int = 8, prompt: int = 32, tokens: int = 16) -> Outcome:
    """The same requests without a cache (stage 2) and with one (stage 3)."""
    import stage02_static_batch
    import stage03_kvcache

    positions, seconds = [], []
    for stage in (stage02_static_batch, stage03_kvcache):
        llm = stage.LLM(model, load_format="dummy", device="cpu", max_num_seqs=batch)
        llm.generate(prompts_of(batch, prompt), stage.SamplingParams(max_tokens=2, ignore_eos=True))  # warms up
        records = trace(llm).records
        llm.generate(prompts_of(batch, prompt), stage.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
        positions.append(sum(row.num_tokens for step in records for row in step.rows))
        seconds.append(sum(step.seconds for step in records))
    prefill, *decodes = [step.seconds for step in records]
    decode = statistics.median(decodes) if decodes else math.nan
    return Outcome(
        [positions[0] / positions[1], seconds[0] / seconds[1]],
        [
            f"Without a cache {positions[0]:,} places went through the model in {seconds[0]:.2f} s, with it "
            f"{positions[1]:,} in {seconds[1]:.2f} s.",
            f"With the cache, the prefill's {batch * prompt:,} places took {1e3 * prefill:.0f} ms, and each decode "
            f"step's {batch} took {1e3 * decode:.0f} ms. A decode step computes little, but it reads all weights, as "
            f"every step does: the cache saves arithmetic, and leaves the reading.",
        ],
    )


# --- Stage 4: nobody waits for the slowest ----------------------------------------------------------------------------


def passes(slots: int = 4, each: int = 2, tokens: int = 1000) -> Outcome:
    """Tales through slots (stage 4), and through static batches (stage 3)."""
    import stage03_kvcache
    import stage04_continuous

    counts, kinds = [], ((stage03_kvcache, {"sort_by_length": False}), (stage04_continuous, {}))
    for stage, options in kinds:
        llm = stage.LLM("tinytales", device="cpu", max_num_seqs=slots, **options)
        records = trace(llm).records
        outputs = llm.generate(*tales(stage.SamplingParams, tokens, each))
        counts.append(llm.stats.num_forwards)
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    seen = [(row.request_id, number) for number, step in enumerate(records, start=1) for row in step.rows]
    began = dict(reversed(seen))  # the first pass of each
    first = [began[output.request_id] for output in outputs]
    last = max(range(len(outputs)), key=lambda i: first[i] + lengths[i])
    least = max(max(lengths), math.ceil(sum(lengths) / slots))
    waits = " + ".join(str(max(lengths[i : i + slots])) for i in range(0, len(lengths), slots))
    return Outcome(
        counts[::-1],
        [
            f"The tales have {join(lengths)} tokens, {sum(lengths):,} in all. A pass makes at most one token for "
            f"each of {slots} tales, and a tale's tokens come one after another: no engine can take fewer than "
            f"{least:,} passes.",
            f"Stage 4 gives a free slot to the next tale in the next pass. The last to end is one of {lengths[last]} "
            f"tokens, which got its slot in pass {first[last]}; by then the queue is empty, and other slots stay "
            f"empty. Stage 3 waits for the longest tale of each batch: {waits} passes.",
        ],
    )


# --- Stage 5: memory is given block by block --------------------------------------------------------------------------


def crowd(
    blocks: int = 128,
    requests: int = 64,
    prompt: int = 32,
    tokens: int = 64,
    slots: int = 64,
    model: str = "tinytales",
) -> Outcome:
    """How many requests run at once in a small pool, and what it costs to admit more than fit in the end. Every request
    gets all its tokens, whichever they are, so the weights may be random."""
    from stage05_paged import LLM, SamplingParams

    llm = LLM(model, load_format="dummy", device="cpu", num_blocks=blocks, max_num_seqs=slots)
    records = trace(llm).records
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    llm.generate(prompts_of(requests, prompt), params)
    stats, size = llm.stats, llm.engine.config.block_size
    whole = math.ceil((prompt + tokens - 1) / size)  # the last token is never computed
    again = stats.num_tokens_computed - requests * (prompt + tokens - 1)
    peak, times = max(len(step.rows) for step in records), stats.num_preemptions
    then = (
        f"Then all grow, and the blocks run out. The latest is preempted: it gives its blocks back, waits, and is "
        f"computed again. That happened {times} times, and {again:,} of {stats.num_tokens_computed:,} places were "
        f"computed twice."
        if times
        else "The blocks never ran out, so no request was preempted."
    )
    return Outcome(
        [peak, times],
        [
            f"A finished request fills {whole} blocks, so {blocks // whole} fit up to their ends. But stage 5 "
            f"admits one as soon as there are the {math.ceil(prompt / size)} blocks of its prompt (and "
            f"{llm.engine.scheduler.watermark_blocks} more, as a reserve) and the step has tokens left, and gives "
            "it further blocks one at a time. At first all are short, so many run.",
            f"{then} In all there were {stats.num_forwards:,} passes.",
        ],
    )


# --- Stage 6: what memory allows, and what packing costs --------------------------------------------------------------


def packed(model: str = "gpt2", tokens: int = 16, read: int = 1 << 26) -> Outcome:
    """One request's decode steps with torch and with the packed kernels, against the time it takes to read the weights;
    and the time that packing took. `read` is how many float32s are read to measure the memory's bandwidth."""
    from stage06_fast import LLM, SamplingParams  # before torch, to shorten its threads' busy waiting
    from stage06_fast.config import enabled
    from stage06_fast.fast_model import pick_model
    from stage06_fast.support.openmp import WAITS_BRIEFLY

    llm = LLM(model, load_format="dummy", device="cpu", dtype="float32", max_num_seqs=1, num_blocks=8,
              disable=["linear"])  # fmt: skip
    runner, size = llm.engine.runner, model_bytes(llm)
    if runner.attention_backend != "c":
        raise ValueError("stage 6's kernels need a C compiler, and there is none; install gcc or clang and come back")
    params = SamplingParams(temperature=0, max_tokens=1 + tokens, ignore_eos=True)
    plain = decode_seconds(llm, params)
    started = time.perf_counter()
    runner.model = pick_model(runner.model, enabled(()))
    packing, runner.waits_briefly = time.perf_counter() - started, WAITS_BRIEFLY  # as the runner does with the kernels
    fast = decode_seconds(llm, params)
    from bench.machine import read_bandwidth

    least = size / read_bandwidth(runner.device, read)
    pays = packing / (plain - fast) if fast < plain else math.inf
    return Outcome([100 * least / fast, pays], why_packed(size, least, plain, fast, packing))


def decode_seconds(llm: Any, params: Any, count: int = 1) -> float:
    """The median decode step of this many requests at once, after as many steps to warm up."""
    llm.generate(prompts_of(count, 8), params)
    with trace(llm) as traced:
        llm.generate(prompts_of(count, 8), params)
    steps = [step for step in traced.records if all(row.phase == "decode" for row in step.rows)]
    return statistics.median(step.seconds for step in steps if len(step.rows) == count)


def why_packed(size: int, least: float, plain: float, fast: float, packing: float) -> list[str]:
    saved = (
        f"saves {1e3 * (plain - fast):.1f} ms per token" if fast < plain else "saves nothing per token, here and now"
    )
    return [
        f"A token needs all weights, {size / 1e6:,.0f} MB. A plain sum over a large tensor reads "
        f"{size / least / 1e9:.1f} GB/s here, so no token can take less than {1e3 * least:.1f} ms. With torch's layers "
        f"one took {1e3 * plain:.1f} ms ({least / plain:.0%} of the limit), with panels and stage 6's kernels "
        f"{1e3 * fast:.1f} ms ({least / fast:.0%}).",
        "A panel is one run of memory, read from front to back, an order that the CPU's prefetcher follows. Packing "
        f"the weights into panels took {packing:.2f} s, once, and {saved}. An engine that answers one short question "
        "and exits should not pack.",
    ]


# --- Stage 6: the same bits -------------------------------------------------------------------------------------------

CHANGES = (
    "in a batch", "by one thread", "48 tokens a step", "found in the prefix cache", "preempted", "blocks of 32",
)  # fmt: skip


def same_bits(model: str = "gpt2", dtype: str = "float32") -> Outcome:
    """Which of six changes around a request affect its logits, with torch's kernels (stage 5) and with stage 6's."""
    from bench import bits
    from stage06_fast.kernels.c_kernel import load_kernel
    from tools.engines import STAGES

    load_kernel()  # raises RuntimeError without a compiler: then stage 6 uses torch too
    changed, numbers = [], {}
    for number in (5, 6):
        numbers[number] = bits.compare_all(STAGES[number - 1], model, dtype, CHANGES)
        changed.append([name for name, row in numbers[number].items() if row["different"] or row["lost"]])
    in_all = [sum(row["compared"] + row["lost"] for row in numbers[number].values()) for number in (5, 6)]
    largest = max(row["largest"] for row in numbers[5].values())
    return Outcome(
        [len(names) for names in changed],
        [
            f"Stage 5, of {in_all[0]:,} rows of logits: "
            + ("; ".join(f"{name}: {bits.cell(numbers[5][name])}" for name in changed[0]) or "none changed")
            + f". The largest change is {largest:.0e}. A sum of floats depends on the order in which they are added, "
            "and torch picks its kernel, and with it the order, by the shapes of a call: how many rows a product has, "
            "how many queries, how many keys. Whatever changes a shape may change the bits. What leaves the shapes "
            "alone leaves the bits alone.",
            f"Stage 6, of {in_all[1]:,}: "
            + ("; ".join(f"{name}: {bits.cell(numbers[6][name])}" for name in changed[1]) or "none changed")
            + ". Its kernels add in an order that depends on the model and on a token's position alone (chapter 6, "
            '"The same bits").',
        ],
    )


# --- Stage 7: guesses by the same random number -----------------------------------------------------------------------


def guessed(
    guesses: int = 4, each: int = 2, tokens: int = 64, temperature: str = "0.8", drafter: str = "tinytales-draft"
) -> Outcome:
    """Tales one at a time, with guesses drawn with the tokens' random numbers, and with other random numbers."""
    from bench.speculative import own_numbers
    from stage07_speculative import LLM, SamplingParams

    prompts, how = openings() * each, dict(temperature=float(temperature), max_tokens=tokens, ignore_eos=True)
    params = [SamplingParams(seed=300 + i, **how) for i in range(len(prompts))]
    passes, shares, texts = [], [], []
    for alike in (True, False):
        llm = LLM("tinytales", device="cpu", max_num_seqs=1, speculate=drafter, num_drafts=guesses)
        records = trace(llm).records
        with own_numbers(not alike):
            outputs = llm.generate(prompts, params)
        rows = [row for step in records for row in step.rows]
        right = sum(row.num_accepted for row in rows)
        tried = right + sum(row.num_accepted < len(row.drafts) for row in rows)  # those after a wrong one are not
        passes.append(llm.stats.num_forwards)
        shares.append(f"{right:,} of {tried:,} guesses were right ({right / max(1, tried):.0%})")
        texts.append([output.outputs[0].token_ids for output in outputs])
    num_tokens = len(prompts) * tokens
    differ = "not the same: a near-tie went the other way, in kernels whose sums depend on the number of rows"
    same = "the same, token by token" if texts[0] == texts[1] else differ
    return Outcome(
        passes,
        [
            f"{num_tokens:,} tokens came from {passes[0]:,} passes, {num_tokens / passes[0]:.2f} a pass. A pass "
            f"verifies up to {guesses} guesses and gives one token more than are right in a row; so it always gives "
            f"one. With the tokens' own random numbers {shares[0]}, with others {shares[1]}. A guess after a wrong "
            "one is not counted, since it was never tried.",
            "With one random number both models pick the same token, except where their cumulative distributions "
            "differ. With a separate number the draft model picks the same token only by chance: its probability is "
            "the sum, over all tokens, of the product of their two probabilities. Where one token is nearly certain, "
            f"as inside a word, that is nearly 1; where many are likely it is small. Both runs' tales are {same}.",
        ],
    )


# --- Stage 8: a quarter of the bytes, and what rounding costs ---------------------------------------------------------


def quartered(model: str = "gpt2", dtype: str = "float32", requests: int = 32, tokens: int = 16) -> Outcome:
    """Decode steps with the checkpoint's weights and with weights in int8: of one request, and of several."""
    from stage08_int8 import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1 + tokens, ignore_eos=True)
    times: dict[tuple[int, str], float] = {}
    for count in (1, requests):
        for weights in ("as-is", "int8"):
            llm = LLM(model, load_format="dummy", device="cpu", dtype=dtype, weights=weights, speculate="off",
                      max_num_seqs=count, num_blocks=4 * count)  # fmt: skip
            if llm.engine.runner.attention_backend != "c":
                raise ValueError("stage 8's kernels need a C compiler, and there is none; install gcc or clang")
            times[count, weights] = decode_seconds(llm, params, count)
    config = llm.engine.model_config
    layers = config.n_layer * (4 * config.n_embd**2 + 2 * config.n_embd * config.n_inner)
    num = layers + config.vocab_size * config.n_embd
    faster = [times[count, "as-is"] / times[count, "int8"] for count in (1, requests)]
    size = llm.engine.runner.dtype.itemsize
    ms = {key: f"{1e3 * seconds:.1f} ms" for key, seconds in times.items()}
    return Outcome(
        faster,
        [
            f"A step multiplies by {num / 1e6:.1f} million weights: {num * size / 1e6:,.0f} MB in {dtype}, "
            f"{num / 1e6:,.0f} MB in int8, a {'quarter' if size == 4 else 'half'} of it. A step of one request took "
            f"{ms[1, 'as-is']} and {ms[1, 'int8']}. It mostly waits for weights; everything else (attention, "
            "norms, rounding the activations) takes as long as before.",
            f"A step of {requests} took {ms[requests, 'as-is']} and {ms[requests, 'int8']}. It reads the same weights "
            f"once, and does {requests} times as much arithmetic; so what counts is how many products an instruction "
            "computes: four bytes take the space of one float32. Instructions that add four products of bytes at once "
            "make full use of that; a CPU without them has to widen the bytes first.",
        ],
    )


def rounding(tokens: int = 200, model: str = "tinytales", dtype: str = "float32") -> Outcome:
    """How long greedy tales stay the same with int8 weights; and, after the same text, how often a different token is
    the likeliest."""
    from stage08_int8 import LLM, SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    asked = SamplingParams(max_tokens=0, prompt_logprobs=2)
    texts, scores, drawn = [], [], []
    for weights in ("as-is", "int8"):
        llm = LLM(model, device="cpu", dtype=dtype, weights=weights)
        texts.append([output.outputs[0].token_ids for output in llm.generate(openings(), greedy)])
        if not drawn:  # with the checkpoint's weights, for both
            outputs = llm.generate(*tales(SamplingParams, tokens))
            drawn = [output.prompt_token_ids + output.outputs[0].token_ids for output in outputs]
        scores.append([output.prompt_logprobs[1:] for output in llm.generate(drawn, asked)])
    firsts = sorted(first_difference(one, other) for one, other in zip(*texts, strict=True))
    tops, gaps, bits = [], [], []
    for outputs in scores:
        rows = [entries for output in outputs for entries in output]
        ranked = [sorted(entries.values(), key=lambda entry: entry.rank) for entries in rows]
        gaps.append([math.exp(first.logprob) - math.exp(second.logprob) for first, second, *_ in ranked])
        tops.append([min(entries, key=lambda token: entries[token].rank) for entries in rows])
        chosen = [token for ids in drawn for token in ids[1:]]
        cost = sum(entries[token].logprob for token, entries in zip(chosen, rows, strict=True))
        bits.append(-cost / math.log(2) / len(rows))
    others = [gap for a, b, gap in zip(*tops, gaps[0], strict=True) if a != b]
    ends = [f"{first:,}" for first in firsts if first < math.inf]
    same = len(firsts) - len(ends)
    differ = f"; the others agree in their first {', '.join(ends)} tokens" if ends else ""
    apart = f", where the two likeliest were at most {100 * max(others):.1f} % apart" if others else ""
    return Outcome(
        [statistics.median(firsts), 1000 * len(others) / len(tops[0])],
        [
            f"{same} of {len(firsts)} greedy tales are the same to the end{differ}.",
            f"After the same text, a different token was the likeliest at {len(others)} of {len(tops[0]):,} places"
            f"{apart}. A greedy text that has taken the other token becomes another text: one such place is enough. "
            "How far the texts agree says how often a text reaches such a place, not how large a rounding is.",
            f"A token of the tales, which were drawn, costs {bits[0]:.4f} bits with the checkpoint's weights, and "
            f"{bits[1]:.4f} with int8 weights. Such a number says how much a model has lost; the first difference does "
            "not.",
        ],
    )


def first_difference(one: Sequence[int], other: Sequence[int]) -> float:
    """The number of tokens before the first difference; infinite if there is none."""
    return next((number for number, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), math.inf)


EXPERIMENTS = (
    Experiment(
        "1",
        1,
        "The last token",
        "Stage 1 recomputes the whole sequence for each token. The model has GPT-2's sizes and random weights, the "
        "prompt 4 tokens, the output 200.",
        (
            Question(
                "The pass for the first token computes 4 tokens, the prompt. How many times as many tokens does the "
                "pass for the 200th compute?",
                "tokens",
                "times as many",
            ),
            Question("How many times as long does the 200th token take as the first?", "time", "times as long"),
        ),
        20,
        last_token,
    ),
    Experiment(
        "2",
        2,
        "Eight tales in one batch",
        "Stage 2 completes the eight openings of docs/examples/prompts.txt in one batch, with at most 256 tokens each. "
        "The openings are of unequal lengths, and the tales end when they end.",
        (
            Question("What share of all places that go through the model is padding?", "padding", "%"),
            Question("What share of the padding belongs to rows that have ended?", "of which ended rows", "%"),
        ),
        20,
        padding,
    ),
    Experiment(
        "3",
        3,
        "With and without a cache",
        "Eight requests in one batch, prompts of 32 tokens, 16 tokens out; GPT-2's sizes with random weights. Stage 2 "
        "computes them without a cache, stage 3 with one.",
        (
            Question("How many times fewer places go through the model with the cache?", "places", "times fewer"),
            Question("How many times as fast is it?", "time", "times as fast"),
        ),
        20,
        cached,
    ),
    Experiment(
        "4",
        4,
        "Sixteen tales, four at once",
        "The eight openings of docs/examples/prompts.txt, twice. The tales are drawn, so they differ, and end when "
        "they end: most have 150 to 450 tokens. Four run at once.",
        (
            Question("How many forward passes does stage 4 take?", "stage 4", "passes"),
            Question(
                "And stage 3, which makes four static batches of four, in the order of the file?", "stage 3", "passes"
            ),
        ),
        20,
        passes,
    ),
    Experiment(
        "5",
        5,
        "More than fit",
        "A pool of 128 blocks of 16 tokens: the memory of two of stage 4's slots of 1,024 tokens. 64 requests come at "
        "once, each with a prompt of 32 tokens and 64 tokens out. A step computes at most 512 tokens, and one block "
        "stays free when a request is admitted while others run.",
        (
            Question("How many requests run in the busiest step?", "at once", "requests"),
            Question("How many times is a request preempted, to be computed again later?", "preempted", "times"),
        ),
        10,
        crowd,
    ),
    Experiment(
        "6",
        6,
        "At the limit",
        "One request, decoded token by token with stage 6; GPT-2's sizes with random weights in float32. It runs with "
        "torch's linear layers first; then the weights are packed into panels, and the kernels take over.",
        (
            Question(
                "What share of the limit does the packed engine reach? At 100 % a token takes exactly as long as "
                "reading the weights once.",
                "of the limit",
                "%",
            ),
            Question("After how many tokens has packing the weights paid for itself?", "packing pays", "tokens"),
        ),
        20,
        packed,
    ),
    Experiment(
        "bits",
        6,
        "The same bits",
        "Four requests, sampled with seeds; GPT-2's sizes with random weights in float32. First each is computed "
        "alone, its whole prompt in one step. Then one thing changes at a time: other requests join; one thread runs; "
        "a step takes at most 48 tokens; its prompt is found in the prefix cache; it is preempted and computed "
        "again; blocks have 32 tokens instead of 16. Every bit of every row of logits is compared.",
        (
            Question(
                "How many of the six changes change a bit in stage 5, which uses torch's kernels?", "stage 5", "of six"
            ),
            Question("And in stage 6, which has its own?", "stage 6", "of six"),
        ),
        60,
        same_bits,
    ),
    Experiment(
        "7",
        7,
        "Guesses",
        "Sixteen tales of 64 tokens, one at a time, drawn with temperature 0.8 and seeds. A draft model that learned "
        "from the same tales guesses four tokens a step, and the model verifies them. Stage 6 takes 16 x 64 = 1,024 "
        "passes.",
        (
            Question(
                "How many passes does the model take, if a guess is drawn with the same random number as the token "
                "that verifies it?",
                "same numbers",
                "passes",
            ),
            Question("And if the draft model draws with separate random numbers?", "own numbers", "passes"),
        ),
        10,
        guessed,
    ),
    Experiment(
        "8",
        8,
        "A quarter of the bytes",
        "Stage 8 with weights in float32, and with weights in int8; GPT-2's sizes with random weights, and no guesses. "
        "One request is decoded alone, then 32 together.",
        (
            Question(
                "How many times as fast is a step of one request with a quarter of the bytes?", "one request", "times"
            ),
            Question("And a step of 32 requests?", "32 requests", "times"),
        ),
        20,
        quartered,
    ),
    Experiment(
        "loss",
        8,
        "What rounding costs",
        "Stage 8 completes the eight openings of docs/examples/prompts.txt greedily, 200 tokens each, with weights in "
        "float32 and in int8. Then both read the same drawn tales, and predict the likeliest token at each place.",
        (
            Question(
                "After how many tokens do the two texts of an opening differ for the first time, in the median?",
                "first difference",
                "tokens",
            ),
            Question(
                "Of 1,000 places in the same text, at how many is a different token the likeliest?",
                "likeliest",
                "of 1,000",
            ),
        ),
        20,
        rounding,
    ),
)

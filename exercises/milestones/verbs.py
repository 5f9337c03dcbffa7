"""The verbs of the loop, each checked separately before the whole engine runs, with input and result written by hand.
The first case of a verb is a step that its stage's chapter works out by hand."""

import copy
import importlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from exercises.grading import expect, require

from .lab import BYTES_PER_TOKEN, END, FIRST, SIZES, Lab, Missing, prompts_of

CPU = torch.device("cpu")
PROMPTS = ([7, 4, 1, 9], [3, 8])  # of four tokens, and of two


def part(lab: Lab, module: str, name: str) -> Any:
    """A function or class of the engine. Raises Missing if the engine is built differently."""
    package = lab.own.LLM.__module__.split(".")[0]
    try:
        return getattr(importlib.import_module(f"{package}.{module}"), name)
    except (ImportError, AttributeError):
        raise Missing(f"it has no `{name}` in {module}.py, so this verb is not checked separately") from None


def batch_of(lab: Lab) -> Any:
    return part(lab, "batch", "Batch").of


def request(lab: Lab, prompt: Sequence[int], output: Sequence[int] = (), **settings: Any) -> Any:
    """One of the engine's requests, with this output so far."""
    kind, params = part(lab, "request", "Request"), lab.params({"temperature": 0, "max_tokens": 9, **settings})
    try:
        made = kind(
            request_id="0",
            prompt=None,
            prompt_token_ids=list(prompt),
            params=params,
            seed=5,
            max_length=SIZES["n_positions"],
            tokenizer=lab.tokenizer(),
            eos_token_ids=(END,),
        )
        made.output_token_ids.extend(output)
    except (TypeError, AttributeError) as error:
        raise Missing(f"its requests are built differently ({error}), so this verb is not checked separately") from None
    return made


def engine_of(lab: Lab, **options: Any) -> Any:
    engine = getattr(lab.shared(**options), "engine", None)
    if engine is None:
        raise Missing("LLM has no `engine`, so this verb is not checked separately")
    return engine


def numbers(tensor: Any) -> Any:
    return tensor.tolist() if isinstance(tensor, Tensor) else tensor


def of_logits(vocab_size: int, *best: int) -> Tensor:
    """Logits of rows with these best tokens."""
    return torch.nn.functional.one_hot(torch.tensor(best), vocab_size) * 9.0


# --- 1. One sequence --------------------------------------------------------------------------------------------------


def check_one_batch(lab: Lab) -> None:
    """batch: the whole sequence of a request, prompt and output"""
    of, case = batch_of(lab), "Batch.of, a prompt of 7 4 1 9 and an output of 5 2 so far: token_ids"
    with lab.case(case):
        got = numbers(of(request(lab, PROMPTS[0], [5, 2]), CPU).token_ids)
    said = {
        "stage 1 has no cache: the prompt goes through the model in every step": [5, 2],
        "the output so far belongs to the sequence": list(PROMPTS[0]),
    }
    expect(case, got, [*PROMPTS[0], 5, 2], said)


def check_one_forward(lab: Lab) -> None:
    """forward: the logits after the last token"""
    of, runner, prompt = batch_of(lab), engine_of(lab).runner, prompts_of(9)[0]
    case, network = "Runner.forward, a prompt of 9 tokens", lab.network(lab.model())
    with lab.case(case), torch.inference_mode():
        got = runner.forward(of(request(lab, prompt), CPU))
    said = {"return only the logits after the last token": [9, SIZES["vocab_size"]]}
    expect(f"{case}: shape of the logits", list(got.shape), [SIZES["vocab_size"]], said)
    known = {said: logits.tolist() for said, logits in network.mistakes(prompt).items()}
    expect(f"{case}: the logits", got.tolist(), network.logits(prompt).tolist(), known, tolerance=1e-3)


def check_one_sample(lab: Lab) -> None:
    """sample: the best token, and a seeded draw"""
    sample, logits = part(lab, "sampler", "sample"), of_logits(SIZES["vocab_size"], 42)[0]
    with lab.case("sample, temperature 0, token 42 is the best"):
        got = sample(logits, request(lab, PROMPTS[0]))
    pair = isinstance(got, tuple) and len(got) == 2
    require(pair, "sample: the result", "(token, log-probabilities or None)", got)
    expect("sample, temperature 0, token 42 is the best: the token", int(got[0]), 42)
    settings = {"temperature": 1.0, "top_k": 5}
    for made in ([], [3], [3, 3]):
        case = f"sample, temperature 1, top_k 5, seed 5, {len(made)} tokens of output so far"
        with lab.case(case):
            got = sample(logits / 9, request(lab, PROMPTS[0], made, **settings))[0]
        theirs = FIRST.make_request(FIRST.SamplingParams(**settings), PROMPTS[0], made, seed=5)
        likely = "the random number of a draw is uniform(request.seed, number of output tokens so far)"
        expect(case, int(got), int(FIRST.sample(logits[None] / 9, [theirs])[0][0]), likely=likely)


def check_one_draw(lab: Lab) -> None:
    """draws: temperature, top_p and min_p, and logits that are not finite"""
    sample, vocab_size = part(lab, "sampler", "sample"), SIZES["vocab_size"]
    random, equal = torch.randn(vocab_size, generator=torch.Generator().manual_seed(0)), torch.full((vocab_size,), -1e4)
    equal[[7, 9, 11, 13]] = 1.0
    for logits, what, settings, likely in (
        (random * 3, "random logits", {"temperature": 0.5}, "logits are divided by the temperature"),
        (random * 3, "random logits", {"temperature": 2.0}, "logits are divided by the temperature"),
        (
            random,
            "random logits",
            {"temperature": 1.0, "top_p": 0.95},
            "keep the fewest likeliest tokens whose probabilities sum to at least p",
        ),
        (random * 3, "random logits", {"temperature": 0.7, "top_p": 0.5}, "top_p comes after the temperature"),
        (
            random * 3,
            "random logits",
            {"temperature": 1.5, "min_p": 0.2},
            "keep tokens at least p times as likely as the best",
        ),
        (equal, "four equal logits", {"temperature": 1.0, "top_p": 0.5}, "two of them reach p: the others are dropped"),
        (random, "random logits", {"temperature": 1.0, "top_k": 20, "top_p": 0.3}, "top_k comes before top_p"),
        (random, "random logits", {"temperature": 1.0, "top_p": 0.7, "min_p": 0.1}, "top_p comes before min_p"),
    ):
        case = f"sample, {what}, {settings}, seed 5, 0 to 39 tokens of output so far: the tokens"
        with lab.case(case):
            got = [
                int(sample(logits, request(lab, PROMPTS[0], [3] * n, **settings, max_tokens=50))[0]) for n in range(40)
            ]

        def right(settings: dict, logits: Tensor = logits) -> list[int]:
            params = FIRST.SamplingParams(**settings)
            theirs = [FIRST.make_request(params, PROMPTS[0], [3] * n, seed=5) for n in range(40)]
            return [int(FIRST.sample(logits[None], [one])[0][0]) for one in theirs]

        ignored = {name: {**settings, name: off} for name, off in (("top_p", 1.0), ("min_p", 0.0)) if name in settings}
        said = {f"{name} is accepted and ignored": right(without) for name, without in ignored.items()}
        expect(case, got, right(settings), said, likely=likely)
    with lab.case(case := "sample, logits that are all NaN"):
        got = sample(torch.full((vocab_size,), float("nan")), request(lab, PROMPTS[0], temperature=1.0))
    kind = isinstance(got, ValueError)
    require(
        kind,
        case,
        "a ValueError, returned",
        got,
        "`choose` raises the error, and `sample` returns it: it ends only this request",
    )
    draw, weights = part(lab, "sampler", "draw"), torch.tensor([0, 1, 1], dtype=torch.float64)
    with lab.case(case := "draw, weights 0 1 1, numbers 0 and 0.5: the tokens"):
        got = [int(draw(weights, u)) for u in (0.0, 0.5)]
    likely = "the first token at which the cumulative sum exceeds u times the total: one of weight 0 is never drawn"
    expect(case, got, [1, 2], likely=likely)


def check_one_end(lab: Lab) -> None:
    """the end: an end token that is ignored, a stop string that the last bytes complete"""
    with lab.case(case := "add, the end token, ignore_eos=True: finish_reason"):
        one = request(lab, PROMPTS[0], ignore_eos=True)
        one.add(END)
    expect(case, str(one.finish_reason), "None", likely="with ignore_eos the end token is an ordinary token")
    expect(
        "add, without log-probabilities: the request's logprobs", list(one.logprobs), [], likely="None is not stored"
    )
    with lab.case(
        case := "add, the first of the two bytes of é as the last token, and the stop string is \ufffd: both reasons"
    ):
        one = request(lab, PROMPTS[0], ignore_eos=True, stop="\ufffd", max_tokens=1)
        one.add(one.tokenizer.encode("é")[0])
    likely = "what `self.text.flush` finds is the reason"
    expect(case, [one.finish_reason, one.stop_reason], ["stop", "\ufffd"], likely=likely)
    with lab.case(case := "add, the tokens x, y and z, the stop string is xy, min_tokens=2: finish_reason"):
        one = request(lab, PROMPTS[0], stop="xy", min_tokens=2)
        for letter in "xyz":
            one.add(one.tokenizer.encode(letter)[0])
    likely = "it was complete within the first min_tokens tokens: to end the output it has to end in the newest text"
    expect(case, str(one.finish_reason), "None", likely=likely)
    for stops in (["ac", "bac"], ["bac", "ac"]):
        with lab.case(case := f"add, the tokens b, a and c, the stop strings are {stops}: text and stop_reason"):
            one = request(lab, PROMPTS[0], stop=stops)
            for letter in "bac":
                one.add(one.tokenizer.encode(letter)[0])
        likely = "both are complete at once: the one that begins first counts"
        said = {"a stop string may begin in one token and end in a later one": ["bac", None]}
        expect(case, [one.text.text, one.stop_reason], ["", "bac"], said, likely=likely)
    for kept, text, certain, likely in (
        (False, "b", 1, "a and ac may become the stop string acid: they are held back"),
        (True, "bacid", 3, "a stop string that is kept may be told at once: nothing is held back"),
    ):
        how = f"the stop strings are q and acid, include_stop_str_in_output={kept}"
        with lab.case(f"add, the tokens b, a, c, i and d, {how}"):
            one = request(lab, PROMPTS[0], stop=["q", "acid"], include_stop_str_in_output=kept)
            for letter in "bac":
                one.add(one.tokenizer.encode(letter)[0])
            num_final = one.text.num_final
            for letter in "id":
                one.add(one.tokenizer.encode(letter)[0])
        expect(f"add, the tokens b, a and c, {how}: num_final", num_final, certain, likely=likely)
        expect(f"add, the tokens b, a, c, i and d, {how}: text", one.text.text, text)


def check_one_commit(lab: Lab) -> None:
    """commit: the token to its request, which may end with it"""
    of, engine, counters = batch_of(lab), engine_of(lab), ("num_forwards", "num_output_tokens", "num_requests")
    for most, reason in ((2, None), (1, "length")):
        case, before = f"Engine.commit of token 42, max_tokens={most}", lab.counted(engine, *counters)
        with lab.case(case):
            one = request(lab, PROMPTS[0], max_tokens=most)
            got = engine.commit(of(one, CPU), (42, None))
        counts = [now - then for now, then in zip(lab.counted(engine, *counters), before, strict=True)]
        expect(f"{case}: output_token_ids", list(one.output_token_ids), [42])
        expect(f"{case}: finish_reason", one.finish_reason, reason)
        require(got == [one], f"{case}: the result", "the request, in a list", got, "the requests that got a token")
        right = [1, 1, int(most == 1)]
        said = "call `self.stats.count` after the token is added: it counts tokens and requests that have ended"
        expect(f"{case}: steps, output tokens and requests that it counts", counts, right, likely=said)


# --- 2. A batch -------------------------------------------------------------------------------------------------------


def check_rows_batch(lab: Lab) -> None:
    """batch: a rectangle, padded on the left, and which rows are live"""
    of, case = batch_of(lab), "Batch.of, prompts of 4 and 2 tokens, and one of 2 that has ended"
    with lab.case(case):
        ended = request(lab, PROMPTS[1], [5])
        ended.finish("length")
        rows = [request(lab, PROMPTS[0]), request(lab, PROMPTS[1]), ended]
        batch = of(rows, CPU)
        got = numbers(batch.token_ids), numbers(batch.num_padding)
        counts = batch.num_tokens, batch.num_padding_tokens
    likely = "rows are padded on the right: then a short row's last column is padding"
    expect(f"{case}: the second row's own tokens", got[0][1][2:], list(PROMPTS[1]), likely=likely)
    expect(f"{case}: num_padding of the live rows", got[1][:2], [0, 2])
    expect(f"{case}: live_rows", list(batch.live_rows), [0, 1], {"a row that has ended is not live": [0, 1, 2]})
    said = {"padding is everything that goes through the model in vain, including rows that have ended": (6, 3)}
    expect(f"{case}: num_tokens, num_padding_tokens", counts, (6, 6), said)


def check_rows_forward(lab: Lab) -> None:
    """forward: one row of logits for each live row"""
    of, runner, prompts = batch_of(lab), engine_of(lab).runner, prompts_of(9, 3)
    case, network = "Runner.forward, prompts of 9 and 3 tokens in one batch", lab.network(lab.model())
    with lab.case(case), torch.inference_mode():
        got = runner.forward(of([request(lab, prompt) for prompt in prompts], CPU))
    expect(f"{case}: shape of the logits", list(got.shape), [2, SIZES["vocab_size"]])
    for row, prompt in enumerate(prompts):
        known = {said: logits.tolist() for said, logits in network.mistakes_in_company(prompt, 9).items()}
        right = network.logits(prompt).tolist()
        expect(f"{case}: logits of the row with {len(prompt)} tokens", got[row].tolist(), right, known, tolerance=1e-3)


def check_run_order(lab: Lab) -> None:
    """run: the requests in their order, or the longest prompts first"""
    for sort, right in ((False, ["A", "B"]), (True, ["B", "A"])):
        case = f"run, A with 2 tokens and B with 4, one at a time, sort_by_length={sort}: which request gets a token"
        with lab.case(case):
            engine = engine_of(lab, max_num_seqs=1, sort_by_length=sort)
            a, b = request(lab, PROMPTS[1], max_tokens=1), request(lab, PROMPTS[0], max_tokens=1)
            got = ["A" if one is a else "B" for updated in engine.run(deque([a, b])) for one in updated]
        expect(case, got, right, likely="the longest prompts first" if sort else "they run in the given order")


# --- 3. A cache -------------------------------------------------------------------------------------------------------


def check_cache(lab: Lab) -> None:
    """cache: new columns after the filled ones, and all of them as a view"""
    kind, case = part(lab, "kv_cache", "KVCache"), "KVCache.update, three columns and then one"
    with lab.case(case):
        cache = kind(2, 1, 2, 8, 4, torch.float32, CPU)
        first, second = torch.arange(48.0).view(2, 1, 2, 3, 4), torch.arange(100.0, 116.0).view(2, 1, 2, 1, 4)
        cache.update(1, *first)
        cache.length = 3
        keys, values = cache.update(1, *second)
    expected = torch.cat([first, second], dim=3)
    expect(
        f"{case}: shape", list(keys.shape), [1, 2, 4, 4], {"return all columns, not only the new ones": [1, 2, 1, 4]}
    )
    expect(f"{case}: keys", keys.tolist(), expected[0].tolist())
    expect(f"{case}: values", values.tolist(), expected[1].tolist())
    expect(f"{case}: length", cache.length, 3, {"the model moves it, after all layers have written": 4})
    with lab.case(case := f"{case}, and then another in the place of that one"):
        cache.update(1, *second + 1)
    got, right = [keys[:, :, 3].tolist(), values[:, :, 3].tolist()], (second + 1)[:, :, :, 0].tolist()
    likely = "return views without a copy: they see what is written"
    expect(f"{case}: keys and values that were returned before", got, right, likely=likely)
    with lab.case("bytes_per_token"):
        got = part(lab, "kv_cache", "bytes_per_token")(3, 48, torch.float32)
    expect("bytes_per_token, 3 layers of width 48 in float32", got, 1152, {"a key and a value": 576})


def check_cache_batch(lab: Lab) -> None:
    """batch: the prompts in the prefill, then one token of each row"""
    of, kind = batch_of(lab), part(lab, "kv_cache", "KVCache")
    for filled, output, own, expected in (
        (0, [], PROMPTS, [[7, 4, 1, 9], [0, 0, 3, 8]]),
        (4, [5], ([5], [5]), [[5], [5]]),
    ):
        case = f"Batch.of, prompts of 4 and 2 tokens, {filled} columns in the cache: token_ids"
        with lab.case(case):
            cache = kind(2, 2, 3, 9, 16, torch.float32, CPU)
            cache.length = filled
            batch = of([request(lab, prompt, output) for prompt in PROMPTS], cache, CPU)
            got = numbers(batch.token_ids)
        got = [[0] * (len(row) - len(new)) + row[-len(new) :] for row, new in zip(got, own, strict=True)]
        expect(case, got, expected, likely="what is in the cache is not computed again" if filled else "")
        is_prefill = case.replace("token_ids", "is_prefill")
        expect(
            is_prefill, bool(batch.is_prefill), not filled, likely="the prompts are computed while the cache is empty"
        )
    with lab.case(case := "Batch.of, a decode: one row has the output 5, the other failed before its first token"):
        failed = request(lab, PROMPTS[1])
        failed.fail(ValueError("no logit is finite"))
        batch = of([request(lab, PROMPTS[0], [5]), failed], cache, CPU)
        got = list(batch.token_ids.shape), numbers(batch.token_ids)[0], list(batch.live_rows)
    said = "a row without an output is carried along, too: any token fills its column"
    expect(f"{case}: shape of token_ids, the first row, and live_rows", got, ([2, 1], [5], [0]), likely=said)


def check_batches(lab: Lab) -> None:
    """batches: as many as fit into the cache"""
    room, lengths = 88, (30, 20, 25, 8)
    engine = engine_of(lab, kv_cache_bytes=room * BYTES_PER_TOKEN, max_num_seqs=8)
    case = f"next_batch, prompts of {lengths} tokens, max_tokens=20, a cache of {room} tokens: prompts of each batch"
    with lab.case(case):
        waiting, got = deque(request(lab, range(length), max_tokens=20) for length in lengths), []
        while waiting:
            got.append([len(one.prompt_token_ids) for one in engine.next_batch(waiting)])
    said = "each row takes as many columns as the longest prompt plus the longest output, minus the last token"
    expect(case, got, [[30], [20, 25], [8]], likely=said)
    with lab.case(case := "next_batch, three prompts, max_num_seqs=2: requests in each batch"):
        waiting, engine, got = deque(request(lab, PROMPTS[0]) for _ in range(3)), engine_of(lab, max_num_seqs=2), []
        while waiting:
            got.append(len(engine.next_batch(waiting)))
    expect(case, got, [2, 1], likely="a batch has at most `max_num_seqs` rows")
    with lab.case("check_fits, a prompt of 10 tokens and max_tokens=31, a cache of 40 tokens: all 40 are computed"):
        engine_of(lab, kv_cache_bytes=40 * BYTES_PER_TOKEN).check_fits(request(lab, range(10), max_tokens=31))


# --- Schedulers of any kind -------------------------------------------------------------------------------------------


def queued(lab: Lab, scheduler: Any, lengths: Sequence[int]) -> dict[Any, str]:
    """New requests in a scheduler's queue with prompts of these lengths, and their names: A to D."""
    names = {request(lab, range(1, length + 1)): name for length, name in zip(lengths, "ABCD", strict=False)}
    for one in names:
        scheduler.add(one)
    return names


def scheduled(scheduler: Any, names: dict[Any, str]) -> list[tuple[str, int]]:
    """The rows of a step: (name, tokens)."""
    return [(names[one], int(count)) for one, count, _ in scheduler.schedule()]


def stepped(scheduler: Any, names: dict[Any, str]) -> list[tuple[str, int]]:
    """The same, and what the engine does next: compute the tokens, and give one to each request that is ready."""
    rows = scheduler.schedule()
    for one, count, ready in rows:
        one.num_computed_tokens += count
        one.output_token_ids += [11] * bool(ready)
    return [(names[one], int(count)) for one, count, _ in rows]


# --- 4. Slots ---------------------------------------------------------------------------------------------------------

# Chapter 4, "Four steps by hand": two slots, six tokens a step. For each step: (request, tokens, whether it is ready).
BY_HAND = [
    [("A", 4, True), ("B", 2, False)],
    [("A", 1, True), ("B", 4, True)],
    [("B", 1, True), ("C", 2, True)],
    [("C", 1, True)],
]
SAID = {
    0: "A's four tokens leave two of the six: B's prompt is cut",
    1: "decodes come first; C waits for a slot",
    2: "A has ended, and C gets its slot in the next step",
    3: "B has ended",
}


def committed(rows: Sequence[Any], remove: Any) -> None:
    """Do by hand what the engine does after a step."""
    for one, count, ready in rows:
        one.num_computed_tokens += count
        if ready:
            one.output_token_ids.append(11)
            if len(one.output_token_ids) == 2:
                remove(one)


def check_schedule(lab: Lab) -> None:
    """schedule: the four steps that chapter 4 works out by hand"""
    with lab.case("Scheduler(2, 6)"):
        scheduler = part(lab, "scheduler", "Scheduler")(2, 6)
        names = {}
        for name, length in (("A", 4), ("B", 6), ("C", 2)):
            one = request(lab, range(1, length + 1), max_tokens=2)
            names[one] = name
            scheduler.add(one)
    for step, expected in enumerate(BY_HAND):
        case = f"prompts of 4, 6 and 2 tokens, 2 slots, 6 tokens a step: step {step} of the chapter's four"
        with lab.case(case):
            rows = scheduler.schedule()
            got = [(names[one], int(count), bool(ready)) for one, count, ready in rows]
        expect(case, got, expected, likely=SAID[step])
        slots = {names[one]: one.slot for one, *_ in rows}
        right = {name: {"A": 0, "B": 1, "C": 0}[name] for name, *_ in expected}
        expect(f"{case}: slots", list(slots.values()), list(right.values()), likely="the lowest slot that is free")
        with lab.case(f"{case}: remove"):
            committed(rows, scheduler.remove)
    with lab.case("schedule, without requests"):
        expect("schedule, without requests", list(scheduler.schedule()), [])
    likely = "`schedule` adds one to `self.num_steps`, which the policies use"
    expect("schedule, five times: num_steps", scheduler.num_steps, 5, likely=likely)
    case = "A is added, and then B, which already has the rank (0, -1): the only slot goes to"
    with lab.case(case):
        scheduler = part(lab, "scheduler", "Scheduler")(1, 6)
        a, b = request(lab, PROMPTS[0]), request(lab, PROMPTS[1])
        b.rank = (0, -1)
        for one in (a, b):
            scheduler.add(one)
        got = ["A" if one is a else "B" for one, *_ in scheduler.schedule()]
    expect(case, got, ["B"], likely="a request that has a rank keeps it, and its place in the queue")


def check_admission(lab: Lab) -> None:
    """admit and remove: no slot without tokens, a prompt that must come whole, a request removed twice"""
    kind, said = part(lab, "scheduler", "Scheduler"), "it waits: no token of the step is left for it"
    for lengths, whole, right, likely in (
        ((4, 2, 2), False, [("A", 4), ("B", 2)], f"C: {said}"),
        (
            (4, 5, 2),
            True,
            [("A", 4)],
            "B's prompt must come whole, only two tokens of the step are left, and C comes after B",
        ),
        ((4, 2), True, [("A", 4), ("B", 2)], "B's prompt fits into what is left of the step"),
    ):
        case = (
            f"prompts of {lengths} tokens, 3 slots, 6 tokens a step{', prompts come whole' if whole else ''}: the rows"
        )
        with lab.case(case):
            scheduler = kind(3, 6, enable_chunked_prefill=not whole)
            got = scheduled(scheduler, queued(lab, scheduler, lengths))
        expect(case, got, right, likely=likely)
    case = "A runs, B waits for its slot"
    with lab.case(case):
        a, b = names = queued(lab, scheduler := kind(1, 6), (4, 2))
        scheduler.schedule()
        times = [isinstance(one.first_scheduled_time, float) for one in (a, b)]
        first = a.first_scheduled_time
    expect(f"{case}: whether first_scheduled_time of A and of B is a time", times, [True, False],
           likely="`_admit` sets it to time.perf_counter()")  # fmt: skip
    with lab.case(f"{case}: A is removed, then once more, then comes back after B"):
        scheduler.remove(a)
        scheduler.remove(a)
        left = [a.slot, a.rank, list(scheduler.free_slots)]
        a.num_computed_tokens = 0
        scheduler.add(a)
        come = [name for name, _ in scheduled(scheduler, names)]
        scheduler.remove(b)
        scheduler.schedule()
        scheduler.check_integrity()
    likely = "a removed request has neither slot nor rank, and removing it again does no harm"
    expect(f"{case}: A is removed twice: its slot, its rank, free slots", left, [None, None, [0]], likely=likely)
    expect(f"{case}: A is removed, and comes back: the next step", come, ["B"], likely="A's new rank is after B's")
    same = a.first_scheduled_time == first
    require(same, f"{case}: A comes back: first_scheduled_time", "the first", "a later one", "it stays the same")
    with lab.case(case := "policy priority; A has priority 1, and B, which comes later, 0: the only slot goes to"):
        scheduler, a, b = kind(1, 6, policy="priority"), request(lab, PROMPTS[0]), request(lab, PROMPTS[1])
        a.priority = 1
        for one in (a, b):
            scheduler.add(one)
        got = ["A" if one is a else "B" for one, *_ in scheduler.schedule()]
    expect(case, got, ["B"], likely="a rank begins with `policy_rank`: the lowest number first")
    with lab.case(case := "abort A, which waits, and B, which has ended with the reason stop"):
        engine, a, b = copy.copy(engine_of(lab)), request(lab, PROMPTS[0]), request(lab, PROMPTS[1])
        engine.scheduler = kind(1, 6)
        engine.add(a)
        b.finish("stop")
        for one in (a, b):
            engine.abort(one)
        left = [a.finish_reason, b.finish_reason, len(engine.scheduler.waiting)]
    likely = "a request that has ended keeps its reason; others get `abort`"
    expect(f"{case}: both reasons, and how many wait", left, ["abort", "stop", 0], likely=likely)


def check_flat_batch(lab: Lab) -> None:
    """batch: single tokens first, then the runs, each token with its position and its slot"""
    of, row, names = batch_of(lab), part(lab, "scheduler", "Row"), ("token_ids", "positions", "slots", "logits_indices")
    with lab.case(case := "Batch.of, two of B's tokens and A's decode"):
        a, b = request(lab, [1, 2, 3, 4], [5]), request(lab, [6, 7, 8, 9])
        a.slot, a.num_computed_tokens, b.slot, b.num_computed_tokens = 0, 4, 1, 2
        batch = of([row(b, 2, True), row(a, 1, True)], CPU)
        got = [numbers(getattr(batch, name)) for name in names]
    for name, one, expected in zip(names, got, ([5, 8, 9], [4, 2, 3], [0, 1, 1], [0, 2]), strict=True):
        expect(f"{case}: {name}", one, expected)
    require(batch.ready == [a, b], f"{case}: ready", "A and B, in the order of their rows", batch.ready)
    got = batch.num_single, batch.num_slots, batch.n_seq, [tuple(run) for run in batch.runs]
    likely = "A is the only single token, in slot 0 with a sequence of 5; B's run is tokens 1 and 2, in slot 1"
    expect(f"{case}: num_single, num_slots, n_seq and runs", got, (1, 1, 5, [(1, 3, 1, 4)]), likely=likely)


def check_slot_cache(lab: Lab) -> None:
    """cache: each token goes to its slot and its position"""
    new = torch.arange(16.0).view(2, 2, 2, 2)
    with lab.case(case := "KVCache.update, a token for slot 1 at position 4 and one for slot 0 at 2"):
        cache = part(lab, "kv_cache", "KVCache")(2, 3, 2, 8, 2, torch.float32, CPU)
        keys, values = cache.update(1, torch.tensor([1, 0]), torch.tensor([4, 2]), *new)
    for name, tensor, written in (("keys", keys, new[0]), ("values", values, new[1])):
        expect(f"{case}: {name}", [tensor[1, :, 4].tolist(), tensor[0, :, 2].tolist()], written.tolist())


# --- 5. Blocks --------------------------------------------------------------------------------------------------------


def manager_of(lab: Lab, num_blocks: int, **how: Any) -> Any:
    return part(lab, "block_manager", "BlockManager")(num_blocks, 4, watermark=0, **how)


def check_blocks(lab: Lab) -> None:
    """blocks: allocated when needed, all or none, and freed"""
    case = "blocks of 4, nine of them, a prompt of 6 tokens and max_tokens=9: blocks at first"
    with lab.case(case):
        manager, a = manager_of(lab, 9, enable_prefix_caching=False), request(lab, range(1, 7))
        manager.allocate(a)
        expect(case, len(manager.block_table(a)), 2, {"each request reserves everything it may need from the start": 4})
    case = "blocks of 4, three of them"
    with lab.case(case):
        manager = manager_of(lab, 3, enable_prefix_caching=False)
        a, b = request(lab, range(1, 7)), request(lab, range(1, 5))
        manager.allocate(a)
        manager.check_integrity()
        counts = len(manager.block_table(a)), manager.num_free
        expect(f"{case}: A has 6 tokens: blocks, and free ones", counts, (2, 1))
        before = list(manager.block_table(a))
        a.output_token_ids.append(9)
        manager.append(a)
        after, said = list(manager.block_table(a)), "the last block has room for it: nothing changes"
        expect(f"{case}: A gets a seventh token: its blocks", after, before, likely=said)
        manager.allocate(b)
        tables = [list(manager.block_table(one)) for one in (a, b)]
        expect(f"{case}: B has 4: the blocks of both", sorted(tables[0] + tables[1]), [0, 1, 2])
        b.output_token_ids.append(9)
        expect(f"{case}: B gets a fifth token: can_append, and no block is free", manager.can_append(b), False)
        likely = "A's last block has room for its last token, so A needs no new one"
        expect(f"{case}: can_append for A, and no block is free", manager.can_append(a), True, likely=likely)
        manager.free(a)
        manager.append(b)
        manager.check_integrity()
        table = list(manager.block_table(b))
        expect(f"{case}: A is freed, B takes another block: its blocks", (table[:1], len(table)), (tables[1], 2))
        expected = [table[i // 4] * 4 + i % 4 for i in range(5)]
        expect(f"{case}: the slots of B's five tokens", list(manager.slot_mapping(b, 0, 5)), expected)


def check_block_schedule(lab: Lab) -> None:
    """schedule: the last to arrive gives its blocks back, and is computed again"""
    case = "prompts of 6 and 4 tokens, four blocks of 4, 16 tokens a step"
    with lab.case(case):
        manager = manager_of(lab, 4, enable_prefix_caching=False)
        scheduler = part(lab, "scheduler", "Scheduler")(manager, 4, 16)
        _, b = names = queued(lab, scheduler, (6, 4))
        seen = [stepped(scheduler, names) for _ in range(5)]
    expected = [[("A", 6), ("B", 4)], [("A", 1), ("B", 1)], [("A", 1), ("B", 1)], [("A", 1)], [("A", 1)]]
    likely = "at A's ninth token no block is free: B, which came last, waits, and keeps its tokens"
    expect(f"{case}: rows of five steps", seen, expected, likely=likely)
    kept = b.num_computed_tokens, len(b.output_token_ids)
    expect(f"{case}: B's computed tokens then, and its output", kept, (0, 3))
    expect(f"{case}: B's num_preemptions", b.num_preemptions, 1, likely="B was preempted once")
    case = "A and B have 4 tokens, C 2, two blocks of 4: A and B need another block in the same step"
    with lab.case(case):
        manager = manager_of(lab, 2, enable_prefix_caching=False)
        scheduler = part(lab, "scheduler", "Scheduler")(manager, 4, 16)
        a, b, _ = names = queued(lab, scheduler, (4, 4, 2))
        stepped(scheduler, names)
        first = b.first_scheduled_time
        rows = scheduled(scheduler, names)
        manager.check_integrity()
    expect(f"{case}: whether B was admitted", isinstance(first, float), True, likely="a block is free for each of them")
    likely = "B gives its block to A, and needs none until it runs again"
    expect(f"{case}: rows of the second step", rows, [("A", 1)], likely=likely)
    with lab.case(f"{case}; A is removed, and B comes back"):
        scheduler.remove(a)
        rows = scheduled(scheduler, names)
    said = {"a preempted request keeps its rank: B comes before C": [("C", 2)]}
    likely = "prompt and output are computed again"
    expect(f"{case}; A is removed: rows of the next step", rows, [("B", 5)], said, likely=likely)
    same = b.first_scheduled_time == first
    require(same, f"{case}; B comes back: first_scheduled_time", "the first", "a later one", "it stays as it was")
    case = "two blocks of 4; A (3 tokens) runs, B (4), which ranks before A, joins, then both need another block"
    with lab.case(case):
        scheduler = part(lab, "scheduler", "Scheduler")(manager_of(lab, 2, enable_prefix_caching=False), 4, 16)
        (a,) = names = queued(lab, scheduler, (3,))
        rows, b = [stepped(scheduler, names)], request(lab, range(1, 5))
        b.rank, names[b] = (a.rank[0], a.rank[1] - 1), "B"
        scheduler.add(b)
        rows += [stepped(scheduler, names) for _ in range(2)]
    likely = "the last in rank is preempted, not the last that joined"
    expect(f"{case}: rows of three steps", rows, [[("A", 3)], [("A", 1), ("B", 4)], [("B", 1)]], likely=likely)


def check_block_admission(lab: Lab) -> None:
    """admit: only with tokens and blocks, and not in a step with a preemption; what can never fit is refused"""
    kind = part(lab, "scheduler", "Scheduler")
    for lengths, blocks, reserve, whole, right, likely in (
        ((4, 2, 2), 9, 0, False, [("A", 4), ("B", 2)], "no token of the step is left for C"),
        ((1, 1, 1, 1), 9, 0, False, [("A", 1), ("B", 1), ("C", 1)], "`max_num_seqs` is 3: D waits"),
        ((4, 12, 2), 3, 0, False, [("A", 4)], "C comes after B, which waits for blocks"),
        (
            (4, 5, 2),
            9,
            0,
            True,
            [("A", 4)],
            "B's prompt must come whole, only two tokens of the step are left, and C comes after B",
        ),
        ((4, 2), 9, 0, True, [("A", 4), ("B", 2)], "B's prompt fits into what is left of the step"),
        ((4, 2), 2, 0, False, [("A", 4), ("B", 2)], "the other block is free"),
        ((4, 2), 2, 1, False, [("A", 4)], "one block is free, which is the reserve for running requests"),
        ((5,), 2, 1, False, [("A", 5)], "no request runs, so no reserve is needed"),
    ):
        how = f"{blocks} blocks of 4, {reserve} of them a reserve, 6 tokens a step{', prompts come whole' * whole}"
        with lab.case(case := f"prompts of {lengths} tokens, {how}: the rows"):
            manager = manager_of(lab, blocks, enable_prefix_caching=False)
            manager.watermark_blocks = reserve
            scheduler = kind(manager, 3, 6, enable_chunked_prefill=not whole)
            names = queued(lab, scheduler, lengths)
            rows = scheduled(scheduler, names)
            admitted = [one for one in names if names[one] in dict(rows)]
            times = [isinstance(one.first_scheduled_time, float) for one in admitted]
        expect(case, rows, right, likely=likely)
        expect(case.replace("the rows", "whether first_scheduled_time is a time"), times, [True] * len(right))
    for lengths, right, likely in (
        ((4, 8, 2), [("A", 1), ("B", 5)], "A's token comes first; five of B's are what the step has left"),
        ((4, 4, 2), [("A", 1), ("B", 2), ("C", 2)], "A's token comes first, then B's last two"),
    ):
        case = f"prompts of {lengths} tokens, 6 tokens a step"
        with lab.case(case):
            scheduler = kind(manager_of(lab, 9, enable_prefix_caching=False), 3, 6)
            names = queued(lab, scheduler, lengths)
            stepped(scheduler, names)
            rows = scheduled(scheduler, names)
        expect(f"{case}: rows of the second step", rows, right, likely=likely)
    likely = "`schedule` adds one to `self.num_steps`, which the policies use"
    expect(f"{case}: num_steps after it", scheduler.num_steps, 2, likely=likely)
    case = "A (4 tokens) and B (8) have all three blocks; A needs another, and C, which ranks before B, needs one"
    with lab.case(case):
        scheduler = kind(manager_of(lab, 3, enable_prefix_caching=False), 4, 16)
        a, b = names = queued(lab, scheduler, (4, 8))
        stepped(scheduler, names)
        c = request(lab, PROMPTS[1])
        c.rank, names[c] = (a.rank[0], (a.rank[1] + b.rank[1]) / 2), "C"
        scheduler.add(c)
        rows = scheduled(scheduler, names)
    likely = "B is preempted, and in such a step no request is admitted"
    expect(f"{case}: rows of the second step", rows, [("A", 1)], likely=likely)
    context = SIZES["n_positions"]
    lab.refused(
        f"check_fits, a prompt of {context} tokens",
        lambda: engine_of(lab).check_fits(request(lab, [1] * context)),
        str(context),
    )
    with lab.case(f"check_fits, a prompt of {context - 1} tokens, max_tokens=9, a context of {context}"):
        engine_of(lab).check_fits(request(lab, [1] * (context - 1)))
    with lab.case("check_fits, a request with a priority, policy fcfs"):
        urgent = request(lab, PROMPTS[0])
        urgent.priority = 1
    lab.refused(
        "check_fits, a request with a priority, policy fcfs", lambda: engine_of(lab).check_fits(urgent), "priority"
    )
    with lab.case("check_fits, a request with a priority, policy priority"):
        engine_of(lab, policy="priority").check_fits(urgent)


def check_block_batch(lab: Lab) -> None:
    """batch: concatenated tokens, slots from the tables, a token for each request that is ready"""
    of, row = batch_of(lab), part(lab, "scheduler", "Row")
    names = ("token_ids", "positions", "slot_mapping", "logits_indices")
    with lab.case(case := "Batch.of, A's decode and two of B's four tokens"):
        manager = manager_of(lab, 9, enable_prefix_caching=False)
        a = request(lab, [1, 2, 3, 4], [5])
        b = request(lab, [6, 7, 8, 9])
        for one in (a, b):
            manager.allocate(one)
        a.num_computed_tokens = 4
        batch = of([row(a, 1, True), row(b, 2, False)], manager)
        got, first = [numbers(getattr(batch, name)) for name in names], manager.block_table(b)[0]
        place = manager.block_table(a)[1] * 4
    for name, one, right in zip(
        names, got, ([5, 6, 7], [4, 0, 1], [place, first * 4, first * 4 + 1], [0]), strict=True
    ):
        expect(f"{case}: {name}", one, right)
    ready = ["A" if one is a else "B" for one in batch.ready]
    expect(f"{case}: ready", ready, ["A"], likely="B has more prompt tokens to compute before it gets one")


def check_block_cache(lab: Lab) -> None:
    """cache: keys and values go where slot_mapping says"""
    case, new = "KVCache.write, slots 9 and 2, blocks of 4", torch.arange(16.0).view(2, 2, 2, 2)
    with lab.case(case):
        cache = part(lab, "kv_cache", "KVCache")(2, 3, 4, 2, 2, torch.float32, CPU, None)
        cache.write(1, torch.tensor([9, 2]), *new)
        got = [cache.keys[1, 2, :, :, 1].tolist(), cache.keys[1, 0, :, :, 2].tolist()]
        values = [cache.values[1, 2, :, 1].tolist(), cache.values[1, 0, :, 2].tolist()]
    expect(f"{case}: keys (a block's keys are stored transposed)", got, new[0].tolist())
    expect(f"{case}: values", values, new[1].tolist())


# --- 6. Sharing -------------------------------------------------------------------------------------------------------


def check_sharing(lab: Lab) -> None:
    """blocks: the chapter's two prompts share their first block"""
    case = "chapter 5's prompts: six tokens each, the first four the same, blocks of 4"
    with lab.case(case):
        manager = manager_of(lab, 6)
        a, b = request(lab, [1, 2, 3, 4, 5, 6]), request(lab, [1, 2, 3, 4, 7, 8])
        expect(f"{case}: found for A", manager.allocate(a), 0)
        manager.cache_full_blocks(a, 6)
        expect(f"{case}: found for B, after A's are entered", manager.allocate(b), 4, {"nothing was found": 0})
        first, second = manager.block_table(a), list(manager.block_table(b))
        blocks = second[0], second[1] != first[1]
        expect(f"{case}: B's first block, and whether its second is its own", blocks, (first[0], True))
        c = request(lab, [1, 2, 3, 4])
        said = {"the last token must be computed, for its logits": 4}
        expect(f"{case}: found for a prompt of just these four", manager.allocate(c), 0, said)
        manager.check_integrity()
        b.output_token_ids.append(9)
        manager.append(b)
        likely = "only the last block is written, and only B holds it"
        expect(f"{case}: B gets a seventh token: its blocks", list(manager.block_table(b)), second, likely=likely)
        manager.free(b)
        likely = "A still holds the block that they shared"
        expect(f"{case}: B is freed: free blocks of six", manager.num_free, 3, likely=likely)


def check_found(lab: Lab) -> None:
    """blocks: a hit means the same whole prefix, also with duplicates"""
    case = "blocks of 4; A has 1 to 4, 5 to 8 and 9 9 9 9, B the same except 5 5 5 5 in its second block"
    with lab.case(case):
        manager = manager_of(lab, 20)
        a = request(lab, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9])
        b, c = (request(lab, [1, 2, 3, 4, 5, 5, 5, 5, 9, 9, 9, 9, *more]) for more in ([], [1]))
        for one in (a, b):
            manager.allocate(one)
            manager.cache_full_blocks(one, 12)
        found, blocks = manager.allocate(c), [list(manager.block_table(one)[:3]) for one in (a, b, c)]
        other = manager.allocate(request(lab, [65_537, 2, 3, 4, 5]))
        manager.check_integrity()
    expect(f"{case}: found for B's tokens and one more", found, 12)
    likely = "a key must stand for its whole prefix: include the last of `prefix_ids`"
    expect(f"{case}: its blocks", blocks[2], blocks[1], {likely: [*blocks[1][:2], blocks[0][2]]})
    expect(f"{case}: found for 65537 2 3 4 5", other, 0, likely="tokens are compared whole: 65537 is not 1")
    for one, same, what in (
        ([0, 2, 3, 4], [2**61 - 1, 2, 3, 4], "`hash` in Python"),
        ([65, 98, 17, 27], [23, 10, 93, 2], "CRC-32 of the tuple as text"),
    ):
        with lab.case(case := f"blocks of 4; A has {one}; found for {same} and one more"):
            manager, a = manager_of(lab, 20), request(lab, one)
            manager.allocate(a)
            manager.cache_full_blocks(a, 4)
            found = manager.allocate(request(lab, [*same, 5]))
        expect(case, found, 0, likely=f"both have the same {what}: keep the tokens in the key, not a hash of them")
    with lab.case(case := "blocks of 16; A has 0 to 15; found for a prompt of 17 that differs in its tenth token"):
        manager = part(lab, "block_manager", "BlockManager")(4, 16, watermark=0)
        a = request(lab, range(16))
        manager.allocate(a)
        manager.cache_full_blocks(a, 16)
        found = manager.allocate(request(lab, [*range(9), 99, *range(10, 17)]))
    expect(case, found, 0, likely="a key contains all tokens of its block")
    case = "A and B have the same 8 tokens, and both have blocks before either is entered"
    with lab.case(f"{case}: entered, and looked up"):
        manager = manager_of(lab, 20)
        a, b, c = (request(lab, [1, 2, 3, 4, 5, 6, 7, 8, *more]) for more in ([], [], [9]))
        for one in (a, b):
            manager.allocate(one)
        for one in (a, b):
            manager.cache_full_blocks(one, 8)
        manager.check_integrity()
        found, blocks = manager.allocate(c), [list(manager.block_table(one)[:2]) for one in (a, c)]
    likely = "B's blocks are duplicates: the one entered first stays"
    expect(f"{case}: found for these and one more, and its blocks", (found, blocks[1]), (8, blocks[0]), likely=likely)
    case = "A has 1 2 3 4, B the same and 5 6 7 8; both are entered, A leaves, and C gets its block, for 9 9 9 9"
    with lab.case(case):
        manager, a, b = manager_of(lab, 5), request(lab, range(1, 5)), request(lab, range(1, 9))
        c, others = request(lab, [9] * 4), request(lab, range(60, 68))
        for one in (a, b, others):
            manager.allocate(one)
        for one in (a, b):
            manager.cache_full_blocks(one, len(one.prompt_token_ids))
        manager.free(a)
        manager.allocate(c)
        manager.cache_full_blocks(c, 4)
        manager.free(others)
        found = manager.allocate(request(lab, [9, 9, 9, 9, 5, 6, 7, 8, 1]))
        manager.check_integrity()
    likely = "B's 5 6 7 8 comes after 1 2 3 4: a prefix id is never used again"
    expect(f"{case}: found for 9 9 9 9 5 6 7 8 1", found, 4, {likely: 8})
    case = "five blocks; A had two that are entered, and B one that is not; C takes three and leaves, later four"
    with lab.case(case):
        manager = manager_of(lab, 5)
        a, b, found = request(lab, range(1, 9)), request(lab, [50, 51]), []
        for one in (a, b):
            manager.allocate(one)
        manager.cache_full_blocks(a, 8)
        for one in (a, b):
            manager.free(one)
        for c in (request(lab, range(60, 72)), request(lab, range(60, 76))):
            manager.allocate(c)
            manager.free(c)
            again = request(lab, range(1, 10))
            found.append(manager.allocate(again))
            manager.free(again)
    said = {
        "`free` gives back the last one first: a first block stays longest": [8, 0],
        "evict a block's entry when the block is taken": [8, 8],
    }
    likely = "free blocks that are not in the cache are taken first"
    expect(f"{case}: found for A's tokens, each time", found, [8, 4], said, likely=likely)
    case = "num_blocks_to_allocate for 9 tokens, 8 of which are found in two of A's blocks"
    with lab.case(case):
        manager, a, b = manager_of(lab, 20), request(lab, range(1, 9)), request(lab, range(1, 10))
        manager.allocate(a)
        manager.cache_full_blocks(a, 8)
        counts = [manager.num_blocks_to_allocate(b)]
        manager.free(a)
        counts.append(manager.num_blocks_to_allocate(b))
    likely = "one is new; found blocks count if no request holds them, because they are free"
    expect(f"{case}: while A runs, and after it has left", counts, [1, 3], likely=likely)
    with lab.case(case := "A (6 tokens) is preempted, and comes back: num_cached_tokens"):
        scheduler = part(lab, "scheduler", "Scheduler")(manager_of(lab, 4), 4, 16)
        (a,) = names = queued(lab, scheduler, (6,))
        stepped(scheduler, names)
        scheduler.preempt(a)
        stepped(scheduler, names)
    expect(case, a.num_cached_tokens, 0, likely="it is what was found the first time")


# --- 7. Speculation ---------------------------------------------------------------------------------------------------


def check_look_up(lab: Lab) -> None:
    """look up: what followed the last tokens when they occurred before"""
    cases = (
        ([1, 2, 3, 4, 5], [1, 2, 3], [4, 5], "the last tokens occurred before: guess what followed them"),
        ([1, 2, 3, 7, 9, 2, 3, 8], [1, 2, 3], [7, 9], "the longest match counts, 1 2 3 and not 2 3"),
        ([1, 2, 3, 4, 7, 8, 2, 3, 4, 9], [1, 2, 3, 4], [7, 8], "the longest match counts, 1 2 3 4 and not 2 3 4"),
        ([5, 1, 7, 8], [2, 1], [], "a match has at least `shortest` tokens"),
        ([1, 2, 7, 1, 2, 8], [1, 2], [8, 1], "of equally long matches the latest counts"),
        ([5, 6, 5, 6], [5, 6], [5, 6], "the end of the sequence is not an earlier occurrence"),
        ([1, 2, 3], [4], [], "nothing occurred before, so there is no guess"),
        ([1, 2, 7, 65_537, 2, 9], [1, 2], [7, 65_537], "tokens are compared whole: 65537 is not 1"),
        ([65_537, 2, 7, 8], [65_537, 2], [7, 8], "tokens are compared whole"),
    )
    for prompt, output, expected, likely in cases:
        case = f"PromptLookup.draft, two guesses, a prompt of {prompt} and an output of {output} so far"
        with lab.case(case):
            one = request(lab, prompt, output)
            got = part(lab, "drafters", "PromptLookup")().draft({one: 2})
        expect(case, list(got.get(one, [])), expected, likely=likely)
    with lab.case(case := "PromptLookup.draft, called again after the output has grown by 1 2"):
        drafter, one = part(lab, "drafters", "PromptLookup")(), request(lab, [1, 2, 3, 4], [5])
        drafter.draft({one: 2})
        one.output_token_ids += [1, 2]
        got = drafter.draft({one: 2})
    expect(case, list(got.get(one, [])), [3, 4])


def check_verified(lab: Lab) -> None:
    """verify: which requests go on with the guessed token, and at which row"""
    part(lab, "speculator", "Speculator")
    of, row = batch_of(lab), part(lab, "scheduler", "Row")
    case = "A brings a token and the guesses 6 7, B its prompt of two; the model says 6 for A and 9 for B"
    with lab.case(case):
        manager, a, b = manager_of(lab, 9), request(lab, PROMPTS[0], [5]), request(lab, PROMPTS[1])
        for one in (a, b):
            manager.allocate(one)
        a.num_computed_tokens = 4
        manager.extend(a, 2)
        batch = of([row(a, 1, True), row(b, 2, True)], manager, {a: [6, 7]})
        for one, token in ((a, 6), (b, 9)):
            one.output_token_ids.append(token)
        batch = batch.verified()
        got = list(batch.sampled), [(int(count), bool(ready)) for _, count, ready in batch.rows]
    require(batch.ready == [a], f"{case}: ready", "A alone", batch.ready, "B had no guess, so it has its token already")
    said = {
        "the logits after the guess are in the next row": ([0], [(1, True)]),
        "a right guess has been through the model: it counts as computed": ([1], [(0, True)]),
    }
    expect(f"{case}: sampled; tokens of the row, and whether it is ready", got, ([1], [(1, True)]), said)
    expect(f"{case}: tokens that go through the model again", batch.num_tokens, 0)
    for token, reason, likely in (
        (8, None, "7 was guessed: the rows after a rejected guess saw a wrong token"),
        (7, "stop", "nothing follows a token that ends the output, whatever was guessed"),
    ):
        with lab.case(f"{case}, then {token}"):
            a.output_token_ids[-1], a.finish_reason = token, reason
            left = len(batch.verified().rows)
        expect(f"{case}, then {token} (finish_reason {reason}): rows", left, 0, likely=likely)


def check_ahead(lab: Lab) -> None:
    """blocks: room for guesses in free blocks, and freed again"""
    part(lab, "speculator", "Speculator")
    case = "three blocks of 4; A has 6 tokens in two"
    with lab.case(case):
        manager, a = manager_of(lab, 3, enable_prefix_caching=False), request(lab, range(1, 7))
        manager.allocate(a)
        got = [(manager.extend(a, num), len(manager.block_table(a))) for num in (2, 4, 9)]
        said = "the rest of the last block, then a free block, then no more: (room, blocks)"
        expect(f"{case}: extend by 2, 4 and 9 tokens", got, [(2, 2), (4, 3), (6, 3)], likely=said)
        manager.trim(a, 6)
        manager.check_integrity()
        counts = len(manager.block_table(a)), manager.num_free
    expect(f"{case}: trim to 6 tokens: blocks, and free ones", counts, (2, 1))
    case = "six blocks of 4, one of them a reserve; A has 6 tokens in two"
    with lab.case(case):
        manager, a = manager_of(lab, 6, enable_prefix_caching=False), request(lab, range(1, 7))
        manager.watermark_blocks = 1
        manager.allocate(a)
        got = [(manager.extend(a, num), len(manager.block_table(a))) for num in (9, 20)]
        said = {
            "several blocks may be needed at once": [(6, 3), (10, 4)],
            "the reserve is for running requests, which may need a block in the next step": [(9, 4), (18, 6)],
        }
        expect(f"{case}: extend by 9 and by 20 tokens: (room, blocks)", got, [(9, 4), (14, 5)], said)
        manager.trim(a, 6)
        manager.check_integrity()
        counts = len(manager.block_table(a)), manager.num_free
    said = {"free all blocks after the tokens, not only the last one": (4, 2)}
    expect(f"{case}: trim to 6 tokens: blocks, and free ones", counts, (2, 4), said)


class Fixed:
    """A drafter that proposes the same tokens for every request."""

    draft_cost = 0.0

    def __init__(self, *says: int):
        self.says, self.asked = list(says), None

    def draft(self, counts: dict) -> dict:
        self.asked = {request: count for request, count in counts.items() if count}
        return {request: self.says[:count] for request, count in self.asked.items()}


def speculating(lab: Lab) -> Any:
    """An engine to step by hand, whose drafter may give four guesses."""
    part(lab, "speculator", "Speculator")
    stepper = lab.stepper(speculate="ngram", num_drafts=4, block_size=4)
    if not hasattr(getattr(stepper, "engine", None), "speculator"):
        raise Missing("it has no `engine.speculator`, so this verb is not checked separately")
    return stepper


def check_drafts(lab: Lab) -> None:
    """draft: guesses for decoding requests, cut to what the step, the blocks and the end leave"""
    part(lab, "speculator", "Speculator")
    engine, row = engine_of(lab, speculate="ngram", num_drafts=4, block_size=4), part(lab, "scheduler", "Row")
    speculator = copy.copy(engine.speculator)
    a, d = request(lab, PROMPTS[0], [5]), request(lab, PROMPTS[1], [4])
    new, part_of = request(lab, PROMPTS[1]), request(lab, PROMPTS[0], [6, 7])
    names = {a: "A", d: "D", new: "B", part_of: "C"}
    a.num_computed_tokens, d.num_computed_tokens = 4, 2

    def drafted(case: str, says: Sequence[int], rows: Sequence[Any], budget: int = 64, blocks: int = 20) -> tuple:
        """(how many guesses the drafter was asked for, if it was asked; the guesses that each request got)"""
        with lab.case(case):
            manager, drafter = manager_of(lab, blocks, enable_prefix_caching=False), Fixed(*says)
            for one, _, _ in rows:
                manager.allocate(one)
            speculator.block_manager, speculator.drafter = manager, drafter
            speculator.max_num_batched_tokens = budget
            got = speculator.draft(list(rows))
        asked = None if drafter.asked is None else {names[one]: count for one, count in drafter.asked.items()}
        return asked, {names[one]: list(tokens) for one, tokens in got.items() if tokens}

    guesses = [11, 12, 13, 14]
    case = "A brings its newest token, B its whole prompt, C a part of its recomputation; four guesses a step"
    got = drafted(case, guesses, [row(a, 1, True), row(new, 2, True), row(part_of, 2, False)])
    said = {
        "B has no output yet: it gets guesses once it decodes": ({"A": 4, "B": 4}, {"A": guesses, "B": guesses}),
        "C's row is not ready: its last token is not in this step": ({"A": 4, "C": 4}, {"A": guesses, "C": guesses}),
    }
    expect(f"{case}: guesses that were requested, and the drafts", got, ({"A": 4}, {"A": guesses}), said)
    case = "B brings its whole prompt, and no request decodes"
    said = {"no request gets guesses, so don't call the drafter, which takes time": ({}, {})}
    expect(
        f"{case}: guesses that were requested, and the drafts",
        drafted(case, guesses, [row(new, 2, True)]),
        (None, {}),
        said,
    )
    two = [row(a, 1, True), row(d, 1, True)]
    for budget in (5, 2):
        case = f"A and D bring a token each, in a step of {budget}: rows with the drafts"
        made = 2 + sum(map(len, drafted(case, guesses, two, budget)[1].values()))
        require(made <= budget, case, f"at most {budget}", made, "guesses count toward the step's budget too")
    taken = "take blocks only for guesses that go through the model: cut the draft before you ask `extend`"
    expect(f"{case}: free blocks of 20", speculator.block_manager.num_free, 17, likely=taken)
    for says, left, likely in (
        ([11, END, 12], [11], "nothing follows the end token, and the row before it gives it without a guess"),
        ([END, 11, 12, 13], [], "nothing follows the end token, and the row before it gives it without a guess"),
        ([11, SIZES["vocab_size"], 12], [11], "the drafter guessed a token that is not in the vocabulary"),
        ([-1, 11], [], "the drafter guessed a token that is not in the vocabulary"),
        ([11, 0, 12], [11, 0, 12], "0 is an ordinary token"),
    ):
        case = f"the drafter guesses {says} for A"
        expect(f"{case}: the drafts", drafted(case, says, two[:1])[1], {"A": left} if left else {}, likely=likely)
        expect(f"{case}: free blocks of 20", speculator.block_manager.num_free, 18, likely=taken)
    case = "A has 5 tokens in two blocks of 4, and there are no more blocks"
    likely = "a guess needs a place for its keys: `extend` says how many there is room for"
    expect(f"{case}: the drafts", drafted(case, guesses, two[:1], blocks=2)[1], {"A": guesses[:3]}, likely=likely)


def check_stepped(lab: Lab) -> None:
    """step: each request once; `update` gets every token, and the blocks of rejected guesses are freed"""
    stepper, prompt = speculating(lab), prompts_of(10, seed=8)[0]
    engine, right = stepper.engine, lab.expected([prompt], {"temperature": 0, "max_tokens": 8})[0].token_ids
    heard, update = [], engine.speculator.update

    def listen(drafts: Any, updated: Any) -> Any:
        heard.append(len(updated))
        return update(drafts, updated)

    engine.speculator.update = listen
    case = "a prompt of 10 tokens, blocks of 4, greedy"
    with lab.case(case), torch.inference_mode():
        engine.speculator.drafter = Fixed()
        stepper.add_request("a", prompt, lab.params({"temperature": 0, "max_tokens": 8}))
        (one,) = stepper.unfinished["a"]
        engine.step()
        engine.speculator.drafter = Fixed(*((token + 1) % END for token in right[1:5]))
        engine.step()
        blocks = len(engine.block_manager.block_table(one))
        likely = "the first guess that differs is replaced by the token that the model chooses there"
        expect(f"{case}, four guesses, all wrong: the tokens", list(one.output_token_ids), right[:2], likely=likely)
        likely = "after the step, `self.speculator.update(drafts, updated)` frees the blocks of rejected guesses"
        expect(f"{case}, four guesses, all wrong: blocks after the step, for 12 tokens", blocks, 3, likely=likely)
        engine.speculator.drafter, heard[:] = Fixed(*right[2:4], (right[4] + 1) % END), []
        updated = engine.step()
    case = f"{case}, then three guesses, two of which are right"
    expect(f"{case}: the tokens", list(one.output_token_ids), right[:5])
    names = ["A" if other is one else "another" for other in updated]
    said = {"`step` returns each request once, however many tokens it got": ["A"] * 3}
    expect(f"{case}: what step returns", names, ["A"], said)
    likely = "`update` gets all requests that got a token, each as many times as it got one"
    expect(f"{case}: requests that `update` gets", heard, [3], {likely: [1]})


# --- 8. Int8 ----------------------------------------------------------------------------------------------------------

# With scales of 1/4 and 2 no number is halfway between two integers.
FLOATS = torch.tensor([[31.75, -4.0625, 0.1875, -25.0], [3.25, -254.0, -0.75, 100.75]])
WHOLE = [[127, -16, 1, -100], [2, -127, 0, 50]]


def check_quantize(lab: Lab) -> None:
    """quantize: each row as integers, scaled by its largest number"""
    quantize = part(lab, "quantize", "quantize")
    for rows, what in ((FLOATS, "two rows"), (FLOATS[:, None], "the same as [2, 1, 4]")):
        case = f"quantize, {what}: {rows.tolist()}"
        with lab.case(case):
            integers, scale = quantize(rows)
        whole = torch.tensor(WHOLE, dtype=torch.int8).view(rows.shape)
        scales = torch.tensor([0.25, 2.0]).view(*rows.shape[:-1], 1)
        flat = rows.flatten(0, -2)
        said = {
            "round to the nearest integer: this truncates": (rows / scales).trunc().to(torch.int8),
            "this is one scale for all rows; each row has its own": (rows / 2).round().to(torch.int8),
            "the largest number becomes 127 or -127": (rows * 128 / 127 / scales)
            .round().clamp(-128, 127).to(torch.int8),
            "the scale comes from the largest absolute value": (
                rows / (flat.amax(-1) / 127).view(scales.shape)).round().clamp(-128, 127).to(torch.int8),
            "this is a scale per column; each row has one": (rows / (flat.abs().amax(0) / 127)).round().to(torch.int8),
        }  # fmt: skip
        expect(f"{case}: integers", integers, whole, said)
        said = {
            "the last dimension stays, with size 1": scales.squeeze(-1),
            "a scale is the value of the integer 1": 1 / scales,
        }
        expect(f"{case}: scales", scale, scales, said)
    with lab.case(case := f"quantize, a row in bfloat16: {FLOATS[:1].tolist()}"):
        integers, scale = quantize(FLOATS[:1].bfloat16())
    expect(f"{case}: integers", integers, torch.tensor(WHOLE[:1], dtype=torch.int8))
    expect(f"{case}: scales", scale, torch.tensor([[0.25]]), likely="everything is computed in float32")
    with lab.case(case := "quantize, a row of numbers up to 2e-6"):
        integers, scale = quantize(FLOATS[:1] * 2.0**-24)
    likely = "a row of small numbers has a small scale"
    expect(f"{case}: integers", integers, torch.tensor(WHOLE[:1], dtype=torch.int8), likely=likely)
    case = "quantize, a row of zeros and another"
    with lab.case(case):
        integers, scale = quantize(torch.stack([torch.zeros(4), FLOATS[0]]))
    expect(f"{case}: integers", integers.tolist(), [[0] * 4, WHOLE[0]])
    finite = bool(scale.isfinite().all())
    require(finite, f"{case}: scales", "finite numbers", scale.tolist(), "a row of zeros stays zero: don't divide by 0")


def of_integers(x: Tensor, weight: Tensor) -> Tensor:
    """The product of rows and output channels, each rounded. [n, in], [out, in] -> [n, out]"""
    scales = [t.double().abs().amax(-1, keepdim=True) / 127 for t in (x, weight)]
    a, b = ((t.double() / scale).round() for t, scale in zip((x, weight), scales, strict=True))
    return (a @ b.t()) * (scales[0] * scales[1].t())


# Rows of four weights; a scale of 1/8, 1/2 and 1/32.
CHANNELS = torch.tensor([[15.875, -1.0, 0.28125, 2.0], [1.625, 63.5, 0.0, -4.0], [0.5, -0.25, -3.96875, 1.0]])
SHARED = "each row has its own scale: other rows in the step change nothing"


def check_int8_layer(lab: Lab) -> None:
    """linear layer: sums of integers, both scales, then the bias"""
    kind, bias = part(lab, "quantize", "Int8Linear"), torch.tensor([0.75, -100.0, 8.5])
    for own, what in ((bias, "with a bias"), (None, "without a bias")):
        case = f"Int8Linear.forward {what}, {CHANNELS.tolist()}, of {FLOATS.tolist()}"
        with lab.case(case), torch.inference_mode():
            got = kind(CHANNELS, own)(FLOATS)
        sums, add = of_integers(FLOATS, CHANNELS), 0.0 if own is None else bias.double()
        row = torch.tensor([[0.25], [2.0]])
        shared, channel = (FLOATS.double() / 2).round() * 2, CHANNELS.double().abs().amax(-1) / 127
        table = (CHANNELS / channel[:, None]).round() * channel[:, None]
        said = {
            "activations are rounded too": FLOATS.double() @ table.t() + add,
            "multiply by both scales: the row's is missing": sums / row + add,
            "multiply by both scales: the channel's is missing": sums / channel + add,
            "add the bias at the end, unchanged": sums + add * row * channel,
            "the bias is missing": sums,
            SHARED: shared @ table.t() + add,
        }  # fmt: skip
        expected = (sums + add).float()
        told = {what: answer.float() for what, answer in said.items() if not torch.equal(answer.float(), expected)}
        expect(case, got, expected, told)
    with lab.case(case := "Int8Linear.forward of bfloat16"), torch.inference_mode():
        got = kind(CHANNELS, bias)(FLOATS.bfloat16())
    expect(f"{case}: its type", str(got.dtype), "torch.bfloat16", likely="the output has the same dtype as the input")


def check_int8_table(lab: Lab) -> None:
    """vocabulary: the vectors of tokens, and the logits"""
    kind = part(lab, "quantize", "Int8Embedding")
    tokens = torch.tensor([2, 0, 2, 1])
    channel = CHANNELS.abs().amax(-1, keepdim=True) / 127
    table = (CHANNELS / channel).round() * channel
    with lab.case(case := f"Int8Embedding.forward of tokens 2 0 2 1, {CHANNELS.tolist()}"), torch.inference_mode():
        got = kind(CHANNELS)(tokens)
    said = {"these are the integers: multiply each by its token's scale": (CHANNELS / channel).round()[tokens],
            "these are the numbers before rounding": CHANNELS[tokens]}  # fmt: skip
    expect(case, got, table[tokens], said)
    with lab.case(case := f"Int8Embedding.logits, {CHANNELS.tolist()}, of {FLOATS.tolist()}"), torch.inference_mode():
        got = kind(CHANNELS).logits(FLOATS)
    said = {"activations are rounded too": FLOATS @ table.t()}
    expect(case, got, of_integers(FLOATS, CHANNELS).float(), said)


def check_quantizing(lab: Lab) -> None:
    """weights: every matrix is quantized as it is loaded, and nothing else"""
    quantize_on_load, layer, table = (
        part(lab, "quantize", name) for name in ("quantize_on_load", "Int8Linear", "Int8Embedding")
    )
    with lab.case(case := "quantize_on_load, a GPT2 on the meta device, and its tensors one by one"):
        with torch.device("meta"):
            model = part(lab, "model", "GPT2")(
                part(lab, "model", "ModelConfig")(**{**SIZES, "n_embd": 6, "n_inner": 10})
            )
        generator = torch.Generator().manual_seed(0)
        tensors = {name: torch.randn(p.shape, generator=generator) for name, p in model.state_dict().items()}
        linears = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
        take = quantize_on_load(model)
    for name, tensor in tensors.items():
        with lab.case(f"{case}: {name}"):
            taken, before = take(name, tensor), tensor.clone()
        right = name == "wte.weight" or name.removesuffix(".weight") in linears
        expect(
            f"{case}: whether {name} is taken", taken, right, likely="" if right else "norms, biases and positions stay"
        )
        expect(f"{case}: {name}, afterwards", tensor.tolist(), before.tolist())
        if not right:
            continue
        got = model.get_submodule(name.removesuffix(".weight"))
        kind = table if name == "wte.weight" else layer
        likely = "`model.set_submodule(path, …)` replaces a module"
        then = f"{case}: {name}: the module that the model then has"
        require(type(got) is kind, then, kind.__name__, type(got).__name__, likely)
        integers, scales = part(lab, "quantize", "quantize")(tensor)
        expect(f"{case}: {name}: integers", got.weight.tolist(), integers.tolist())
        expect(f"{case}: {name}: scales", got.scales.flatten().tolist(), scales.flatten().tolist())
    with lab.case(f"{case}: the others, by load_state_dict"):
        rest = {name: tensor for name, tensor in tensors.items() if name in model.state_dict()}
        model.load_state_dict(rest, assign=True)
    lost = [name for name in linears if f"{name}.bias" not in rest]
    expect(
        f"{case}: layers without a bias",
        lost,
        [],
        likely="a layer keeps its bias: the `module.bias` of the one it replaces",
    )

"""Milestone 1, one sequence: the model, the sampler, and every way in which a completion ends."""

from exercises.grading import Wrong, expect, require

from .lab import END, Lab, Missing, Result, greedy, prompts_of, seeded

LENGTHS = (3, 1, 9, 30)


def check_first_token(lab: Lab) -> None:
    """the first token after prompts of 3, 1, 9 and 30 tokens"""
    prompts, network = prompts_of(*LENGTHS), lab.network(lab.model())
    got = [lab.run(f"a prompt of {len(p)} tokens, greedy, 1 token", [p], greedy(1))[0].token_ids[:1] for p in prompts]
    mistakes = [network.mistakes(prompt) for prompt in prompts]
    known = {said: [[int(logits[said].argmax())] for logits in mistakes] for said in mistakes[0]}
    expected = [result.token_ids for result in lab.expected(prompts, greedy(1))]
    expect("prompts of 3, 1, 9 and 30 tokens, each alone: the most likely next token", got, expected, known)


def check_logprobs(lab: Lab) -> None:
    """how likely that token is, to four digits"""
    if not lab.has("logprobs", 1):
        raise Missing("SamplingParams has no 'logprobs', so small errors in the model go unnoticed")
    prompts, network = prompts_of(*LENGTHS), lab.network(lab.model())
    case = "prompts of 3, 1, 9 and 30 tokens, logprobs=1: the log-probability of the first token"
    got = [lab.run(case, [prompt], greedy(1, logprobs=1))[0].logprobs for prompt in prompts]
    require(all(got), case, "one for each", "none", "logprobs=1 was requested, and there are none")
    mistakes = [network.mistakes(prompt) for prompt in prompts]
    known = {said: [[float(logits[said].log_softmax(-1).max())] for logits in mistakes] for said in mistakes[0]}
    expected = [result.logprobs for result in lab.expected(prompts, greedy(1, logprobs=1))]
    expect(case, got, expected, known, tolerance=3e-5)
    prompt, settings = prompts[2], seeded(4, 5, temperature=0.5, repetition_penalty=2.0, logprobs=1)
    if lab.has("repetition_penalty", 2.0):
        case = "a prompt of 9 tokens, temperature 0.5, repetition_penalty 2: the log-probabilities of four tokens"
        result = lab.run(case, [prompt], settings)[0]
        ids = result.token_ids
        right = [float(network.logits(prompt + ids[:t]).log_softmax(-1)[ids[t]]) for t in range(len(ids))]
        likely = "they are the model's own, before penalties and temperature"
        expect(case, result.logprobs, right, tolerance=1e-3, likely=likely)


def check_greedy(lab: Lab) -> None:
    """greedy completions, token by token, to the end of the context"""
    for length, num in ((5, 20), (1, 63), (40, 24)):
        prompt = prompts_of(length, seed=1)[0]
        case = f"a prompt of {length} tokens, greedy, {num} tokens"
        got, expected = lab.run(case, [prompt], greedy(num))[0], lab.expected([prompt], greedy(num))[0]
        lab.same_tokens(
            case,
            prompt,
            got.token_ids,
            expected.token_ids,
            likely=lambda at: "is the chosen token appended to the sequence before the next pass?" if at else "",
        )
        expect(f"{case}: its finish_reason", got.finish_reason, "length")


def check_order(lab: Lab) -> None:
    """results in the order of the prompts, each with its prompt and its text"""
    # Of equal lengths: mistakes with unequal ones are milestone 2's business.
    prompts, case = prompts_of(5, 5, 5), "three prompts of 5 tokens in one call of generate"
    with lab.case(case):
        outputs = lab.shared().generate(prompts, lab.params(greedy(6)))
        expect(f"{case}: prompt_token_ids", [list(o.prompt_token_ids) for o in outputs], prompts)
        expected = lab.expected(prompts, greedy(6))
        expect(f"{case}: texts", [o.outputs[0].text for o in outputs], [result.text for result in expected])
    expect("no prompts at all: results", len(lab.run("no prompts at all", [], greedy(6))), 0)


def ended(result: Result) -> str:
    """Why an output ended."""
    return f"{result.finish_reason!r} and {result.stop_reason!r}"


def check_end_token(lab: Lab) -> None:
    """the end token ends an output, and in a prompt it ends nothing"""
    prompt = prompts_of(5, seed=1)[0]
    ids = lab.expected([prompt], greedy(20))[0].token_ids
    at = next(i for i in range(4, 20) if ids[i] not in ids[:i] + prompt)
    model, params = lab.model(eos=ids[at]), {"temperature": 0, "max_tokens": 20}
    case = f"the model's end token ({ids[at]}) is what it would choose at place {at} of 20"
    got = lab.run(case, [prompt], params, lab.shared(model))[0]
    known = {"the end token is part of token_ids: the model chose it": ids[:at], "the end token ended nothing": ids}
    expect(f"{case}: token_ids", got.token_ids, ids[: at + 1], known)
    expect(f"{case}: finish_reason and stop_reason", ended(got), "'stop' and None")
    expected = lab.expected([prompt], params, model)[0]
    said = {"the end token's text is not part of the text": lab.expected([prompt], greedy(at + 1))[0].text}
    expect(f"{case}: text", got.text, expected.text, said)
    prompt = [prompt[0], ids[at], *prompt[1:]]
    case = "the end token is in the prompt"
    got = lab.run(case, [prompt], params, lab.shared(model))[0].token_ids
    right = lab.expected([prompt], params, model)[0].token_ids
    likely = "the end token was found in the prompt; look for it in new tokens only"
    expect(f"{case}: token_ids", got, right, {likely: right[: len(got)]} if len(got) < 2 else {})


def check_stop_texts(lab: Lab) -> None:
    """stop strings within tokens and across them, the first of several, those of the prompt"""
    prompt = prompts_of(5, seed=1)[0]
    text = lab.expected([prompt], greedy(40))[0].text
    stops = [text[3:4], text[9:14], text[2:17], ["zzz", text[20:24], text[7:10]]]
    pairs = {text[i : i + 4] < text[i + 2 : i + 4]: [text[i : i + 4], text[i + 2 : i + 4]]
             for i in range(2, 30) if text[i + 2 : i + 4] not in text[: i + 3]}  # fmt: skip
    for pair in pairs.values():  # both are complete at once: the first one counts, whatever the alphabet says
        stops += [pair, pair[::-1]]
    at_last = len(lab.expected([prompt], greedy(40, stop=text[9:14]))[0].token_ids)
    for stop, num in [*((stop, 40) for stop in stops), (text[9:14], at_last)]:
        params, case = greedy(num, stop=stop), f"the text goes on {text[:30]!r} …, stop={stop!r}, {num} tokens"
        got, expected = lab.run(case, [prompt], params)[0], lab.expected([prompt], params)[0]
        known = {
            "the stop string is not part of the text": expected.text + str(expected.stop_reason),
            "the stop string ended nothing; it may begin in one token and end in a later one": text,
        }
        expect(f"{case}: text", got.text, expected.text, known)
        expect(
            f"{case}: token_ids",
            got.token_ids,
            expected.token_ids,
            likely="token_ids ends with the token that completes the stop string, and keeps it",
        )
        expect(f"{case}: finish_reason and stop_reason", ended(got), ended(expected))
    case = "stop='a fox', which is only in the prompt"
    got = lab.run(case, ["a fox"], greedy(6, stop="a fox"))[0]
    expect(
        f"{case}: tokens",
        len(got.token_ids),
        6,
        likely="a stop string was found in the prompt; look for it in the output only",
    )


def check_stop_tokens(lab: Lab) -> None:
    """stop tokens, and min_tokens"""
    prompt = prompts_of(5, seed=1)[0]
    ids = lab.expected([prompt], greedy(12))[0].token_ids
    text = lab.expected([prompt], greedy(12))[0].text
    held = ({"stop_token_ids": [ids[2]], "min_tokens": 5}, {"stop": [text[1:2], text[8:9]], "min_tokens": 5})
    for more in ({"stop_token_ids": [ids[6]]}, *held):
        params, case = greedy(12, **more), f"greedy, {more}"
        got, expected = lab.run(case, [prompt], params)[0], lab.expected([prompt], params)[0]
        early = len(got.token_ids) < more.get("min_tokens", 0)
        likely = (
            "before min_tokens are reached, only max_tokens and the context's end can end an output" if early else ""
        )
        known = {f"{next(iter(more))} is ignored": ids}
        expect(f"{case}: token_ids", got.token_ids, expected.token_ids, known, likely=likely)
        expect(f"{case}: stop_reason", got.stop_reason, expected.stop_reason)


def check_context(lab: Lab) -> None:
    """the end of the context: outputs end there, and longer prompts are refused"""
    prompt, case = prompts_of(60)[0], "a prompt of 60 tokens and max_tokens=50, a context of 64"
    got = lab.run(case, [prompt], greedy(50))[0]
    known = {"the sequence was silently cut at its beginning to go on: the output no longer follows the prompt": 50}
    expect(f"{case}: tokens", len(got.token_ids), 4, known)
    expect(f"{case}: finish_reason", got.finish_reason, "length")
    for length in (64, 80):
        prompts = [[1, 2], prompts_of(length)[0]]
        lab.refused(
            f"prompt 1 of two has {length} tokens, the context 64: no room for an output",
            lambda prompts=prompts: lab.shared().generate(prompts, lab.params(greedy(4))) and None,
            "1",
            "a prompt that does not fit must not be cut silently",
        )


def check_arguments(lab: Lab) -> None:
    """unknown arguments and bad values are refused"""
    for what, call in (("SamplingParams", lab.own.SamplingParams), ("LLM", lambda **o: lab.own.LLM(lab.model(), **o))):
        case = f"{what}(no_such_thing=1)"
        with lab.case(case):
            try:
                call(no_such_thing=1)
            except TypeError:
                continue
            raise Wrong(case, "a TypeError", "no error", "an argument that is accepted but ignored misleads the caller")
    for field, value in (("temperature", -1), ("top_p", 0), ("max_tokens", -1), ("stop", "")):
        lab.refused(f"SamplingParams({field}={value!r})", lambda f=field, v=value: lab.params({f: v}) and None, field)


def check_parameters(lab: Lab) -> None:
    """every parameter does something"""
    prompt, missing = prompts_of(7, seed=2)[0], []
    plain = {
        "greedy": lab.expected([prompt], greedy(16))[0].token_ids,
        "drawn": lab.expected([prompt], seeded(16, 5))[0].token_ids,
    }
    narrow = {"top_k": 1, "top_p": 1e-9, "min_p": 1.0}  # each of these leaves only the best token
    penalties = {"repetition_penalty": 3.0, "frequency_penalty": 2.0, "presence_penalty": 3.0}
    for field, value in {**narrow, **penalties}.items():
        if not lab.has(field, value):
            missing.append(field)
            continue
        drawn = field in narrow
        params = seeded(16, 5, **{field: value}) if drawn else greedy(16, **{field: value})
        case = f"{'temperature 1' if drawn else 'greedy'}, {field}={value}"
        got, unchanged = lab.run(case, [prompt], params)[0].token_ids, plain["drawn" if drawn else "greedy"]
        expected = plain["greedy"] if drawn else lab.expected([prompt], params)[0].token_ids
        without = lab.run(case, [prompt], seeded(16, 5) if drawn else greedy(16))[0].token_ids
        expect(case, got, expected, {f"{field} is accepted and ignored": without, f"{field} is ignored": unchanged})
    if missing:
        raise Missing(f"SamplingParams has no {', '.join(missing)}")


def check_seeds(lab: Lab) -> None:
    """a seed repeats an output; without one, outputs differ"""
    prompt = prompts_of(4)[0]
    draws = [lab.run(f"seed={seed}, 20 tokens", [prompt], seeded(20, seed))[0].token_ids for seed in (3, 3, 4)]
    expect(
        "two requests with seed 3, one after the other",
        draws[1],
        draws[0],
        likely="the seed does not start over with each request: a draw depends on earlier draws",
    )
    require(draws[2] != draws[0], "seed 4 after seed 3", "other tokens", "the same", "the seed is ignored")
    unseeded = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
    first, second = (r.token_ids for r in lab.run("the same prompt twice, no seed", [prompt] * 2, unseeded))
    require(
        first != second, "the same prompt twice in one call, temperature 1, no seed", "two outputs", "the same twice"
    )


def check_refusals(lab: Lab) -> None:
    """a bad prompt is refused before anything is computed"""
    llm = lab.shared()
    for bad, what in (([], "is empty"), ([1, END + 1], f"has token {END + 1}, but the model has {END + 1} tokens")):
        before = lab.counted(llm, "num_forwards") if hasattr(llm, "stats") else None
        lab.refused(
            f"three prompts; number 2 {what}",
            lambda bad=bad: llm.generate([[1, 2], [3], bad], lab.params(greedy(4))) and None,
            "2",
            "check all prompts before computing the first: a bad one must not cost the others their work",
        )
        after = lab.counted(llm, "num_forwards") if before else None
        expect("forward passes that the bad prompt cost", after, before)
    case = "good prompts after a bad one"
    expect(case, lab.run(case, [[1, 2]], greedy(3))[0].token_ids, lab.expected([[1, 2]], greedy(3))[0].token_ids)


def streamed(lab: Lab, case: str, llm, prompts: list, settings: list) -> tuple[list, list, list]:
    """(texts, token ids, finish reasons) of a stream, joined."""
    if not hasattr(llm, "stream"):
        raise Missing("LLM has no `stream`")
    texts, ids, reasons = [""] * len(prompts), [[] for _ in prompts], [None] * len(prompts)
    with lab.case(case):
        for event in llm.stream(prompts, [lab.params(one) for one in settings]):
            texts[event.index] += event.text
            ids[event.index] += event.token_ids
            reasons[event.index] = event.finish_reason
    return texts, ids, reasons


def check_stream(lab: Lab) -> None:
    """streams: the pieces, joined, are the text, and no piece is half a character"""
    llm, prompts = lab.shared(lab.model(readable=False, n_positions=256)), prompts_of(5, 5, 5)
    settings = [greedy(120), seeded(150, 7), seeded(90, 8, stop=["e", "the"])]
    whole = lab.run("three prompts, 120, 150 and 90 tokens", prompts, settings, llm)
    case = "three prompts, 120, 150 and 90 tokens, as a stream"
    texts, ids, reasons = streamed(lab, case, llm, prompts, settings)
    expect(f"{case}: token_ids, joined", ids, [result.token_ids for result in whole])
    broken = sum(text.count("\ufffd") for text in texts) > sum(result.text.count("\ufffd") for result in whole)
    likely = "a character whose bytes come in two tokens was sent in halves" if broken else ""
    expect(f"{case}: texts, joined", texts, [result.text for result in whole], likely=likely)
    expect(f"{case}: the finish_reason of each last event", reasons, [result.finish_reason for result in whole])


def check_held_back(lab: Lab) -> None:
    """streams: what may become a stop string is held back, and sent at the end if it did not"""
    prompt = prompts_of(5, seed=1)[0]
    text = lab.expected([prompt], greedy(20))[0].text
    for stop, right, likely in (
        (text[9:14], text[:9], "the beginning of a stop string was sent before it was complete"),
        (text[-3:] + "#", text, "held-back text was not sent when the output ended without the stop string"),
    ):
        case = f"the text goes on {text!r}, stop={stop!r}, as a stream"
        texts, _, _ = streamed(lab, case, lab.shared(), [prompt], [greedy(20, stop=stop)])
        expect(case, texts[0], right, likely=likely)

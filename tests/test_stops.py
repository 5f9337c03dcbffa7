"""How a completion ends: end token, stop strings, stop tokens, lengths."""

import functools

import pytest

from tests.adapter import EOS, random_prompts

pytestmark = pytest.mark.covers("request.py", "support/text.py")

# The model goes on with the last 29 tokens of a tale: a whole one has 250, which stage 1 computes from its beginning.
PROMPT = (
    'Aisha had a good friend, a clever girl named Iris. "I saw it first!" cried Aisha. Then they both went home angry.'
    "\n\nIn the morning, they met halfway."
)


def greedy(stage, **settings):
    return stage.SamplingParams(temperature=0, **settings)


def complete(stage, params, prompt=PROMPT, **arguments):
    return stage.engine(**arguments).generate([prompt], params)[0].outputs[0]


@functools.cache
def story_of(stage):
    completion = complete(stage, greedy(stage, max_tokens=100))
    assert completion.finish_reason == "stop"
    return completion


@pytest.fixture
def story(stage):
    """The end of a greedy story of the bundled model, to its end token."""
    return story_of(stage)


def test_no_tokens(stage, small_checkpoint):
    """An empty output, whole and streamed, and the others are as without it."""
    llm, params = stage.LLM(small_checkpoint, device="cpu"), greedy(stage, max_tokens=4, ignore_eos=True)
    prompts, none = random_prompts(211, [5, 9, 3]), stage.SamplingParams(max_tokens=0, logprobs=1)
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    before = llm.stats.num_output_tokens
    outputs = [output.outputs[0] for output in llm.generate(prompts, [params, none, params])]
    assert [output.token_ids for output in outputs] == [expected[0], [], expected[2]]
    assert (outputs[1].text, outputs[1].finish_reason, outputs[1].logprobs) == ("", "length", [])
    assert llm.stats.num_output_tokens - before == 8
    (event,) = llm.stream(prompts[:1], none)
    assert (event.text, event.token_ids, event.finish_reason) == ("", [], "length")


def test_end_token(stage, story):
    assert story.stop_reason is None
    assert story.token_ids[-1] == EOS
    assert EOS not in story.token_ids[:-1]
    assert "<|endoftext|>" not in story.text
    assert story.text == stage.tokenizer().decode(story.token_ids)


def test_ignore_eos(stage, story):
    length = len(story.token_ids) + 5
    longer = complete(stage, greedy(stage, max_tokens=length, ignore_eos=True))
    assert longer.finish_reason == "length"
    assert len(longer.token_ids) == length
    assert longer.token_ids[: len(story.token_ids)] == story.token_ids


def test_min_tokens_holds_the_end_token_off(stage, story):
    n = len(story.token_ids)
    longer = complete(stage, greedy(stage, max_tokens=n + 3, min_tokens=n + 2))
    assert longer.token_ids[: n - 1] == story.token_ids[:-1]
    assert EOS not in longer.token_ids[: n + 2]
    # One token fewer than the story has before its end: nothing changes.
    assert complete(stage, greedy(stage, max_tokens=n, min_tokens=n - 1)).token_ids == story.token_ids


def test_end_token_in_the_prompt_ends_nothing(stage):
    prompts = [[EOS, *stage.tokenizer().encode(PROMPT)], [EOS, EOS, EOS], ""]
    for output in stage.engine().generate(prompts, greedy(stage, max_tokens=5)):
        assert len(output.outputs[0].token_ids) == 5


def test_stop_text_across_tokens(stage, story):
    """Every stop string that the story holds, wherever it begins and ends within tokens, ends it before it."""
    pieces = [stage.tokenizer().decode([t]) for t in story.token_ids[:40]]
    text = "".join(pieces)
    stops = [text[start : start + length] for start in range(3, 60, 14) for length in (1, 2, 5, 9, 20)]
    params = [greedy(stage, max_tokens=60, stop=stop) for stop in stops]
    outputs = stage.engine().generate([PROMPT] * len(stops), params)
    for stop, completion in zip(stops, (output.outputs[0] for output in outputs), strict=True):
        assert completion.finish_reason == "stop"
        assert completion.stop_reason == stop
        assert completion.text == story.text[: story.text.index(stop)]
        # It ran to the token that completes the stop string, and not further.
        needed = next(n for n in range(1, 61) if stop in "".join(pieces[:n]))
        assert completion.token_ids == story.token_ids[:needed]


def test_stop_text_of_the_prompt_or_never_reached(stage, story):
    """A stop string that is only in the prompt, or of which only the beginning comes, ends nothing."""
    completion = complete(stage, greedy(stage, max_tokens=20, stop=["Aisha had", story.text[:6] + "#"]))
    assert completion.finish_reason == "length"
    assert completion.text == stage.tokenizer().decode(story.token_ids[:20])


def test_stop_tokens(stage, story):
    token = story.token_ids[12]
    first = story.token_ids.index(token)
    completion = complete(stage, greedy(stage, max_tokens=60, stop_token_ids=[token]))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", token)
    assert completion.token_ids == story.token_ids[: first + 1]
    assert completion.text == stage.tokenizer().decode(story.token_ids[:first])  # without the stop token's own text


def test_every_row_stops_for_itself(stage, story):
    stop = story.text[10:16]
    params = [
        greedy(stage, max_tokens=30, stop=stop),
        greedy(stage, max_tokens=7),
        greedy(stage, max_tokens=30, stop_token_ids=[story.token_ids[12]]),
        greedy(stage, max_tokens=20, ignore_eos=True),
    ]
    together = [output.outputs[0] for output in stage.engine(max_num_seqs=4).generate([PROMPT] * 4, params)]
    assert together == [complete(stage, p) for p in params]


@pytest.mark.covers("request.py", "support/text.py", "engine.py")
def test_length_ends_at_the_context(stage, small_checkpoint):
    prompts = random_prompts(211, [40, 47, 3])
    params = stage.SamplingParams(temperature=0, max_tokens=10_000, ignore_eos=True)
    outputs = stage.engine(small_checkpoint).generate(prompts, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [8, 1, 45]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    shorter = stage.engine(small_checkpoint, max_model_len=20).generate(random_prompts(211, [5, 19]), params)
    assert [len(output.outputs[0].token_ids) for output in shorter] == [15, 1]


def test_a_model_without_end_token(stage, tmp_path):
    from tests.adapter import write_checkpoint

    sizes = dict(n_layer=1, n_head=1, n_embd=8, n_positions=16, vocab_size=20)
    directory = write_checkpoint(tmp_path, eos_token_id=None, **sizes)
    outputs = stage.LLM(directory, device="cpu").generate([[1, 2]] * 8, stage.SamplingParams(max_tokens=14))
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}


def test_what_ends_a_request(stage):
    """Token by token, without a model: an end token, a stop token, a stop string, the length, and min_tokens."""
    a, b = stage.tokenizer().encode(" a"), stage.tokenizer().encode(" b")
    for settings, tokens, ends in [
        ({"stop_token_ids": b}, a + b, ("stop", b[0])),
        ({"stop": " b"}, a + b, ("stop", " b")),
        ({"stop": " b", "min_tokens": 1}, a + b, ("stop", " b")),
        ({"stop": " b", "max_tokens": 2}, a + b, ("stop", " b")),
        ({"stop": " a", "min_tokens": 2}, a + a + a, ("stop", " a")),
        ({"stop": ["o", "ef"]}, stage.tokenizer().encode(" before"), ("stop", "ef")),  # one token has both
        ({}, [*a, EOS], ("stop", None)),
        ({"ignore_eos": True, "max_tokens": 3}, [*a, EOS, *b], ("length", None)),
        ({"ignore_eos": True, "stop_token_ids": [EOS]}, [*a, EOS], ("stop", EOS)),
        # A stop string in what is left at the end: half a character, the text of the token that ended it.
        ({"stop": "\ufffd", "max_tokens": 2}, a + stage.tokenizer().encode("ж")[:1], ("stop", "\ufffd")),
        ({"stop": " b", "stop_token_ids": b, "include_stop_str_in_output": True}, a + b, ("stop", " b")),
    ]:
        request = stage.make_request(greedy(stage, **settings), eos_token_ids=(EOS,))
        case = f"{settings}, tokens {[request.tokenizer.decode([token_id]) for token_id in tokens]}"
        for token_id in tokens:
            assert not request.finished, case
            request.add(token_id)
        assert (request.finish_reason, request.stop_reason) == ends, case
        assert request.output_token_ids == tokens, case


def test_which_text_is_final(stage):
    """Token by token: what may become a stop string is held back, unless it stays in the text. Of several that are
    complete the one that begins first counts, and none that was complete within the first min_tokens tokens."""
    for settings, tokens, text, final, ends in [
        ({"stop": ["q", "acid"]}, "bac", "bac", 1, None),
        ({"stop": ["q", "acid"]}, "bacid", "b", 1, "acid"),
        ({"stop": ["q", "acid"], "include_stop_str_in_output": True}, "bac", "bac", 3, None),
        ({"stop": ["q", "acid"], "include_stop_str_in_output": True}, "bacid", "bacid", 5, "acid"),
        ({"stop": ["ac", "bac"]}, "bac", "", 0, "bac"),
        ({"stop": ["bac", "ac"]}, "bac", "", 0, "bac"),
        ({"stop": "xy", "min_tokens": 2}, "xyz", "xyz", 3, None),
        ({"stop": "xy", "min_tokens": 1}, "xyz", "", 0, "xy"),
    ]:
        request = stage.make_request(greedy(stage, **settings))
        for letter in tokens:
            if not request.finished:
                request.add(*stage.tokenizer().encode(letter))
        got = {"text": request.text.text, "num_final": request.text.num_final, "stop_reason": request.stop_reason}
        expected = {"text": text, "num_final": final, "stop_reason": ends}
        assert got == expected, f"{settings}, tokens {list(tokens)}"


def test_what_a_request_keeps_of_a_token(stage):
    """Its id, when it came, and its log-probabilities if there are any."""
    entry = stage.part("outputs").Logprob(-0.5, 1, " a")
    for logprobs in (None, {64: entry}):
        request = stage.make_request(greedy(stage))
        request.add(64, logprobs)
        assert (request.output_token_ids, request.logprobs) == ([64], [] if logprobs is None else [logprobs])
        assert request.arrival_time <= request.token_times[0]
        assert (request.text.text, request.finished) == ("a", False)


@pytest.mark.covers("support/logits_processors.py")
def test_what_may_not_come_before_min_tokens(stage):
    """The end tokens of the model and of the request; not the model's if they are ignored."""
    tokens_of, make = stage.part("logits_processors").end_token_ids, stage.engine().inputs.request
    eos = set(make([1], stage.SamplingParams()).eos_token_ids)
    for ignored, expected in ((False, {7} | eos), (True, {7})):
        params = stage.SamplingParams(min_tokens=3, stop_token_ids=[7], ignore_eos=ignored)
        assert set(tokens_of(make([1], params))) == expected

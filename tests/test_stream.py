"""Streams: the pieces, joined, are what generate returns; never half a character, never a part of a stop string."""

import threading

import pytest

from stagewise.wrap import wrap
from tests.adapter import random_prompts

pytestmark = pytest.mark.covers("llm.py", "engine_loop.py", "request.py", "support/outputs.py")


def collect(events):
    texts, token_ids, reasons = {}, {}, {}
    for event in events:
        assert event.index not in reasons, "an event after the last one of its index"
        texts[event.index] = texts.get(event.index, "") + event.text
        token_ids[event.index] = token_ids.get(event.index, []) + event.token_ids
        if event.finish_reason:
            reasons[event.index] = event.finish_reason
    return texts, token_ids, reasons


def test_stream_equals_generate(stage, babble):
    """Nonsense in every script: characters broken over tokens, bytes that are no characters."""
    prompts = random_prompts(50257, [1, 8, 3, 17, 5])
    params = [
        stage.SamplingParams(
            temperature=1e5, max_tokens=80 + i, seed=i, ignore_eos=True, stop=("a", "the", "é ", "…")[i:]
        )
        for i in range(5)
    ]
    llm = stage.engine(babble, max_num_seqs=2)
    texts, token_ids, reasons = collect(llm.stream(prompts, params))
    outputs = [output.outputs[0] for output in llm.generate(prompts, params)]
    assert [texts[i] for i in range(5)] == [output.text for output in outputs]
    assert [token_ids[i] for i in range(5)] == [output.token_ids for output in outputs]
    assert [reasons[i] for i in range(5)] == [output.finish_reason for output in outputs]
    assert any("\ufffd" in text for text in texts.values())  # the model does babble


def test_events_carry_logprobs_counts_and_the_stop(stage):
    """Joined, they are what generate returns."""
    params = [
        stage.SamplingParams(temperature=0, max_tokens=30, logprobs=2, stop="park"),  # equal: in their order
        stage.SamplingParams(temperature=0, max_tokens=30, stop=[" time", "a"]),
    ]
    llm = stage.engine()
    logprobs, last = [], {}
    for event in llm.stream(["Once upon a time", [464, 2068]], params):
        logprobs += event.logprobs or []
        last[event.index] = event
    outputs = llm.generate(["Once upon a time", [464, 2068]], params)
    assert logprobs == outputs[0].outputs[0].logprobs
    assert last[1].logprobs is outputs[1].outputs[0].logprobs is outputs[1].outputs[0].cumulative_logprob is None
    chosen = zip(outputs[0].outputs[0].token_ids, logprobs, strict=True)
    assert outputs[0].outputs[0].cumulative_logprob == sum(entry[token_id].logprob for token_id, entry in chosen)
    for i, output in enumerate(outputs):
        completion = output.outputs[0]
        assert (last[i].finish_reason, last[i].stop_reason) == (completion.finish_reason, completion.stop_reason)
    assert last[1].stop_reason


def test_a_token_per_event_as_it_is_made(stage):
    """The first event comes after one forward pass, not after all."""
    llm, steps = stage.engine(), threading.Semaphore(1)
    undo = wrap(llm.engine, "step", lambda step, *arguments: steps.acquire() and step(*arguments))
    before = llm.stats.num_forwards
    events = llm.stream(["Once upon a time"], stage.SamplingParams(temperature=0, max_tokens=5))
    first = next(events)
    assert llm.stats.num_forwards == before + 1
    assert len(first.token_ids) == 1
    steps.release(4)
    assert [len(event.token_ids) for event in events] == [1, 1, 1, 1]
    undo()


def test_a_possible_stop_text_is_held_back(stage):
    """What could become a stop string comes only when it can't any more."""
    llm = stage.engine()
    full = llm.generate(["Once upon a time"], stage.SamplingParams(temperature=0, max_tokens=12))[0].outputs[0].text
    half = full[4:10]
    events = list(llm.stream(["Once upon a time"], stage.SamplingParams(temperature=0, max_tokens=12, stop=half + "#")))
    assert "".join(event.text for event in events) == full
    streamed = ""
    for event in events[:-1]:
        streamed += event.text
        assert not any(streamed.endswith(half[:n]) for n in range(1, len(half) + 1))
    last = stage.SamplingParams(temperature=0, max_tokens=12, stop=full[-3:] + "#")  # held back until the end
    assert "".join(event.text for event in llm.stream(["Once upon a time"], last)) == full
    stopped = list(llm.stream(["Once upon a time"], stage.SamplingParams(temperature=0, max_tokens=12, stop=half)))
    assert "".join(event.text for event in stopped) == full[: full.index(half)]


def test_wrong_input_is_told_before_the_first_event(stage):
    import pytest

    with pytest.raises(ValueError, match="prompt 1"):
        stage.engine().stream(["fine", []])
    with pytest.raises(ValueError, match="prompt 1"):
        stage.engine().as_completed(["fine", []])


def test_as_completed_gives_every_result_once(stage, small_checkpoint):
    prompts = random_prompts(211, [4, 9, 2, 13, 6])
    params = [stage.SamplingParams(max_tokens=3 + i, seed=i) for i in range(5)]
    llm = stage.engine(small_checkpoint, max_num_seqs=2)
    results = dict(llm.as_completed(prompts, params))
    assert sorted(results) == list(range(5))
    expected = llm.generate(prompts, params)
    assert [results[i].outputs for i in range(5)] == [output.outputs for output in expected]


def test_no_prompts(stage):
    assert stage.engine().generate([]) == []
    assert list(stage.engine().stream([])) == []

"""A request that fails by itself ends by itself, in every stage: its result says why, and the other requests, the
engine, the server and the run go on."""

import json
import math
import threading
import time

import pytest
import torch

from tests.adapter import STAGES, in_threads, wait_until
from tests.test_serving import ask, read_events, serving

PROMPT = "Once upon a time"
FILES = ("engine.py", "sampler.py", "kernels/c_sampler.py", "request.py", "support/outputs.py")
pytestmark = pytest.mark.covers(*FILES, "support/logits_processors.py")
SERVING = [stage for stage in STAGES if stage.number >= 4]


def fails_after(num_tokens):
    def processor(prompt_token_ids, output_token_ids, logits):
        if len(output_token_ids) == num_tokens:
            raise KeyError("mine")
        return logits

    return processor


def raises(error):
    def processor(*_):
        raise error

    return processor


def forbid_all(prompt_token_ids, output_token_ids, logits):
    return logits - math.inf


# What goes wrong, after how many tokens, and what the result says.
FAILURES = {
    "a processor raises at once": (dict(logits_processors=[fails_after(0)]), 0, "KeyError: 'mine'"),
    "a processor raises later": (dict(logits_processors=[fails_after(2)]), 2, "KeyError: 'mine'"),
    "a processor ends the program": (dict(logits_processors=[raises(SystemExit(3))]), 0, "raised SystemExit(3)"),
    "or a generator": (dict(logits_processors=[raises(GeneratorExit())]), 0, "raised GeneratorExit()"),
    "a processor gives no logits": (dict(logits_processors=[lambda *_: None]), 0, "a logits processor must return"),
    "or too few": (dict(logits_processors=[lambda *given: given[2][1:]]), 0, "a logits processor must return logits"),
    "a processor forbids all": (dict(logits_processors=[forbid_all]), 0, "no token can be sampled"),
    "and min_tokens with it": (dict(logits_processors=[forbid_all], min_tokens=2), 0, "no token can be sampled"),
    "with log-probabilities": (dict(logits_processors=[fails_after(1)], logprobs=2), 1, "KeyError: 'mine'"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_request_that_fails_alone_ends_alone(stage, small_checkpoint, name):
    """As the only one, as the first, in the middle, last; greedy and sampled; whole and streamed."""
    fields, num_tokens, says = FAILURES[name]
    llm = stage.engine(small_checkpoint, max_num_seqs=2)
    for temperature in (0, 1.0):
        good = stage.SamplingParams(temperature=temperature, max_tokens=4, seed=1, ignore_eos=True)
        bad = stage.SamplingParams(temperature=temperature, max_tokens=4, seed=1, ignore_eos=True, **fields)
        expected = llm.generate([[1, 2, 3]], good)[0].outputs[0]
        for where in ([bad], [bad, good], [good, bad, good], [good, bad], [bad, bad]):
            for params, output in zip(where, llm.generate([[1, 2, 3]] * len(where), where), strict=True):
                (completion,) = output.outputs
                if params is good:
                    assert completion == expected
                else:
                    assert (completion.finish_reason, len(completion.token_ids)) == ("error", num_tokens)
                    assert says in completion.stop_reason
                    assert completion.token_ids == expected.token_ids[:num_tokens]
                assert output.finished
                assert output.metrics.ttft is None or output.metrics.ttft >= 0
            events = list(llm.stream([[1, 2, 3]] * len(where), where))
            ends = {event.index: event for event in events if event.finish_reason}
            assert [ends[i].finish_reason for i in range(len(where))] == [
                "error" if params is bad else "length" for params in where
            ]
            assert all(says in ends[i].stop_reason for i, params in enumerate(where) if params is bad)
            done = dict(llm.as_completed([[1, 2, 3]] * len(where), where))
            assert sorted(done) == list(range(len(where)))


def test_ctrl_c_is_the_callers_and_no_processors(stage, small_checkpoint):
    """Python raises it in the main thread. In another one only the processor itself can have raised it."""
    llm = stage.engine(small_checkpoint)
    params = stage.SamplingParams(max_tokens=2, logits_processors=[raises(KeyboardInterrupt())])
    with in_threads(lambda: llm.generate([[1, 2, 3]], params)) as results:
        pass
    says = "RuntimeError: a logits processor raised KeyboardInterrupt()"
    assert results[0][0].outputs[0].stop_reason == says
    if stage.number < 4:  # the model runs in the caller's thread
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[1, 2, 3]], params)
    else:
        assert llm.generate([[1, 2, 3]], params)[0].outputs[0].stop_reason == says


def test_a_model_that_gives_no_numbers_ends_its_requests_not_the_engine(stage, small_checkpoint):
    llm = stage.LLM(small_checkpoint, device="cpu")
    params = stage.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=1)
    expected = llm.generate([[1, 2]], params)[0].outputs
    model = llm.engine.runner.model
    forward = model.forward
    model.forward = lambda *arguments: forward(*arguments) * torch.nan
    for prompts in ([[1, 2]], [[1, 2], [3]]):
        for output in llm.generate(prompts, params):
            assert output.outputs[0].finish_reason == "error"
            assert "the model's logits are not finite" in output.outputs[0].stop_reason
    model.forward = forward
    assert llm.generate([[1, 2]], params)[0].outputs == expected


@pytest.mark.parametrize("stage", STAGES[4:], ids=lambda stage: stage.directory)
def test_of_several_completions_each_fails_by_itself(stage, small_checkpoint):
    """The processor fails at a token that only some of them draw."""
    llm = stage.engine(small_checkpoint, max_num_seqs=3)
    params = dict(n=4, max_tokens=6, seed=3, ignore_eos=True, temperature=1.5)
    expected = llm.generate([[1, 2, 3]], stage.SamplingParams(**params))[0].outputs
    unlucky = expected[1].token_ids[2]

    def processor(prompt_token_ids, output_token_ids, logits):
        if unlucky in output_token_ids:
            raise RuntimeError("unlucky")
        return logits

    (output,) = llm.generate([[1, 2, 3]], stage.SamplingParams(**params, logits_processors=[processor]))
    for completion, whole in zip(output.outputs, expected, strict=True):
        if unlucky in whole.token_ids[:-1]:
            cut = whole.token_ids.index(unlucky) + 1
            assert (completion.finish_reason, completion.token_ids) == ("error", whole.token_ids[:cut])
        else:
            assert completion == whole
    assert output.outputs[1].finish_reason == "error"
    llm.engine.scheduler.check_integrity()
    assert llm.engine.block_manager.num_free == llm.engine.runner.num_blocks


CONTRADICTION = {"prompt": "Once", "max_tokens": 6, "allowed_token_ids": [257], "bad_words": ["a a"]}


@pytest.mark.parametrize("number", [4, 5, 8])
def test_the_server_answers_and_goes_on(number):
    with serving(number, "tinytales") as app:
        more = [{"min_tokens": 3}, {"seed": 1, "temperature": 2}] + ([{"n": 2}] if number > 4 else [])
        for body in (CONTRADICTION, *(CONTRADICTION | fields for fields in more)):
            response = ask(app, "/v1/completions", {"model": "tales", **body})
            assert response.status_code == 400, response.text
            assert "no token can be sampled" in response.json()["error"]["message"]
            *_, error = read_events(ask(app, "/v1/completions", {"model": "tales", "stream": True, **body}).content)
            assert error["error"]["code"] == "generation_failed"
            assert ask(app, "/health", method="GET").status_code == 200
        fine = ask(app, "/v1/completions", {"model": "tales", "prompt": "Once", "max_tokens": 3})
        assert fine.json()["usage"]["completion_tokens"] == 3


def test_the_server_tells_a_model_that_fails_from_a_request_that_does():
    """Whole and streamed: 500 with the model's error, not an error in the server."""
    with serving(5, "tinytales") as app:
        model, body = app.service.engine.llm.engine.runner.model, {"model": "tales", "prompt": "Once", "max_tokens": 3}
        forward = model.forward
        model.forward = lambda *arguments: forward(*arguments) * torch.nan
        whole = ask(app, "/v1/completions", body)
        *_, streamed = read_events(ask(app, "/v1/completions", {**body, "stream": True}).content)
        model.forward = forward
        for error in (whole.json()["error"], streamed["error"]):
            assert (error["code"], error["type"]) == ("generation_failed", "server_error")
            assert "logits are not finite" in error["message"]
        assert whole.status_code == 500
        assert ask(app, "/v1/completions", body).status_code == 200


@pytest.mark.parametrize("stage", STAGES[1:], ids=lambda stage: stage.directory)
def test_a_line_that_fails_is_an_error_and_the_run_goes_on(stage, tmp_path):
    """As the first line, the last, and the only one; also a form that goes beyond the limits while it is written. A
    resumed run is done."""
    bad = {"prompt": "Once", "sampling": {"max_tokens": 6, "allowed_token_ids": [257], "bad_words": ["a a"]}}
    form = {"prompt": "Once", "sampling": {"max_tokens": 60, "structured_outputs": {"regex": "(.{0,300}a){0,300}"}}}
    for i, lines in enumerate(([bad, {"prompt": "A fox"}, form], [bad])[: 2 if stage.number in (2, 5) else 1]):
        source, output = tmp_path / f"{i}.jsonl", tmp_path / f"{i}.out.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        flags = ("--max-tokens", "3", "--quiet", "--device", "cpu", "--input", source, "--output", output)
        status, _, stderr = stage.main(*flags)
        failing = [line for line in lines if line in (bad, form)]
        assert (status, f"{len(failing)} of {len(lines)}" in stderr) == (1, True), stderr
        results = {line["id"]: line for line in map(json.loads, output.read_text().splitlines())}
        assert len(results) == len(lines)
        assert sum("error" in result for result in results.values()) == len(failing)
        for line in failing:
            failed = results[f"line-{lines.index(line) + 1}"]
            assert failed["finish_reason"] == "error"
            assert ("fails after" if line is form else "no token can be sampled") in failed["error"]
        before = output.read_bytes()
        stage.main(*flags, "--resume")
        assert output.read_bytes() == before


@pytest.mark.covers("request.py")
def test_what_is_said_of_an_error(stage):
    """A ValueError is a sentence for users; any other error is shown with its name."""
    for error, said in ((ValueError("too long"), "too long"), (KeyError("x"), "KeyError: 'x'")):
        request = stage.engine().inputs.request([1, 2], stage.SamplingParams())
        request.add_or_fail(error)
        assert (request.finish_reason, request.stop_reason) == ("error", said)


@pytest.mark.covers("support/stats.py")
def test_a_step_that_fails_takes_its_time_too(stage):
    stats = stage.part("stats").Stats()

    def fail():
        time.sleep(0.001)
        raise KeyError

    with pytest.raises(KeyError):
        stats.timing()(fail)()
    assert stats.seconds >= 0.001


@pytest.mark.covers("engine_loop.py")
@pytest.mark.parametrize("stage", SERVING, ids=str)
@pytest.mark.parametrize(
    ("part", "fails", "comes_in", "max_num_seqs"),
    [
        ("step", lambda number: number <= 2, 2, 8),
        ("forward", lambda _, batch: any(row.request.prompt_token_ids == [1, 2, 3] for row in batch.rows), 1, 1),
    ],
    ids=["two steps", "all steps of a request"],
)
def test_failing_steps_end_only_those_that_were_in_them(stage, small_checkpoint, part, fails, comes_in, max_num_seqs):
    """A request that comes meanwhile is done, even if it has to wait for the place of the one that fails."""
    llm = stage.LLM(small_checkpoint, device="cpu", max_num_seqs=max_num_seqs)
    params = stage.SamplingParams(temperature=0, max_tokens=9)
    expected, calls, late = llm.generate([[4, 5]], params), [], []
    other = threading.Thread(target=lambda: late.extend(llm.generate([[4, 5]], params)))
    owner = llm.engine if part == "step" else llm.engine.runner
    own = getattr(owner, part)

    def own_or_fail(*batch):
        calls.append(1)
        if len(calls) == comes_in:
            other.start()
            wait_until(lambda: not llm.loop.commands.empty())
        if fails(len(calls), *batch):
            raise RuntimeError(f"call {len(calls)} fails")
        return own(*batch)

    setattr(owner, part, own_or_fail)
    with pytest.raises(RuntimeError, match="call 2 fails"):
        llm.generate([[1, 2, 3]], params)
    other.join(60)
    assert [output.outputs[0].token_ids for output in late] == [expected[0].outputs[0].token_ids]


@pytest.mark.covers("engine_loop.py")
@pytest.mark.parametrize("stage", SERVING, ids=str)
def test_a_request_that_comes_after_the_end_is_told(stage, small_checkpoint):
    """Also if the engine ends between its caller's look and its command; the others get what they asked for."""
    llm, params = stage.LLM(small_checkpoint, device="cpu"), stage.SamplingParams(max_tokens=3, ignore_eos=True)
    loop, check = llm.loop, llm.loop.check

    def check_then_end():
        check()
        llm.close(abort=True)

    loop.check = check_then_end
    with pytest.raises(stage.EngineClosedError):
        llm.generate([[1, 2]], params)
    assert loop.commands.empty()
    assert not loop.callbacks

"""The HTTP server: OpenAI's interface on every stage that has an AsyncLLM, its errors, its streams and its end."""

import asyncio
import contextlib
import copy
import dataclasses
import gc
import http.client
import itertools
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from transformers import GPT2Tokenizer

from stagewise import structured_outputs
from stagewise.garbage import put_off
from stagewise.openai.answers import Token
from stagewise.openai.chat import ChatTemplate, load_template, special_tokens
from stagewise.openai.errors import APIError
from stagewise.openai.fields import COMPLETION, IDLE, SAMPLING
from stagewise.openai.limits import Limits
from stagewise.sampling import Sampling
from stagewise.serving import responses
from stagewise.serving.app import App
from stagewise.serving.cli import main, server_parser
from stagewise.serving.run import check, make_service
from stagewise.serving.server import Server, listen
from stagewise.serving.service import Run, Service
from stagewise.stages import SERVING as STAGES
from stagewise.stages import Stage
from tests.adapter import ROOT, TINYTALES, refusal, wait_until
from tools.server import server

SERVING = sorted(STAGES)
JSON = {"content-type": "application/json"}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}bot:{% endif %}"
)


@contextlib.contextmanager
def serving(stage, model, max_queue_size=1024, chat=None, log=None, **options):
    """An App with its own engine, which must be idle at the end."""
    stage = Stage(stage)
    options = {"max_num_seqs": 4, "device": "cpu", **options}
    with stage.AsyncLLM(model=str(model), **options) as engine:
        limits = Limits(max_queue_size=max_queue_size)
        app = App(Service(stage, engine, "tales", limits, chat), log=log)
        yield app
        if not app.service.failed:
            wait_until(lambda: not engine.llm.loop.callbacks)
            engine.llm.engine.scheduler.check_integrity()
            assert engine.llm.loop.callbacks == {}
            assert app.service.metrics.num_unfinished == app.num_active == 0


@pytest.fixture(scope="module")
def tales(tmp_path_factory):
    """The bundled model on the newest stage, with a chat template."""
    path = tmp_path_factory.mktemp("chat") / "template.jinja"
    path.write_text(TEMPLATE)
    with serving(6, "tinytales", chat=load_template(path, path.parent)) as app:
        yield app


@pytest.fixture(scope="module", params=[SERVING[0], 5, SERVING[-1]])
def small(request, small_checkpoint):
    """A random model on the first stage that serves, on the one that changes its engine's thread, and on the last."""
    with serving(request.param, small_checkpoint) as app:
        yield app


@contextlib.contextmanager
def listening(app, grace=0, close=True):
    """A real server, in a thread; yields it and its port. At its end the engine is closed if `close` says so."""
    if not close:
        app.service.engine = SimpleNamespace(llm=app.service.engine.llm, close=lambda **_: None)
    with listen("127.0.0.1", 0) as listener:
        server = Server(app, grace)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield server, listener.getsockname()[1]
        finally:
            if not app.draining:
                server.handle_exit(signal.SIGTERM, None)
            thread.join(60)
            assert not thread.is_alive()


def limited(app, **limits):
    """An App with other limits and the same engine."""
    service = copy.copy(app.service)
    service.limits = dataclasses.replace(service.limits, **limits)
    return App(service)


async def ask_async(app, path, body=None, method=None, **more):
    """A request, in this process."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        if isinstance(body, bytes):
            more["content"] = body
        elif body is not None:
            more["json"] = body
        if "content" in more or "json" in more:
            more["headers"] = {**JSON, **more.get("headers", {})}
        return await client.request(method or ("GET" if body is None else "POST"), path, **more)


def ask(app, path, body=None, method=None, **more):
    return asyncio.run(ask_async(app, path, body, method, **more))


def complete(app, **fields):
    """A completion that must succeed."""
    response = ask(app, "/v1/completions", {"model": "tales", **fields})
    assert response.status_code == 200, response.text
    return response.json()


def read_events(raw):
    """The events of a stream, whose format is checked byte by byte."""
    assert raw.isascii()  # some clients end a line at U+2028 too
    assert b"\r" not in raw
    *events, done, rest = raw.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def stream(app, path="/v1/completions", **fields):
    response = ask(app, path, {"model": "tales", "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return read_events(response.content)


def join(events, num_choices=1):
    """The choices that chunks of a completion make, with logprobs put together."""
    choices = [{} for _ in range(num_choices)]
    for new in (choice for event in events for choice in event["choices"]):
        old = choices[new["index"]]
        new = {**new, "text": old.get("text", "") + new["text"]}
        if new["logprobs"] and old:
            new["logprobs"] = {name: old["logprobs"][name] + value for name, value in new["logprobs"].items()}
        choices[new["index"]] = new
    return choices


def generate(app, prompts, **fields):
    """What the engine gives without a server."""
    sampling, llm = Sampling(app.service.stage, **fields), app.service.engine.llm
    return llm.generate([sampling.prompt(llm, prompt) for prompt in prompts], sampling.params_for(llm))


def error_of(response, status):
    """The error of a response, which must have OpenAI's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert response.json().keys() == {"error"}
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def refused(app, body, path="/v1/completions", status=400):
    """The error that answers this body, as it is or with the model's name."""
    content = body if isinstance(body, bytes) else json.dumps({"model": "tales", **body}).encode()
    return error_of(ask(app, path, content), status)


# --- Completions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": 7, "stop": ["e", "th"], "top_p": 0.9}, {"seed": 3}])
def test_a_stream_is_the_whole_and_what_the_engine_gives(small, fields):
    """On a model that babbles, with broken characters: most of its tokens are single bytes."""
    more = {"prompt": [1, 2, 3, 4], "max_tokens": 40, "ignore_eos": True, "logprobs": 2, **fields}
    whole = complete(small, **more)
    (choice,) = whole["choices"]
    events = stream(small, stream_options={"include_usage": True}, **more)
    assert join(events) == [choice]
    fields = {name: value for name, value in more.items() if name != "prompt"}
    (expected,) = generate(small, [[1, 2, 3, 4]], **fields)[0].outputs
    for name in ("text", "finish_reason", "stop_reason"):
        assert choice[name] == getattr(expected, name)
    likely = [logprobs[token].logprob for token, logprobs in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(likely, abs=1e-4)
    told = [len(event["choices"][0]["logprobs"]["tokens"]) for event in events if event["choices"]]
    assert min(told) >= 1  # a chunk for the tokens of a step, also for those without text
    assert sum(told) == len(expected.token_ids)
    assert whole["usage"]["completion_tokens"] == events[-1]["usage"]["completion_tokens"] == len(expected.token_ids)


def test_several_prompts_and_n(tales):
    prompts = ["Once upon a time", "A fox", "One day"]
    fields = {"max_tokens": 6, "n": 2, "seed": 5}
    expected = [c.text for output in generate(tales, prompts, **fields) for c in output.outputs]
    whole = complete(tales, prompt=prompts, **fields)
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert [choice["text"] for choice in whole["choices"]] == expected
    assert whole["usage"]["prompt_tokens"] == sum(len(output.prompt_token_ids) for output in generate(tales, prompts))
    assert whole["usage"]["completion_tokens"] == whole["usage"]["total_tokens"] - whole["usage"]["prompt_tokens"] == 36
    assert [c["text"] for c in join(stream(tales, prompt=prompts, **fields), 6)] == expected


def test_prompts_as_text_and_as_ids(tales):
    fields = {"temperature": 0, "max_tokens": 5}
    ids = ask(tales, "/tokenize", {"prompt": "Once upon a time"}).json()["tokens"]
    (choice,) = complete(tales, prompt="Once upon a time", **fields)["choices"]
    for prompt in (["Once upon a time"], ids, [ids]):
        assert complete(tales, prompt=prompt, **fields)["choices"] == [choice]
    assert len(complete(tales, prompt=[ids, ids], **fields)["choices"]) == 2
    default = complete(tales, **fields)
    assert default["choices"] == complete(tales, prompt="<|endoftext|>", **fields)["choices"]
    assert default["usage"]["prompt_tokens"] == 1


def test_fields_that_ask_for_nothing_are_accepted(tales):
    """As clients send them: null in any field, and values that are OpenAI's default anyway, or vLLM's."""
    fields = {"prompt": "Once", "seed": 1, "ignore_eos": True}
    whole = complete(tales, **fields)
    assert whole["usage"]["completion_tokens"] == 16
    nulls = dict.fromkeys({*COMPLETION, *IDLE, "foo"} - {*fields, "model"})
    defaults = {"logit_bias": {}, "top_k": -1, "stop": [], "request_id": "r-1"}  # -1 is vLLM's "all"
    for more in (nulls, defaults):
        answer = complete(tales, **fields, **more)
        assert answer["choices"] == whole["choices"]
    assert answer["id"] == "cmpl-r-1"
    more = {"response_format": {"type": "text"}, "echo": False, "chat_template_kwargs": {"enable_thinking": False}}
    assert chat(tales, max_tokens=3, seed=1, **more)["choices"] == chat(tales, max_tokens=3, seed=1)["choices"]


@pytest.mark.parametrize("name", IDLE)
def test_a_field_that_is_not_used_may_ask_for_nothing(tales, name):
    """It is accepted with one of its idle values, and refused with any other."""
    allowed, why = IDLE[name]
    idle = {str: "x", bool: True, dict: {}}[allowed] if isinstance(allowed, type) else (*allowed, None)[0]
    complete(tales, prompt="Once", max_tokens=1, **{name: idle})
    for wrong in (7.5, 0 if idle is False else [0]):  # 0 is not false
        error = refused(tales, {"prompt": "Once", name: wrong})
        assert (error["param"], error["message"]) == (name, f"{name} {wrong} is not supported: {why}")


def test_every_sampling_field_reaches_the_engine():
    fields = {"n": 2, "temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": 0.2, "seed": 3}
    fields |= {"stop": ("a", "b"), "max_tokens": 7, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
    fields |= {"ignore_eos": True, "min_tokens": 2, "stop_token_ids": (4, 5), "skip_special_tokens": False}
    fields |= {"include_stop_str_in_output": True}
    more = {"logit_bias": {5: 2.0}, "bad_words": ("!",), "allowed_token_ids": (3, 4, 5), "truncate_prompt_tokens": 9}
    assert {*fields, *more} == set(SAMPLING) - {"structured_outputs"}  # which goes with no end token that is ignored
    with serving(6, "tinytales", policy="priority") as app:
        body = {"model": "tales", "prompt": [1], "priority": -3, "logprobs": 4, **fields, **more}
        job = app.service.job(json.loads(json.dumps(body)))
        bias, allowed, words = job.params.logits_processors
        assert dataclasses.replace(job.params, logits_processors=()) == app.service.stage.SamplingParams(
            logprobs=4, **fields
        )
        assert (bias.ids.token_ids, bias.values, allowed.ids.token_ids) == ([5], [2.0], [3, 4, 5])
        assert (words.words, job.fields["priority"]) == ([[0], [5145]], -3)
        assert job.sampling.given["truncate_prompt_tokens"] == 9
        complete(app, prompt=[1], priority=-3)


def test_many_at_once_get_what_each_gets_alone(tales):
    bodies = [{"model": "tales", "prompt": "A fox", "seed": i, "max_tokens": 3 + i % 9} for i in range(24)]

    async def all_of_them():  # half of them stream
        more = [{**body, "stream": bool(body["seed"] % 2)} for body in bodies]
        return await asyncio.gather(*(ask_async(tales, "/v1/completions", body) for body in more))

    for body, response in zip(bodies, asyncio.run(all_of_them()), strict=True):
        expected = complete(tales, **{name: value for name, value in body.items() if name != "model"})["choices"]
        got = join(read_events(response.content)) if body["seed"] % 2 else response.json()["choices"]
        assert got == expected


def test_usage_in_chunks(tales):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(tales, prompt=["Once", "A fox"], max_tokens=3, ignore_eos=True, stream_options=options)
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 4, 5, 6, 6]
    assert events[-1]["choices"] == []
    fields = {"messages": HELLO, "max_tokens": 2, "ignore_eos": True, "stream_options": options}
    counts = [event["usage"]["completion_tokens"] for event in stream(tales, "/v1/chat/completions", **fields)]
    assert counts == [0, 1, 2, 2]  # the first chunk says who speaks
    options = {"include_usage": False, "continuous_usage_stats": True}
    assert all("usage" not in event for event in stream(tales, stream_options=options))
    assert all(event["usage"] is None for event in stream(tales, stream_options={"include_usage": True})[:-1])
    assert all("usage" not in event for event in stream(tales))


def test_stage_4_makes_one_completion(small_checkpoint):
    with serving(4, small_checkpoint) as app:
        error = refused(app, {"prompt": [1], "n": 2})
        assert (error["param"], "stage 4" in error["message"]) == ("n", True)
        assert len(complete(app, prompt=[1], n=1, max_tokens=2)["choices"]) == 1


# --- Log-probabilities ------------------------------------------------------------------------------------------------


def test_echo_and_logprobs_as_lm_eval_reads_them(small):
    """Token ids in, prompt and one token out; in between are the continuation's log-probabilities."""
    prompts = [[5, 6, 7, 8, 9], [1, 2, 3]]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    choices = complete(small, **body)["choices"]
    outputs = generate(small, prompts, temperature=0, max_tokens=1, logprobs=1, prompt_logprobs=1)
    for ids, choice, output in zip(prompts, choices, outputs, strict=True):
        logprobs = choice["logprobs"]
        assert {len(column) for column in logprobs.values()} == {len(ids) + 1}
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
        expected = [entry[token] for token, entry in zip(ids, output.prompt_logprobs, strict=True) if entry]
        values, tops = logprobs["token_logprobs"][1:-1], logprobs["top_logprobs"][1:-1]
        assert values == pytest.approx([one.logprob for one in expected], abs=1e-4)
        greedy = [value == max(top.values()) for value, top in zip(values, tops, strict=True)]
        assert greedy == [one.rank == 1 for one in expected]
    (prompt_alone, _) = complete(small, **{**body, "max_tokens": 0})["choices"]
    assert prompt_alone["logprobs"]["tokens"] == choices[0]["logprobs"]["tokens"][:-1]
    for streamed, choice in zip(join(stream(small, **body), 2), choices, strict=True):
        got, whole = streamed.pop("logprobs"), choice.pop("logprobs")
        assert (streamed, got["tokens"], got["text_offset"]) == (choice, whole["tokens"], whole["text_offset"])
        assert got["token_logprobs"][1:] == pytest.approx(whole["token_logprobs"][1:], abs=1e-4)
        assert [top and {*top} for top in got["top_logprobs"]] == [top and {*top} for top in whole["top_logprobs"]]


def test_echo_is_the_prompt_and_offsets_point_into_the_text(tales):
    for prompt, start in (("Snow 🎉 très froid", "Snow 🎉 très froid"), ("", ""), ([50256, 7454], "<|endoftext|>Once")):
        for n in (1, 2):
            choices = complete(tales, prompt=prompt, echo=True, logprobs=0, n=n, max_tokens=4)["choices"]
            for choice in choices:
                logprobs = choice["logprobs"]
                assert choice["text"].startswith(start)
                assert [len(top) for top in logprobs["top_logprobs"][1:]] == [1] * (len(logprobs["tokens"]) - 1)
                for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
                    if prompt and not token.startswith("bytes:"):
                        assert choice["text"][offset:].startswith(token)
    for prompt in ("Once", [7454]):
        whole = complete(tales, prompt=prompt, echo=True, max_tokens=0)
        assert (whole["choices"][0]["text"], whole["usage"]["completion_tokens"]) == ("Once", 0)
    assert complete(tales, prompt="Once", max_tokens=0)["choices"][0]["text"] == ""


def test_the_name_of_the_replacement_character_is_its_text():
    assert (Token("\ufffd", "\ufffd".encode()).name, Token("\ufffd", b"\xef").name) == ("\ufffd", "bytes:\\xef")


def test_tokens_that_are_parts_of_characters_have_names_of_their_own(small):
    fields = {"prompt": [1], "seed": 2, "max_tokens": 20, "ignore_eos": True, "logprobs": 20}
    logprobs = complete(small, **fields)["choices"][0]["logprobs"]
    assert any(token.startswith("bytes:\\x") for top in logprobs["top_logprobs"] for token in top)
    pairs = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    for token, value, top in pairs:
        assert top[token] == value
        assert len(top) in (20, 21)  # nobody's name hides another's


def test_a_prompt_is_cut_at_its_beginning(tales):
    """An echo is of what is left."""
    fields = {"prompt": [1, 2, 3, 4], "max_tokens": 1, "return_token_ids": True}
    whole = complete(tales, **fields, truncate_prompt_tokens=2)
    assert (whole["choices"][0]["prompt_token_ids"], whole["usage"]["prompt_tokens"]) == ([3, 4], 2)
    echoed = complete(tales, prompt="Once upon a time", truncate_prompt_tokens=2, echo=True, max_tokens=1)
    assert echoed["choices"][0]["text"].startswith(" a time")


def test_echo_and_prompt_logprobs_at_once(tales):
    """The prompt's tokens are asked for with one likely token by one of them, and with five by the other."""
    for echoed, own in ((1, 5), (5, 1)):
        fields = {"prompt": "Once upon a time", "max_tokens": 2, "echo": True, "logprobs": echoed, "seed": 1}
        expected = complete(tales, **fields)["choices"][0]["logprobs"]
        (choice,) = complete(tales, **fields, prompt_logprobs=own)["choices"]
        assert choice["logprobs"] == expected
        assert all(echoed <= len(top) <= echoed + 1 for top in expected["top_logprobs"][1:])
        assert all(len(entries) >= 5 for entries in choice["prompt_logprobs"][1:])


def test_the_engines_thread_makes_no_entry_of_a_prompt(tales, monkeypatch):
    """Other requests would wait for it."""
    service, threads = tales.service, set()
    scoring = sys.modules[f"{service.stage.package}.support.scoring"]
    entry = scoring.Logprob
    monkeypatch.setattr(scoring, "Logprob", lambda *of: threads.add(threading.current_thread()) or entry(*of))
    for more in ({"prompt_logprobs": 20}, {"echo": True, "logprobs": 20}):
        complete(tales, prompt=[[1] * 30, [2] * 30], max_tokens=1, **more)
    assert threads
    assert service.engine.llm.loop.thread not in threads


def test_json_in_pieces_is_the_same_json():
    deep = {"c": [None, "é\u2028", {"d": [1.5] * 40}] * 20, "e": []}
    for content in ({"a": [*range(50)], "b": deep, "f": {}, "index": 0}, [1, math.nan, {"x": math.inf}], {}, "text"):
        assert responses.in_pieces(content) == responses.to_json(content)


def test_prompt_logprobs_and_token_ids(tales):
    (expected,) = generate(tales, ["Once upon a time"], max_tokens=2, temperature=0, prompt_logprobs=2)
    ids, token_ids = expected.prompt_token_ids, expected.outputs[0].token_ids
    fields = {"max_tokens": 2, "temperature": 0, "return_token_ids": True}
    whole = complete(tales, prompt=["A", "Once upon a time"], prompt_logprobs=2, **fields)["choices"][1]
    asked = chat(tales, prompt_logprobs=2, **fields)
    for told in (whole["prompt_logprobs"], asked["prompt_logprobs"]):
        assert told[0] is None
        assert all({"logprob", "rank", "decoded_token"} == one.keys() for entry in told[1:] for one in entry.values())
    likely = [[*map(int, entry)] for entry in whole["prompt_logprobs"][1:]]
    assert likely == [[*entry] for entry in expected.prompt_logprobs[1:]]
    assert (whole["prompt_token_ids"], whole["token_ids"]) == (ids, token_ids)
    assert len(asked["prompt_token_ids"]) == len(asked["prompt_logprobs"]) == asked["usage"]["prompt_tokens"]
    chunks = [event["choices"][0] for event in stream(tales, prompt="Once upon a time", **fields)]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [ids, None]
    assert [i for chunk in chunks for i in chunk["token_ids"]] == token_ids
    first, *others = stream(tales, "/v1/chat/completions", messages=HELLO, **fields)
    assert first["prompt_token_ids"] == asked["prompt_token_ids"]
    assert not any("prompt_token_ids" in event for event in others)


def test_tokens_by_their_ids(tales):
    """Names that can't be mistaken for text; the bytes and the offsets in the text are the tokens' own."""
    by_ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    fields = {"prompt": "A 🎉", "max_tokens": 3, "temperature": 0.9, "seed": 3, "logprobs": 2, "echo": True}
    (named,), (plain,) = (complete(tales, **fields, **more)["choices"] for more in (by_ids, {}))
    names, logprobs = [f"token_id:{i}" for i in named["prompt_token_ids"] + named["token_ids"]], named["logprobs"]
    assert logprobs["tokens"] == names
    assert [next(iter(top)) for top in logprobs["top_logprobs"][1:]] == names[1:]
    assert logprobs["text_offset"] == plain["logprobs"]["text_offset"]
    assert join(stream(tales, **fields, return_tokens_as_token_ids=True))[0]["logprobs"] == logprobs
    asked = {"logprobs": True, "top_logprobs": 1, "temperature": 0, "max_tokens": 2}
    (named,), (plain,) = (chat(tales, **asked, **more)["choices"] for more in (by_ids, {}))
    names, content = [f"token_id:{i}" for i in named["token_ids"]], named["logprobs"]["content"]
    assert [one["token"] for one in content] == [one["top_logprobs"][0]["token"] for one in content] == names
    assert [one["bytes"] for one in content] == [one["bytes"] for one in plain["logprobs"]["content"]]


def test_the_models_own_end_tokens(small_checkpoint, tmp_path):
    """Of generation_config.json, nothing else applies."""
    shutil.copytree(small_checkpoint, tmp_path / "model")
    given = {"eos_token_id": [0, 17], "temperature": 0.5, "top_k": 7, "max_new_tokens": 9, "do_sample": True}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(given))
    parser = server_parser(STAGES[6], "x")
    args = parser.parse_args(["--model", str(tmp_path / "model"), "--served-model-name", "tales"])
    with (service := make_service(STAGES[6], args, Limits())).engine:
        params = service.job({"model": "tales", "prompt": [1]}).params
        assert (params.temperature, params.top_k, params.max_tokens) == (1.0, 0, 16)
        assert service.engine.llm.engine.model_config.eos_token_ids == (0, 17)


# --- What is refused --------------------------------------------------------------------------------------------------

FUNCTION = {"type": "function", "function": {"name": "add"}}
CALLS = {"tools": [FUNCTION], "tool_choice": "auto", "functions": [{"name": "add"}], "function_call": "auto"}
REFUSED = [
    ({"foo": False}, "foo", "unknown field foo"),
    ({"suffix": "the end"}, "suffix", "suffix 'the end' is not supported: GPT-2 can't fill in text before a given"),
    ({"use_beam_search": True, "n": 3}, "use_beam_search", "take --beam-width, for prompts on the command line, or"),
    ({"length_penalty": 2}, "length_penalty", "length_penalty 2 is not supported: a search has the engine to itself"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed group"),
    ({"structured_outputs": {"choice": []}, "n": 2}, "structured_outputs", "at least one string"),
    ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs", "Unimplemented"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "response_format and structured_outputs can't be combined",
    ),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs", "no field 'regexp'"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "the end token ends the form"),
    ({"response_format": {"type": "xml"}}, "response_format", "response_format must be"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "must have a schema"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format", "no field 'schema'"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}, "response_format", "form"),
    ({"best_of": 2}, "best_of", "all completions are returned: ask for n"),
    ({"prompt": []}, "prompt", "prompt must be a string"),
    ({"prompt": ["a", 1]}, "prompt", "prompt must be a string"),
    ({"prompt": [True]}, "prompt", "prompt must be a string"),
    ({"prompt": {"a": 1}}, "prompt", "prompt must be a string"),
    ({"prompt": [[]]}, "prompt", "empty list of token ids"),
    ({"prompt": [[1], [50257]]}, "prompt", "prompt 1: token 50257 is outside the model's vocabulary"),
    ({"prompt": "half \ud800"}, "prompt", "prompt 0: the text is not valid Unicode"),
    ({"n": 65, "prompt": ["a", "b"]}, "n", "2 prompts and n 65 are more than 128 choices"),
    ({"logprobs": 21}, "logprobs", "logprobs must be a whole number from 0 to 20 (--max-logprobs), got 21"),
    ({"logprobs": -1}, "logprobs", "got -1, all 50,257"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "prompt_logprobs must be a whole number from 0 to 20"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "prompt_logprobs can't be streamed"),
    ({"min_tokens": 20}, "min_tokens", "min_tokens must be a whole number from 0 to 16"),
    ({"stop_token_ids": [60000]}, "stop_token_ids", "stop_token_ids 60000 is outside"),
    ({"truncate_prompt_tokens": 2000}, "truncate_prompt_tokens", "truncate_prompt_tokens 2000 is over max_model_len"),
    ({"priority": 3}, "priority", "priority 3 needs the policy"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options needs stream"),
    ({"stream": True, "stream_options": {"foo": 1}}, "stream_options.foo", "unknown field stream_options.foo"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "must be true or false"),
    ({"model": None}, "model", "model is missing; this server has 'tales'"),
]
OUT_OF_RANGE = {"temperature": -1, "top_p": 0, "top_k": -2, "min_p": 2, "repetition_penalty": 0, "seed": 2**64}
OUT_OF_RANGE |= {"presence_penalty": "1", "frequency_penalty": 1000, "n": 129, "max_tokens": 1.5, "logprobs": True}
OUT_OF_RANGE |= {"stop": [1], "ignore_eos": 1, "logit_bias": {"50257": 1}, "allowed_token_ids": [60000]}
OUT_OF_RANGE |= {"bad_words": [""], "return_token_ids": 1, "priority": "high"}
OUT_OF_RANGE |= {"request_id": 3, "echo": "yes", "stream": 1, "model": 3}


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_refused_is_named(tales, fields, param, message):
    error = refused(tales, {"prompt": "Once", **fields})
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert message in error["message"]


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_value_that_a_field_can_not_have(tales, name):
    """All that it can have is in test_limits.py."""
    error = refused(tales, {"prompt": "Once", name: OUT_OF_RANGE[name]})
    assert error["param"] == name
    assert error["message"].startswith(f"{name} ")


def test_what_is_too_long_for_the_context(small):
    error = refused(small, {"prompt": [1] * 48})
    assert error["code"] == "context_length_exceeded"
    message = "This model's maximum context length is 48 tokens. However, 48 tokens leave no room for an output"
    assert error["message"].startswith(message)  # litellm looks for these words
    assert complete(small, prompt=[1] * 44, max_tokens=1000, ignore_eos=True)["usage"]["completion_tokens"] == 4
    assert complete(small, prompt=[1] * 48, max_tokens=0)["usage"]["prompt_tokens"] == 48


NO_OBJECTS = [b"null", b'"a"', b"[1, 2]"]
BODIES = [
    b"",
    b'{"model": ',
    b'{"model": "tales", "temperature": NaN}',
    b'{"model": "tales", "temperature": -Infinity}',
    b'{"model": "tales", "n": 1, "n": 2}',
    b"{" + b"".join(b'"%d": 1,' % i for i in range(20_000)) + b'"19999": 1}',  # one of many keys twice
    b'{"model": "tales", "stream_options": {"a": 1, "a": 1}}',
    b'{"model": "tales", "prompt": "\xff\xfe"}',
    b'{"prompt": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    b"[" * 30_000,
    b'{"model": "tales", "messages": [], "temperature": 1e999, "max_tokens": 1}',
    b'{"max_tokens": 1' + b"0" * 10_000 + b"}",
    b'{"model": "\\ud800", "\\udfff": "\\ud800"}',
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_no_requests(tales, path):
    for body in BODIES:
        refused(tales, body, path)
    for body in NO_OBJECTS:
        assert "the body must be a JSON object" in refused(tales, body, path)["message"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/nothing", None, "no /v1/nothing"),
        ("/v1/nothing/", None, "no /v1/nothing"),
        ("/v1/responses", {"input": "x"}, "there is no /v1/responses: use /v1/chat/completions instead; for this, "),
        ("/v1/responses/", {"input": "x"}, "inspect has -M responses_api=false"),
        ("/chat/completions", {"input": "x"}, "there is no /chat/completions: it is /v1/chat/completions"),
        ("/v1/embeddings", {"input": "x"}, "make embeddings"),
        ("/v1/models/gpt-4", None, "gpt-4"),
        ("/v1/completions", {"model": "gpt-4"}, "the model 'gpt-4' does not exist here; this server has 'tales'"),
    ],
)
def test_paths_and_models_that_are_not_there(tales, path, body, says):
    error = error_of(ask(tales, path, body), 404)
    assert says in error["message"]
    assert error["code"] == ("model_not_found" if "gpt-4" in says else None)


def test_methods_and_slashes(tales):
    assert ask(tales, "/v1/models/").json() == ask(tales, "/v1/models").json()
    assert ask(tales, "/v1/completions/", {"model": "tales", "prompt": "x"}).status_code == 200
    response = ask(tales, "/v1/completions", method="GET")
    assert "takes POST, not GET" in error_of(response, 405)["message"]
    assert response.headers["allow"] == "POST"
    error_of(ask(tales, "/v1/models", {}), 405)


def test_bodies_that_are_too_long(tales):
    sent = []

    async def parts():
        for _ in range(100):
            sent.append(64)
            yield b" " * 64

    async def unread():
        raise AssertionError("the body was read")
        yield b""

    app = limited(tales, max_body_bytes=1000)
    body = json.dumps({"model": "tales", "prompt": [1], "max_tokens": 1}).encode()
    assert ask(app, "/v1/completions", body.ljust(1000)).status_code == 200
    assert "1,000 bytes" in refused(app, body.ljust(1001), status=413)["message"]
    error_of(ask(app, "/v1/completions", method="POST", content=parts()), 413)  # which says no length
    assert sum(sent) == 1024
    error_of(ask(app, "/v1/completions", method="POST", content=unread(), headers={"content-length": "1001"}), 413)


def test_every_answer_has_a_request_id(tales):
    body = {"model": "tales", "prompt": "x", "max_tokens": 1}
    responses = [ask(tales, "/health"), ask(tales, "/v1/nothing"), ask(tales, "/v1/completions", body)]
    responses += [ask(tales, "/v1/completions", {**body, "stream": True}), ask(tales, "/v1/completions", {})]
    ids = [response.headers["x-request-id"] for response in responses]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)
    assert ask(tales, "/health", headers={"x-request-id": "my-1"}).headers["x-request-id"] == "my-1"
    odd = ask(tales, "/health", headers={"x-request-id": "a b"}).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", odd)


def test_more_logprobs_where_the_server_allows_them(small, tales):
    (choice,) = complete(limited(small, max_logprobs=-1), prompt=[1], max_tokens=1, logprobs=-1)["choices"]
    assert len(choice["logprobs"]["top_logprobs"][0]) == 211
    refused(limited(tales, max_logprobs=5), {"logprobs": 6})


def test_an_api_key_guards_v1(tales):
    app = App(tales.service, api_key="sésame")
    for key in (None, "Bearer no", "sésame", "Bearer sésame "):
        headers = {} if key is None else {"Authorization": key.encode()}
        response = ask(app, "/v1/models", headers=headers)
        assert error_of(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    headers = {"Authorization": "Bearer sésame".encode()}
    assert ask(app, "/v1/models", headers=headers).status_code == 200
    error_of(ask(app, "/v1/nothing"), 401)
    for path in ("/live/visitors", "/live/levers"):  # they generate, and change the engine
        error_of(ask(app, path, {}), 401)
    assert ask(app, "/health").status_code == 200


# --- Chats ------------------------------------------------------------------------------------------------------------

HELLO = [{"role": "system", "content": "You tell tales."}, {"role": "user", "content": "Hello"}]
HELLO_TEXT = "system: You tell tales.\nuser: Hello\nbot:"


def chat(app, **fields):
    response = ask(app, "/v1/chat/completions", {"model": "tales", "messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_without_a_template_there_is_no_chat(tales):
    app = App(Service(tales.service.stage, tales.service.engine, "tales", Limits()))
    error = refused(app, {"messages": HELLO}, "/v1/chat/completions")
    assert "the model has no chat template" in error["message"]


def test_a_chat_is_a_completion_of_what_the_template_makes(tales):
    fields = {"temperature": 0, "max_tokens": 12}
    expected = complete(tales, prompt=HELLO_TEXT, **fields)
    whole = chat(tales, **fields)
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": expected["choices"][0]["text"]}
    assert whole["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in HELLO]
    fields = {"temperature": 0, "max_completion_tokens": 12}
    assert chat(tales, messages=parts, **fields)["choices"] == whole["choices"]
    events = stream(tales, "/v1/chat/completions", messages=HELLO, **fields)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas) == expected["choices"][0]["text"]
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    assert [event["choices"][0]["finish_reason"] for event in events[-2:]] == [None, "length"]
    assert len(chat(tales, n=3, max_tokens=1)["choices"]) == 3


def test_logprobs_of_a_chat(tales):
    fields = {"temperature": 0, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    content = chat(tales, **fields)["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for token in content:
        assert bytes(token["bytes"]).decode() == token["token"]
        assert len(token["top_logprobs"]) == 2
        assert token["top_logprobs"][0] == {name: token[name] for name in ("token", "logprob", "bytes")}
    events = stream(tales, "/v1/chat/completions", messages=HELLO, **fields)
    assert [one for e in events[1:] for one in e["choices"][0]["logprobs"]["content"]] == content
    assert chat(tales, logprobs=True, max_tokens=1)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_a_chat_goes_on_with_what_was_answered(tales):
    """A message as the openai package dumps it: with every field that it knows, most of them null."""
    nulls = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning_content"))
    answer = chat(tales, max_tokens=3, temperature=0)["choices"][0]["message"]
    more = {"role": "user", "content": [{"type": "text", "text": "Go on", "annotations": []}]}
    whole = chat(tales, messages=[*HELLO, {**answer, **nulls}, more], max_tokens=1)
    text = f"{HELLO_TEXT[:-4]}assistant: {answer['content']}\nuser: Go on\nbot:"
    assert whole["usage"]["prompt_tokens"] == ask(tales, "/tokenize", {"prompt": text}).json()["count"]
    chat(tales, messages=[*HELLO, {**answer, "tool_calls": [], "annotations": []}], max_tokens=1)


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "\nbot:"),
        ({"add_generation_prompt": False}, "\n"),
        ({"continue_final_message": True}, ""),
        ({"continue_final_message": True, "add_generation_prompt": False}, ""),
    ],
)
def test_the_end_of_a_chats_prompt(tales, fields, end):
    asked = {"messages": [*HELLO, {"role": "bot", "content": "Hi th"}], **fields}
    text = HELLO_TEXT[:-4] + "bot: Hi th" + end
    assert ask(tales, "/tokenize", asked).json() == ask(tales, "/tokenize", {"prompt": text}).json()


def messages(content="x", **more):
    return {"messages": [{"role": "user", "content": content, **more}]}


CHATS_REFUSED = [
    ({"messages": []}, "messages", "at least one message"),
    ({"messages": None}, "messages", "at least one message"),
    ({"messages": "Hello"}, "messages", "messages must be a list"),
    ({"messages": ["Hello"]}, "messages[0]", "messages[0] must be an object"),
    ({"messages": [{"content": "Hello"}]}, "messages[0].role", "messages[0].role is missing"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is missing"),
    (messages(role="tool"), "messages[0].role", "role 'tool' is not supported: no functions"),
    (messages(tool_calls=[1]), "messages[0].tool_calls", "no functions"),
    (messages(tool_call_id="1"), "messages[0].tool_call_id", "no functions"),
    (messages(refusal="no"), "messages[0].refusal", "does not see it"),
    (messages(mood=1), "messages[0].mood", "unknown field messages[0].mood"),
    (messages([{"type": "image_url"}]), "messages[0].content[0]", '"type": "text"'),
    (messages([{"type": "text", "text": 1}]), "messages[0].content[0].text", "must be a string"),
    (messages([{"type": "text"}]), "messages[0].content[0].text", "is missing"),
    (messages("word " * 1100), "messages", "leave no room"),
    *(({name: value}, name, "response_format gives an answer a form") for name, value in CALLS.items()),
    ({"prompt": "x"}, "prompt", "unknown field prompt"),
    ({"echo": True}, "echo", "only the new message"),
    ({"logprobs": 3}, "logprobs", "logprobs must be true or false"),
    ({"top_logprobs": 3}, "top_logprobs", "top_logprobs needs logprobs"),
    ({"top_logprobs": -1, "logprobs": True}, "top_logprobs", "(--max-logprobs), got -1, all 50,257"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message", "set one"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens must be a whole number from 1"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "the same limit"),
]


@pytest.mark.parametrize(("fields", "param", "message"), CHATS_REFUSED, ids=lambda value: str(value)[:40])
def test_chats_that_are_refused(tales, fields, param, message):
    error = refused(tales, {"messages": HELLO, **fields}, "/v1/chat/completions")
    assert error["param"] == param
    assert message in error["message"]


TURNS = [*HELLO, {"role": "assistant", "content": " Hi, <b>o\n"}, {"role": "user", "content": "yo"}]
TEMPLATES = [
    "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}",
    "{{ bos_token }}{% for message in messages %}{{ message['content'] + eos_token }}{% endfor %}{{ unk_token }}",
    "{% for m in messages %}{% if loop.index == 3 %}{% break %}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content | trim }}\n{% endgeneration %}{% endfor %}"
    "{% if add_generation_prompt %}bot:{% endif %}",
    "{{ strftime_now('%Y') }}{{ messages | tojson(ensure_ascii=True, indent=1, sort_keys=True) }}"
    "{{ messages | tojson(separators=(',', ':')) }}",
    "{% if tools is none %}none{% else %}{{ tools | tojson }}{% endif %}{{ documents }}"
    "{% if dates is defined %}{{ dates }}{% endif %}{{ place | default('here') }}",
    "{% set n = namespace(count=0) %}{% for m in messages %}{% set n.count = n.count + 1 %}{{ n.count }}"
    "{% if m.content is defined %}{{ m.role }}{{ m.content }}{% endif %}{{ m.tool_calls }}{% endfor %}",
]
CONTINUED = ("o", "over the <|endoftext|>", "two spaces  ", " ")


def beside_transformers(text):
    """A template, and a function that compares the tokens of its prompt with those of transformers."""
    reference, made = GPT2Tokenizer.from_pretrained(TINYTALES), ChatTemplate(text, "it", special_tokens(TINYTALES))
    reference.chat_template, tokenizer = text, Stage(5).LLM(TINYTALES, load_format="dummy").get_tokenizer()

    def check(messages, **fields):
        expected = reference.apply_chat_template(messages, return_dict=False, **fields)
        kwargs = {name: value for name, value in fields.items() if name in made.optional}
        ours = {"begins": "add_generation_prompt" in fields, "goes_on": "continue_final_message" in fields}
        assert tokenizer.encode(made.prompt(messages, kwargs=kwargs, **ours)) == expected

    return made, check


@pytest.mark.parametrize("text", TEMPLATES, ids=range(len(TEMPLATES)))
def test_a_template_makes_what_transformers_makes(text):
    _, check = beside_transformers(text)
    check(TURNS)
    check(TURNS, add_generation_prompt=True)
    for end in CONTINUED if "separators" not in text and "break" not in text else ():
        if "content" in text:
            check([*HELLO, {"role": "bot", "content": end}], continue_final_message=True)


# As published models have them, shortened: what a template of the field makes use of is here.
FIELD = sorted(Path(__file__).with_name("chat_templates").glob("*.jinja"))


@pytest.mark.parametrize("path", FIELD, ids=lambda path: path.stem)
def test_templates_of_the_field_make_what_transformers_makes(path):
    _, check = beside_transformers(path.read_text(encoding="utf-8"))
    system, user = {"role": "system", "content": "Tell "}, {"role": "user", "content": "<b> é"}
    bot = {"role": "assistant", "content": "Hi \n"}
    chats = [[user], [system, user], [system, user, bot, user], [user, bot]]
    ways = [{}, {"add_generation_prompt": True}, {"continue_final_message": True}, {"enable_thinking": False}]
    for messages, fields in itertools.product(chats, ways):
        check(messages, **fields)


def test_variables_that_a_request_gives_to_the_template(tales):
    """Variables that the template uses, and false ones that it does not; others are an error."""
    text = (
        "{{ messages[0].content }}{% if think is defined and think %} Hm.{% endif %}{{ name | d('') }}{{ eos_token }}"
    )
    template, service = ChatTemplate(text, "it", {"eos_token": "!"}), tales.service
    app = App(Service(service.stage, service.engine, "tales", Limits(), template))

    def tokens(**kwargs):
        return ask(app, "/tokenize", {"messages": HELLO, "chat_template_kwargs": kwargs})

    def prompt(**kwargs):
        return ask(app, "/detokenize", {"tokens": tokens(**kwargs).json()["tokens"]}).json()["prompt"]

    assert prompt() == prompt(think=False, enable_thinking=False) == "You tell tales.!"
    assert prompt(think=True, name=" Otto") == "You tell tales. Hm. Otto!"
    for name in ("enable_thinking", "eos_token", "messages"):
        error = error_of(tokens(**{name: True}), 400)
        assert error["param"] == "chat_template_kwargs"
        assert f"chat_template_kwargs.{name} is not a variable" in error["message"]


def test_special_tokens_are_those_of_transformers(tmp_path):
    for name in ("merges.txt", "vocab.json"):
        shutil.copy(TINYTALES / name, tmp_path)
    pad = {"content": "!", "lstrip": False, "rstrip": False, "normalized": True, "special": True}
    for config, tokens_map in [
        ({}, {}),
        ({"bos_token": "!", "eos_token": None, "model_max_length": 5}, {}),
        ({"tokenizer_class": "GPT2Tokenizer", "pad_token": {"__type": "AddedToken", **pad}}, {}),
        ({"pad_token": "!"}, {"pad_token": {**pad, "content": "?"}, "cls_token": "#"}),
        ({"image_token": "&", "extra_special_tokens": {"call_token": "+"}, "add_bos_token": False}, {}),
    ]:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens_map))
        assert special_tokens(tmp_path) == GPT2Tokenizer.from_pretrained(tmp_path).special_tokens_map


def test_a_models_own_template(tmp_path, small_checkpoint):
    """The flag comes before the template's own file, and that before the configuration."""
    own = Path(shutil.copytree(small_checkpoint, tmp_path / "own"))
    assert load_template(None, own) is None
    given = tmp_path / "given.jinja"
    for path, text in [
        (own / "tokenizer_config.json", '{"chat_template": "from the configuration"}'),
        (own / "chat_template.jinja", "from its own file"),
        (given, "from the flag"),
    ]:
        path.write_text(text, encoding="utf-8-sig")  # with a byte order mark, as some editors write it
        assert load_template(given if path == given else None, own).prompt(HELLO) in text
    (own / "chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}")
    args = server_parser(Stage(4), "serve").parse_args(["--stage", "4", "--model", str(own)])
    service = make_service(Stage(4), args, Limits())
    with service.engine:
        told = ask(App(service), "/tokenize", {"messages": HELLO}).json()["tokens"]
        assert told == [*service.encode("You tell tales."), service.tokenizer.end_of_text_id]


def test_templates_that_are_refused_at_the_start(tmp_path, small_checkpoint):
    path, own = tmp_path / "template.jinja", Path(shutil.copytree(small_checkpoint, tmp_path / "own"))
    several = [{"name": "default", "template": ""}, {"name": "rag", "template": ""}]
    for text, config, message in [
        (b"a\n{% for %}", {}, "line 2"),
        (None, {"chat_template": several}, "tokenizer_config.json has several chat templates"),
        (b"\xff", {}, "template.jinja is not UTF-8"),
    ]:
        (own / "tokenizer_config.json").write_text(json.dumps(config))
        path.write_bytes(text or b"")
        flags = [] if text is None else ["--chat-template", path]
        assert message in refusal(main, "--stage", 4, "--port", 0, "--model", own, *flags)


def test_templates_are_kept_in_a_sandbox():
    for text, message in [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", r"the chat template can't take these messages.*unsafe"),
        ("{{ raise_exception('only users speak') }}", "only users speak"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "can't take these messages.*recursion"),
    ]:
        with pytest.raises(Exception, match=message):
            ChatTemplate(text, "it", {}).prompt(HELLO)


# --- What else it tells -----------------------------------------------------------------------------------------------


def test_models_versions_and_health(tales):
    (model,) = ask(tales, "/v1/models").json()["data"]
    assert model == ask(tales, "/v1/models/tales").json() == ask(tales, "/v1/models/tales/").json()
    assert (model["id"], model["object"], model["root"]) == ("tales", "model", "tinytales")
    assert model["max_model_len"] == 1024
    assert ask(tales, "/version").json()["stage"] == 6
    assert ask(tales, "/health").status_code == ask(tales, "/ready").status_code == 200


def test_the_tokenizer(tales):
    text = "Once upon a time — <|endoftext|>"
    tokens = ask(tales, "/tokenize", {"model": "tales", "prompt": text}).json()
    counts = {"count": len(tokens["tokens"]), "max_model_len": 1024}
    assert tokens == {**counts, "tokens": tokens["tokens"], "token_strs": None}
    names = ask(tales, "/tokenize", {"prompt": text, "return_token_strs": True, "add_special_tokens": False}).json()
    assert names == {**tokens, "token_strs": ["Once", "Ġupon", "Ġa", "Ġtime", "ĠâĢĶ", "Ġ", "<|endoftext|>"]}
    assert ask(tales, "/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": text}
    for body in ({"tokens": [50257]}, {"tokens": [-1]}, {"tokens": ["a"]}, {"tokens": "a"}, {}):
        refused(tales, body, "/detokenize")
    both = {"prompt": "x", "messages": HELLO}
    for body in ({"prompt": 1}, {}, {"prompt": "x", "foo": 1}, {"prompt": "\ud800"}, both, {"messages": [1]}):
        refused(tales, body, "/tokenize")
    refused(tales, {"prompt": "x", "model": "gpt-4"}, "/tokenize", 404)
    assert refused(tales, {"messages": HELLO, "tools": [FUNCTION]}, "/tokenize")["param"] == "tools"


def read_metrics(app):
    """Every sample: its name and finished_reason -> its value."""
    text = ask(app, "/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert all(sample.labels["model_name"] == "tales" for sample in samples)
    plain = [sample for sample in samples if "le" not in sample.labels]
    return {(one.name.removeprefix("vllm:"), one.labels.get("finished_reason")): one.value for one in plain}


@pytest.mark.parametrize("stage", [4, 5])  # without a prefix cache, and with one
def test_metrics_add_up_to_the_requests(stage, small_checkpoint):
    """Of two prompts at once twice, one streamed, one stopped by its first token."""
    with serving(stage, small_checkpoint) as app:
        usages = [complete(app, prompt=[[1, 2, 3], list(range(1, 36))], max_tokens=i, ignore_eos=True) for i in (2, 5)]
        stream(app, prompt=[4, 5], max_tokens=3, ignore_eos=True)
        complete(app, prompt=[9], max_tokens=9, stop_token_ids=list(range(211)))
        metrics = read_metrics(app)
    expected = {
        "prompt_tokens_total": 38 * 2 + 2 + 1,
        "generation_tokens_total": 14 + 3 + 1,
        "time_to_first_token_seconds_count": 6,
        "inter_token_latency_seconds_count": 18 - 6,
        "e2e_request_latency_seconds_count": 6,
        **dict.fromkeys(("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"), 0),
        "request_queue_time_seconds_count": 6,
    }
    if stage == 5:
        cached = sum(usage["usage"]["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        assert cached == 32
        expected |= {"prefix_cache_queries_total": 79, "prefix_cache_hits_total": cached, "num_preemptions_total": 0}
    assert {name: metrics[name, None] for name in expected} == expected
    assert (metrics["request_success_total", "length"], metrics["request_success_total", "stop"]) == (5, 1)
    names = ("request_queue_time", "time_to_first_token", "e2e_request_latency")
    queue, first, whole = (metrics[f"{name}_seconds_sum", None] for name in names)
    assert 0 < queue < first < whole
    assert whole == pytest.approx(first + metrics["inter_token_latency_seconds_sum", None], rel=0.2)


def test_metrics_and_usage_of_several_completions(small_checkpoint):
    """A prompt counts once, however many completions it has."""
    with serving(5, small_checkpoint) as app:
        complete(app, prompt=[5], max_tokens=4, ignore_eos=True)
        metrics = read_metrics(app)
        assert metrics["inter_token_latency_seconds_sum", None] > 0
        complete(app, prompt=[[7] * 40, [8] * 35], max_tokens=2, n=3, ignore_eos=True)
        metrics = read_metrics(app)
        assert metrics["prompt_tokens_total", None] == 1 + 40 + 35
        assert metrics["generation_tokens_total", None] == 4 + 2 * 3 * 2
        usage = complete(app, prompt=[[7] * 40, [8] * 35], max_tokens=2, ignore_eos=True)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 32 + 32


@pytest.mark.parametrize(("log_prompts", "prompts"), [(False, ""), (True, r", \[\[7, 77\], \[8\]\]")])
def test_the_log_has_a_line_for_each_request(tales, log_prompts, prompts):
    """With the prompts only where the server is told so."""
    lines = []
    app = App(tales.service, log=lines.append, log_prompts=log_prompts)
    complete(app, prompt=[[7, 77], [8]], max_tokens=2, ignore_eos=True)
    ask(app, "/v1/no%0Apath")
    first, second = lines
    assert re.fullmatch(r"POST /v1/completions 200 \d+ ms, id \w{32}, 3 \+ 4 tokens, length" + prompts, first)
    assert re.fullmatch(r"GET /v1/no%0Apath 404 \d+ ms, id \w{32}", second)


# --- Clients that go, wait, or come in crowds -------------------------------------------------------------------------


class Client:
    """A client whose every move the test makes: it may leave, or not read."""

    def __init__(self, app, **fields):
        self.app, self.sent, self.reading, self.gone = app, [], asyncio.Event(), asyncio.Event()
        self.body = [json.dumps({"model": "tales", **fields}).encode()]
        self.reading.set()

    async def run(self):
        headers = [(b"host", b"here"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        await self.app({**scope, "root_path": "", "http_version": "1.1"}, self.receive, self.send)

    async def receive(self):
        if self.body:
            return {"type": "http.request", "body": self.body.pop()}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.reading.wait()
        self.sent.append(message)

    @property
    def text(self):
        return b"".join(message.get("body", b"") for message in self.sent)


async def until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)


@contextlib.contextmanager
def slow_steps(app, seconds=0.02):
    """Steps that take so long that a client can come in between."""
    engine = app.service.engine.llm.engine
    step = engine.step
    engine.step = lambda: time.sleep(seconds) or step()
    try:
        yield
    finally:
        engine.step = step


@contextlib.contextmanager
def held_while(app, condition):
    """While the condition holds, the engine waits for a command before each step: a fast one would be through before
    the test comes to its point."""
    llm = app.service.engine.llm
    step, released = llm.engine.step, threading.Event()

    def held():
        wait_until(lambda: released.is_set() or not llm.loop.commands.empty() or not condition())
        return step()

    llm.engine.step = held
    try:
        yield
    finally:
        llm.engine.step = step
        released.set()


def test_a_client_that_goes_while_it_waits_or_sends(small_checkpoint):
    lines = []

    async def go(app):
        fields = {"max_tokens": 40, "ignore_eos": True}
        first, waiting, sending = (Client(app, prompt=[i], **fields) for i in range(3))
        tasks = [asyncio.create_task(client.run()) for client in (first, waiting)]
        with held_while(app, lambda: app.service.metrics.num_unfinished == 2):
            await until(lambda: app.service.metrics.num_unfinished == 2)
            waiting.gone.set()
            await tasks[1]
        assert app.service.metrics.num_unfinished == 1
        await tasks[0]
        assert json.loads(first.text)["choices"][0]["finish_reason"] == "length"
        sending.body = []
        sending.gone.set()
        await sending.run()

    with serving(6, small_checkpoint, max_num_seqs=1, log=lines.append) as app:
        asyncio.run(go(app))
    assert [line.split(" ms")[0].split()[2] for line in lines] == ["499", "200", "499"]
    assert lines[0].endswith("1 + 0 tokens, abort")


def test_a_slow_reader_holds_up_nobody(tales):
    """It gets all of its tokens in the end; meanwhile the engine is free for others."""

    async def go():
        slow = Client(tales, prompt="Once", max_tokens=50, ignore_eos=True, seed=1, stream=True)
        slow.reading.clear()
        stats = tales.service.engine.llm.stats
        before = stats.num_requests
        task = asyncio.create_task(slow.run())
        await until(lambda: stats.num_requests == before + 1)
        assert slow.sent == []
        await until(lambda: tales.service.metrics.num_unfinished == 0)  # whatever the reader has seen of it
        quick = await ask_async(tales, "/v1/completions", {"model": "tales", "prompt": "A fox", "max_tokens": 3})
        assert quick.status_code == 200
        slow.reading.set()
        await task
        return join(read_events(slow.text))

    assert asyncio.run(go()) == complete(tales, prompt="Once", max_tokens=50, ignore_eos=True, seed=1)["choices"]


def test_a_step_that_fails_twice_is_told_to_those_in_flight_and_the_server_goes_on(small_checkpoint, monkeypatch):
    def fail(*_):
        raise MemoryError("no memory left")

    async def go(app):
        client = Client(app, prompt=[1], max_tokens=40, ignore_eos=True, stream=True)
        task = asyncio.create_task(client.run())
        await until(lambda: len(client.sent) > 3)
        with monkeypatch.context() as patch:
            patch.setattr(app.service.engine.llm.engine.runner, "forward", fail)
            other = await ask_async(app, "/v1/completions", {"model": "tales", "prompt": [1]})
            await task
        return read_events(client.text), error_of(other, 500)

    with serving(5, small_checkpoint) as app:
        with slow_steps(app):
            events, error = asyncio.run(go(app))
        assert events[0]["choices"]
        for told in (events[-1]["error"], error):
            assert told["message"] == "the engine has failed: no memory left"
            assert (told["type"], told["code"]) == ("server_error", "engine_failed")
        assert ask(app, "/health").status_code == ask(app, "/ready").status_code == 200
        complete(app, prompt=[1])
        app.service.engine.close()  # as if its thread had ended by itself
        assert ask(app, "/health").status_code == ask(app, "/ready").status_code == 503


def test_a_mistake_of_the_server_is_a_500_of_openais_shape(tales, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(tales.service, "job", fail)
    response = ask(tales, "/v1/completions", {"model": "tales"})
    assert error_of(response, 500)["type"] == "server_error"
    assert "secret" not in response.text


def test_an_engine_that_has_failed_says_so(tales):
    """And why, where one that was closed is shutting down."""

    def told(cause):
        error = tales.service.stage.EngineClosedError("the engine is closed")
        error.__cause__ = cause

        def fail():
            raise error

        with pytest.raises(APIError) as raised:
            Run._check(SimpleNamespace(service=tales.service), SimpleNamespace(result=fail))
        return raised.value.code, str(raised.value)

    assert told(None) == ("shutting_down", "the engine is closed")
    assert told(MemoryError("no memory left")) == ("engine_failed", "the engine has failed: no memory left")


def test_a_server_that_ends_takes_no_more(tales):
    app = App(tales.service)
    app.draining = True
    assert refused(app, {"prompt": [1]}, status=503)["code"] == "shutting_down"
    assert ask(app, "/ready").status_code == 503
    assert ask(app, "/health").status_code == ask(app, "/metrics").status_code == 200


# --- A process of its own ---------------------------------------------------------------------------------------------


LONG = {"max_tokens": 200, "seed": 1, "ignore_eos": True}


@pytest.mark.skipif(os.name != "posix", reason="SIGTERM is POSIX's")
def test_a_signal_lets_requests_finish():
    with server("--stage", 6, "--max-num-seqs", 4, "--served-model-name", "tales") as (url, process):
        port = int(url.rpartition(":")[2])
        response = send(port, **LONG, stream=True)
        assert response.headers["content-type"].startswith("text/event-stream")
        begin = response.readline()
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: send(port).status == 503)
        events = read_events(begin + response.read())
        assert len(events) == 200
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert process.wait(timeout=60) == 0


def send(port, **fields):
    """Send a completion; the response is to be read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps({"model": "tales", "prompt": "Once", **fields}), JSON)
    return connection.getresponse()


def test_a_second_signal_ends_the_process_at_once(monkeypatch, small_checkpoint):
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    with serving(6, small_checkpoint) as app, slow_steps(app), listening(app, grace=60) as (server, port):
        response = send(port, prompt=[1], max_tokens=40, ignore_eos=True, stream=True)
        response.readline()
        for expected in ([], [128 + signal.SIGINT]):
            server.handle_exit(signal.SIGINT, None)
            assert statuses == expected
        response.close()


def test_after_the_grace_requests_are_aborted_and_told_so():
    with (
        serving(6, "tinytales", max_num_seqs=2) as app,
        slow_steps(app, 0.005),
        listening(app, grace=0.1) as (server, port),
        ThreadPoolExecutor() as other,
    ):
        streaming = send(port, **LONG, n=4, stream=True)
        begin = streaming.readline()
        whole = other.submit(lambda: json.loads(send(port, **LONG, n=4).read()))
        wait_until(lambda: app.service.metrics.num_unfinished == 8)
        server.handle_exit(signal.SIGTERM, None)
        events = read_events(begin + streaming.read())
        whole = whole.result(timeout=60)
    reasons = {event["choices"][0]["index"]: event["choices"][0]["finish_reason"] for event in events}
    assert reasons == dict.fromkeys(range(4), "abort")
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["abort"] * 4


def test_a_request_that_leaves_starts_nothing_more(monkeypatch):
    async def go(app):
        service, started = app.service, []
        generate = service.engine.generate
        monkeypatch.setattr(service.engine, "generate", lambda *a, **more: started.append(1) or generate(*a, **more))
        job = service.job({"model": "tales", "prompt": "Once", "n": 60, "max_tokens": 100, "ignore_eos": True})
        async with Run(service, job) as run:
            await anext(run.events())
        assert len(started) == 2
        assert (service.feed.taken, service.feed.waiting) == ({}, {})

    with serving(6, "tinytales", max_num_seqs=2) as app, slow_steps(app, 0.005):
        asyncio.run(go(app))


def test_the_time_that_completions_wait_for_seats_is_queue_time():
    """Of six two have seats at once, and the last waits for two generations."""

    async def go(app):
        service = app.service
        job = service.job({"model": "tales", "prompt": "Once", "n": 6, "max_tokens": 20, "ignore_eos": True})
        async with Run(service, job) as run:
            await service.whole(run)
        waited = sorted(choice.waited for choice in run._meter.choices)
        assert len(waited) == 6
        assert waited[1] < 0.1 * waited[-1]
        name = "vllm:request_queue_time_seconds_sum"
        assert service.metrics.registry.get_sample_value(name, {"model_name": "tales"}) >= sum(waited)

    with serving(6, "tinytales", max_num_seqs=2) as app, slow_steps(app, 0.005):
        asyncio.run(go(app))


@pytest.mark.parametrize(
    ("value", "flags", "key"), [("k", [], "k"), ("k", ["--api-key", "other"], "other"), (None, [], None)]
)
def test_the_key_may_come_from_the_environment(monkeypatch, value, flags, key):
    monkeypatch.delenv("STAGEWISE_API_KEY", raising=False)
    if value:
        monkeypatch.setenv("STAGEWISE_API_KEY", value)
    args = server_parser(Stage(5), "serving").parse_args(flags)
    check(Stage(5), args)
    assert args.api_key == key


def test_what_is_not_installed_is_told():
    """The extra is optional: starting the server without it says how to install it."""
    hide = """import sys
sys.modules["starlette"] = None
from stagewise.__main__ import main
sys.argv = ["stagewise", "serve"]
main()
"""
    result = subprocess.run([sys.executable, "-c", hide], cwd=ROOT, capture_output=True, text=True, check=False)
    (line,) = result.stderr.splitlines()
    assert 'the server needs more packages: pip install "stagewise[serve]" (' in line


def test_what_forms_need_is_made_at_the_start(small_checkpoint):
    """It takes long, and no other thread runs meanwhile."""
    parser = server_parser(Stage(5), "serving")
    args = parser.parse_args(["--model", str(small_checkpoint), "--device", "cpu"])
    with put_off():
        service = make_service(Stage(5), args, Limits())
        assert gc.isenabled()  # from now on
    gc.unfreeze()
    with service.engine:
        assert structured_outputs._vocabularies[service.tokenizer]


@pytest.mark.parametrize(
    ("message", "flags"),
    [
        ("--port must be a whole number from 0 to 65535", ["--port", "70000"]),
        ("--grace must be a number", ["--grace", "-1"]),
        ("--api-key is empty", ["--api-key", ""]),
        ("--max-body-bytes must be", ["--max-body-bytes", "0"]),
        ("--max-connections must be", ["--max-connections", "1"]),
        ("--idle-seconds must be", ["--idle-seconds", "0"]),
        ("max-queue-size must be", ["--port", "0", "--max-queue-size", "0"]),
        ("No such file", ["--port", "0", "--chat-template", "/none"]),
        ("dtype must be one of", ["--port", "0", "--dtype", "int4"]),
        ("--stage", ["--stage", "3"]),
        ("--block-size", ["--block-size", "8", "--stage", "4"]),  # which has no blocks
    ],
)
def test_flags_that_are_wrong_are_told_in_one_line(message, flags):
    assert message in refusal(main, *flags)


def test_a_port_that_is_not_available():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is not available" in refusal(main, "--port", port)


def test_answers_are_strict_json():
    """A token that is impossible has a log-probability of minus infinity, which JSON has no form for."""
    assert responses.to_json({"top": [{"é": -float("inf")}], "n": 1.5}) == b'{"top": [{"\\u00e9": null}], "n": 1.5}'


# --- The chapter ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readme", ["docs/USING.md", "stagewise/serving/README.md"])
def test_the_readmes_curl_works(tales, readme):
    text = Path(ROOT / readme).read_text(encoding="utf-8")
    bodies = re.findall(r"curl \S*?(/v1/\S+) .*?-d '(.*?)'", text, re.DOTALL)
    assert bodies
    for path, body in bodies:
        response = ask(tales, path, {**json.loads(body), "model": "tales"})
        assert response.status_code == 200, response.text

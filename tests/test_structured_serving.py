"""The server's forms and tools: `response_format`, vLLM's fields, calls of functions, whole and streamed."""

import asyncio
import json
import re
import threading
import time

import jsonschema
import pytest

from stagewise.form_compiler import FormCheck
from stagewise.openai import fields as openai_fields
from stagewise.openai.chat import load_template
from stagewise.openai.errors import APIError
from stagewise.openai.fields import Fields
from stagewise.openai.tools import CallReader, tools_of
from tests.adapter import STAGES, wait_until
from tests.test_rude_clients import connect, request
from tests.test_serving import HELLO, TEMPLATE, ask, ask_async, error_of, limited, listening, read_events, serving
from tests.test_structured import PERSON

ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"$ref": "#/$defs/b"}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"b": {"enum": ["one", "two", 'a "third"']}},
}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD}},
    {"type": "function", "function": {"name": "say/~it", "parameters": PERSON}},
    {"type": "function", "function": {"name": "now"}},
]
NAMED = {"type": "function", "function": {"name": "add"}}
SHOWS = (
    "{% for t in tools or [] %}{{ t.function | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.a }}){% endfor %}"
    "{% if m.tool_call_id %} for {{ m.tool_call_id }}{% endif %}\n{% endfor %}bot:"
)


def template(directory, text):
    path = directory / "template.jinja"
    path.write_text(text)
    return load_template(path, path.parent)


@pytest.fixture(scope="module")
def tales(tmp_path_factory):
    with serving(6, "tinytales", chat=template(tmp_path_factory.mktemp("plain"), TEMPLATE)) as app:
        yield app


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A server with a chat template that shows the tools and the calls."""
    with serving(6, "tinytales", chat=template(tmp_path_factory.mktemp("tools"), SHOWS)) as app:
        yield app


def answer(app, path="/v1/chat/completions", **fields):
    prompt = {"messages": HELLO} if "chat" in path else {"prompt": "Once upon a time"}
    response = ask(app, path, {"model": "tales", "max_tokens": 150, "seed": 1, **prompt, **fields})
    assert response.status_code == 200, response.text
    return read_events(response.content) if fields.get("stream") else response.json()


def refusal(app, **fields):
    return error_of(ask(app, "/v1/chat/completions", {"model": "tales", "messages": HELLO, **fields}), 400)


def put_together(events):
    """A stream with one choice, put together: content, calls, and why it ended."""
    content, calls, reason = "", {}, None
    for event in events:
        (choice,) = event["choices"]
        content += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
        for part in choice["delta"].get("tool_calls", []):
            call = calls.setdefault(part["index"], {"arguments": ""})
            call |= {"name": part["function"].get("name", call.get("name")), "id": part.get("id", call.get("id"))}
            call["arguments"] += part["function"]["arguments"]
    return content, list(calls.values()), reason


# --- Forms ----------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
SHORT = {"type": "object", "properties": {"n": {"enum": [1, 23]}}, "required": ["n"], "additionalProperties": False}
ASKED = [
    ({"response_format": SCHEMA}, PERSON),
    ({"guided_json": SHORT}, SHORT),
    ({"guided_json": json.dumps(SHORT)}, SHORT),
    ({"structured_outputs": {"json": SHORT, "disable_any_whitespace": True}}, SHORT),
    ({"guided_regex": r"\d{4}-\d\d"}, r"\d{4}-\d\d"),
    ({"structured_outputs": {"regex": r"\d{4}-\d\d"}}, r"\d{4}-\d\d"),
    ({"guided_choice": ["fox", "bear"]}, "fox|bear"),
    ({"guided_grammar": 'root ::= "a" | "b" root'}, "b*a"),
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("fields", "form"), ASKED, ids=lambda x: str(x)[:40])
def test_an_answer_has_its_form(tales, path, fields, form):
    (choice,) = answer(tales, path, **fields)["choices"]
    text = choice["message"]["content"] if "chat" in path else choice["text"]
    if isinstance(form, dict):
        jsonschema.validate(json.loads(text), form)
    else:
        assert re.fullmatch(form, text)
    assert choice["finish_reason"] == "stop"
    events = answer(tales, path, **fields, stream=True)
    parts = [c["delta"].get("content", "") if "chat" in path else c["text"] for e in events for c in e["choices"]]
    assert "".join(parts) == text


def test_any_object_and_no_form(tales):
    (choice,) = answer(tales, response_format={"type": "json_object"})["choices"]
    assert choice["message"]["content"].startswith("{")
    for nothing in ({"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"guided_json": None}):
        plain = answer(tales, max_tokens=9)["choices"]
        assert answer(tales, max_tokens=9, **nothing)["choices"] == plain


def test_a_form_that_fails_on_the_way_ends_its_request_alone(tales):
    """Even if it is the only request, the engine goes on."""
    fields = {"guided_regex": "(.{0,300}a){0,300}", "max_tokens": 60}
    error = refusal(tales, **fields)
    assert error["code"] == "generation_failed"
    assert re.search(r"fails after \d+ tokens: it is too large or too complex", error["message"])
    assert answer(tales, guided_choice=["fox"])["choices"][0]["message"]["content"] == "fox"


COSTLY = {"guided_json": {"type": "integer", "multipleOf": 16777213}}


def test_how_long_a_form_may_be_compiled_is_a_flag(tales):
    fields = {"guided_json": {"type": "integer", "multipleOf": 9973}}
    assert "compiling it takes over 0.01 s or 512 MB" in refusal(limited(tales, form_seconds=0.01), **fields)["message"]


def test_nobody_waits_for_a_form_that_is_compiled(tales, monkeypatch):
    """A form that takes too long is tried once; the next request for it is refused at once."""
    app, body = limited(tales, form_seconds=1), {"model": "tales", "prompt": "Once", "max_tokens": 2}
    compile, release, compiled = FormCheck.compile, threading.Event(), []

    def compile_later(*form):
        compiled.append(form)
        release.wait()
        return compile(*form)

    monkeypatch.setattr(FormCheck, "compile", compile_later)

    async def go():
        tasks = [asyncio.create_task(ask_async(app, "/v1/completions", {**body, **COSTLY})) for _ in range(3)]
        for _ in range(3):
            assert (await ask_async(app, "/v1/completions", body)).status_code == 200
        assert not any(task.done() for task in tasks)
        release.set()
        errors = [error_of(await task, 400) for task in tasks]
        return [*errors, error_of(await ask_async(app, "/v1/completions", {**body, **COSTLY}), 400)]

    for error in asyncio.run(go()):
        assert error["param"] == "guided_json"
        assert "compiling it takes over 1 s or 512 MB" in error["message"]
    assert len(compiled) == 1


def test_the_end_comes_while_forms_are_compiled(monkeypatch):
    """It waits for none of them, and those in the queue are dropped."""
    compiled, release = [], threading.Event()
    monkeypatch.setattr(FormCheck, "compile", lambda *form: compiled.append(form) or "")
    with serving(6, "tinytales") as app:
        lane = app.service.lanes._forms
        lane.submit(release.wait)  # as if it took long to compile
        with listening(app) as (_, port):
            clients = [connect(port) for _ in range(5)]
            for i, client in enumerate(clients):
                form = {"guided_json": {"type": "integer", "multipleOf": 16777213 + i}}
                client.sendall(request(**form, ignore_eos=False))
            wait_until(lambda: lane._work_queue.qsize() == len(clients))
            start = time.monotonic()
        assert time.monotonic() - start < 20  # two seconds after the grace, and a lot for a busy machine
        release.set()
        lane.submit(int).result(timeout=60)  # after all of them
        assert compiled == []
        for client in clients:
            client.close()


# --- Tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_is_required(tales, parallel):
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel, "max_tokens": 60}
    schemas, ended = {"add": ADD, "say/~it": PERSON, "now": {"maxProperties": 0}}, 0
    for seed in range(1 if parallel else 2):
        (choice,) = answer(tales, **fields, seed=seed)["choices"]
        calls = choice["message"].get("tool_calls", [])
        for call in calls:
            assert call["type"] == "function"
            jsonschema.validate(json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]])
        content, streamed, reason = put_together(answer(tales, **fields, seed=seed, stream=True))
        assert [(c["name"], c["arguments"]) for c in streamed] == [
            (call["function"]["name"], call["function"]["arguments"]) for call in calls
        ]
        assert reason == choice["finish_reason"]
        assert content == (choice["message"]["content"] or "")
        if reason == "tool_calls":
            ended += 1
            assert choice["message"]["content"] is None
            assert len({call["id"] for call in calls}) == len(calls) >= 1
        assert parallel or len(calls) <= 1
    assert ended or parallel  # a model that has not learned when to stop calls again and again


def test_a_function_is_named(tales):
    (choice,) = answer(tales, tools=TOOLS, tool_choice=NAMED)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    jsonschema.validate(json.loads(call["function"]["arguments"]), ADD)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    content, (streamed,), reason = put_together(answer(tales, tools=TOOLS, tool_choice=NAMED, stream=True))
    assert (content, streamed["arguments"], reason) == ("", call["function"]["arguments"], "tool_calls")
    assert (streamed["name"], streamed["id"][:5]) == ("add", "call_")
    (choice,) = answer(tales, tools=TOOLS, tool_choice=NAMED, max_tokens=3)["choices"]
    assert choice["finish_reason"] == "length"  # and what there is of the arguments
    assert call["function"]["arguments"].startswith(choice["message"]["tool_calls"][0]["function"]["arguments"])


def test_several_choices_have_calls_of_their_own(tales):
    choices = answer(tales, tools=TOOLS, tool_choice=NAMED, n=3)["choices"]
    calls = [choice["message"]["tool_calls"][0] for choice in choices]
    assert len({call["id"] for call in calls}) == 3
    (alone,) = answer(tales, tools=TOOLS, tool_choice=NAMED)["choices"]
    assert calls[0]["function"] == alone["message"]["tool_calls"][0]["function"]


def test_none_is_as_without_tools(tales):
    plain = answer(tales, max_tokens=9)["choices"]
    assert answer(tales, max_tokens=9, tools=TOOLS, tool_choice="none")["choices"] == plain


def test_the_template_decides_about_auto(tales, shown):
    assert refusal(tales, tools=TOOLS)["param"] == "tools"
    assert "does not show the tools" in refusal(tales, tools=TOOLS, tool_choice="auto")["message"]
    (choice,) = answer(shown, tools=TOOLS, max_tokens=9)["choices"]
    job = shown.service.job({"model": "tales", "messages": HELLO, "tools": TOOLS}, chat=True)
    assert '{"name": "add", "description": "Adds."' in job.prompts[0]
    assert choice["message"]["content"]
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_chats_tools_are_tokens_too(shown, choice):
    fields = {"model": "tales", "messages": HELLO, "tools": TOOLS, "tool_choice": choice}
    (token_ids,) = shown.service.job(fields, chat=True).token_ids
    assert ask(shown, "/tokenize", fields).json()["tokens"] == token_ids
    error = error_of(ask(shown, "/tokenize", {"prompt": "Once upon a time", "tools": TOOLS}), 400)
    assert (error["param"], "only chats" in error["message"]) == ("tools", True)


def test_a_chat_goes_on_behind_a_call(shown, tales):
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 7, "b": "one"}'}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "call_1", "content": "8"}]
    job = shown.service.job({"model": "tales", "messages": messages}, chat=True)
    assert job.prompts[0].endswith("assistant: add(7)tool: 8 for call_1bot:")
    assert "does not see" in refusal(tales, messages=messages)["message"]
    empty = {**call, "function": {"name": "now", "arguments": ""}}  # what takes no argument, as some models call it
    again = [*HELLO, {"role": "assistant", "tool_calls": [empty]}]
    job = shown.service.job({"model": "tales", "messages": again}, chat=True)
    assert job.prompts[0].endswith("assistant: now()bot:")
    for arguments in ("{", 3, None):
        broken = {**call, "function": {"name": "add", "arguments": arguments}}
        error = refusal(shown, messages=[{"role": "assistant", "tool_calls": [broken]}])
        assert error["param"] == "messages[0].tool_calls[0]"


READ = [
    ("It is late.", [], "It is late."),
    ('<tool_call>{"name": "now", "arguments": {}}</tool_call>', [("now", "{}")], ""),
    (
        'Let me see. <tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>\n'
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
        [("add", '{"a": 1, "b": "é"}'), ("now", "{}")],
        "Let me see.",
    ),
    ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', [], None),
    ('<tool_call>{"name": "now"}</tool_call> and <tool', [], None),
    ('<tool_call>{"name": "now", "argu', [], None),
    ("a < b <tool_ca", [], None),
]


@pytest.mark.parametrize(("text", "calls", "said"), READ, ids=lambda x: str(x)[:40])
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_calls_are_found_however_the_text_comes(text, calls, said, size):
    """What is not a call stays text: no part of an answer is lost."""
    reader = CallReader(tools_of(Fields({"tools": TOOLS}, openai_fields.TOOLS)))
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    content, found = "", []
    for part in [*parts, ""]:
        new, more = reader.read(part, ended=part == "")
        content, found = content + new, found + more
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in found] == calls
    assert [call["index"] for call in found] == list(range(len(calls)))
    assert content.strip() == (text if said is None else said).strip()


def test_a_call_that_is_nested_too_deeply_is_an_error_of_its_request():
    """As text where the model chose to call, for it may be anything."""
    text = '{"name": "now", "arguments": {"a": ' + "[" * 20_000 + "]" * 20_000 + "}}"
    required = CallReader(tools_of(Fields({"tools": TOOLS, "tool_choice": "required"}, openai_fields.TOOLS)))
    with pytest.raises(APIError, match="the arguments of a call are nested too deeply"):
        required.read(f"[{text}]", ended=True)
    reader = CallReader(tools_of(Fields({"tools": TOOLS}, openai_fields.TOOLS)))
    marked = f"<tool_call>{text}</tool_call>"
    assert reader.read(marked, ended=True) == (marked, [])


WRONG = [
    ({"tools": [1]}, "tools", "tools[0] must be"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools", "tools[0].function.name is missing"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "'add' appears twice"),
    ({"tools": TOOLS[2:] * 200}, "tools", "200 functions; the limit is 128"),
    ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", "tool_choice must be"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice",
        "a function that is not in tools",
    ),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice", "have another form"),
    (
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
            "tool_choice": "required",
        },
        "tools",
        "Unimplemented",
    ),
]


@pytest.mark.parametrize(("fields", "param", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_tools_that_are_refused(tales, fields, param, message):
    error = refusal(tales, **fields)
    assert message in error["message"]
    assert error["param"] == param


# --- The command line and batch lines -------------------------------------------------------------------------------


def test_a_flag_and_lines(tmp_path):
    stage, source, result = STAGES[5], tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    flag = ["--structured-outputs", '{"regex": "[a-z]{4}"}', "--seed", 1]
    status, said, _ = stage.main("--prompts", "Once", *flag, "--json")
    assert status == 0
    assert re.fullmatch("[a-z]{4}", json.loads(said)["outputs"][0]["text"])
    body = {"model": "tinytales", "prompt": "Once", "max_tokens": 99}
    lines = [
        {"prompt": "Once"},
        {"prompt": "Once", "sampling": {"structured_outputs": {"choice": ["fox", "bear"]}}},
        {"prompt": "Once", "sampling": {"structured_outputs": {"regex": "(a"}}},
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {**body, "response_format": SCHEMA}},
        {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {**body, "guided_choice": []}},
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    stage.main("--input", source, "--output", result, *flag)
    found = [json.loads(line) for line in result.read_text().splitlines()]
    by_id = {line.get("custom_id") or line["id"]: line for line in found}
    assert re.fullmatch("[a-z]{4}", by_id["line-1"]["text"])
    assert by_id["line-2"]["text"] in ("fox", "bear")
    assert "unclosed group" in by_id["line-3"]["error"]
    jsonschema.validate(json.loads(by_id["a"]["response"]["body"]["choices"][0]["text"]), PERSON)
    assert "at least one string" in by_id["b"]["error"]["message"]
    status, _, errors = stage.main("--prompts", "Once", "--structured-outputs", "[1]")
    assert (status, "--structured-outputs" in errors) == (2, True)
    status, _, errors = stage.main("--prompts", "Once", "--structured-outputs", '{"regex": "(a"}')
    assert (status, "unclosed group" in errors) == (2, True)

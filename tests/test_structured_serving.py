"""The server's forms: `response_format` and vLLM's fields, whole and streamed."""

import asyncio
import json
import re
import sys
import threading
import time

import jsonschema
import pytest

from stagewise.form_compiler import FormCheck
from stagewise.openai.chat import ChatTemplate
from tests.adapter import STAGES, wait_until
from tests.test_rude_clients import connect, request
from tests.test_serving import HELLO, TEMPLATE, ask, ask_async, error_of, limited, listening, read_events, serving
from tests.test_structured import PERSON, has_form


@pytest.fixture(scope="module")
def tales():
    with serving(6, "tinytales", chat=ChatTemplate(TEMPLATE, "it", {})) as app:
        yield app


def answer(app, path="/v1/chat/completions", **fields):
    prompt = {"messages": HELLO} if "chat" in path else {"prompt": "Once upon a time"}
    response = ask(app, path, {"model": "tales", "max_tokens": 150, "seed": 1, **prompt, **fields})
    assert response.status_code == 200, response.text
    return read_events(response.content) if fields.get("stream") else response.json()


def refusal(app, **fields):
    return error_of(ask(app, "/v1/chat/completions", {"model": "tales", "messages": HELLO, **fields}), 400)


# --- Forms ----------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
SHORT = {"type": "object", "properties": {"n": {"enum": [1, 23]}}, "required": ["n"], "additionalProperties": False}
FOX, NONE = {"choice": ["fox"]}, {"structured_outputs": {"choice": []}}
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED = [
    (CHAT, {"response_format": SCHEMA}, PERSON),
    (COMPLETION, {"response_format": SCHEMA}, PERSON),
    (COMPLETION, {"structured_outputs": {"json": json.dumps(SHORT)}}, SHORT),
    (CHAT, {"structured_outputs": {"json": SHORT, "disable_any_whitespace": True}}, SHORT),
    (COMPLETION, {"structured_outputs": {"regex": r"\d{4}-\d\d"}}, r"\d{4}-\d\d"),
    (CHAT, {"structured_outputs": {"choice": ["fox", "bear"]}}, "fox|bear"),
    (COMPLETION, {"structured_outputs": {"grammar": 'root ::= "a" | "b" root'}}, "b*a"),
]


@pytest.mark.parametrize(("path", "fields", "form"), ASKED, ids=lambda x: str(x)[:40])
def test_an_answer_has_its_form(tales, path, fields, form):
    (choice,) = answer(tales, path, **fields)["choices"]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert has_form(text, form)
    assert choice["finish_reason"] == "stop"
    events = answer(tales, path, **fields, stream=True)
    parts = [c["delta"].get("content", "") if path == CHAT else c["text"] for e in events for c in e["choices"]]
    assert "".join(parts) == text


def test_any_object_and_no_form(tales):
    (choice,) = answer(tales, response_format={"type": "json_object"})["choices"]
    assert choice["message"]["content"].startswith("{")
    for nothing in ({"response_format": {"type": "text"}}, {"structured_outputs": {}}):
        plain = answer(tales, max_tokens=9)["choices"]
        assert answer(tales, max_tokens=9, **nothing)["choices"] == plain


def test_a_form_that_fails_on_the_way_ends_its_request_alone(tales):
    """Even if it is the only request, the engine goes on."""
    error = refusal(tales, structured_outputs={"regex": "(.{0,300}a){0,300}"}, max_tokens=60)
    assert error["code"] == "generation_failed"
    assert re.search(r"fails after \d+ tokens: it is too large or too complex", error["message"])
    assert answer(tales, structured_outputs=FOX)["choices"][0]["message"]["content"] == "fox"


COSTLY = {"structured_outputs": {"json": {"type": "integer", "multipleOf": 16777213}}}


def test_how_long_a_form_may_be_compiled_is_a_flag(tales):
    fields = {"structured_outputs": {"json": {"type": "integer", "multipleOf": 9973}}}
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
        assert error["param"] == "structured_outputs"
        assert "compiling it takes over 1 s or 512 MB" in error["message"]
    assert len(compiled) == 1


def test_the_end_comes_while_forms_are_compiled(monkeypatch):
    """It waits for none of them, and those in the queue are dropped."""
    compiled, release = [], threading.Event()
    monkeypatch.setattr(FormCheck, "compile", lambda *form: compiled.append(form) or "")
    with serving(6, "tinytales") as app:
        compiler = app.service.compiler
        compiler.submit(release.wait)  # as if it took long to compile
        with listening(app) as (_, port):
            clients = [connect(port) for _ in range(5)]
            for i, client in enumerate(clients):
                form = {"structured_outputs": {"json": {"type": "integer", "multipleOf": 16777213 + i}}}
                client.sendall(request(**form, ignore_eos=False))
            wait_until(lambda: compiler._work_queue.qsize() == len(clients))
            start = time.monotonic()
        assert time.monotonic() - start < 20  # two seconds after the grace, and a lot for a busy machine
        release.set()
        compiler.submit(int).result(timeout=60)  # after all of them
        assert compiled == []
        for client in clients:
            client.close()


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
        {
            "custom_id": "b",
            "method": "POST",
            "url": "/v1/completions",
            "body": {**body, "structured_outputs": {"choice": []}},
        },
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
    for form, says in (("[1]", "--structured-outputs"), ('{"regex": "(a"}', "unclosed group")):
        assert says in stage.refusal("--prompts", "Once", "--structured-outputs", form)


def test_what_is_not_installed_is_no_lines_error(tmp_path, monkeypatch):
    """It would be an answer, which a resumed run keeps."""
    stage, source, result = STAGES[5], tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"prompt": "Once", "sampling": {"structured_outputs": {"choice": ["fox"]}}}) + "\n")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "llguidance", None)
        assert "needs the package llguidance" in stage.refusal("--input", source, "--output", result)
    assert stage.main("--input", source, "--output", result, "--resume")[0] == 0
    assert json.loads(result.read_text())["text"] == "fox"


def test_forms_that_wait_take_half_of_the_connections(tales):
    app = limited(tales, max_connections=4)
    app.service.num_forms = 2
    response = ask(app, CHAT, {"model": "tales", "messages": HELLO, "structured_outputs": FOX})
    assert error_of(response, 429)["code"] == "queue_full"
    assert answer(app)["choices"]
    assert answer(app, response_format={"type": "text"})["choices"]
    app.service.num_forms = 1
    assert answer(app, structured_outputs=FOX)["choices"][0]["message"]["content"] == "fox"
    assert app.service.num_forms == 1

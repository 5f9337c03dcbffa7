"""Lines of OpenAI's batch files: answered as by the server, next to our own, or refused."""

import asyncio

import pytest

from stagewise.openai.chat import ChatTemplate
from stagewise.openai.limits import Limits
from stagewise.serving.service import Run, Service
from tests.adapter import ROOT
from tests.test_batch_file import ONE, QUICK, TWO, near, openai_request, read_results, results_by_id, write_lines

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:"


@pytest.fixture
def files(tmp_path):
    """An input, its output, and the flags that run one into the other, with a chat template."""
    source, output, template = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "template"))
    template.write_text(TEMPLATE)
    return source, output, ["--input", source, "--output", output, "--chat-template", template, *QUICK]


def chat_request(custom_id, **body):
    request = openai_request(custom_id, messages=[{"role": "user", "content": "Hi"}])
    del request["body"]["prompt"]
    request["body"] |= body
    return request | {"url": "/v1/chat/completions"}


def answers_of(path):
    """The answers to OpenAI's requests, without what differs from one run to the next."""
    answers = {result["custom_id"]: result["response"]["body"] for result in read_results(path) if result["response"]}
    for body in answers.values():
        del body["created"]
    return answers


def test_openai_lines_are_answered_as_by_the_server(files):
    """What a body leaves out is taken from the command line."""
    source, output, command = files
    lines = [
        openai_request("text", stop=None, echo=False, user="me", store=False, metadata={"a": 1}, foo=None),
        openai_request("ids", prompt=[7454, 2402, 257], stop=["."], max_tokens=30),
        openai_request("several", n=2, temperature=1, seed=3, max_tokens=20),
        openai_request("echo", echo=True, logprobs=2, return_token_ids=True),
        openai_request("many", stop_token_ids=[640], min_tokens=2, prompt=["Once", "A fox"], prompt_logprobs=1),
        openai_request("defaults", temperature=None, max_tokens=None),
        openai_request("any", model=None),
        chat_request("chat", logprobs=True),
    ]
    write_lines(source, *lines)
    assert ONE.main(*command, "--temperature", 0.5, "--top-k", 1)[0] == 0
    ours = answers_of(output)

    async def served(body):
        async with Run(service, service.job(body, chat="messages" in body)) as run:
            return await service.whole(run)

    with ONE.AsyncLLM(model="tinytales", max_num_seqs=4) as engine:
        service = Service(ONE, engine, "tinytales", Limits(), chat=ChatTemplate(TEMPLATE, "a template", {}))
        for line in lines:
            name, given = line["custom_id"], {k: v for k, v in line["body"].items() if v is not None}
            body = {"model": "tinytales", "temperature": 0.5, "max_tokens": 8, "top_k": 1} | given
            theirs = asyncio.run(served(body))
            theirs["usage"].pop("prompt_tokens_details")  # what the cache had is no part of an answer to a line
            del theirs["id"], theirs["created"], ours[name]["id"]
            assert ours[name] == near(theirs), name


def test_openai_lines_next_to_ours_before_stage_4(files):
    """Stages without a server answer them too; only prompts can't be scored."""
    source, output, command = files
    own = {"id": "own", "prompt": "Once", "body": "of mine", "custom_id": "many", "response": 1}
    many = openai_request("many", prompt=["A fox", "Once upon a time"])
    write_lines(source, many, own, chat_request("chat"), openai_request("echo", echo=True, logprobs=1))
    assert TWO.main(*command)[0] == 1
    results = {result["id"] if "body" in result else result["custom_id"]: result for result in read_results(output)}
    params = TWO.SamplingParams(temperature=0, max_tokens=5)
    outputs = TWO.engine().generate(["A fox", "Once upon a time", "user: Hi\nbot:"], params)
    fox, once, hi = (one.outputs[0].text for one in outputs)
    assert [choice["text"] for choice in results["many"]["response"]["body"]["choices"]] == [fox, once]
    assert results["chat"]["response"]["body"]["choices"][0]["message"] == {"role": "assistant", "content": hi}
    assert own.items() <= results["own"].items()
    assert "stage 2 computes no log-probabilities of prompts" in results["echo"]["error"]["message"]


BAD_REQUESTS = {
    "a sampling field": (openai_request("a", temperature=-1), "line 1: temperature must be"),
    "another model": (openai_request("a", model="gpt2"), "body.model is 'gpt2', but this run has 'tinytales': name "),
    "a stream": (openai_request("a", stream=True), "stream must be false"),
    "an unknown field": (openai_request("a", foo=False), "unknown field foo"),
    "beams": (openai_request("a", use_beam_search=True), "take --beam-width, for prompts on the command line, or LLM."),
    "tools": (openai_request("a", tools=[1]), "tools [1] is not supported: no functions are called here"),
    "a prompt for chats": (chat_request("a", prompt="Hi"), "unknown field prompt"),
    "no body": (openai_request("a") | {"body": 1}, "body must be a JSON object"),
    "another url": (openai_request("a") | {"url": "/v1/nothing"}, "url one of /v1/completions, /v1/chat/completions"),
    "another method": (openai_request("a") | {"method": "GET"}, "method must be 'POST'"),
    "one more field": (openai_request("a") | {"more": 1}, "a request has no field 'more'"),
}


def test_openai_lines_that_are_refused(files):
    """Each has its custom_id; the answer to a second one with the same, or to one without, is told by its id."""
    source, output, command = files
    lines = [request | {"custom_id": name} for name, (request, _) in BAD_REQUESTS.items()]
    lines += [openai_request("twice"), openai_request("twice", prompt="again"), openai_request(7)]
    write_lines(source, *lines)
    assert ONE.main(*command)[0] == 1
    answers, results = {}, results_by_id(output)
    for result in results.values():
        if result.get("response", 1) is None:
            answers[result["custom_id"]] = result["error"]["message"]
    for name, (_, says) in BAD_REQUESTS.items():
        assert says.removeprefix("line 1: ") in answers[name]
    number = len(lines)
    assert f"line {number - 1}: an earlier line has the same id, 'twice'" in answers["twice"]
    assert results[f"line-{number - 1}"]["custom_id"] == "twice"
    assert results[f"line-{number}"]["error"] == f"line {number}: custom_id must be a string, got 7"


def test_a_template_that_can_not_be_used(files):
    """One that is given is an error at the start; without one chats are refused."""
    source, output, command = files
    write_lines(source, chat_request("chat"))
    path = command[command.index("--chat-template") + 1]
    without = ["--input", source, "--output", output, *QUICK]
    assert "a chat needs a chat template, and the model has none" in ONE.refusal(*without)
    for content, says in ((b"{% if %}", "--chat-template, line 1"), (b"\xff", f"{path} is not UTF-8")):
        path.write_bytes(content)
        assert says in ONE.refusal(*command)


def test_the_example_of_the_documentation_resumes(files):
    _, output, command = files
    command[1] = ROOT / "docs/examples/requests.jsonl"
    assert ONE.main(*command)[0] == 0
    assert {result["response"]["status_code"] for result in read_results(output)} == {200}
    whole, expected = output.read_bytes(), answers_of(output)
    output.write_bytes(whole[: len(whole) // 2])
    assert ONE.main(*command, "--resume")[0] == 0
    assert answers_of(output) == near(expected)


def test_equal_prompts_of_a_request_draw_by_themselves(files):
    source, output, command = files
    write_lines(
        source,
        openai_request("many", prompt=["Once"] * 3, temperature=1, max_tokens=20),
        openai_request("seed", prompt=["Once"] * 3, temperature=1, max_tokens=20, seed=7),
    )
    assert ONE.main(*command, "--temperature", 1)[0] == 0
    texts = {name: [choice["text"] for choice in body["choices"]] for name, body in answers_of(output).items()}
    assert (len(set(texts["many"])), len(set(texts["seed"]))) == (3, 1)


def test_log_probabilities_from_the_command_line(files):
    source, output, command = files
    write_lines(source, openai_request("plain"), chat_request("chat"))
    assert ONE.main(*command, "--logprobs", 1)[0] == 0
    assert all(body["choices"][0]["logprobs"] for body in answers_of(output).values())

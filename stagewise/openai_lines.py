"""Lines of OpenAI's batch files, which `--input` takes beside its own: requests to /v1/completions, and their answers.

A request is {"custom_id": …, "method": "POST", "url": "/v1/completions", "body": {"model": …, "prompt": …}}. The body
may have sampling fields, `use_beam_search` with what belongs to it, and `priority`; what it leaves out is as on the
command line. Its answer is {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}. Of a
request that is wrong `response` is null, and `error` says what is wrong.

What only a server does (chats, `echo`, log-probabilities in OpenAI's form) is refused by name.
`python -m stagewise.serving.batch` does that too, but can't go on after a kill.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from .beams import BEAM_FIELDS
from .forms import FORM_FIELDS, form_of
from .openai_fields import IDLE, Others, asks_for_nothing

URL, CHATS_URL = "/v1/completions", "/v1/chat/completions"
IN_OTHER_FORM = {
    "logprobs",
    "prompt_logprobs",
    "logits_processors",
}  # fields of SamplingParams that OpenAI means otherwise
ELSEWHERE = "not in the lines of --input; python -m stagewise.serving.batch answers it"
NOT_IN_LINES: Others = {
    "echo": ((False,), ELSEWHERE),
    "logprobs": ((), ELSEWHERE),
    "prompt_logprobs": ((), ELSEWHERE),
    "return_token_ids": ((False,), ELSEWHERE),
    "return_tokens_as_token_ids": ((False,), ELSEWHERE),
    "truncation_side": (("left",), ELSEWHERE),
    "stream": ((False,), "a line has one answer"),
    "stream_options": (({},), "a line has one answer"),
}


def is_request(values: dict) -> bool:
    """Whether a line is such a request, and none of our own that carries fields of these names."""
    return {"custom_id", "body"} <= values.keys() and not {"prompt", "prompt_token_ids"} & values.keys()


def to_line(request: dict, model: str, names: set[str]) -> dict:
    """The same request in our own words. Raises ValueError for what is not answered here.

    Args:
        model: the one that runs, as `--model` names it.
        names: of the sampling fields that a line may have.
    """
    if unknown := sorted(request.keys() - {"custom_id", "method", "url", "body"}):
        raise ValueError(f"a request has no field {unknown[0]!r:.80}")
    if request.get("url") == CHATS_URL:
        raise ValueError(f"url {CHATS_URL!r} is {ELSEWHERE}")
    if (request.get("method"), request.get("url")) != ("POST", URL):
        raise ValueError(f"method must be 'POST', and url {URL!r}")
    if not isinstance(request["body"], dict):
        raise ValueError(f"body must be a JSON object, got {request['body']!r:.80}")
    body = {name: value for name, value in request["body"].items() if value is not None}
    asked, prompt = body.pop("model", None), body.pop("prompt", None)
    if asked not in (model, Path(model).name):
        raise ValueError(f"body.model must be {model!r}, which runs here, got {asked!r:.80}")
    if not isinstance(prompt, str) and (not isinstance(prompt, list) or any(isinstance(i, str | list) for i in prompt)):
        raise ValueError(f"body.prompt must be one text, or a list of token ids, got {prompt!r:.80}")
    line = {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt, "sampling": {}}
    others = {**IDLE, **NOT_IN_LINES, "best_of": ((body.get("n", 1),), "no more are made than given")}
    others |= {} if "n" in names else {"n": ((1,), "this stage makes one completion")}
    if (form := form_of(body)) is not None:
        line["sampling"]["structured_outputs"] = form[1]
    for name, value in body.items():
        if name in FORM_FIELDS:
            continue
        if name in (names - IN_OTHER_FORM) | {*BEAM_FIELDS}:
            line["sampling"][name] = value
        elif name == "priority":
            line["priority"] = value
        elif not asks_for_nothing(name, value, others, "body."):
            raise ValueError(f"the field body.{name:.80} is not known here")
    return line


def answer_id(request: dict) -> str:
    """Names the answer to a request by all that the request says, so that a run that goes on knows what is answered."""
    return f"batch_req_{hashlib.sha256(json.dumps(request).encode()).hexdigest()[:32]}"


def answer(request: dict, output: Any) -> dict:
    """What OpenAI's batch interface answers."""
    name = answer_id(request).removeprefix("batch_req_")
    choices = [
        {"index": c.index, "text": c.text, "logprobs": None, "finish_reason": c.finish_reason}
        | ({"length_limit": c.length_limit} if c.length_limit else {})
        for c in output.outputs
    ]
    num_prompt, num_output = len(output.prompt_token_ids), sum(len(c.token_ids) for c in output.outputs)
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": num_prompt + num_output}
    body = {"id": f"cmpl-{name}", "object": "text_completion", "created": int(time.time())}
    body |= {"model": request["body"]["model"], "choices": choices, "usage": usage}
    response = {"status_code": 200, "request_id": f"req_{name}", "body": body}
    return {"id": answer_id(request), "custom_id": request["custom_id"], "response": response, "error": None}


def refusal(request: dict, message: str | None, code: str = "invalid_request") -> dict:
    """The answer to a request that is wrong, or that failed."""
    error = {"code": code, "message": message}
    return {"id": answer_id(request), "custom_id": request["custom_id"], "response": None, "error": error}

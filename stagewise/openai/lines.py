"""Lines of OpenAI's batch files, which `--input` takes besides its own: requests to /v1/completions, and their answers.

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

from ..beams import BEAM_FIELDS
from .answers import around, length_limit, usage
from .fields import COMPLETION, IDLE, SAMPLING, objection
from .forms import FORM_FIELDS, form_of

URL, CHATS_URL = "/v1/completions", "/v1/chat/completions"
ELSEWHERE = "not in the lines of --input; python -m stagewise.serving.batch answers it"
NOT_IN_LINES = {name: ((field.default,), ELSEWHERE) for name, field in COMPLETION.items()}
NOT_IN_LINES |= {name: ((COMPLETION[name].default,), "a line has one answer") for name in ("stream", "stream_options")}
NOT_IN_LINES["n"] = ((1,), "this stage makes one completion")


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
    if (form := form_of(body)) is not None:
        line["sampling"]["structured_outputs"] = form[1]
    for name, value in body.items():
        if name in BEAM_FIELDS or (name in SAMPLING and name in names and name not in FORM_FIELDS):
            line["sampling"][name] = value
        elif name == "priority":
            line["priority"] = value
        elif name not in FORM_FIELDS and (error := objection(name, value, others, "body.")):
            raise error
    return line


def answer_id(request: dict) -> str:
    """Names the answer to a request by all that the request says, so that a run that goes on knows what is answered."""
    return f"batch_req_{hashlib.sha256(json.dumps(request).encode()).hexdigest()[:32]}"


def answer(request: dict, output: Any) -> dict:
    """What OpenAI's batch interface answers."""
    name = answer_id(request).removeprefix("batch_req_")
    choices = [
        {"index": c.index, "text": c.text, "logprobs": None, "finish_reason": c.finish_reason, **length_limit(c)}
        for c in output.outputs
    ]
    body = around(f"cmpl-{name}", "text_completion", int(time.time()), request["body"]["model"], choices)
    body["usage"] = usage(len(output.prompt_token_ids), sum(len(c.token_ids) for c in output.outputs))
    return response(answer_id(request), request["custom_id"], f"req_{name}", body)


def response(name: str, custom_id: str, request_id: str, body: dict, status: int = 200) -> dict:
    """The line of an answer."""
    told = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": name, "custom_id": custom_id, "response": told, "error": None}


def refusal(name: str, custom_id: str | None, message: str | None, code: str = "invalid_request") -> dict:
    """The line of a request that is wrong, or that failed."""
    return {"id": name, "custom_id": custom_id, "response": None, "error": {"code": code, "message": message}}

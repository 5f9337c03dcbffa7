"""Lines of OpenAI's batch files, which `--input` accepts as well: requests, answered as by the server.

A request is {"custom_id": …, "method": "POST", "url": "/v1/completions", "body": {…}}, or one to /v1/chat/completions.
Whatever its body leaves out is taken from the command line, except for `prompt_logprobs`. Its answer is {"id",
"custom_id", "response": {"status_code", "request_id", "body"}, "error"}. If a request is wrong or fails, `response` is
null, and `error` says why.
"""

import hashlib
import json
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..sampling import Sampling
from ..stages import Stage
from .answers import Wording, around, choice_of, of_prompt, usage
from .errors import bad_request
from .job import Job, Served, chat_job, completion_job
from .limits import Limits

JOBS = {"/v1/completions": completion_job, "/v1/chat/completions": chat_job}
NO_LIMIT = 2**62
NO_LIMITS = {field.name: NO_LIMIT for field in fields(Limits) if field.type in (int, "int")} | {"max_logprobs": -1}


def is_request(values: dict) -> bool:
    """Whether a line is such a request, rather than one of ours with fields of these names."""
    return {"custom_id", "body"} <= values.keys() and not {"prompt", "prompt_token_ids"} & values.keys()


def check_request(request: dict, model: str) -> None:
    """Raise ValueError unless it has the form above, and is for this model; the rest of its body is read later."""
    if unknown := sorted(request.keys() - {"custom_id", "method", "url", "body"}):
        raise ValueError(f"a request has no field {unknown[0]!r:.80}")
    if request.get("method") != "POST" or request.get("url") not in [*JOBS]:
        raise ValueError(f"method must be 'POST', and url one of {', '.join(JOBS)}")
    if not isinstance(request["body"], dict):
        raise ValueError(f"body must be a JSON object, got {request['body']!r:.80}")
    if (named := request["body"].get("model")) not in (None, model, Path(model).name):
        raise ValueError(f"body.model is {named!r:.80}, but this run has {model!r}: name that, or leave model out")


def served_lines(stage: Stage, llm: Any, sampling: Sampling) -> Served:
    """What answers requests without a server. sampling: defaults for what they leave out."""
    given = {name: value for name, value in sampling.fields.items() if value is not None and name != "prompt_logprobs"}
    return Served(stage, llm, llm.config.model, Limits(**NO_LIMITS), defaults=given)


def read_job(served: Served, request: dict) -> Job:
    """The job of a request's body. Raises ValueError."""
    body = {**request["body"], "model": served.model_name}  # or another name for it, see `check_request`
    job = JOBS[request["url"]](served, body)
    if job.fields["stream"]:
        raise bad_request("stream must be false: a line has one answer", param="stream")
    return job


def longest_output(request: dict, default: int) -> int:
    """The maximum length of the output, as far as it is known before the body is checked."""
    given = [request["body"].get(name) for name in ("max_tokens", "max_completion_tokens")]
    return next((value for value in given if type(value) is int), default)


def answer_id(request: dict) -> str:
    """The id of a request's answer, derived from the whole request, so that a resumed run knows what is answered."""
    return f"batch_req_{hashlib.sha256(json.dumps(request).encode()).hexdigest()[:32]}"


def answer(served: Served, request: dict, job: Job, outputs: list[Any]) -> dict:
    """The answer in OpenAI's batch format. outputs: the RequestOutputs of the prompts."""
    name, choices = answer_id(request).removeprefix("batch_req_"), []
    prompts = [getattr(output, "prompt_logprobs", None) for output in outputs]  # from stage 4 on
    for i, output in enumerate(outputs):
        for completion in output.outputs:
            piece = Wording(served, job, i, len(choices)).piece(completion, prompts[i])
            choices.append({**choice_of(job, piece), **({} if job.chat else of_prompt(job, i, prompts[i]))})
    kind, prefix = ("chat.completion", "chatcmpl") if job.chat else ("text_completion", "cmpl")
    model = request["body"].get("model") or served.model_name
    body = around(f"{prefix}-{name}", kind, int(time.time()), model, choices)
    num_tokens = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    body |= {"usage": usage(job.num_prompt_tokens, num_tokens)}
    body |= of_prompt(job, 0, prompts[0]) if job.chat else {}
    response = {"status_code": 200, "request_id": f"req_{name}", "body": body}
    return {"id": answer_id(request), "custom_id": request["custom_id"], "response": response, "error": None}


def refusal(name: str, custom_id: str, message: str | None, code: str = "invalid_request") -> dict:
    """The line of a request that is wrong, or that failed."""
    return {"id": name, "custom_id": custom_id, "response": None, "error": {"code": code, "message": message}}
